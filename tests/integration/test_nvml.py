"""The reader of NVML over a small library that answers as NVIDIA's does: one GPU, and a driver that fails."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.nvml import Driver, Nvml
from chaos.processes import read

LIMIT_S = 30.0
# Reads once for each line that comes; pynvml loads its library once a process, so that it has to be one of its own.
READER = """
import sys
from vllmd.observe.gpu import NvmlReader
reader = NvmlReader(lambda pid: True)
for line in sys.stdin:
    gpus = reader.read()
    print([(g.used_bytes, [p.pid for p in g.processes]) for g in gpus] if gpus else reader.problem, flush=True)
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("trouble", [Driver.LOST, Driver.UNLOADED, Driver.OLD])
def test_a_driver_in_trouble_costs_readings_and_no_more(tmp_path: Path, trouble: Driver) -> None:
    """Whatever NVML answers, the reading is none with its reason; once it works again, memory and holders are read."""
    nvml = Nvml(tmp_path)
    assert nvml.compiled
    own = read(os.getpid())
    assert own is not None
    (nvml.gpu / str(own.pid)).write_text(json.dumps({"bytes": 1000, "start_ticks": own.ticks}))
    works = f"[(1000, [{own.pid}])]"
    with subprocess.Popen(
        [sys.executable, "-c", READER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **nvml.environ},
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        said = []
        for driver in (Driver.WORKS, trouble, Driver.WORKS):
            nvml.set(driver)
            reader.stdin.write("\n")
            reader.stdin.flush()
            said.append(reader.stdout.readline().strip())
        reader.communicate(timeout=LIMIT_S)
    assert said[0] == said[2] == works
    assert said[1] not in {works, "None", ""}
