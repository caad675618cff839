"""`vllmd check` as its own process: what an operator reads, and the exit code that scripts rely on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from own_network import own_network

RUN = "from vllmd.cli.check import check; check()"
SERVE = f'argv = ["{sys.executable}", "-m", "vllmd_sim", "serve", "m"'


def check(folder: Path, *args: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Run the command on a folder that stands for /etc/vllmd."""
    env = {"PATH": os.environ["PATH"], "CONFIGURATION_DIRECTORY": str(folder), **environ}
    command = [sys.executable, "-c", RUN, *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def write(folder: Path, name: str, text: str) -> None:
    """Write one file of the folder."""
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, "utf-8")


def test_a_good_configuration_passes(tmp_path: Path) -> None:
    """Nothing wrong: exit code 0, one line, and one about restarts; with --quiet nothing at all."""
    write(tmp_path, "qwen.toml", f"[engine]\n{SERVE}]\n")
    done = check(tmp_path, "qwen")
    first, second = done.stdout.splitlines()
    assert (done.returncode, first, done.stderr) == (0, "No problem in 1 file. Nothing was changed.", "")
    assert second.startswith("Restarts: pla")  # planned or plain: the kernel's setting decides
    assert check(tmp_path, "--instance", "qwen", "--quiet").stdout == ""
    assert check(tmp_path, VLLMD_INSTANCE="qwen").returncode == 0


def test_problems_are_drawn_like_a_compilers(tmp_path: Path) -> None:
    """Each problem has its code, place, line, caret and advice; the order is errors, then warnings, by file."""
    write(tmp_path, "vllmd.toml", f'[engine]\n{SERVE}]\n[slo]\nttft_p95 = "1s"\nitl_p99 = "90ms"\n')
    write(tmp_path, "vllmd.d/20-slo.toml", '# targets\n[slo]\nttft_p95 = "1sec"\n')
    write(tmp_path, "qwen.toml", '\n[guard]\n"max-num-seq" = { min = 32, max = 512 }\n')
    done = check(tmp_path, "qwen")
    assert done.returncode == 78
    assert (
        done.stdout
        == f"""\
error[E104]: ttft_p95 is not a duration
  --> {tmp_path}/vllmd.d/20-slo.toml:3:12
   |
 3 | ttft_p95 = "1sec"
   |            ^^^^^^ write "1s", "800ms" or 0.8 (seconds)
   = {tmp_path}/vllmd.toml:4 also sets it to "1s"; this file wins

error[E201]: unknown key `max-num-seq`
  --> {tmp_path}/qwen.toml:3:1
   |
 3 | "max-num-seq" = {{ min = 32, max = 512 }}
   | ^^^^^^^^^^^^^ did you mean "max-num-seqs"?

warning[W310]: itl_p99 = 90 ms is not a bucket edge of vllm:inter_token_latency_seconds
  --> {tmp_path}/vllmd.toml:5:1
   = attainment would be interpolated; nearest edges: 75 ms, 100 ms

2 errors, 1 warning in 3 files. Nothing was changed.
"""
    )


def test_warnings_do_not_fail(tmp_path: Path) -> None:
    """A warning is told, is silent under --quiet, and leaves the exit code at 0."""
    write(tmp_path, "a.toml", f'[engine]\n{SERVE}]\n[slo]\nitl_p99 = "90ms"\n')
    assert check(tmp_path, "a").returncode == 0
    assert "W310" in check(tmp_path, "a").stdout
    quiet = check(tmp_path, "a", "-q")
    assert (quiet.returncode, quiet.stdout) == (0, "")


def test_why_a_restart_would_be_plain_is_told(tmp_path: Path) -> None:
    """What speaks against a planned one before a launch: here no shim in the server; scripts get the same."""
    write(tmp_path, "a.toml", f"[engine]\n{SERVE}]\nshim = false\n")
    with own_network():
        done = check(tmp_path, "a")
        assert done.returncode == 0
        assert "Restarts: plain, connections are refused meanwhile: vllmd_shim does not count" in done.stdout
        told = json.loads(check(tmp_path, "a", "--json").stdout)["restart"]
        assert (told["planned"], "vllmd_shim does not count" in told["plain"]) == (False, True)
        write(tmp_path, "b.toml", f"[engine]\n{SERVE}]\n")
        assert json.loads(check(tmp_path, "b", "--json").stdout)["restart"] == {"planned": True, "plain": None}


