"""What vllmd lets out: no secret, wherever it was planted, and no control character of the server's text."""

import subprocess
from pathlib import Path

import httpx

from e2e.vllmd_process import VLLMD, free_port, running
from simulated import host, serve

LIMIT_S = 30.0
PLANTED = ("planted-api-key-1", "planted-token-value-2", "hf_plantedplantedplanted3", "planted-url-pass-4")


def outputs(folder: Path, *commands: tuple[str, ...]) -> str:
    """Return what these commands print."""
    done = [
        subprocess.run(
            [*VLLMD, *command, "--config", str(folder / "vllmd.toml")],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        for command in commands
    ]
    return "".join(d.stdout + d.stderr for d in done)


def test_secrets_planted_everywhere_are_found_nowhere(tmp_path: Path) -> None:
    """Keys in argv, environment, a URL and the server's own words appear in no output of vllmd."""
    env_file = tmp_path / "engine.env"
    env_file.write_text(f"HF_TOKEN={PLANTED[1]}\nSOME_PASSWORD={PLANTED[2]}\n")
    argv = serve(
        free_port(),
        "--api-key",
        PLANTED[0],
        "--download-dir",
        f"https://anna:{PLANTED[3]}@models.example/x",
        "--tokenizer",
        f"{PLANTED[2]}/tokenizer",
        "--gpu-memory-utilization",
        "0.2",
    )
    with running(tmp_path, argv, {"engine": {"env_file": str(env_file)}}, host()) as daemon:
        daemon.wait_serving(2, LIMIT_S)
        page = httpx.get(daemon.metrics_url).text
        told = outputs(tmp_path, ("status",), ("status", "--json"), ("check",), ("check", "--json"))
        log = daemon.log()
    state = tmp_path / "state" / "default"
    stored = "".join(
        path.read_bytes().decode(errors="replace")
        for path in state.rglob("*")
        if path.is_file() and path.parent.name != "logs"
    )
    assert "launch" in log
    assert "generation" in told
    for secret in PLANTED:
        for name, text in {"metrics": page, "told": told, "log": log, "stored": stored}.items():
            assert secret not in text, f"{secret} in {name}"
    assert {path.stat().st_mode & 0o077 for path in (state / "logs").iterdir()} == {0}


def test_a_key_in_a_yaml_file_does_not_reach_the_command_line(tmp_path: Path) -> None:
    """What the operator keeps in a file stays in one: `ps` shows every command line to everybody."""
    yaml_file = tmp_path / "server.yaml"
    yaml_file.write_text(f"api-key: [{PLANTED[0]}]\nmax-num-seqs: 64\n")
    port = free_port()
    with running(tmp_path, serve(port, "--config", str(yaml_file)), environ=host()) as daemon:
        daemon.wait_serving(1, LIMIT_S)
        lines = [" ".join(process.cmdline()) for process in daemon.server_processes()]
        refused = httpx.get(f"http://127.0.0.1:{port}/v1/models")
        allowed = httpx.get(f"http://127.0.0.1:{port}/v1/models", headers={"Authorization": f"Bearer {PLANTED[0]}"})
    assert any("--max-num-seqs 64" in line for line in lines)
    assert not any(PLANTED[0] in line for line in lines)
    assert (refused.status_code, allowed.status_code) == (401, 200)
    secrets = tmp_path / "state" / "default" / "secrets.yaml"
    assert secrets.stat().st_mode & 0o777 == 0o600


def test_text_of_the_server_cannot_steer_a_terminal(tmp_path: Path) -> None:
    """A model's name with escapes, markup and quotes comes out as visible text everywhere."""
    evil = '/srv/\x1b[2J\x1b]0;owned\x07[bold red]\u202e"}\nvllmd_evil 1'
    with running(tmp_path, serve(free_port(), model=evil), environ=host()) as daemon:
        daemon.wait(lambda i: i["state"] == "held", "held", LIMIT_S)
        page = httpx.get(daemon.metrics_url).text
        told = outputs(tmp_path, ("status", "--color", "never"), ("check",))
        log = daemon.log()
    for text in (page, told, log):
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "\u202e" not in text
    assert not [line for line in page.splitlines() if line.startswith("vllmd_evil")]
