"""The names of vLLM that vllmd_shim wraps or reads: where each stands, and what is off where it is missing."""

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shim_names.source import Source, attributes, bound, calls, function, members, method

_SCHEDULER = "v1/core/sched/scheduler.py"
_CORE = "v1/engine/core.py"
_CONFIGS = ("config/__init__.py", "config/vllm.py", "config/model.py", "config/parallel.py", "config/speculative.py")
_WORKERS = ("v1/worker/worker_base.py", "worker/worker_base.py")  # from 0.12; before
_LOAD = "load_general_plugins"

_ALL = "all of it"
_LIVE = "live values, heartbeat"
_RESTART = "planned restarts"


@dataclass(frozen=True, slots=True)
class Name:
    """One name; `found` says "yes", "no", or how it is there. `off` is what cannot be had without it."""

    name: str
    off: str
    found: Callable[[Source], str]


def _yes(*conditions: object) -> str:
    return "yes" if all(conditions) else "no"


def _hook(source: Source) -> str:
    config = source.class_("SchedulerConfig", "config/scheduler.py", "config/__init__.py")
    exported = "SchedulerConfig" in bound(source.module("config/__init__.py"))
    return _yes(exported, "get_scheduler_cls" in members(config))


def _hook_is_used(source: Source) -> str:
    return _yes("get_scheduler_cls" in calls(source.module(_CORE)))


def _schedule(source: Source) -> str:
    found = method(source.class_("Scheduler", _SCHEDULER), "schedule")
    if found is None:
        return "no"
    arguments = [argument.arg for argument in found.args.args[1:]]
    return f"yes, ({', '.join(arguments)})" if arguments else "yes"


def _read_by_schedule(name: str) -> Callable[[Source], str]:
    """Look whether the scheduler has an attribute, and reads it in every step."""

    def found(source: Source) -> str:
        scheduler = source.class_("Scheduler", _SCHEDULER)
        set_ = attributes(method(scheduler, "__init__"), "self", stored=True)
        return _yes(name in set_, name in attributes(method(scheduler, "schedule"), "self", stored=False))

    return found


def _set_by_scheduler(*names: str) -> Callable[[Source], str]:
    def found(source: Source) -> str:
        first = method(source.class_("Scheduler", _SCHEDULER), "__init__")
        return _yes(set(names) <= attributes(first, "self", stored=True))

    return found


def _of_scheduler_config(name: str) -> Callable[[Source], str]:
    def found(source: Source) -> str:
        return _yes(name in members(source.class_("SchedulerConfig", "config/scheduler.py", "config/__init__.py")))

    return found


def _of_config(owner: str, name: str) -> Callable[[Source], str]:
    def found(source: Source) -> str:
        return _yes(name in members(source.class_(owner, *_CONFIGS)))

    return found


def _tokens_of_step(source: Source) -> str:
    return _yes("total_num_scheduled_tokens" in members(source.class_("SchedulerOutput", "v1/core/sched/output.py")))


def _parser_loads_plugins(source: Source) -> str:
    arguments = source.class_("AsyncEngineArgs", "engine/arg_utils.py")
    return _yes(_LOAD in calls(method(arguments, "add_cli_args")))


def _group(source: Source) -> str:
    texts = (node.value for node in ast.walk(source.module("plugins/__init__.py")) if isinstance(node, ast.Constant))
    return _yes("vllm.general_plugins" in texts)


def _engine_loads_plugins(source: Source) -> str:
    return _yes(_LOAD in calls(source.module(_CORE)))


def _command_line_is_read_later(source: Source) -> str:
    """Look whether `vllm` parses sys.argv itself, after its parser was built."""
    main = function(source.module("entrypoints/cli/main.py"), "main")
    nodes = ast.walk(main) if main is not None else ()
    return _yes(any(isinstance(node, ast.Call) and ast.unparse(node) == "parser.parse_args()" for node in nodes))


def _middleware(source: Source) -> str:
    modules = list(source.below("entrypoints/", "cli_args.py"))
    owners = [node for tree in modules for node in tree.body if isinstance(node, ast.ClassDef)]
    return _yes(any("middleware" in members(owner) for owner in owners))


