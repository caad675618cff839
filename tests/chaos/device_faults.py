"""Faults of the GPU's driver, as NVML shows them: the server itself does not notice."""

import time
from random import Random

from chaos.nvml import Driver
from chaos.scene import Scene
from chaos.storage_faults import harm

_HANG_S = (0.5, 6.5)  # around the 5 s for which vllmd waits for a reading
_TROUBLE_S = (0.3, 2.0)


def driver_hangs(scene: Scene, chance: Random) -> str:
    """Let every call of NVML hang for some seconds, while something else may happen."""
    return _for_a_while(scene, chance, Driver.HANGS, chance.uniform(*_HANG_S))


def driver_in_trouble(scene: Scene, chance: Random) -> str:
    """Let NVML refuse for a while: the GPU lost, the driver unloaded, or a function that it lacks."""
    driver = chance.choice((Driver.LOST, Driver.UNLOADED, Driver.OLD))
    return _for_a_while(scene, chance, driver, chance.uniform(*_TROUBLE_S))


def _for_a_while(scene: Scene, chance: Random, driver: Driver, span_s: float) -> str:
    scene.nvml.set(driver)
    done = harm(scene, chance)
    deadline_s = time.monotonic() + span_s
    while time.monotonic() < deadline_s:
        scene.service.tend()
        time.sleep(0.05)  # what is drawn: how long the driver is in trouble
    scene.nvml.set(Driver.WORKS)
    return f"{driver} for {span_s:.1f} s, {done}"
