"""The service under a real systemd: installed from the wheel as an operator does, started, killed, stopped, refused."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from e2e.installed_service import CONFIG, MEMBER, STRANGER, UNIT, Service
from e2e.load import Clients, traffic
from e2e.systemd_machine import booted, status_field
from simulated import NAME as MODEL

pytestmark = pytest.mark.usefixtures("real_systemd")

# The project's own limit, as for the units alone; a service without any of these lines has 9.2 to 9.6.
EXPOSURE = 2.5
WATCHDOG_S = 4
# The unit's RestartSec and two starts on a busy machine.
RECOVERY_LIMIT_S = 60.0
LOAD = [Clients(4, 32, 8)]
OF_THE_MANAGER = ("NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Boot a machine and install vllmd in it."""
    with booted(tmp_path_factory.mktemp("systemd")) as machine:
        service = Service(machine)
        service.install(wheel)
        yield service


@pytest.fixture
def service(installed: Service) -> Service:
    """Give the service, configured and stopped."""
    installed.reset()
    installed.configure()
    return installed


@pytest.fixture
def serving(installed: Service) -> Service:
    """Give the service, serving: the one that the test before left, if it does."""
    if installed.status()["state"] != "serving":
        installed.reset()
        installed.configure()
        installed.start()
        installed.wait_serving()
    return installed


def test_a_start_ends_when_vllmd_answers_and_before_the_server_does(service: Service) -> None:
    """Ready means: the socket and the metrics answer, and the status text says how far the server is."""
    service.configure(start_s=3)
    service.start()
    assert service.show("StatusText").startswith("starting")
    assert service.show("ActiveState") == "active"
    assert "vllmd_" in httpx.get(service.metrics_url).raise_for_status().text
    assert service.status()["state"] == "starting"
    service.wait_serving()
    service.wait(lambda: service.show("StatusText").startswith("serving"), "the status text says so", 10)
    with traffic(service.url, MODEL, [Clients(1, 10, 2)]) as seen:
        service.wait(lambda: seen.completed, "a request from outside is answered", 10)
    assert not seen.errors


def test_members_of_the_group_read_and_nobody_else(serving: Service) -> None:
    """The service's user gives its socket to a group; changing stays with root and that user."""
    machine = serving.machine
    assert machine.run("vllmd", "status", "sim", user=MEMBER).returncode == 0
    assert machine.run("vllmd", "status", "sim", user=STRANGER).returncode == 77
    assert machine.run("vllmd", "pause", "sim", user=MEMBER).returncode == 77
    assert machine.run("vllmd", "pause", "sim").returncode == 0
    assert machine.run("vllmd", "resume", "sim").returncode == 0


