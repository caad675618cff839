"""`vllmd set` over the simulated server: at once where it can be, refused in words where it cannot."""

import os
import signal
from pathlib import Path

import httpx

from e2e.vllmd_process import Instance, free_port, running
from simulated import NAME, host, serve

LIMIT_S = 30.0


def in_force(instance: Instance, flag: str) -> object:
    """Return the value of a flag with which the last step was made."""
    return next(knob["in_force"] for knob in instance["live"]["flags"] if knob["flag"] == flag)


def test_a_value_is_set_at_once_and_taken_back(tmp_path: Path) -> None:
    """The next step has it, and `launched` ends it; the server stays the same."""
    port = free_port()
    with running(tmp_path, serve(port), environ=host()) as daemon:
        pid = daemon.wait_serving(1, LIMIT_S)["pid"]
        assert daemon.ask("set", "max-num-seqs=2", "--for", "10m").returncode == 0
        body = {"model": NAME, "prompt": "x" * 400, "max_tokens": 4}
        assert httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=LIMIT_S).is_success
        daemon.wait(lambda i: in_force(i, "max-num-seqs") == 2, "the value is in force", LIMIT_S)
        assert daemon.ask("set", "max-num-seqs=launched").returncode == 0
        assert daemon.status()["pid"] == pid


def test_what_the_server_does_not_offer_is_refused(tmp_path: Path) -> None:
    """A vLLM of 0.11 has no hook: exit code 5 and the reason, which the status shows; a wrong word is misuse."""
    with running(tmp_path, serve(free_port()), environ=host(version="0.11.0")) as daemon:
        pid = daemon.wait_serving(1, LIMIT_S)["pid"]
        refused = daemon.ask("set", "max-num-seqs=2", "--for", "10m")
        assert refused.returncode == 5
        assert "has not loaded vllmd_shim" in refused.stderr
        assert "not live: the server has not loaded vllmd_shim" in daemon.ask("status").stdout
        for wrong in (("max-num-seqs",), ("max-num-seqs=two",), ("max-num-seqs=2", "--for", "soon"), ()):
            assert daemon.ask("set", *wrong).returncode == 2
        assert daemon.status()["pid"] == pid
        assert "max-num-seqs" not in daemon.ask("history").stdout


def test_without_the_shim_the_server_is_told_of_no_block(tmp_path: Path) -> None:
    """With engine.shim = false its environment is as it was, and the reason is another one."""
    with running(tmp_path, serve(free_port()), {"engine": {"shim": False}}, host()) as daemon:
        pid = daemon.wait_serving(1, LIMIT_S)["pid"]
        assert b"VLLMD_SHIM_BLOCK" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert "engine.shim is off" in daemon.ask("set", "max-num-seqs=2").stderr
        assert not (tmp_path / "state" / "default" / "shim").exists()


def test_a_server_that_is_left_keeps_its_block_until_it_is_reaped(tmp_path: Path) -> None:
    """SIGUSR1 leaves both to the next vllmd; `vllmd reap` ends the server, and its block goes with it."""
    with running(tmp_path, serve(free_port()), environ=host()) as daemon:
        pid = daemon.wait_serving(1, LIMIT_S)["pid"]
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        (block,) = (Path(os.fsdecode(w.partition(b"=")[2])) for w in words if w.startswith(b"VLLMD_SHIM_BLOCK="))
        daemon.process.send_signal(signal.SIGUSR1)
        assert daemon.wait_ended(LIMIT_S) == 0
        assert block.exists()
        assert daemon.ask("reap").returncode == 0
        assert not block.exists()
