"""The keys that work now: for each its reader and the field of the settings that it fills."""

from collections.abc import Mapping
from dataclasses import dataclass

from vllmd.config import values
from vllmd.config.values import Reader
from vllmd.model import flags
from vllmd.model.settings import Mode


@dataclass(frozen=True, slots=True)
class Key:
    """One key: how its value is read, and the fields of Settings that take it ("part.field", or a field alone)."""

    path: str
    read: Reader
    fields: tuple[str, ...]


def read_mode(value: object) -> Mode:
    """Read observe, advisory or active."""
    return Mode(_MODE_WORD(value))


_MODE_WORD = values.choice(*Mode)

KEYS: tuple[Key, ...] = (
    Key("schema", values.schema_version, ()),
    Key("mode.memory", read_mode, ("modes.memory",)),
    Key("mode.latency", read_mode, ("modes.latency",)),
    Key("engine.argv", values.command, ("engine.argv",)),
    Key("engine.url", values.server_url, ("engine.url",)),
    Key("engine.env_file", values.absolute_path, ("engine.env_file",)),
    Key("engine.start_timeout", values.duration(), ("engine.start_timeout_s",)),
    Key("engine.drain_timeout", values.duration(), ("engine.drain_timeout_s",)),
    Key("engine.hold_timeout", values.duration(), ("engine.hold_timeout_s",)),
    Key("engine.gate", values.switch, ("engine.gate",)),
    Key("engine.park_timeout", values.duration(), ("engine.park_timeout_s",)),
    Key("engine.stall_timeout", values.duration(1, 3600), ("engine.stall_timeout_s",)),
    Key("engine.canary", values.off_or(values.duration(1, 86400)), ("engine.canary_s",)),
    Key("engine.scrape_interval", values.duration(0.05, 60), ("engine.scrape_interval_s",)),
    Key("engine.shim", values.switch, ("engine.shim",)),
    Key("slo.judge_window", values.duration(), ("slo.judge_window_s",)),
    Key("slo.min_requests", values.whole(1), ("slo.min_requests",)),
    Key("guard.frozen", values.flag_names, ()),
    Key("budget.restarts_per_hour", values.whole(0), ("budget.restarts_per_hour",)),
    Key("budget.restarts_per_day", values.whole(0), ("budget.restarts_per_day",)),
    Key("budget.crash_breaker", values.crash_breaker, ("budget.breaker_crashes", "budget.breaker_window_s")),
    Key("budget.soak", values.duration(), ("budget.soak_s",)),
    Key("budget.step_back_after", values.duration(), ("budget.step_back_after_s",)),
    Key("policies.profile", values.profile, ("policies.profile",)),
    Key("listen.metrics", values.address, ("listen.metrics",)),
    Key("listen.control", values.socket_path, ("listen.control",)),
    Key("listen.group", values.text, ("listen.group",)),
    Key("log.format", values.choice("logfmt", "json"), ("log.format",)),
    Key("log.engine.keep", values.whole(1), ("log.engine_keep",)),
    Key("log.engine.max_size", values.size(2**20), ("log.engine_max_bytes",)),
    Key("state.dir", values.absolute_path, ("state_dir",)),
)

# Target keys, "slo.METRIC_pNN": the metric and the share of its observations that must lie within the limit.
_SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
TARGETS: Mapping[str, tuple[str, float]] = {
    f"slo.{metric}_{word}": (metric, share) for metric in ("itl", "ttft") for word, share in _SHARES.items()
}

# The flags that vllmd can move, and how a bound of each is read; None: a switch, which has no bounds.
MOVABLE: Mapping[str, Reader | None] = {
    flags.UTILIZATION: values.number(0, 1),
    flags.MAX_MODEL_LEN: values.whole(1),
    flags.MAX_NUM_SEQS: values.whole(1),
    flags.BATCHED_TOKENS: values.whole(1),
    flags.CHUNKED_PREFILL: None,
    flags.CAPTURE_SIZE: values.whole(1),
    flags.ENFORCE_EAGER: None,
}
BOUND_NAMES = ("min", "max", "step")

_LIMIT = values.duration()
_ANY_BOUND = values.number(0)
_READERS: Mapping[str, Reader] = {key.path: key.read for key in KEYS} | dict.fromkeys(TARGETS, _LIMIT)


def reader_of(path: str) -> Reader | None:
    """Return how the value of a key is read; None for a key that does not exist."""
    if path in _READERS:
        return _READERS[path]
    match path.split("."):
        case ["guard", flag] if values.canonical_flag(flag) == flag:
            return values.permission
        case ["guard", flag, bound] if bound in bound_names(flag):
            return MOVABLE.get(flag, _ANY_BOUND)
        case _:
            return None


def bound_names(flag: str) -> tuple[str, ...]:
    """Return the keys that a guard of this flag may have: none for a switch."""
    return () if MOVABLE.get(flag, _ANY_BOUND) is None else BOUND_NAMES


def is_table(path: str) -> bool:
    """Whether this path names a section or a table of keys."""
    return any(key.startswith(f"{path}.") for key in _READERS) or guarded_flag(path) is not None


def guarded_flag(path: str) -> str | None:
    """Return the flag of a path "guard.FLAG"; None for any other path."""
    match path.split("."):
        case ["guard", flag] if path not in _READERS and values.canonical_flag(flag) == flag:
            return flag
        case _:
            return None


def names_under(path: str) -> tuple[str, ...]:
    """Return the names known in a table; "" is the top level."""
    prefix = f"{path}." if path else ""
    flag = guarded_flag(path)
    if flag is not None:
        return bound_names(flag)
    known = dict.fromkeys(key.removeprefix(prefix).split(".")[0] for key in _READERS if key.startswith(prefix))
    return (*known, *MOVABLE) if path == "guard" else tuple(known)


def section_of(name: str) -> str | None:
    """Return the first section that has a key of this name."""
    sections = (key.rpartition(".") for key in _READERS)
    return next((section for section, _, key in sections if section and key == name), None)
