"""How the shim comes into a server's process: by Python's own entry points, as vLLM looks for them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.vllmd_process import free_port
from vllmd.act.live_block import LiveBlock
from vllmd.model.flags import BATCHED_TOKENS, Flags

TESTS = Path(__file__).parents[1]
LIMIT_S = 30.0

# A vllm package that has what the shim looks for, and loads plugins as vllm/plugins/__init__.py does.
CONFIG = """
from scheduler_stand_in import NewScheduler
class SchedulerConfig:
    def get_scheduler_cls(self):
        return NewScheduler
"""
FINAL_CONFIG = """
from scheduler_stand_in import NewScheduler
class Final(NewScheduler):
    def __init_subclass__(cls):
        raise TypeError("no subclass of this one")
class SchedulerConfig:
    def get_scheduler_cls(self):
        return Final
"""
OLD_CONFIG = "class SchedulerConfig: pass"
SERVER = """
import sys
from importlib.metadata import entry_points
for plugin in entry_points(group="vllm.general_plugins"):
    try:
        load = plugin.load()
    except Exception as error:
        print("not loaded:", error)
        continue
    load()
    load()
from vllm.config import SchedulerConfig
choose = getattr(SchedulerConfig(), "get_scheduler_cls", None)
if choose is not None:
    scheduler = choose()(waiting=[1])
    print(scheduler.schedule(), scheduler.max_num_scheduled_tokens)
print("serves", "structlog" in sys.modules)
"""

# A server that parses its options and binds its port when its plugins are loaded, as entrypoints/cli/main.py does.
BINDING_SERVER = """
import socket, sys
from importlib.metadata import entry_points
for plugin in entry_points(group="vllm.general_plugins"):
    plugin.load()()
    plugin.load()()
print("options", sys.argv[1:])
for address in (("127.0.0.1", int(sys.argv[3])), ("127.0.0.1", 0)):
    with socket.socket() as bound:
        bound.bind(address)
        print(address[1] and "the server's", bound.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT))
module, name = sys.argv[-1].partition("=")[2].rsplit(".", 1)
print("middleware", getattr(__import__(module, fromlist=[name]), name)(print))
"""


@pytest.fixture
def block() -> Iterator[LiveBlock]:
    """Make a daemon's side, whose file goes away after the test."""
    made = LiveBlock()
    yield made
    made.remove(made.path)


def served(folder: Path, block: LiveBlock, config: str, broken: str | None = None) -> str:
    """Run a server over a vllm with this configuration module; return what it printed."""
    package = folder / "site" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "config.py").write_text(config)
    own = {"PYTHONPATH": f"{folder / 'site'}:{TESTS}"}
    environment = block.prepare(own, Flags(), folder / "plugin", "", address="", wanted=True)
    if broken is not None:
        (folder / "plugin" / "vllmd_shim" / "plugin.py").write_text(broken)
    block.ask(BATCHED_TOKENS, 256)
    program = (sys.executable, "-c", SERVER)
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_scheduler_of_the_server_is_governed(tmp_path: Path, block: LiveBlock) -> None:
    """Found through PYTHONPATH beside the operator's own folders, loaded twice, wrapped once."""
    told = served(tmp_path, block, CONFIG)
    assert "total_num_scheduled_tokens=256) 256" in told
    assert "serves" in told
    knob = block.read().knobs[BATCHED_TOKENS]
    assert (knob.launched, knob.in_force, knob.settled) == (2048, 256, True)


@pytest.mark.parametrize("broken", ["import nothing_of_that_name", "def register(", "raise RuntimeError('broken')"])
def test_a_broken_shim_leaves_the_server_as_it_was(tmp_path: Path, block: LiveBlock, broken: str) -> None:
    """The plugin is not loaded, the server serves with what it was launched with."""
    told = served(tmp_path, block, CONFIG, broken)
    assert "not loaded" in told
    assert "total_num_scheduled_tokens=1000) 2048" in told
    assert "not loaded" in block.read().knobs[BATCHED_TOKENS].off


def test_an_older_vllm_serves_and_says_what_it_lacks(tmp_path: Path, block: LiveBlock) -> None:
    """Before 0.12 there is nothing to wrap."""
    assert "serves" in served(tmp_path, block, OLD_CONFIG)
    assert "get_scheduler_cls" in block.read().knobs[BATCHED_TOKENS].off


def test_a_scheduler_that_cannot_be_subclassed_serves(tmp_path: Path, block: LiveBlock) -> None:
    """The class that vLLM chose is the one that it gets, and the block says why."""
    told = served(tmp_path, block, FINAL_CONFIG)
    assert "total_num_scheduled_tokens=1000) 2048" in told
    assert "no subclass" in block.read().knobs[BATCHED_TOKENS].off


def test_the_port_is_shared_and_the_requests_are_counted(tmp_path: Path, block: LiveBlock) -> None:
    """SO_REUSEPORT comes to the server's address alone, and vLLM's own option for a middleware to its options, once."""
    program = tmp_path / "server.py"
    program.write_text(BINDING_SERVER)
    port = free_port()
    assert block.traffic() is None
    environment = block.prepare({}, Flags(), tmp_path / "plugin", "", address=f"127.0.0.1:{port}", wanted=True)
    command = (sys.executable, str(program), "serve", "model", str(port))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    told = done.stdout.splitlines()
    assert told[0] == f"options ['serve', 'model', '{port}', '--middleware=vllmd_shim.drain.Drain']"
    assert told[1:3] == ["the server's 1", "0 0"]
    traffic = block.traffic()
    assert traffic is not None
    assert (traffic.in_flight, traffic.kept_s, traffic.shared_port) == (0, 0.0, True)
