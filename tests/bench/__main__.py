"""`make bench`: what vllmd costs and how fast it acts, each beside its bar. Exit code 1 when a bar is missed."""

import sys

from bench.commands import command_times
from bench.daemon import daemon_costs, restart_gap
from bench.measurement import Measurement, table


def main() -> int:
    """Measure everything, print the table, return the exit code."""
    found: list[Measurement] = []
    for measure in (restart_gap, daemon_costs, command_times):
        print(f"measuring: {measure.__doc__}".partition("\n")[0], file=sys.stderr, flush=True)
        found.extend(measure())
    print(table(found))
    return 0 if all(measurement.holds for measurement in found) else 1


sys.exit(main())
