"""The watch over the GPUs: a driver that hangs or breaks costs a reading, and nothing else."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from vllmd.model.snapshot import Gpu
from vllmd.observe.gpu import GpuWatch, NvmlReader

GPU = Gpu(0, "GPU-1", "NVIDIA H200", 150_000_000_000, 0)


class Scripted(NvmlReader):
    """Answers one reading after the other with what its script does."""

    def __init__(self, *script: Callable[[], tuple[Gpu, ...] | None]) -> None:
        super().__init__(lambda _: False)
        self._script = list(script)

    def read(self) -> tuple[Gpu, ...] | None:
        """Do the next thing of the script."""
        return self._script.pop(0)()


def test_a_driver_that_hangs_is_not_waited_for() -> None:
    """The reading is given up after the limit, the next ones at once, and later ones come back."""
    free = threading.Event()

    def hang() -> tuple[Gpu, ...]:
        free.wait(10)
        return (GPU,)

    async def body() -> None:
        watch = GpuWatch(Scripted(hang, lambda: (GPU,)), limit_s=0.2)
        assert await watch.read() is None
        assert await watch.read() is None
        free.set()
        async with asyncio.timeout(5):
            while await watch.read() is None:  # noqa: ASYNC110 - a thread's answer is what is waited for
                await asyncio.sleep(0.01)

    asyncio.run(body())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_answer_that_nobody_foresaw_costs_one_reading() -> None:
    """An unknown exception ends the thread with its traceback; the next reading has a new one."""

    def broken() -> tuple[Gpu, ...]:
        raise OSError("the driver went away")

    async def body() -> None:
        watch = GpuWatch(Scripted(broken, lambda: (GPU,), lambda: (GPU,)), limit_s=2.0)
        assert await watch.read() is None
        watch._thread.join(5)  # noqa: SLF001 - its end is what is tested
        assert await watch.read() == (GPU,)

    asyncio.run(body())
