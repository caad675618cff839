"""Signs of life of a start, by its log alone."""

from pathlib import Path

from vllmd.act.progress import StartProgress

COMPLAINT = (
    "(EngineCore pid=2) INFO 01-01 00:00:00 [shm_broadcast.py:681] No available shared memory broadcast block found"
)


def silence_after(log: Path, *additions: str) -> float:
    """Return the silence in seconds after these additions to a log, ten seconds apart, the first at ten."""
    progress = StartProgress(log, 0.0)
    silence_s = 0.0
    for count, text in enumerate(additions, start=1):
        with log.open("a", encoding="utf-8") as file:
            file.write(text)
        silence_s = progress.look((), 10.0 * count).of_all_s
    return silence_s


def test_a_log_that_grows_is_a_sign_of_life(tmp_path: Path) -> None:
    """Any new line is; nothing new is none."""
    assert silence_after(tmp_path / "log", "Loading weights\n", "", "Compiling\n") == 0.0
    assert silence_after(tmp_path / "other", "Loading weights\n", "", "") == 20.0


def test_complaints_that_nothing_gets_on_are_no_sign_of_life(tmp_path: Path) -> None:
    """The engine repeats them every minute of a hang; a line of another kind among them is a sign."""
    assert silence_after(tmp_path / "log", "Loading weights\n", f"{COMPLAINT}\n", f"\n{COMPLAINT}\n") == 20.0
    assert silence_after(tmp_path / "other", "Loading weights\n", f"{COMPLAINT}\n", f"{COMPLAINT}\nCompiling\n") == 0.0
