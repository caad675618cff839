"""`make bench`: what vllmd costs and how fast it acts, each beside its bar. Exit code 1 when a bar is missed."""

import compileall
import sys
from pathlib import Path

import vllmd
from bench.commands import command_times
from bench.daemon import daemon_costs, restart_gap
from bench.measurement import Measurement, table


def main() -> int:
    """Measure everything, print the table, return the exit code."""
    # As pip does when it installs a wheel; an editable install under PYTHONDONTWRITEBYTECODE would never have it.
    compileall.compile_dir(Path(vllmd.__file__).parent, quiet=1)
    found: list[Measurement] = []
    for measure in (restart_gap, daemon_costs, command_times):
        print(f"measuring: {measure.__doc__}".partition("\n")[0], file=sys.stderr, flush=True)
        found.extend(measure())
    print(table(found))
    return 0 if all(measurement.holds for measurement in found) else 1


sys.exit(main())