def test_json_is_one_object(tmp_path: Path) -> None:
    """Scripts get the same findings as an object of vllmd.check/v1, with the same exit code."""
    write(tmp_path, "x.toml", "mode = 'activ'\n")
    done = check(tmp_path, "--config", str(tmp_path / "x.toml"), "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 78
    assert told["schema"] == "vllmd.check/v1"
    assert (told["errors"], told["warnings"]) == (2, 0)
    first = next(f for f in told["findings"] if f["code"] == "E104")
    assert (first["file"], first["line"], first["column"]) == (str(tmp_path / "x.toml"), 1, 8)


@pytest.mark.parametrize(("argv", "code"), [(["--config", "/no/such.toml"], "E102"), (["../x"], "E108"), ([], "E109")])
def test_no_configuration_is_an_error(tmp_path: Path, argv: list[str], code: str) -> None:
    """A named file that is missing, a name that is none, and no file at all: exit code 78 and no traceback."""
    done = check(tmp_path, *argv)
    assert done.returncode == 78
    assert f"error[{code}]" in done.stdout
    assert done.stderr == ""


def test_a_command_that_is_not_vllms_is_refused(tmp_path: Path) -> None:
    """A container runtime is refused at its word in the file, and secrets of the command stay hidden."""
    command = 'argv = ["docker", "run", "-e", "HF_TOKEN=hf_abcdefghijklmnop", "img", "--api-key",\n "hunter2-hunter2"]'
    write(tmp_path, "x.toml", f"[engine]\n{command}\n")
    for args in (["x"], ["x", "--json"]):
        done = check(tmp_path, *args)
        assert done.returncode == 78
        assert "E401" in done.stdout
        assert "hunter2" not in done.stdout
        assert "hf_abc" not in done.stdout
    assert f"{tmp_path}/x.toml:2:9\n" in check(tmp_path, "x").stdout


def test_options_that_this_vllm_lacks_are_named(tmp_path: Path) -> None:
    """An unknown option is an error at its place in the array; an unknown flag in [guard] is a warning."""
    text = f'[engine]\n{SERVE},\n  "--max-num-seqz", "8"]\n[guard]\nfrozen = ["dtype", "no-such-flag"]\n'
    write(tmp_path, "x.toml", text)
    done = check(tmp_path, "x")
    assert done.returncode == 78
    assert f"{tmp_path}/x.toml:3:3\n" in done.stdout
    assert "did you mean --max-num-seqs?" in done.stdout
    assert "W410" in done.stdout


def test_variables_that_keep_the_shim_out_are_told(tmp_path: Path) -> None:
    """A warning where VLLM_PLUGINS does not name it; none where it is not wanted, and none without the variable."""
    variables = tmp_path / "engine.env"
    variables.write_text("VLLM_PLUGINS=other\n")
    variables.chmod(0o600)
    text = f'[engine]\n{SERVE}]\nenv_file = "{variables}"\n'
    write(tmp_path, "x.toml", text)
    done = check(tmp_path, "x")
    assert (done.returncode, "W411" in done.stdout) == (0, True), done.stdout
    write(tmp_path, "x.toml", f"{text}shim = false\n")
    assert "W411" not in check(tmp_path, "x").stdout


def test_the_servers_own_config_file_is_read(tmp_path: Path) -> None:
    """An unknown option in the YAML file of --config is found; a file that cannot be read is named at its option."""
    write(tmp_path, "serve.yaml", "max-num-seqz: 8\n")
    write(tmp_path, "x.toml", f'[engine]\n{SERVE}, "--config", "{tmp_path}/serve.yaml"]\n')
    assert "no option --max-num-seqz" in check(tmp_path, "x").stdout
    (tmp_path / "serve.yaml").unlink()
    done = check(tmp_path, "x")
    assert done.returncode == 78
    assert "error[E404]" in done.stdout
    assert "serve.yaml cannot be read" in done.stdout


def test_colour_is_asked_for(tmp_path: Path) -> None:
    """No colour where the output is no terminal; --color always has it."""
    write(tmp_path, "x.toml", "mode = 1\n")
    assert "\x1b" not in check(tmp_path, "x").stdout
    assert "\x1b[1;31merror" in check(tmp_path, "x", "--color", "always").stdout


def test_the_file_of_variables_is_checked_and_not_shown(tmp_path: Path) -> None:
    """A bad line of env_file is named by file and line; its text, perhaps a secret, is not shown."""
    write(tmp_path, "engine.env", "HF_TOKEN='hunter2\n")
    write(tmp_path, "x.toml", f'[engine]\n{SERVE}]\nenv_file = "{tmp_path}/engine.env"\n')
    done = check(tmp_path, "x")
    assert done.returncode == 78
    assert f"--> {tmp_path}/engine.env:1\n" in done.stdout
    assert f"engine.env_file is set in {tmp_path}/x.toml:3" in done.stdout
    assert "hunter2" not in done.stdout


def test_an_unreadable_file_of_the_chain_is_an_error(tmp_path: Path) -> None:
    """A drop-in that leads nowhere is not skipped in silence."""
    write(tmp_path, "x.toml", f"[engine]\n{SERVE}]\n")
    (tmp_path / "vllmd.toml").symlink_to(tmp_path / "gone")
    done = check(tmp_path, "x")
    assert done.returncode == 78
    assert "no such file" in done.stdout
