"""The readings of a vllmd that hardly gets a processor: late ones are taken all the same."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from structlog.testing import capture_logs

from house import house, settings
from vllmd.act.server_process import ServerProcess
from vllmd.clock import SystemClock
from vllmd.model.settings import Slo
from vllmd.model.snapshot import Gpu
from vllmd.observe.scrape import HttpScraper
from vllmd.readings import Readings, Sources
from vllmd.report.notify import SdNotifier

LATE_S = 1.1  # beyond the second after which the scheduler would drop a job by default
TURNS = 8
WANTED = 4  # a reading takes two or three turns


class NoGpu:
    """A host without a GPU."""

    async def read(self) -> tuple[Gpu, ...] | None:
        """Return that there is none."""
        return None


def read_in(turns: int, turn_s: float) -> int:
    """Read while every turn of the event loop takes so long; return how many readings were taken."""
    chosen = settings(Slo())
    built = house(replace(chosen, engine=replace(chosen.engine, scrape_interval_s=1.0)))
    taken: list[Callable[[], Any]] = []

    async def body() -> None:
        # Nothing of a server is asked for: none was launched.
        sources = Sources(HttpScraper("http://127.0.0.1:9"), NoGpu(), cast("ServerProcess", None), SystemClock())
        readings = Readings(built.loop, sources, SdNotifier({}), taken.append)
        readings.begin()
        for _ in range(turns):
            time.sleep(turn_s)  # noqa: ASYNC251 - a busy host, simulated
            await asyncio.sleep(0)
        readings.end()

    asyncio.run(body())
    return len(taken)


def test_readings_that_are_all_late_are_taken() -> None:
    """Every turn of the event loop takes longer than the scheduler lets a job be late by default."""
    assert read_in(TURNS, LATE_S) >= WANTED


def test_a_vllmd_that_is_kept_waiting_says_so_once() -> None:
    """Whoever asks why it does not answer finds the reason in its log."""
    with capture_logs() as lines:
        read_in(5, 3.1)
    (told,) = [line for line in lines if "kept waiting" in line["event"]]
    assert told["late_s"] > 2.0
