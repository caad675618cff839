"""Make RESULTS.md of what the runs wrote: `python -m gpu.table results.json faults.json live.json restarts.json`."""

import json
import sys
from pathlib import Path
from typing import Any

_HEAD = """# Memory failures on a real GPU

One NVIDIA H200 (139.8 GiB), vLLM 0.26.0, Llama shapes with random weights, `--enforce-eager`. Made by
`python -m gpu OUT MODELS` on the GPU host and `python -m gpu.table OUT/results.json` (tests/gpu). "Took" is from
`vllmd run` to serving, the failed launch and its successor together; after an OOM while serving, from the first long
prompt.

| failure | class | change | launches | ends | took |
|---|---|---|---|---|---|
"""


def row(result: dict[str, Any]) -> str:
    """Return one line of the table."""
    changes = [f"`{c['flag']}` {c['from']} → {c['to']}" for d in result["decisions"] for c in d["changes"]]
    cells = (
        result["scenario"],
        result["failure"] or "none",
        ", ".join(changes) or "none",
        str(result["launches"]),
        result["state"],
        f"{result['took_s']:.0f} s",
    )
    return f"| {' | '.join(cells)} |"


def document(results: list[dict[str, Any]]) -> str:
    """Return the whole page: the table, the reasons, and the digests of the raw logs."""
    reasons = [f"- {r['scenario']}: {d['message']}" for r in results for d in r["decisions"]]
    digests = [f"- {r['scenario']}: {n} `{h}`" for r in results for n, h in sorted(r["log_sha256"].items())]
    rows = "\n".join(row(result) for result in results)
    return "\n".join(
        (f"{_HEAD}{rows}", "", "What vllmd said:", "", *reasons, "", "SHA-256 of the server's raw logs:", "", *digests)
    )


_FAULTS = """# Faults of a server on a real GPU

The same GPU and vLLM, the 8B shape, `--enforce-eager`, `stall_timeout = "10s"`; four clients that each send one
request of 500 tokens in and 100 out after the other. Made by `python -m gpu.faults OUT MODELS` on the GPU host and
`python -m gpu.table OUT/faults.json`. Times are from the fault; a failed request is tried again after 0.25 s, so that
most of the failed ones are connections that were refused during the new start.

| fault | found | serving | process | failed requests | GiB on the GPU: before, least, after |
|---|---|---|---|---|---|
"""


def fault_row(told: dict[str, Any]) -> str:
    """Return one line of the table of faults."""
    same = told["pid_before"] == told["pid_after"]
    cells = (
        told["fault"],
        "" if same else f"{told['found_s']:.1f} s",
        f"{told['serving_s']:.1f} s",
        "the same" if same else f"another, generation {told['generation']}",
        str(told["errors"]),
        ", ".join(str(told[f"used_{when}_gib"]) for when in ("before", "least", "after")),
    )
    return f"| {' | '.join(cells)} |"


def faults_document(faults: list[dict[str, Any]]) -> str:
    """Return the part about faults: the table, what vllmd said, and the digests of the raw logs."""
    rows = "\n".join(fault_row(told) for told in faults)
    said = [f"- {told['fault']}: {told['failure']}" for told in faults if told["failure"]]
    digests = [f"- {told['fault']}: `{told['log_sha256']}`" for told in faults]
    parts = (f"{_FAULTS}{rows}", "What vllmd said:", "\n".join(said))
    return "\n\n".join((*parts, "SHA-256 of the server's raw log at that time:", "\n".join(digests)))


_LIVE = """# A token budget changed live on a real GPU

The same GPU and vLLM, the 8B shape with compiled graphs, asynchronous scheduling, no prefix caching, launched with
`--max-num-batched-tokens 8192`; ten clients that each send one request of 3,600 tokens in and 170 out after the other.
One process throughout: after the first row `vllmd set` moved the budget. ITL are the gaps that the clients saw; the
last column is the time that vllmd_shim takes of a step, on average since the start. Made by `python -m gpu.live OUT
MODELS` on the GPU host and `python -m gpu.table OUT/live.json`.

| budget in force | ITL p50, p95, p99, longest, ms | requests a second | failed requests | process | shim, us a step |
|---|---|---|---|---|---|
"""


def live_row(told: dict[str, Any], first: dict[str, Any]) -> str:
    """Return one line of the table of budgets."""
    cells = (
        str(told["in_force"]),
        ", ".join(str(told["itl_ms"][name]) for name in ("p50", "p95", "p99", "max")),
        f"{told['completed'] / told['seconds']:.1f}",
        str(told["errors"]),
        "the same" if told["pid"] == first["pid"] else "another",
        str(told["overhead_us"]),
    )
    return f"| {' | '.join(cells)} |"


def live_document(rows: list[dict[str, Any]]) -> str:
    """Return the part about live budgets: the table, and the digest of the raw log."""
    table = "\n".join(live_row(told, rows[0]) for told in rows)
    return f"{_LIVE}{table}\n\nSHA-256 of the server's raw log: `{rows[-1]['log_sha256']}`"


_RESTARTS = """# Restarts on a real GPU

The same GPU and vLLM, the 8B shape with compiled graphs, asynchronous scheduling, one process after the other; five
requests a second whose tokens are timed (half of them streams, half on connections that are kept), and four clients
that each send one request of 1,500 tokens in and 120 out after the other. The outage is the longest time without a
token of any stream; a plain start is a planned restart without the gate. The first gated restart of a run also made the
kernels that the later ones found in their cache. Two runs, on two machines; made by `python -m gpu.restarts OUT MODELS`
on the GPU host and `python -m gpu.table RUN-1/restarts.json RUN-2/restarts.json`.

| restart | outage | connections that waited | longest wait | failed of requests |
|---|---|---|---|---|
"""


def restart_row(told: dict[str, Any]) -> str:
    """Return one line of the table of restarts."""
    cells = (
        told["kind"],
        f"{told['outage_s']:.1f} s",
        str(told["told"]["connections_held"]),
        f"{told['told']['longest_wait_seconds']:.1f} s",
        f"{told['errors']} of {told['requests']}",
    )
    return f"| {' | '.join(cells)} |"


def restarts_document(rows: list[dict[str, Any]]) -> str:
    """Return the part about restarts: the table, and where the seconds of each outage went, by the server's log."""
    table = "\n".join(restart_row(told) for told in rows)
    spent = "\n".join(f"- {told['kind']}: {'; '.join(told['in_it'])}" for told in rows)
    return f"{_RESTARTS}{table}\n\nThe seconds of each outage, up to the line of the next server's log:\n\n{spent}"


def main(names: list[str]) -> None:
    """Print what the files hold."""
    found = [row for name in names for row in json.loads(Path(name).read_text())]
    of = {key: [row for row in found if key in row] for key in ("scenario", "fault", "budget", "outage_s")}
    makers = (document, faults_document, live_document, restarts_document)
    parts = tuple(zip(of.values(), makers, strict=True))
    print("\n\n".join(make(rows) for rows, make in parts if rows))  # noqa: T201 - its purpose


if __name__ == "__main__":
    main(sys.argv[1:])
