"""What is expected of a command before its launch: live values, and why a restart would be plain."""

from pathlib import Path

import pytest

from vllmd.cli.command_findings import SeenCommand
from vllmd.cli.expectations import no_live
from vllmd.model.argv import parse_command
from vllmd.model.options import Arity, Catalogue, Option
from vllmd.model.settings import Engine, Settings
from vllmd.observe.installation import Installation

OPTIONS = {"enable-chunked-prefill": Arity.BOOLEAN, "data-parallel-size": Arity.ONE, "uds": Arity.ONE}
CATALOGUE = Catalogue({n: Option(n, (f"--{n}",), arity) for n, arity in OPTIONS.items()}, "0.33.0")
HOOK = "class SchedulerConfig:\n    def get_scheduler_cls(self):\n        pass\n"


def seen(folder: Path, *options: str, text: str = HOOK, simulated: bool = False) -> SeenCommand:
    """Return a command of an installation whose scheduler's configuration has this text."""
    (folder / "config").mkdir()
    (folder / "config" / "scheduler.py").write_text(text)
    installation = Installation(("vllm", "serve"), None, str(folder), "0.33.0", simulated, "")
    return SeenCommand((), installation, parse_command(("vllm", "serve", "m", *options), 2, CATALOGUE))


def reason(found: SeenCommand, *, shim: bool = True, **variables: str) -> str | None:
    """Return why live values cannot be had."""
    return no_live(Settings(engine=Engine(shim=shim)), variables, found)


def test_nothing_speaks_against_a_version_that_has_the_hook(tmp_path: Path) -> None:
    """Its source has the function that vllmd_shim wraps."""
    assert reason(seen(tmp_path)) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--no-enable-chunked-prefill",), "chunked prefill is off"),
        (("--data-parallel-size=2",), "--data-parallel-size is above 1"),
    ],
)
def test_flags_that_speak_against_it_are_named(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    """Before any start is paid for."""
    assert said in (reason(seen(tmp_path, *options)) or "")


def test_a_version_without_the_hook_is_named(tmp_path: Path) -> None:
    """As vLLM 0.10 and 0.11 are; the simulated server needs none."""
    assert "0.12 and later" in (reason(seen(tmp_path, text="class SchedulerConfig:\n    pass\n")) or "")
    (tmp_path / "sim").mkdir()
    assert reason(seen(tmp_path / "sim", text="", simulated=True)) is None


def test_the_operators_own_no_is_named(tmp_path: Path) -> None:
    """engine.shim, or a VLLM_PLUGINS that names others."""
    found = seen(tmp_path)
    assert reason(found, shim=False) == "engine.shim is off"
    assert "VLLM_PLUGINS" in (reason(found, VLLM_PLUGINS="other") or "")
