"""Log lines in vLLM's form: `(EngineCore pid=7) INFO 11-29 17:39:00 [core.py:116] text`, each with its prefix."""

import os
import sys
import time


class Console:
    """What one process prints. A reader that has gone away is ignored, as vLLM's logging ignores it."""

    def __init__(self, process: str) -> None:
        self._prefix = f"({process} pid={os.getpid()})"

    def info(self, place: str, text: str) -> None:
        """Print at INFO; `place` is vLLM's `module.py:line`."""
        self._record("INFO", place, text)

    def warning(self, place: str, text: str) -> None:
        """Print at WARNING."""
        self._record("WARNING", place, text)

    def error(self, place: str, text: str) -> None:
        """Print at ERROR."""
        self._record("ERROR", place, text)

    def say(self, place: str, text: str) -> None:
        """Print at INFO from a place, as it is where there is none, nothing where there is no text."""
        if place:
            self.info(place, text)
        elif text:
            emit(text)

    def uvicorn(self, text: str) -> None:
        """Print as uvicorn does: no time, no place."""
        self.raw(f"INFO:     {text}")

    def raw(self, text: str) -> None:
        """Print lines that carry nothing but the prefix, such as a traceback that nobody caught."""
        emit("".join(f"{self._prefix} {line}\n" for line in text.split("\n")))

    def _record(self, level: str, place: str, text: str) -> None:
        self.raw("\n".join(f"{level} {time.strftime('%m-%d %H:%M:%S')} [{place}] {line}" for line in text.split("\n")))


def emit(text: str) -> None:
    """Write to standard output at once."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        return


def banner(console: Console, version: str, model: str) -> None:
    """Print the lines that vLLM begins with."""
    art = (
        "       █     █     █▄   ▄█",
        f" ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}",
        f"  █▄█▀ █     █     █     █  model   {model}",
        "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
    )
    console.info("api_utils.py:345", "\n".join(("", *art, "")))


def gib(size: float) -> str:
    """Return bytes as vLLM writes GiB: two decimals at most (`13.5`, `-4.75`)."""
    return str(round(size / 2**30, 2))
