"""An instance: the operator's command and settings, and what this vLLM accepts; a reload gives another one."""

from dataclasses import dataclass, field, replace

from vllmd.model.argv import Command, parse_command
from vllmd.model.flags import SHUTDOWN_TIMEOUT, Flags
from vllmd.model.masking import MASK, Masker
from vllmd.model.options import Catalogue
from vllmd.model.server import Launch
from vllmd.model.settings import Settings
from vllmd.model.thresholds import Thresholds


@dataclass(frozen=True, slots=True)
class Instance:
    """Settings, the baseline command, and what the installed vLLM accepts.

    `url` is where the server answers; `stamp` changes when the installation is replaced or edited. The options `filed`
    are given to the server in `secrets_file`, not on its command line. `thresholds` are those of the policies' profile.
    """

    settings: Settings
    command: Command
    catalogue: Catalogue
    masker: Masker
    url: str
    simulated: bool
    stamp: str = ""
    filed: frozenset[str] = frozenset()
    secrets_file: str | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)

    @property
    def baseline(self) -> Flags:
        """The operator's flags, and a drain on SIGTERM where vLLM has one and the operator did not say.

        vLLM's default aborts requests in flight (--shutdown-timeout 0, from 0.18 on).
        """
        flags = self.command.flags
        if SHUTDOWN_TIMEOUT in flags or not self.catalogue.knows(SHUTDOWN_TIMEOUT):
            return flags
        return flags.changed({SHUTDOWN_TIMEOUT: str(round(self.settings.engine.drain_timeout_s))})

    def as_launched(self, launch: Launch) -> "Instance":
        """Return the instance with the command that a launch had, whatever the configuration asks for afterwards."""
        model = launch.model if launch.model and MASK not in launch.model else self.command.model
        return replace(self, command=replace(self.command, flags=launch.baseline, model=model))

    def shown(self, words: tuple[str, ...]) -> tuple[Flags, Flags, str | None]:
        """Return the flags, the operator's part of them and the model of a launch that shows these words in /proc.

        What vllmd may move, it moved; the rest was the operator's.
        """
        program = self.command.program
        command = parse_command((program[0], *words), len(program), self.catalogue)
        hidden = {name: self.baseline[name] for name in self.filed}
        flags = command.flags.changed(hidden if self.secrets_file is None else {**hidden, "config": None})
        movable = {name: self.baseline.get(name) for name in self.settings.guard.bounds}
        return flags, flags.changed(movable), command.model

    def argv(self, flags: Flags) -> tuple[str, ...]:
        """Return the command line of a launch with these flags."""
        shown = flags.changed(dict.fromkeys(self.filed))
        if self.secrets_file is not None:
            shown = shown.changed({"config": self.secrets_file})
        return replace(self.command, flags=shown).argv()
