"""`make restarts`: REQUESTS (10,000) or more at RATE a second (100) through RESTARTS (10), starts of START_S (10) each.

Once for each of ADDRESSES (all). Exit code 1 where a request was lost.
"""

import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from restarts.course import ADDRESSES, Course
from steady_load import Outcomes

_COLUMNS = (
    f"{'address':10} {'restarts':>8} {'requests':>8} {'a second':>8} {'late s':>6} {'failed':>6} {'outage s':>11} "
    f"{'wait p50 s':>10} {'max s':>6}"
)


def row(course: Course, seen: Outcomes) -> str:
    """Return what one course brought; late: how far the load was behind its rate at most."""
    outages_s, waits_s = seen.outages_s(course.restarts), seen.took_s
    rate, outage = seen.begun / seen.begun_for_s, f"{outages_s[-1]:.1f} - {outages_s[0]:.1f}"
    return (
        f"{course.address:10} {course.restarts:8} {seen.ended:8} {rate:8.1f} {seen.late_s:6.2f} {len(seen.errors):6} "
        f"{outage:>11} {median(waits_s):10.3f} {max(waits_s):6.1f}"
    )


def main() -> int:
    """Run every course and print its row; return the exit code."""
    requests, rate = int(os.environ.get("REQUESTS", "10000")), float(os.environ.get("RATE", "100"))
    restarts, start_s = int(os.environ.get("RESTARTS", "10")), float(os.environ.get("START_S", "10"))
    print(f"{requests} requests at least, {rate:g} a second, starts of {start_s:g} s\n{_COLUMNS}", flush=True)
    errors: list[str] = []
    for address in os.environ.get("ADDRESSES", ",".join(ADDRESSES)).split(","):
        with tempfile.TemporaryDirectory(prefix="vllmd-restarts-") as folder:
            course = Course(address, requests, rate, restarts, start_s)
            seen = course.run(Path(folder))
        print(row(course, seen), flush=True)
        errors += seen.errors
    for error in errors[:20]:
        print(error)
    return 1 if errors else 0


sys.exit(main())
