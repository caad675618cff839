"""`make chaos`: FAULTS random faults (1000) from SEED (a random one), up to BURST (3) in a row, of KINDS (all)."""

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from chaos.driver import Driver, Tally
from chaos.report import story, table
from chaos.scene import scene
from chaos.violation import Violation
from own_network import NoNetworkError, network


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run; return 0 if every invariant held, 1 after a violation, whose folder is kept."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing is left
    faults = int(os.environ.get("FAULTS", "1000"))
    seed = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    folder = Path(tempfile.mkdtemp(prefix="vllmd-chaos-"))
    burst = int(os.environ.get("BURST", "3"))
    say(f"seed {seed}, {faults} faults, {folder}")
    kinds = tuple(filter(None, os.environ.get("KINDS", "").split(",")))
    tally, began_s = Tally(seed, burst, kinds), time.monotonic()
    with ExitStack() as stack:
        with suppress(NoNetworkError):  # said at the end, as all that is left out
            stack.enter_context(network())
        made = stack.enter_context(scene(folder))
        try:
            Driver(made, tally, say).run(faults)
        except Violation as violation:
            say(story(tally, made, str(violation), made.keep_state()))
            return 1
        finally:
            say(table(tally))
        told, looks = made.told.excused, made.watch.looks
    shutil.rmtree(folder)
    say(f"seed {seed}: {tally.done} faults in {time.monotonic() - began_s:.0f} s, {looks} looks, no violation")
    say(f"{told} entries were told while they could not be stored")
    return 0


sys.exit(main())
