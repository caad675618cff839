"""What `vllmd doctor` looks at on this host: the kernel, the GPUs, the state folder, the service, the metrics' port."""

import http.client
import os
import subprocess
import threading
from pathlib import Path

from vllmd.act.parked_port import BACKLOG, longest_queue
from vllmd.act.port import is_free
from vllmd.cli.places import Places
from vllmd.errors import VllmdError
from vllmd.model.snapshot import Gpu
from vllmd.observe.gpu import NvmlReader
from vllmd.report.address import parse_address
from vllmd.report.doctor_text import Check, Health
from vllmd.report.ledger_history import reading
from vllmd.report.reading import Fields, parts, text

_ANSWER_LIMIT_S = 3.0  # for systemd and the exporter, which answer at once
_NVML_LIMIT_S = 5.0  # a driver in trouble answers late or never
_SYSTEMD = Path("/run/systemd/system")  # there where systemd is the service manager: sd_booted(3)
_ANY = ("", "0.0.0.0", "::")  # noqa: S104 - not bound


def host_checks(place: Places, told: Fields, metrics: str, *, alive: bool) -> list[Check]:
    """Return the checks; `told` is what the living daemon says, empty where none answers this user."""
    return [_kernel(), _gpus(told), _state(place, told), _service(place.name), _metrics(metrics, alive=alive)]


def _kernel() -> Check:
    """Return which kernel it is and how many connections it lets wait. What it lacks for a restart, that check says."""
    release, queue = os.uname().release, longest_queue()
    if queue < BACKLOG:
        step = f"as root: sysctl -w net.core.somaxconn={BACKLOG}; systemd/sysctl.d/20-vllmd.conf keeps it"
        return Check("kernel", Health.WARN, f"Linux {release}, only {queue} connections can wait at a port", step)
    return Check("kernel", Health.OK, f"Linux {release}, {queue} connections can wait at a port")


def _gpus(told: Fields) -> Check:
    """Return which GPUs NVML tells of; those that the daemon sees, where one answers."""
    gpus = [text(gpu, "name") for gpu in parts(told, "memory")]
    if not gpus:
        found, problem = _nvml()
        gpus = [gpu.name for gpu in found or ()]
        if not gpus:
            step = "install the driver's libnvidia-ml; without a GPU there is nothing to do"
            said = f"NVML tells of none ({problem}): the GPU's memory is not watched"
            return Check("GPU", Health.WARN, said, step)
        if told:
            step = "see its log; under systemd, whether /dev/nvidia* was there when it started (vllmd-gpu.service)"
            return Check("GPU", Health.WARN, f"{', '.join(gpus)}, of which the daemon sees none", step)
    return Check("GPU", Health.OK, ", ".join(gpus))


def _nvml() -> tuple[tuple[Gpu, ...] | None, str]:
    """Return the GPUs, or why there are none, within the limit."""
    reader, found = NvmlReader(lambda _: False), list[tuple[Gpu, ...] | None]()
    thread = threading.Thread(target=lambda: found.append(reader.read()), daemon=True)
    thread.start()
    thread.join(_NVML_LIMIT_S)
    if not found:
        return None, f"no answer within {_NVML_LIMIT_S:g} s"
    return found[0], reader.problem or "it counts 0"


def _state(place: Places, told: Fields) -> Check:
    """Return whether decisions are kept: the daemon knows best, else whether the ledger can be read and written."""
    folder = place.state
    if problem := text(told, "problem", ""):
        return Check("state", Health.BAD, problem, f"look at {folder}: room, owner, a newer vllmd's ledger")
    if told:
        return Check("state", Health.OK, f"{folder}, written by the daemon")
    if not folder.exists():
        above = next(path for path in folder.parents if path.exists())
        may = os.access(above, os.W_OK | os.X_OK)
        said = f"{folder} is not there yet, and this user {'can' if may else 'cannot'} make it"
        step = "" if may else "run vllmd as its service's user, or with --state-dir"
        return Check("state", Health.OK if may else Health.WARN, said, step)
    if not os.access(folder, os.W_OK | os.X_OK):
        said = f"{folder} cannot be written by this user, who may not be the service's"
        return Check("state", Health.WARN, said, f"sudo vllmd doctor {place.name}")
    return _ledger(folder)


def _ledger(folder: Path) -> Check:
    """Return whether the ledger of a folder at rest can be read."""
    try:
        with reading(folder):
            pass
    except PermissionError as error:
        return Check("state", Health.WARN, str(error), "sudo vllmd doctor")
    except VllmdError as error:
        fresh = not (folder / "ledger.db").exists()
        return (
            Check("state", Health.OK, f"{folder}, no ledger yet") if fresh else Check("state", Health.BAD, str(error))
        )
    return Check("state", Health.OK, f"{folder} can be written, its ledger read")


def _service(name: str) -> Check:
    """Return whether systemd keeps the daemon alive, and by which watchdog."""
    step = f"vllmd install-service {name}"
    if not _SYSTEMD.is_dir():
        return Check("service", Health.WARN, "no systemd here: nobody starts vllmd again if it ends", "")
    try:
        command = ("systemctl", "show", f"vllmd@{name}", "--property=LoadState,ActiveState,WatchdogUSec")
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_LIMIT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return Check("service", Health.WARN, f"systemd does not answer: {error}", f"systemctl status vllmd@{name}")
    said = dict(line.split("=", 1) for line in answer.splitlines() if "=" in line)
    if said.get("LoadState") != "loaded":
        return Check("service", Health.WARN, f"vllmd@{name} is no service: nobody starts vllmd again if it ends", step)
    active, watchdog = said.get("ActiveState", "unknown"), said.get("WatchdogUSec", "")
    if watchdog in ("", "0", "infinity"):
        return Check(
            "service", Health.WARN, f"vllmd@{name} is {active}, without a watchdog", "WatchdogSec=60 in its unit"
        )
    if active != "active":
        step = f"systemctl start vllmd@{name}"
        return Check("service", Health.WARN, f"vllmd@{name} is {active}, watchdog {watchdog}", step)
    return Check("service", Health.OK, f"vllmd@{name} is active, watchdog {watchdog}")


def _metrics(address: str, *, alive: bool) -> Check:
    """Return whether the exporter answers, or could: its port is free where no daemon lives."""
    try:
        host, port = parse_address(address)
    except VllmdError as error:
        return Check("metrics", Health.BAD, str(error), "set [listen] metrics")
    if not alive:
        if is_free(host, port):
            return Check("metrics", Health.OK, f"{address} is free")
        return Check("metrics", Health.BAD, f"{address} is taken: vllmd would not start", f"ss -ltnp sport = :{port}")
    connection = http.client.HTTPConnection("127.0.0.1" if host in _ANY else host, port, timeout=_ANSWER_LIMIT_S)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        said = answer.read(200).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        why = f"{address} does not answer: {error}"
        return Check("metrics", Health.BAD, why, "is [listen] metrics what the daemon was started with?")
    finally:
        connection.close()
    healthy = answer.status == http.client.OK
    return Check(
        "metrics", Health.OK if healthy else Health.BAD, f"{address}: {said}", "" if healthy else "vllmd hangs"
    )
