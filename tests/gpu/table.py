"""Make RESULTS.md of results.json files: `python -m gpu.table RESULTS.json … > tests/gpu/RESULTS.md`."""

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


if __name__ == "__main__":
    print(document([r for name in sys.argv[1:] for r in json.loads(Path(name).read_text())]))  # noqa: T201 - its purpose
