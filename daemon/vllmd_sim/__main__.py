"""Entry point: `python -m vllmd_sim serve MODEL …`, in the place of `vllm serve MODEL …`."""

import asyncio
import os
import signal
import sys

from vllmd_sim.host import HostError, parse_host
from vllmd_sim.lines import emit
from vllmd_sim.options import parse
from vllmd_sim.server import TERMINATED, serve

_USAGE = 2  # argparse's exit code


def main(argv: list[str]) -> int:
    """Run the command; returns its exit code."""
    if argv[:1] != ["serve"]:
        sys.stderr.write("usage: python -m vllmd_sim serve [model_tag] [options]\n")
        return _USAGE
    try:
        host = parse_host(os.environ.get("VLLMD_SIM"))
    except HostError as error:
        sys.stderr.write(f"vllmd_sim: {error}\n")
        return _USAGE
    emit(f"vllmd_sim: SIMULATED vLLM {host.version} on a simulated {host.gpu} ({host.gpu_total_gib:g} GiB)\n")
    code = asyncio.run(serve(parse(argv[1:]), host))
    if code == TERMINATED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
