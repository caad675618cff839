"""What is remembered of earlier launches: what was tried on this hardware with this model, and how it ended."""

from dataclasses import dataclass

from vllmd.model.failure import Failure
from vllmd.model.flags import DATA_PARALLEL, TENSOR_PARALLEL, Flags
from vllmd.model.server import Launch
from vllmd.model.snapshot import Gpu

_MIB = 2**20
_SPLITS = (("tp", TENSOR_PARALLEL), ("pp", "pipeline-parallel-size"), ("dp", DATA_PARALLEL))


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What the fate of a configuration depends on besides its flags. What is not known is empty.

    `gpus` names each GPU with its memory in MiB; without NVML it is empty and `host_bytes` stands for it.
    """

    gpus: tuple[str, ...] = ()
    driver: str = ""
    host_bytes: int = 0
    vllm: str = ""
    model: str = ""
    split: str = ""  # "tp2 pp1 dp1"

    def __str__(self) -> str:
        """Return one line that is equal for equal fingerprints; it is what the ledger stores."""
        device = " + ".join(self.gpus) or f"host of {self.host_bytes // _MIB} MiB"
        driver = f", driver {self.driver}" if self.driver else ""
        return f"{device}{driver}; vLLM {self.vllm or 'unknown'}; {self.model or 'default model'}; {self.split}"


def fingerprint_of(
    gpus: tuple[Gpu, ...] | None, host_bytes: int | None, vllm: str | None, model: str | None, flags: Flags
) -> Fingerprint:
    """Return the fingerprint of a launch with these flags on this host."""
    split = " ".join(f"{short}{flags.number(name) or 1:g}" for short, name in _SPLITS)
    return Fingerprint(
        gpus=tuple(f"{gpu.name} {gpu.total_bytes // _MIB} MiB" for gpu in gpus or ()),
        driver=next((gpu.driver for gpu in gpus or () if gpu.driver), ""),
        host_bytes=0 if gpus else host_bytes or 0,
        vllm=vllm or "",
        model=model or "",
        split=split,
    )


@dataclass(frozen=True, slots=True)
class Tried:
    """One launch of the past: when it was found good (unix seconds, None: never), and what it failed with."""

    launch: Launch
    good_at_s: float | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Good:
    """The launch of this generation serves, and no change in it is in doubt: its flags may be used again."""

    generation: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Ban:
    """Flags that a launch failed with, for reasons of theirs: not to be run again, nor any that ask for more."""

    flags: Flags
    failure: Failure
