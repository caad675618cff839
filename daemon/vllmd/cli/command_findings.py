"""What is wrong with the server's command, seen from the vLLM that is installed here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from vllmd.act.shim_folder import PLUGIN, kept_out
from vllmd.config.point import point_at
from vllmd.errors import CommandError, Finding, Severity
from vllmd.model.argv import Command, UnknownOption, parse_command
from vllmd.model.masking import Masker
from vllmd.model.settings import Settings
from vllmd.observe.installation import Installation, find_installation
from vllmd.observe.option_source import read_catalogue
from vllmd.observe.yaml_flags import expand_config_file

_ARGV = "engine.argv"
_LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class SeenCommand:
    """What a command runs, and what is wrong with it; None: it is not known, for what `findings` say."""

    findings: tuple[Finding, ...]
    installation: Installation | None = None
    command: Command | None = None


def command_findings(
    settings: Settings, environment: Mapping[str, str], cache_dir: Path | None = None
) -> tuple[Finding, ...]:
    """Return a finding for a command that is refused, for each option it gets wrong, and for guards without an option.

    `environment` is the server's. Nothing is started but, where it cannot be avoided, the command's interpreter.
    """
    return see_command(settings, environment, cache_dir).findings


def see_command(settings: Settings, environment: Mapping[str, str], cache_dir: Path | None = None) -> SeenCommand:
    """Return what the command runs and its canonical form, with what `command_findings` finds."""
    argv = settings.engine.argv
    try:
        installation = find_installation(argv, environment)
    except CommandError as error:
        return SeenCommand((_refused(settings, str(error)),))
    length, catalogue = len(installation.program), read_catalogue(installation, cache_dir)
    try:
        command = parse_command(expand_config_file(argv, length, catalogue), length, catalogue)
    except CommandError as error:
        return SeenCommand((_bad_config_file(settings, str(error)),), installation)
    checks = (_unknown_options, _misuses, _unix_socket, _port, _guards_without_option)
    found = (finding for check in checks for finding in check(settings, command))
    return SeenCommand((*found, *_plugins(settings, environment)), installation, command)


def _plugins(settings: Settings, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a warning where the server's own variables keep the shim out that is to come in."""
    reason = kept_out(environment) if settings.engine.shim else None
    if reason is not None:
        wanted = f"{PLUGIN} among its names, or engine.shim = false"
        note = "no value can be set live, and the engine tells of no step"
        finding = Finding("W411", reason, "engine.shim", "", wanted, severity=Severity.WARNING, notes=(note,))
        yield point_at(finding, settings, "engine.shim")


def _refused(settings: Settings, message: str) -> Finding:
    """Return the refusal; what follows the semicolon of its message is the advice."""
    argv = settings.engine.argv
    masker = Masker.from_launch(argv, {})
    what, _, advice = masker.mask(message).partition("; ")
    found = " ".join(masker.mask_argv(argv))
    return point_at(
        Finding("E401", what, _ARGV, found, "the `vllm serve` command itself", hint=advice), settings, _ARGV, 0
    )


def _bad_config_file(settings: Settings, message: str) -> Finding:
    """Return what is wrong with the file of the server's own --config."""
    argv = settings.engine.argv
    place = next((at for at, word in enumerate(argv) if word.partition("=")[0] == "--config"), None)
    finding = Finding("E404", message, _ARGV, found="--config", wanted="--config FILE, as vLLM reads it")
    return point_at(finding, settings, _ARGV, place)


def _unknown_options(settings: Settings, command: Command) -> Iterator[Finding]:
    for option in command.unknown:
        finding = Finding(
            code="E402",
            message=option.sentence().partition("; ")[0],
            key=_ARGV,
            found=option.text,
            wanted=f"an option of vLLM {command.catalogue.version or 'as it is installed'}",
            hint=f"did you mean {option.nearest}?" if option.nearest else "",
        )
        yield point_at(finding, settings, _ARGV, _place(settings.engine.argv, option))


def _place(argv: tuple[str, ...], option: UnknownOption) -> int | None:
    """Return where in the argv an option stands."""
    return next((at for at, word in enumerate(argv) if word.partition("=")[0] == option.text), None)


def _misuses(settings: Settings, command: Command) -> Iterator[Finding]:
    masker = Masker.from_launch(settings.engine.argv, {})
    for sentence in command.misuses:
        message = masker.mask(sentence)
        yield point_at(Finding("E403", message, _ARGV, "", "what vLLM accepts"), settings, _ARGV)


def _unix_socket(settings: Settings, command: Command) -> Iterator[Finding]:
    if "uds" not in command.flags:
        return
    message = "a server on a UNIX socket can be neither scraped nor proved to be ours"
    place = next((at for at, word in enumerate(settings.engine.argv) if word.partition("=")[0] == "--uds"), None)
    yield point_at(Finding("E405", message, _ARGV, "--uds", "--host and --port"), settings, _ARGV, place)


def _port(settings: Settings, command: Command) -> Iterator[Finding]:
    """Yield the finding for a port that no server can be watched on; any free one (0) cannot be known beforehand."""
    written = command.flags.get("port")
    if not isinstance(written, str) or (written.isdecimal() and 1 <= int(written) <= _LAST_PORT):
        return
    place = next((at for at, word in enumerate(settings.engine.argv) if word.partition("=")[0] == "--port"), None)
    finding = Finding("E406", f"{written} is not a port to listen on", _ARGV, written, f"--port 1..{_LAST_PORT}")
    yield point_at(finding, settings, _ARGV, place)


def _guards_without_option(settings: Settings, command: Command) -> Iterator[Finding]:
    """Yield a warning for each flag that the operator guards or freezes and this vLLM does not have."""
    if not command.catalogue.readable:
        return
    version = command.catalogue.version or "as it is installed"
    guarded = [flag for flag in settings.guard.bounds if f"guard.{flag}" in settings.origins]
    for flag in dict.fromkeys((*guarded, *sorted(settings.guard.frozen))):
        if command.catalogue.knows(flag):
            continue
        key = f"guard.{flag}" if f"guard.{flag}" in settings.origins else "guard.frozen"
        message = f"vLLM {version} has no option --{flag}"
        note = "the name in [guard] has no effect"
        finding = Finding("W410", message, key, flag, "", severity=Severity.WARNING, notes=(note,))
        yield point_at(finding, settings, key)
