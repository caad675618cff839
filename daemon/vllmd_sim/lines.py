"""Log lines in vLLM's form: `(EngineCore pid=7) INFO 11-29 17:39:00 [core.py:116] text`, each with its prefix.

Before 0.10 only workers have a prefix, before 0.8 the place has one bracket: `INFO 11-29 17:39:00 core.py:116] text`.
"""

import os
import sys
import time

from vllmd_sim.versions import at_least

API_SERVER, ENGINE = "APIServer", "EngineCore"
_PREFIXES = (0, 10)
_BRACKETS = (0, 8)


class Console:
    """What one process of some version prints. A reader that has gone away is ignored, as vLLM's logging ignores it."""

    def __init__(self, process: str, version: str, pid: int | None = None) -> None:
        bare = process in {API_SERVER, ENGINE} and not at_least(version, _PREFIXES)
        self._prefix = "" if bare else f"({process} pid={os.getpid() if pid is None else pid}) "
        self._bracket = "[" if at_least(version, _BRACKETS) else ""

    def info(self, place: str, text: str) -> None:
        """Print at INFO; `place` is vLLM's `module.py:line`."""
        self._record("INFO", place, text)

    def warning(self, place: str, text: str) -> None:
        """Print at WARNING."""
        self._record("WARNING", place, text)

    def error(self, place: str, text: str) -> None:
        """Print at ERROR."""
        self._record("ERROR", place, text)

    def critical(self, place: str, text: str) -> None:
        """Print at CRITICAL."""
        self._record("CRITICAL", place, text)

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
        emit("".join(f"{self._prefix}{line}\n" for line in text.split("\n")))

    def _record(self, level: str, place: str, text: str) -> None:
        head = f"{level} {time.strftime('%m-%d %H:%M:%S')} {self._bracket}{place}]"
        self.raw("\n".join(f"{head} {line}" for line in text.split("\n")))


def emit(text: str) -> None:
    """Write to standard output at once."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        return


def banner(console: Console, version: str, model: str) -> None:
    """Print the lines that vLLM begins with."""
    if not at_least(version, _PREFIXES):
        console.info("api_server.py:912", f"vLLM API server version {version}")
        return
    art = (
        "       █     █     █▄   ▄█",
        f" ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}",
        f"  █▄█▀ █     █     █     █  model   {model}",
        "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
    )
    console.info("api_utils.py:345", "\n".join(("", *art, "")))


def say_arguments(console: Console, version: str, all_of_them: object, non_default: object) -> None:
    """Print the arguments that the server was given; old versions print every one."""
    if at_least(version, _PREFIXES):
        console.info("api_utils.py:273", f"non-default args: {non_default}")
    else:
        console.info("api_server.py:913", f"args: {all_of_them}")


def gib(size: float) -> str:
    """Return bytes as vLLM writes GiB: two decimals at most (`13.5`, `-4.75`)."""
    return str(round(size / 2**30, 2))
