"""Where an instance's files lie."""

from pathlib import Path

import pytest

from vllmd.cli.places import SOCKET_PATH_LIMIT, Caller, candidates, checked_socket, find, instances, places
from vllmd.cli.where import Asked, all_places, configured, one_place
from vllmd.errors import VllmdError

ROOT = Caller(0, {"HOME": "/root", "XDG_RUNTIME_DIR": "/run/user/0"})
ANNA = Caller(1000, {"HOME": "/home/anna", "XDG_RUNTIME_DIR": "/run/user/1000"})


def test_root_is_the_system() -> None:
    """Root's instances lie in /var/lib and /run, whatever its environment says."""
    found = places("qwen", ROOT)
    assert (found.state, found.control) == (Path("/var/lib/vllmd/qwen"), Path("/run/vllmd/qwen/control.sock"))
    assert found.status_file == Path("/var/lib/vllmd/qwen/status.json")


def test_user_follows_xdg() -> None:
    """A user's instances lie where the XDG base directories say."""
    found = places("qwen", ANNA)
    assert found.state == Path("/home/anna/.local/state/vllmd/qwen")
    assert found.control == Path("/run/user/1000/vllmd/qwen/control.sock")


def test_user_without_runtime_folder_has_the_socket_beside_the_state() -> None:
    """Without XDG_RUNTIME_DIR the socket lies in the state folder; a relative XDG folder is ignored."""
    found = places("qwen", Caller(1000, {"HOME": "/home/anna", "XDG_STATE_HOME": "relative"}))
    assert found.control == found.state / "control.sock" == Path("/home/anna/.local/state/vllmd/qwen/control.sock")


def test_state_home_is_honoured() -> None:
    """XDG_STATE_HOME moves the state folder."""
    found = places("qwen", Caller(1000, {"HOME": "/home/anna", "XDG_STATE_HOME": "/data/state"}))
    assert found.state == Path("/data/state/vllmd/qwen")


def test_chosen_state_folder_holds_the_socket_too() -> None:
    """A state folder that is given gets the instance's name added, and the socket in it."""
    found = places("qwen", ROOT, state_dir="/srv/vllmd")
    assert (found.state, found.control) == (Path("/srv/vllmd/qwen"), Path("/srv/vllmd/qwen/control.sock"))


def test_configured_socket_has_the_name_filled_in() -> None:
    """NAME in [listen] control stands for the instance, and the configured socket wins."""
    found = places("qwen", ROOT, state_dir="/srv/vllmd", control="/run/x/NAME.sock")
    assert found.control == Path("/run/x/qwen.sock")


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "../../etc", "a b", "x" * 65, "ä", "-w", "a\n"])
def test_name_that_is_no_name(name: str) -> None:
    """A name that could leave its folder, or be taken for an option, is refused."""
    with pytest.raises(VllmdError, match="not an instance name"):
        places(name, ROOT)


def test_socket_path_that_is_too_long_is_named() -> None:
    """A path that the kernel could not bind is refused in words, to the byte."""
    fits = Path("/" + "x" * (SOCKET_PATH_LIMIT - 1))
    assert checked_socket(fits) == fits
    with pytest.raises(VllmdError, match=r"108 bytes long, Linux takes 107.*\[listen\] control"):
        checked_socket(Path("/" + "x" * SOCKET_PATH_LIMIT))


def test_limit_counts_bytes_not_characters() -> None:
    """A path of two-byte characters is as long as its bytes."""
    with pytest.raises(VllmdError, match="Linux takes"):
        checked_socket(Path("/" + "ä" * 60))


def test_user_also_looks_at_the_system() -> None:
    """A user finds an instance of the system when there is none of their own."""
    own, system, beside = candidates("qwen", ANNA)
    assert own == places("qwen", ANNA)
    assert system == places("qwen", ROOT)
    assert beside.control == Path("/var/lib/vllmd/qwen/control.sock")


def user(tmp_path: Path) -> Caller:
    """Return a user whose folders lie in a temporary one."""
    return Caller(1000, {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(tmp_path / "run")})


