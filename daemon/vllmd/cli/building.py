"""From settings to a daemon that is ready to run: reads the installation, checks the command, takes the lock."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import structlog

from vllmd.act.environment import child_environment
from vllmd.act.launcher import Launcher
from vllmd.act.secrets_file import write_secrets
from vllmd.cli.command_findings import command_findings
from vllmd.cli.places import Caller, places
from vllmd.config.env_file import read_env_file
from vllmd.config.profiles import profile_of
from vllmd.daemon import Configuration, Daemon, Place, become_subreaper, lock_instance
from vllmd.errors import CommandError, ConfigError, Severity
from vllmd.model.argv import parse_command
from vllmd.model.flags import Flags
from vllmd.model.instance import Instance
from vllmd.model.masking import Masker
from vllmd.model.secret_names import is_secret_option
from vllmd.model.settings import Settings
from vllmd.observe.installation import find_installation
from vllmd.observe.option_source import read_catalogue
from vllmd.observe.yaml_flags import expand_config_file
from vllmd.report.log import configure

log = structlog.get_logger()

# vLLM binds the IPv4 address of a name, so that "localhost" must not be asked for over IPv6.
_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "localhost": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - not bound
_PORT = 8000  # vLLM's default (entrypoints/openai/cli_args.py)


@contextmanager
def build(settings: Settings, environ: Mapping[str, str], load: Callable[[], Settings]) -> Iterator[Daemon]:
    """Yield the daemon of an instance, holding its lock. `load` reads its settings anew, as the daemon is told to.

    ConfigError when the command is not vLLM's own or holds options that it does not know, or when the policies' profile
    cannot be used; InstanceBusyError when another vllmd runs the instance.
    """
    profile_of(settings)  # before anything is locked or made
    place = places(
        settings.name, Caller(os.geteuid(), environ), state_dir=settings.state_dir, control=settings.listen.control
    )
    lock = lock_instance(place.state)
    try:
        become_subreaper()
        first = configuration_of(settings, environ, place.state)
        configure(settings.log.format, first.instance.masker)
        where = Place(place.state, place.control, place.status_file)
        yield Daemon(first, where, lambda: configuration_of(load(), environ, place.state))
    finally:
        os.close(lock)


def configuration_of(settings: Settings, environ: Mapping[str, str], state_dir: Path) -> Configuration:
    """Return what settings come to on this host. ConfigError as for `build`."""
    profile = profile_of(settings)
    engine = settings.engine
    environment = child_environment(environ, read_env_file(Path(engine.env_file)) if engine.env_file else {})
    instance = replace(build_instance(settings, environment, state_dir), thresholds=profile.thresholds)
    host, port = listening_address(instance.command.flags)
    launcher = Launcher(
        state_dir=state_dir,
        environment=environment,
        host=host,
        port=port,
        start_timeout_s=engine.start_timeout_s,
        stall_timeout_s=engine.stall_timeout_s,
        drain_timeout_s=engine.drain_timeout_s,
        hold_timeout_s=engine.hold_timeout_s,
        keep_logs=settings.log.engine_keep,
        mask=instance.masker.mask,
        shim=engine.shim,
        gate=engine.gate,
        park_timeout_s=engine.park_timeout_s,
    )
    return Configuration(instance, launcher, profile.policies, lambda known: refreshed(known, environment, state_dir))


def build_instance(settings: Settings, environment: Mapping[str, str], state_dir: Path) -> Instance:
    """Return the instance: the installation found, its options read, the operator's argv in canonical form.

    ConfigError with everything that is wrong with the command, before any start is paid for.
    """
    try:
        installation = find_installation(settings.engine.argv, environment)
        catalogue = read_catalogue(installation, state_dir)
        length = len(installation.program)
        argv = expand_config_file(settings.engine.argv, length, catalogue)
        command = parse_command(argv, length, catalogue)
    except CommandError as error:
        raise ConfigError(command_findings(settings, environment)) from error
    wrong = [f for f in command_findings(settings, environment, state_dir) if f.severity is Severity.ERROR]
    if wrong:
        raise ConfigError(wrong)
    typed = parse_command(settings.engine.argv, length, catalogue).flags
    filed = {n: v for n, v in command.flags.items() if n not in typed and is_secret_option(n)}
    if not catalogue.readable:
        log.warning("options unknown", reason="the installed vLLM's source could not be read")
    return Instance(
        settings=settings,
        command=command,
        catalogue=catalogue,
        masker=Masker.from_launch(argv, environment),
        url=server_url(command.flags, settings.engine.url),
        simulated=installation.simulated,
        stamp=installation.stamp,
        filed=frozenset(filed),
        secrets_file=str(write_secrets(state_dir, filed)) if filed else None,
    )


def refreshed(instance: Instance, environment: Mapping[str, str], state_dir: Path) -> Instance:
    """Return the instance as the installation is now: vLLM may have been upgraded under a running server.

    An installation that no longer takes the operator's command is told in the log; vLLM's own words decide then.
    """
    settings = instance.settings
    try:
        if find_installation(settings.engine.argv, environment).stamp == instance.stamp:
            return instance
        fresh = replace(build_instance(settings, environment, state_dir), thresholds=instance.thresholds)
    except (CommandError, ConfigError) as error:
        log.warning("the installation changed and does not take the command", reason=str(error))
        return instance
    log.info("the installation changed", before=instance.catalogue.version, now=fresh.catalogue.version)
    return fresh


def listening_address(flags: Flags) -> tuple[str, int]:
    """Return the host (empty: all addresses) and the port that the server binds."""
    host, port = flags.get("host"), flags.number("port")
    return (host if isinstance(host, str) else ""), int(port or _PORT)


def server_url(flags: Flags, url: str | None) -> str:
    """Return where the server answers on this host: as configured, or from its argv (loopback for all addresses)."""
    if url is not None:
        return url.rstrip("/")
    host, port = listening_address(flags)
    scheme = "https" if "ssl-certfile" in flags else "http"
    return f"{scheme}://{_LOOPBACK.get(host) or (f'[{host}]' if ':' in host else host)}:{port}"
