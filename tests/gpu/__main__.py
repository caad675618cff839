"""Run the scenarios on a GPU host: `python -m gpu OUT MODELS [PART-OF-NAME …]`; results.json and the logs go to OUT."""

import hashlib
import json
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from e2e.load import Clients, traffic
from e2e.vllmd_process import Instance, VllmdProcess, free_port, running
from gpu.scenarios import SCENARIOS, Scenario, hog, serve

_LIMIT_S = 420.0
_COPY_BYTES = 200_000
# Full steps of 8192 tokens: their activations are what finds no room.
LONG_PROMPTS = (Clients(8, prompt_tokens=8000, output_tokens=8),)
VLLMD = (sys.executable, "-m", "vllmd.cli.main")


def main(out: str, models: str, *wanted: str) -> int:
    """Run every scenario whose name holds one of the words; return 1 if one ended otherwise than it should."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    results = []
    for number, scenario in enumerate(SCENARIOS, 1):
        if wanted and not any(word in scenario.name for word in wanted):
            continue
        results.append(run(scenario, folder, models, number))
        (folder / "results.json").write_text(json.dumps(results, indent=1))
        print(json.dumps(results[-1], indent=1), flush=True)  # noqa: T201 - the caller reads along
    return int(any(not result["as_expected"] for result in results))


def run(scenario: Scenario, out: Path, models: str, number: int) -> dict[str, Any]:
    """Run one scenario; return what came of it."""
    place = Path("/tmp/vllmd-gpu") / str(number)  # noqa: S108 - a fresh machine; kept short for the socket's path
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    began_s = time.monotonic()
    with ExitStack() as stack:
        early = 0.0 if scenario.hog_comes_late else scenario.hog_gib
        neighbour = stack.enter_context(hog(early))
        daemon = stack.enter_context(
            running(place, serve(models, scenario, free_port()), scenario.settings, vllmd=VLLMD)
        )
        if scenario.hog_comes_late:
            url = daemon.wait_serving(1, _LIMIT_S)["url"]
            stack.enter_context(hog(scenario.hog_gib))
            began_s = time.monotonic()
            stack.enter_context(traffic(url, "m", LONG_PROMPTS))
        if neighbour is not None and neighbour.stdin is not None and scenario.hog_leaves:
            daemon.wait(will_fail, "vLLM has looked at the free memory", _LIMIT_S)
            neighbour.stdin.close()
        instance = daemon.wait(lambda i: ended(i, scenario), scenario.ends, _LIMIT_S)
        took_s = time.monotonic() - began_s
    keep_logs(daemon, place, out, number)
    return summary(scenario, instance, took_s, place)


def will_fail(instance: Instance) -> bool:
    """Whether vLLM has found too little free memory: its engine says so some seconds before the launch ends."""
    log = Path(instance.get("log") or "/dev/null")
    return b"less than desired GPU memory utilization" in log.read_bytes() or instance.get("last_failure") is not None


def ended(instance: Instance, scenario: Scenario) -> bool:
    """Whether the scenario is over: held, or serving after a failure."""
    state = instance["state"]
    return state == "held" or (
        state == "serving" and (instance.get("last_failure") is not None or not scenario.hog_gib)
    )


def summary(scenario: Scenario, instance: Instance, took_s: float, place: Path) -> dict[str, Any]:
    """Return one row of the table."""
    logs = sorted((place / "state" / "default" / "logs").iterdir())
    return {
        "scenario": scenario.name,
        "as_expected": instance["state"] == scenario.ends,
        "state": instance["state"],
        "launches": sum(instance["launches"].values()),
        "took_s": round(took_s, 1),
        "failure": (instance["last_failure"] or {}).get("class"),
        "decisions": [{"changes": d["changes"], "message": d["message"]} for d in instance["decisions"]],
        "message": instance["message"],
        "memory": instance["memory"],
        "start": instance["start"],
        "log_sha256": {log.name: hashlib.sha256(log.read_bytes()).hexdigest() for log in logs},
    }


def keep_logs(daemon: VllmdProcess, place: Path, out: Path, number: int | str) -> None:
    """Copy vllmd's log and the ends of the server's into one file."""
    logs = [daemon.log_path, *sorted((place / "state" / "default" / "logs").iterdir())]
    text = "".join(f"--- {log.name}\n{log.read_bytes()[-_COPY_BYTES:].decode(errors='replace')}\n" for log in logs)
    (out / f"scenario-{number}.log").write_text(text)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
