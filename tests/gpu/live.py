"""A budget changed live on a real GPU: `python -m gpu.live OUT MODELS`; live.json and the server's log go to OUT.

One server serves a steady load while `vllmd set` moves its batched tokens down and up again; each row says what the
clients saw of it.
"""

import hashlib
import json
import math
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e.load import Clients, Observed, traffic
from e2e.vllmd_process import Instance, VllmdProcess, free_port, running
from gpu.__main__ import VLLMD, keep_logs

_FLAG = "max-num-batched-tokens"
_BUDGETS = (8192, 512, 8192, 1024)  # the first is the launched one
_START_LIMIT_S = 400.0
_SETTLING_S = 5.0  # requests that were begun before are through
_PHASE_S = 45.0
# Six requests a second or so, each of about 3,600 tokens in and 170 out.
LOAD = (Clients(10, prompt_tokens=3600, output_tokens=170),)


def main(out: str, models: str) -> int:
    """Measure every budget; return 0 if no request failed and the process stayed the same."""
    folder, place = Path(out), Path("/tmp/vllmd-gpu/live")  # noqa: S108 - a fresh machine; short for the socket's path
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    program = (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", f"{models}/8b")
    options = ("--load-format", "dummy", "--served-model-name", "m", "--max-model-len", "8192", f"--{_FLAG}", "8192")
    more = ("--async-scheduling", "--no-enable-prefix-caching", "--host", "127.0.0.1", "--port", str(free_port()))
    rows = measure([*program, *options, *more], _BUDGETS, LOAD, _PHASE_S, place, folder)
    return int(any(row["errors"] for row in rows) or len({row["pid"] for row in rows}) > 1)


def measure(
    argv: Sequence[str],
    budgets: Sequence[int],
    load: Sequence[Clients],
    phase_s: float,
    place: Path,
    out: Path,
    environ: dict[str, str] | None = None,
    model: str = "m",
) -> list[dict[str, Any]]:
    """Serve under load with one budget after the other, the first as launched; return and write what was seen."""
    rows: list[dict[str, Any]] = []
    with running(place, list(argv), {}, environ, VLLMD) as daemon:
        instance = daemon.wait_serving(1, _START_LIMIT_S)
        with traffic(instance["url"], model, load) as seen:
            for budget in budgets:
                told = set_to(daemon, str(budget)) if rows else None
                time.sleep(_SETTLING_S)  # see there
                rows.append({"budget": budget, "told": told, **phase(seen, phase_s), **engine(daemon.status())})
                (out / "live.json").write_text(json.dumps(rows, indent=1))
                print(json.dumps(rows[-1], indent=1), flush=True)  # noqa: T201 - the caller reads along
        rows[-1]["log_sha256"] = hashlib.sha256(Path(instance["log"]).read_bytes()).hexdigest()
        (out / "live.json").write_text(json.dumps(rows, indent=1))
        keep_logs(daemon, place, out, "live")
    return rows


def set_to(daemon: VllmdProcess, value: str) -> Instance:
    """Set the budget by the command; return what it tells, the value in force among it."""
    done = daemon.ask("set", f"{_FLAG}={value}", "--json")
    assert done.returncode == 0, done.stderr
    told: Instance = json.loads(done.stdout)
    return told


def phase(seen: Observed, seconds: float) -> dict[str, Any]:
    """Watch the clients for a while; return the gaps between their tokens in ms, and what they completed."""
    gaps, completed, errors = len(seen.gaps_s), seen.completed, len(seen.errors)
    time.sleep(seconds)  # what is measured: this long
    found = sorted(seen.gaps_s[gaps:])
    return {
        "itl_ms": {name: round(1000 * quantile(found, share), 1) for name, share in QUANTILES.items()},
        "completed": seen.completed - completed,
        "errors": len(seen.errors) - errors,
        "seconds": seconds,
    }


QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of values in order, by the nearest rank."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def engine(instance: Instance) -> dict[str, Any]:
    """Return what the engine tells: its process, the value in force, and the time that the shim takes of a step."""
    (knob,) = [knob for knob in instance["live"]["flags"] if knob["flag"] == _FLAG]
    beat = instance["live"]["heartbeat"]
    own_us = round(1e6 * beat["overhead_seconds_per_step"], 1)
    return {"pid": instance["pid"], "in_force": knob["in_force"], "overhead_us": own_us, "steps": beat["steps"]}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
