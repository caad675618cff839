"""Flags: the canonical vLLM options of a launch, as an immutable ordered mapping."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# str: one value as text. True: a bare switch. False: its --no- form. tuple: several values.
FlagValue = str | bool | tuple[str, ...]

UTILIZATION = "gpu-memory-utilization"
MAX_MODEL_LEN = "max-model-len"
MAX_NUM_SEQS = "max-num-seqs"
BATCHED_TOKENS = "max-num-batched-tokens"
CHUNKED_PREFILL = "enable-chunked-prefill"
ENFORCE_EAGER = "enforce-eager"
KV_CACHE_BYTES = "kv-cache-memory-bytes"
SHUTDOWN_TIMEOUT = "shutdown-timeout"
TENSOR_PARALLEL = "tensor-parallel-size"
DATA_PARALLEL = "data-parallel-size"
CAPTURE_SIZE = "max-cudagraph-capture-size"


@dataclass(frozen=True, slots=True)
class Flags(Mapping[str, FlagValue]):
    """Canonical option names to values, in the order of the operator's argv."""

    items_: tuple[tuple[str, FlagValue], ...] = ()

    def __getitem__(self, name: str) -> FlagValue:
        """Return the value of an option; KeyError if the argv does not hold it."""
        for key, value in self.items_:
            if key == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return (name for name, _ in self.items_)

    def __len__(self) -> int:
        """Return how many options are set."""
        return len(self.items_)

    def changed(self, changes: Mapping[str, FlagValue | None]) -> "Flags":
        """Return flags with these values set in place (new ones at the end) and those of None removed."""
        kept = tuple(
            (name, value if (value := changes.get(name, old)) is not None else old)
            for name, old in self.items_
            if changes.get(name, old) is not None
        )
        names = set(self)
        new = tuple((n, v) for n, v in changes.items() if v is not None and n not in names)
        return Flags(kept + new)

    def number(self, name: str) -> float | None:
        """Return the value of an option as a number, with vLLM's suffixes (1k = 1000, 1K = 1024); None if absent.

        Suffixes: `human_readable_int` of vLLM 0.33 (engine/arg_utils.py): k m g t decimal, K M G T binary.
        """
        value = self.get(name)
        return parse_number(value) if isinstance(value, str) else None

    def rebased(self, old: "Flags", new: "Flags") -> "Flags":
        """Return what these flags, which were moved from an old baseline, are over a new one.

        What the operator has written otherwise meanwhile counts as written, also where it had been moved.
        """
        if old == new:
            return self
        moved = {name: value for name, (_, value) in self.differences(old).items()}
        return new.changed({name: value for name, value in moved.items() if old.get(name) == new.get(name)})

    def differences(self, baseline: "Flags") -> dict[str, tuple[FlagValue | None, FlagValue | None]]:
        """Return {name: (baseline value, value here)} for every option that differs."""
        names = dict.fromkeys((*baseline, *self))
        return {n: (baseline.get(n), self.get(n)) for n in names if baseline.get(n) != self.get(n)}


def api_servers(flags: Flags) -> float:
    """Return how many API servers a launch has (vLLM's default: one for each replica); 1 where it does not say."""
    return flags.number("api-server-count") or flags.number(DATA_PARALLEL) or 1


_LARGEST = 1e18  # an exabyte; what is more, or no number at all ("nan"), is no value to compute with
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_number(text: str) -> float | None:
    """Return a number written as vLLM takes it (`0.9`, `8192`, `32k`, `25.6K`); None for anything else."""
    factor = _SUFFIXES.get(text[-1:], 1)
    body = text[:-1] if factor != 1 else text
    try:
        number = float(body) * factor
    except ValueError:
        return None
    return number if abs(number) <= _LARGEST else None


def show_value(value: FlagValue | None) -> str:
    """Return a flag's value as an operator reads it; "unset" for None."""
    match value:
        case None:
            return "unset"
        case bool():
            return "on" if value else "off"
        case tuple():
            return " ".join(value)
        case str():
            return value
