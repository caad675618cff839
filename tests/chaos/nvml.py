"""A GPU for vllmd to see where there is none: a small libnvidia-ml.so.1, compiled here, that a file tells to fail."""

import shutil
import subprocess
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

_SOURCE = Path(__file__).with_name("gpu.c")
_COMPILE_LIMIT_S = 60.0  # half a second where nothing else runs


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
        self.compiled = self._compiled()
        self.set(Driver.WORKS)

    def _compiled(self) -> bool:
        """Whether a C compiler is here and made the library."""
        compiler = shutil.which("cc")
        if compiler is None:
            return False
        self._library.mkdir()
        target = str(self._library / "libnvidia-ml.so.1")
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", target, str(_SOURCE)]
        return subprocess.run(command, timeout=_COMPILE_LIMIT_S, check=False).returncode == 0

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
