"""What of a configuration stays as it is until vllmd itself is started anew."""

from vllmd.model.instance import Instance


def fixed_changes(running: Instance, asked: Instance) -> tuple[str, ...]:
    """Return what would be otherwise and cannot be taken by a running vllmd, as the operator writes it."""
    before, after = running.settings, asked.settings
    kept = {
        "state.dir": (before.state_dir, after.state_dir),
        "listen.metrics": (before.listen.metrics, after.listen.metrics),
        "listen.control": (before.listen.control, after.listen.control),
        "listen.group": (before.listen.group, after.listen.group),
        "log.format": (before.log.format, after.log.format),
        "engine.scrape_interval": (before.engine.scrape_interval_s, after.engine.scrape_interval_s),
        "where the server answers": (_address(running), _address(asked)),
    }
    return tuple(name for name, (old, new) in kept.items() if old != new)


def _address(instance: Instance) -> tuple[object, ...]:
    flags = instance.command.flags
    return (instance.url, *(flags.get(name) for name in ("host", "port", "uds")))