def _middleware_is_added(source: Source) -> str:
    loops = (n for tree in source.below("entrypoints/", ".py") for n in ast.walk(tree) if isinstance(n, ast.For))
    return _yes(any(ast.unparse(n.iter) == "args.middleware" and "add_middleware" in calls(n) for n in loops))


def _bind(source: Source) -> str:
    """Look for the function that binds the server's port, and whether it shares it by itself."""
    for tree in source.below("entrypoints/", ".py"):
        found = function(tree, "create_server_socket")
        if found is not None and "bind" in calls(found):
            shares = any(isinstance(n, ast.Attribute) and n.attr == "SO_REUSEPORT" for n in ast.walk(found))
            asked = any(argument.arg == "reuse_port" for argument in found.args.kwonlyargs)
            return "yes" if asked or not shares else "yes, shares it itself"
    return "no"


def _gate(source: Source) -> str:
    for path in _WORKERS:
        if "init_device" in members(source.class_("WorkerWrapperBase", path)):
            return f"yes, in {path.rpartition('/')[0]}"
    return "no"


def _worker_loads_plugins(source: Source) -> str:
    wrapper = source.class_("WorkerWrapperBase", *_WORKERS)
    return _yes(_LOAD in calls(method(wrapper, "init_worker")))


NAMES: Sequence[Name] = (
    Name("plugins of the group `vllm.general_plugins`", _ALL, _group),
    Name("`AsyncEngineArgs.add_cli_args` loads them", _RESTART, _parser_loads_plugins),
    Name("the engine loads them (`v1.engine.core`)", _LIVE, _engine_loads_plugins),
    Name("`vllm.config.SchedulerConfig.get_scheduler_cls`", _LIVE, _hook),
    Name("the engine chooses its scheduler by it", _LIVE, _hook_is_used),
    Name("`Scheduler.schedule`, its further arguments", _LIVE, _schedule),
    Name(
        "`max_num_scheduled_tokens`, read in each step",
        "live token budget",
        _read_by_schedule("max_num_scheduled_tokens"),
    ),
    Name(
        "`max_num_active_reqs`, read in each step", "nothing: the next one is", _read_by_schedule("max_num_active_reqs")
    ),
    Name("`max_num_running_reqs`, read in each step", "live sequences", _read_by_schedule("max_num_running_reqs")),
    Name("`running`, `waiting` of the scheduler", _LIVE, _set_by_scheduler("running", "waiting")),
    Name("`scheduler_config`, `vllm_config` of it", _LIVE, _set_by_scheduler("scheduler_config", "vllm_config")),
    Name("`SchedulerOutput.total_num_scheduled_tokens`", _LIVE, _tokens_of_step),
    Name(
        "`SchedulerConfig.enable_chunked_prefill`", "live token budget", _of_scheduler_config("enable_chunked_prefill")
    ),
    Name("`SchedulerConfig.disable_chunked_mm_input`", "its check", _of_scheduler_config("disable_chunked_mm_input")),
    Name("`ParallelConfig.data_parallel_size`", _LIVE, _of_config("ParallelConfig", "data_parallel_size")),
    Name("`ModelConfig.is_hybrid`", "its check (Mamba)", _of_config("ModelConfig", "is_hybrid")),
    Name("`ModelConfig.is_attention_free`", "its check (Mamba)", _of_config("ModelConfig", "is_attention_free")),
    Name("`has_mamba_layers` of the scheduler", "its check (Mamba)", _set_by_scheduler("has_mamba_layers")),
    Name("`ModelConfig.is_diffusion`", "its check", _of_config("ModelConfig", "is_diffusion")),
    Name("`num_spec_tokens` of the scheduler", "the next one counts", _set_by_scheduler("num_spec_tokens")),
    Name(
        "`SpeculativeConfig.num_speculative_tokens`",
        "room for drafts",
        _of_config("SpeculativeConfig", "num_speculative_tokens"),
    ),
    Name("`vllm` parses its command line after that", _RESTART, _command_line_is_read_later),
    Name("option `--middleware`", _RESTART, _middleware),
    Name("the application gets each middleware named", _RESTART, _middleware_is_added),
    Name("`create_server_socket` binds the port", _RESTART, _bind),
    Name("`WorkerWrapperBase.init_device`", "the gate", _gate),
    Name("a worker loads plugins before that", "the gate", _worker_loads_plugins),
)
