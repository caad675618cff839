"""The readings of a vllmd that hardly gets a processor: late ones are taken all the same, none when it has ended."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
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

    def __init__(self) -> None:
        self.asked = 0

    async def read(self) -> tuple[Gpu, ...] | None:
        """Return that there is none."""
        self.asked += 1
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


@pytest.mark.parametrize("turns", range(1, 6))
def test_no_reading_begins_when_they_are_over(turns: int) -> None:
    """Also none that was due already, so many turns of the event loop before: what it would ask may be closed."""
    chosen, gpu = settings(Slo()), NoGpu()
    built = house(replace(chosen, engine=replace(chosen.engine, scrape_interval_s=0.05)))

    async def body() -> int:
        sources = Sources(HttpScraper("http://127.0.0.1:9"), gpu, cast("ServerProcess", None), SystemClock())
        readings = Readings(built.loop, sources, SdNotifier({}), lambda _: None)
        readings.begin()
        await asyncio.sleep(0)
        time.sleep(0.1)  # noqa: ASYNC251 - until one is due
        for _ in range(turns):
            await asyncio.sleep(0)
        readings.end()
        before = gpu.asked
        for _ in range(5):
            await asyncio.sleep(0)
        return gpu.asked - before

    assert asyncio.run(body()) == 0
