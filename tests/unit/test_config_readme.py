"""The configuration's page says what the code does."""

import re
from pathlib import Path

import vllmd.config
from vllmd.config.durations import show_duration, show_size
from vllmd.config.schema import KEYS, MOVABLE, TARGETS
from vllmd.model.settings import DEFAULT_GUARDS, Settings

PAGE = Path(vllmd.config.__file__).with_name("README.md").read_text("utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.split("\n") if line.startswith("| `")]
DEFAULT_OF = {key: row[2] for row in ROWS for key in re.findall(r"`([^`]+)`", row[0])}


def test_the_page_has_every_key_and_no_other() -> None:
    """Each key of the schema has its row, and no row speaks of a key that does not work."""
    targets = {re.sub(r"p\d+$", "pNN", key) for key in TARGETS}
    described = set(DEFAULT_OF) - set(MOVABLE) - {"mode", "guard.FLAG"}
    assert described == {key.path for key in KEYS} | targets
    assert all(re.sub(r".*_p", "", key) in PAGE for key in TARGETS)


def test_the_page_has_the_real_defaults() -> None:
    """A default in the table is the one of the settings."""
    default = Settings()
    assert DEFAULT_OF["mode.memory"] == default.modes.memory
    assert DEFAULT_OF["mode.latency"] == default.modes.latency
    durations = {
        "engine.start_timeout": default.engine.start_timeout_s,
        "engine.drain_timeout": default.engine.drain_timeout_s,
        "engine.hold_timeout": default.engine.hold_timeout_s,
        "engine.scrape_interval": default.engine.scrape_interval_s,
        "slo.judge_window": default.slo.judge_window_s,
        "budget.soak": default.budget.soak_s,
    }
    assert {key: DEFAULT_OF[key] for key in durations} == {k: show_duration(s) for k, s in durations.items()}
    assert DEFAULT_OF["slo.min_requests"] == str(default.slo.min_requests)
    assert DEFAULT_OF["budget.restarts_per_hour"] == str(default.budget.restarts_per_hour)
    assert DEFAULT_OF["budget.restarts_per_day"] == str(default.budget.restarts_per_day)
    breaker = f"{default.budget.breaker_crashes} in {show_duration(default.budget.breaker_window_s)}"
    assert DEFAULT_OF["budget.crash_breaker"] == breaker
    assert DEFAULT_OF["listen.metrics"] == default.listen.metrics
    assert DEFAULT_OF["log.format"] == default.log.format
    assert DEFAULT_OF["log.engine.keep"] == str(default.log.engine_keep)
    assert DEFAULT_OF["log.engine.max_size"] == show_size(default.log.engine_max_bytes)


def test_the_page_lists_every_movable_flag() -> None:
    """Each flag that vllmd moves has its row; the ones with a default guard are no others."""
    flags = {row[0].strip("`"): row[1] for row in ROWS if row[0].strip("`") in MOVABLE}
    assert set(flags) == set(MOVABLE)
    assert {flag for flag, default in flags.items() if default != "never touched"} == set(DEFAULT_GUARDS)
