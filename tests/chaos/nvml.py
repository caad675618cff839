"""A GPU for vllmd to see where there is none: a small libnvidia-ml.so.1, compiled here, that a file tells to fail."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from chaos.compiler import compiled


class Driver(StrEnum):
    """What the driver does."""

    WORKS = "works"
    LOST = "lost"  # the GPU has fallen off the bus
    UNLOADED = "unloaded"
    OLD = "old"  # it lacks the function that lists processes
    HANGS = "hang"


class Nvml:
    """The library, its device (a folder in which simulated engines note what they hold), and its driver's state."""

    def __init__(self, folder: Path) -> None:
        self.gpu = folder / "gpu"
        self.gpu.mkdir()
        self._library = folder / "nvml"
        self._state = folder / "driver"
        self._library.mkdir()
        self.compiled = compiled("gpu.c", self._library / "libnvidia-ml.so.1")
        self.set(Driver.WORKS)

    def set(self, driver: Driver) -> None:
        """Let the driver do this from now on; atomically, as it is read at every call."""
        fresh = self._state.with_suffix(".new")
        fresh.write_text(driver, encoding="ascii")
        fresh.replace(self._state)

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables with which vllmd finds the library; none where it could not be made."""
        if not self.compiled:
            return {}
        return {
            "LD_LIBRARY_PATH": str(self._library),
            "VLLMD_TEST_NVML": str(self._state),
            "VLLMD_TEST_GPU": str(self.gpu),
        }