def test_found_instances_are_those_that_left_a_trace(tmp_path: Path) -> None:
    """A folder counts as an instance when a status file or a socket lies in it, not for a start that failed at once."""
    for name, trace in (("b", "status.json"), ("a", "control.sock"), ("c", "ledger.db")):
        folder = tmp_path / "state" / "vllmd" / name
        folder.mkdir(parents=True)
        (folder / trace).touch()
    assert {"a", "b"} <= set(instances(user(tmp_path)))
    assert "c" not in instances(user(tmp_path))
    assert instances(user(tmp_path), str(tmp_path / "elsewhere")) == ()


def test_own_place_is_the_default(tmp_path: Path) -> None:
    """Where nothing is found, the instance is looked for in the caller's own place."""
    assert find("nowhere", user(tmp_path)) == places("nowhere", user(tmp_path))


def test_named_instance_is_the_only_one(tmp_path: Path) -> None:
    """A name means that instance, in the state folder that was given."""
    (found,) = all_places(Asked("qwen", state_dir=str(tmp_path)), user(tmp_path))
    assert found == places("qwen", user(tmp_path), state_dir=str(tmp_path))


def test_without_a_name_all_are_meant(tmp_path: Path) -> None:
    """Without a name every instance of the folder is meant; the default one when there is none."""
    assert [p.name for p in all_places(Asked(state_dir=str(tmp_path)), user(tmp_path))] == ["default"]
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "status.json").touch()
    assert [p.name for p in all_places(Asked(state_dir=str(tmp_path)), user(tmp_path))] == ["a", "b"]


def test_socket_on_the_command_line_wins(tmp_path: Path) -> None:
    """--socket is asked whatever else is known; what was told last still comes from the state folder."""
    found = one_place(Asked("qwen", tmp_path / "x.sock", state_dir=str(tmp_path)), user(tmp_path))
    assert (found.control, found.state) == (tmp_path / "x.sock", tmp_path / "qwen")


def test_configuration_says_where(tmp_path: Path) -> None:
    """A configuration file that is named moves state folder and socket."""
    config = tmp_path / "x.toml"
    config.write_text('[state]\ndir = "/srv/s"\n[listen]\ncontrol = "/run/x/NAME.sock"\n')
    found = one_place(Asked("qwen", config=config), user(tmp_path))
    assert (found.state, found.control) == (Path("/srv/s/qwen"), Path("/run/x/qwen.sock"))


def test_state_folder_on_the_command_line_leaves_the_configured_socket(tmp_path: Path) -> None:
    """--state-dir moves the socket too: it is for a second daemon beside the configured one."""
    config = tmp_path / "x.toml"
    config.write_text('[listen]\ncontrol = "/run/x/NAME.sock"\n')
    found = one_place(Asked("qwen", config=config, state_dir="/srv/s"), user(tmp_path))
    assert found.control == Path("/srv/s/qwen/control.sock")


def test_environment_wins_over_the_file(tmp_path: Path) -> None:
    """VLLMD__SECTION__KEY wins over a file."""
    config = tmp_path / "x.toml"
    config.write_text('[state]\ndir = "/srv/s"\n')
    found = configured("qwen", config, {"VLLMD__STATE__DIR": "/srv/t"})
    assert (found.state_dir, found.control) == ("/srv/t", None)


@pytest.mark.parametrize("content", ["state = 3", "[state]\ndir = 3", "[listen]\ncontrol = []"])
def test_values_of_the_wrong_kind_say_nothing(tmp_path: Path, content: str) -> None:
    """A value that is no text is not taken for a path: `vllmd check` is the place that names it."""
    config = tmp_path / "x.toml"
    config.write_text(content)
    found = configured("qwen", config, {})
    assert (found.state_dir, found.control) == (None, None)


def test_named_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """A configuration file that was named must be readable."""
    with pytest.raises(VllmdError, match=r"x\.toml"):
        configured("qwen", tmp_path / "x.toml", {})
