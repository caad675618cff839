"""Restarts of a server on a real GPU: `python -m gpu.restarts OUT MODELS [TENSOR-PARALLEL]`; restarts.json goes to OUT.

Three planned restarts with the gate, then one without it, each under the same steady load. The outage is the longest
time without a token of any stream, and what the next server did in it is told by the times of its own log.
"""

import json
import re
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from e2e.load import Clients, Observed, traffic
from e2e.vllmd_process import Settings, VllmdProcess, free_port, running
from gpu.__main__ import VLLMD, keep_logs
from own_network import NoNetworkError, network
from steady_load import Outcomes, steady

_START_LIMIT_S = 400.0
_AROUND_S = 10.0  # of serving before and after each restart
_RATE = 5.0  # requests a second whose tokens are timed
LOAD = (Clients(4, prompt_tokens=1500, output_tokens=120),)  # beside them
KINDS = ("gated", "gated", "gated", "plain start")
_LINE_TIME = re.compile(r" (\d\d-\d\d \d\d:\d\d:\d\d) \[[^]]*\] (.*)")
_TEXT_CHARS = 90


def main(out: str, models: str, parallel: str = "1") -> int:
    """Restart as often as there are kinds; return 0 if no request was lost."""
    folder, place = Path(out), Path("/tmp/vllmd-gpu/restarts")  # noqa: S108 - a fresh machine; short for the socket's path
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    program = (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", f"{models}/8b")
    options = ("--load-format", "dummy", "--served-model-name", "m", "--max-model-len", "8192", "--async-scheduling")
    more = ("--tensor-parallel-size", parallel, "--host", "127.0.0.1", "--port", str(free_port()))
    # A network of its own has loopback alone, by which vLLM finds itself then.
    environ = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    with ExitStack() as stack:
        try:
            stack.enter_context(network())
        except NoNetworkError as error:
            print(f"without a network of its own: {error}")  # noqa: T201 - the caller reads along
        rows = measure([*program, *options, *more], KINDS, place, folder, environ)
    return int(any(row["errors"] for row in rows))


def measure(
    argv: Sequence[str],
    kinds: Sequence[str],
    place: Path,
    out: Path,
    environ: dict[str, str],
    model: str = "m",
    load: Sequence[Clients] = LOAD,
) -> list[dict[str, Any]]:
    """Restart under load, once for each kind; return and write what the clients saw."""
    rows: list[dict[str, Any]] = []
    with running(place, list(argv), settings(kinds[0]), environ, VLLMD) as daemon:
        url = daemon.wait_serving(1, _START_LIMIT_S)["url"]
        with traffic(url, model, load) as beside, steady(url, model, _RATE) as seen:
            for kind in kinds:
                rows.append({"kind": kind, **restart(daemon, argv, kind, seen, beside)})
                (out / "restarts.json").write_text(json.dumps(rows, indent=1))
                print(json.dumps(rows[-1], indent=1), flush=True)  # noqa: T201 - the caller reads along
        keep_logs(daemon, place, out, "restarts")
    return rows


def settings(kind: str) -> Settings:
    """Return the configuration for one kind of restart."""
    return {"engine": {"hold_timeout": "5m", "drain_timeout": "30s", "gate": kind == "gated"}}


def restart(daemon: VllmdProcess, argv: Sequence[str], kind: str, seen: Outcomes, beside: Observed) -> dict[str, Any]:
    """Restart once under load; return what it cost."""
    reload(daemon, argv, kind)
    go_on(daemon, seen)
    began_s, ended, requests = time.monotonic(), len(seen.errors) + len(beside.errors), seen.ended + beside.completed
    wall_s = time.time() - began_s
    instance = again(daemon)
    go_on(daemon, seen)
    outage_s, last_s = seen.longest_outage(began_s)
    return {
        "outage_s": round(outage_s, 1),
        "took_s": round(time.monotonic() - began_s - _AROUND_S, 1),
        "errors": len(seen.errors) + len(beside.errors) - ended,
        "requests": seen.ended + beside.completed - requests,
        "told": instance["decisions"][-1]["outcome"]["restart"],
        "in_it": account(Path(instance["log"]), wall_s + last_s, wall_s + last_s + outage_s),
    }


def reload(daemon: VllmdProcess, argv: Sequence[str], kind: str) -> None:
    """Let vllmd take the configuration for one kind of restart."""
    taken = daemon.log().count("configuration taken")
    daemon.configure(argv, settings(kind))
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait(lambda _: daemon.log().count("configuration taken") > taken, "the reload", 60)


def again(daemon: VllmdProcess) -> dict[str, Any]:
    """Restart and wait until the next launch serves."""
    generation = daemon.status()["generation"]
    assert daemon.ask("restart").returncode == 0
    return daemon.wait_serving(generation + 1, _START_LIMIT_S)


def go_on(daemon: VllmdProcess, seen: Outcomes) -> None:
    """Wait until the load has gone on for a while."""
    least = seen.ended + _RATE * _AROUND_S
    daemon.wait(lambda _: seen.ended >= least, "the load goes on", 120)


def account(log: Path, from_s: float, to_s: float) -> list[str]:
    """Return what a server's log tells of a span of time: the seconds up to each line that came a second or later."""
    told, before_s = [], from_s
    for line in log.read_text(errors="replace").splitlines():
        if (found := _LINE_TIME.search(line)) is None:
            continue
        at_s = datetime.strptime(f"{datetime.now(UTC).year}-{found[1]}", "%Y-%m-%d %H:%M:%S").astimezone().timestamp()
        if from_s <= at_s <= to_s + 1 and at_s - before_s >= 1:
            told.append(f"{at_s - before_s:.0f} s until: {found[2][:_TEXT_CHARS]}")
            before_s = at_s
    return [*told, f"{max(0.0, to_s - before_s):.0f} s until the first token"]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
