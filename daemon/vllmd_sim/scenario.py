"""Whether the host's fault strikes this launch: how often it has, and whether an option keeps it away."""

import os
from collections.abc import Collection
from dataclasses import replace

from vllmd_sim.host import Host


def of_this_launch(host: Host, given: Collection[str]) -> Host:
    """Return the host as this launch finds it, without the fault where it does not strike.

    `given` names the options that are set (`enforce_eager`). Every launch that the fault would strike is counted, by
    one byte in host.fault_file.
    """
    if host.fault is None:
        return host
    kept_away = host.fault_unless is not None and host.fault_unless.replace("-", "_") in given
    if kept_away or not _strikes_again(host):
        return replace(host, fault=None)
    return host


def _strikes_again(host: Host) -> bool:
    if host.fault_launches is None or host.fault_file is None:
        return True
    counter = os.open(host.fault_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(counter, b".")
        return os.fstat(counter).st_size <= host.fault_launches
    finally:
        os.close(counter)
