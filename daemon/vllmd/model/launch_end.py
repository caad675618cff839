"""What is known of a launch when its log is read: how it ended, or that it still runs, and with which flags."""

from dataclasses import dataclass, field
from enum import StrEnum

from vllmd.model.flags import Flags
from vllmd.model.host_facts import HostFacts
from vllmd.model.server import Phase


class ProcessState(StrEnum):
    """Whether the server's process lives."""

    EXITED = "exited"
    RUNNING = "running"
    STARTING = "starting"


@dataclass(frozen=True, slots=True)
class LaunchEnd:
    """How a launch ended, or where it stands.

    `exit_code` is negative for a signal, None if unknown. `phase` is how far the caller knows the launch to have come;
    the log may show more. `version` is vLLM's, None if only the log may say it.
    """

    generation: int = 0
    exit_code: int | None = None
    phase: Phase = Phase.CONFIG
    state: ProcessState = ProcessState.EXITED
    flags: Flags = field(default_factory=Flags)
    version: str | None = None
    host: HostFacts = field(default_factory=HostFacts)
