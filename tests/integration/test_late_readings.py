"""The readings of a vllmd that hardly gets a processor: late ones are taken all the same."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

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


def test_readings_that_are_all_late_are_taken() -> None:
    """Every turn of the event loop takes longer than the scheduler lets a job be late by default."""
    chosen = settings(Slo())
    built = house(replace(chosen, engine=replace(chosen.engine, scrape_interval_s=1.0)))
    taken: list[Callable[[], Any]] = []

    async def body() -> None:
        # Nothing of a server is asked for: none was launched.
        sources = Sources(HttpScraper("http://127.0.0.1:9"), NoGpu(), cast("ServerProcess", None), SystemClock())
        readings = Readings(built.loop, sources, SdNotifier({}), taken.append)
        readings.begin()
        for _ in range(TURNS):
            time.sleep(LATE_S)  # noqa: ASYNC251 - a busy host, simulated
            await asyncio.sleep(0)
        readings.end()

    asyncio.run(body())
    assert len(taken) >= WANTED