def test_systemd_finds_no_fault_with_the_installed_unit(installed: Service) -> None:
    """Every line is known and every program is there."""
    done = installed.machine.run("systemd-analyze", "verify", UNIT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_running_service_is_exposed_to_little(serving: Service) -> None:
    """As systemd computes it of the unit that runs, drop-ins of the distribution included."""
    text = serving.machine.must("systemd-analyze", "security", "--no-pager", UNIT)
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", text)
    assert found is not None, text
    assert float(found[1]) <= EXPOSURE


def test_its_processes_are_the_users_and_gain_no_rights(serving: Service) -> None:
    """Daemon, server and engine run as vllmd, without a capability, behind the filter of system calls."""
    uid = int(serving.machine.must("id", "--user", "vllmd"))
    processes = serving.machine.processes_of(UNIT)
    assert len(processes) == 3
    for process in processes:
        assert set(process.uids()) == {uid}
        assert status_field(process, "NoNewPrivs") == "1"
        assert status_field(process, "Seccomp") == "2"
        assert int(status_field(process, "CapBnd"), 16) == 0


def test_the_server_cannot_speak_for_the_service(serving: Service) -> None:
    """What systemd tells its main process in variables goes no further."""
    daemon = serving.main_process()
    assert [name for name in daemon.environ() if name.startswith(OF_THE_MANAGER)]
    for process in daemon.children(recursive=True):
        assert [name for name in process.environ() if name.startswith(OF_THE_MANAGER)] == []


@contextmanager
def served_by_one(service: Service) -> Iterator[None]:
    """Keep a load on the server, and assert that it was served without an error, all of it by the same process."""
    pid = service.server_pid()
    with traffic(service.url, MODEL, LOAD) as seen:
        service.wait(lambda: seen.completed > 10, "the load is served before", 30)
        yield
        done = seen.completed
        service.wait(lambda: seen.completed > done + 10, "the load is served afterwards", 30)
        assert seen.errors == []
    assert service.servers() == [service.server_pid()] == [pid]
    assert service.status()["launches"] == {}


def test_a_restart_of_the_service_does_not_touch_the_server(serving: Service) -> None:
    """`systemctl restart` gives another vllmd, to the same server."""
    daemon = serving.main_process()
    with served_by_one(serving):
        serving.machine.must("systemctl", "restart", UNIT, within_s=RECOVERY_LIMIT_S)
        serving.wait_serving()
    assert serving.main_process().pid != daemon.pid


def test_an_upgrade_of_vllmd_does_not_touch_the_server(serving: Service, wheel: Path) -> None:
    """The wheel is installed over the running one, and the service restarted, as an operator does."""
    with served_by_one(serving):
        serving.install_wheel(wheel)
        serving.machine.must("systemctl", "restart", UNIT, within_s=RECOVERY_LIMIT_S)
        serving.wait_serving()


def test_a_daemon_that_was_killed_is_started_again_and_takes_the_server_over(serving: Service) -> None:
    """The next one is started after RestartSec."""
    killed, restarts = serving.main_process(), int(serving.show("NRestarts"))
    with served_by_one(serving):
        killed.kill()
        serving.wait(lambda: serving.show("NRestarts") == str(restarts + 1), "it is started again", RECOVERY_LIMIT_S)
        serving.wait_serving()
    assert serving.main_process().pid != killed.pid


def test_a_reload_takes_the_configuration_and_touches_nothing(serving: Service) -> None:
    """Limits count at once; another command is pending; an invalid file fails the reload and changes nothing."""
    serving.configure({"slo": {"itl_p99": "100ms"}}, "--max-num-seqs=64")
    daemon = serving.main_process()
    serving.machine.must("systemctl", "reload", UNIT)
    serving.wait(lambda: serving.status()["pending"] == ["--max-num-seqs"], "it was read", 20)
    assert serving.show("ActiveState") == "active"
    serving.wait(lambda: serving.status()["slo"], "the target is judged", 20)
    serving.machine.write(CONFIG, "[engine]\nargvv = 1\n")
    assert serving.machine.run("systemctl", "reload", UNIT).returncode != 0
    assert (serving.show("ActiveState"), serving.main_process().pid) == ("active", daemon.pid)
    serving.configure()


def test_a_stop_that_takes_too_long_leaves_no_process_either(service: Service) -> None:
    """A vllmd that drains for longer than systemd waits is killed, and what it leaves is ended after it."""
    service.drop_in("[Service]\nTimeoutStopSec=3s\n")
    service.start()
    service.wait_serving()
    with traffic(service.url, MODEL, [Clients(1, 32, 20_000)]) as seen:
        service.wait(lambda: seen.gaps_s, "a long answer has begun", 30)
        service.machine.run("systemctl", "stop", UNIT, within_s=RECOVERY_LIMIT_S)
    assert service.show("Result") == "timeout"
    assert service.processes() == []


def test_a_stop_leaves_no_process(serving: Service) -> None:
    """The daemon ends as asked, with the server and its engine, and the control group goes."""
    group = serving.machine.root / f"sys/fs/cgroup{serving.show('ControlGroup')}"
    assert len(serving.machine.processes_of(UNIT)) == len(serving.processes()) == 3
    assert group.exists()
    serving.stop()
    assert (serving.show("ActiveState"), serving.show("Result")) == ("inactive", "success")
    assert not group.exists()
    assert serving.processes() == []
    assert serving.servers() == []


def test_an_invalid_configuration_is_said_once(service: Service) -> None:
    """Starting again would not mend it: exit status 78, the file and its line in the journal, and no restart."""
    service.machine.write(CONFIG, '[engine]\nargvv = ["vllm", "serve", "m"]\n')
    assert service.machine.run("systemctl", "start", UNIT).returncode != 0
    assert (service.show("ActiveState"), service.show("SubState")) == ("failed", "failed")  # not auto-restart
    assert (service.show("ExecMainStatus"), service.show("NRestarts")) == ("78", "0")
    printed = service.machine.journal(UNIT, f"_SYSTEMD_INVOCATION_ID={service.show('InvocationID')}")
    told = [entry["MESSAGE"] for entry in printed]
    assert any(f"{CONFIG}:2:" in message for message in told), told


def test_a_daemon_that_stands_still_is_aborted_and_the_server_serves_on(service: Service) -> None:
    """The loop feeds the watchdog; when it stops, systemd ends it, and the next one takes the server over."""
    service.drop_in(f"[Service]\nWatchdogSec={WATCHDOG_S}s\nRestartSec=1s\n")
    service.start()
    service.wait_serving()
    with served_by_one(service):
        service.main_process().send_signal(signal.SIGSTOP)
        service.wait(lambda: service.show("NRestarts") == "1", "systemd starts it again", RECOVERY_LIMIT_S)
        service.wait_serving()
    assert len(service.machine.journal(UNIT, "UNIT_RESULT=watchdog")) == 1
