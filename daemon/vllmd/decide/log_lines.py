"""Takes a line of vLLM's log apart: what it says and how loudly, and whether it only repeats what a user sent."""

import re
from dataclasses import dataclass

MAX_CHARS = 4000  # of a line; every message that decides is shorter, dumps of inputs are not
_PREFIX_CHARS = 300  # how far into a line the logger's prefix may end

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# `(EngineCore pid=12) ERROR 11-29 16:49:53 [core.py:1332] `, also with 0.7's `core.py:291] ` for the place, and after
# what a container runtime or a log collector puts before it.
_LOGGED = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\.\d+ )?\[?[\w./\\-]+:\d+\] ?")
_PRINTED = re.compile(r"(?:\([A-Za-z][^()]{0,60} pid=\d+\) ?)?(?:\[rank\d+\]: ?)?")  # no logger: a traceback's end
# Other loggers in the same log: Python's own, uvicorn's, and vLLM's JSON (0.31 and later).
_OTHER_QUIET = re.compile(r" - (?:DEBUG|INFO|WARNING) - |\b(?:INFO|WARNING):  |\"level(?:name)?\": ?\"(?:INFO|WARNING)")
_QUIET = frozenset({"DEBUG", "INFO", "WARNING"})
# Lines that hold prompts, outputs or whole requests: whatever they say, it is a user's text (vLLM 0.5 to 0.33:
# logging_utils/dump_input.py, entrypoints/logger.py).
ECHOES = (
    "Dumping input data",
    "Dumping scheduler output",
    "Dumping scheduler stats",
    "Received request",
    "Generated response",
    "prompt: '",
    'prompt: "',
    "prompt_token_ids",
)
OPEN_ECHOES = ("Received request", "Generated response")
_CLOSED = ("params:", "params=", "finish_reason")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the log: its number, from 1, and its text as it was written."""

    number: int
    text: str


def message(line: str) -> str:
    """Return what a line says, without colour, process, level, time and place; cut at a blank before MAX_CHARS."""
    return heard(line)[0]


def heard(line: str) -> tuple[str, bool]:
    """Return what a line says, and whether it is quiet: a warning or less, which ends no server."""
    if len(line) > MAX_CHARS:
        line = line[:MAX_CHARS].rpartition(" ")[0]  # a secret cut in two would no longer be known as one
    text = _ANSI.sub("", line) if "\x1b" in line else line
    if logged := _LOGGED.search(text, 0, _PREFIX_CHARS):
        return text[logged.end() :], logged[1] in _QUIET
    printed = _PRINTED.match(text)
    return text[printed.end() :] if printed else text, bool(_OTHER_QUIET.search(text, 0, _PREFIX_CHARS))


def is_echo(line: str) -> bool:
    """Whether a line repeats inputs or outputs, so that its words say nothing about the server."""
    return any(mark in line for mark in ECHOES)


def is_access(line: str) -> bool:
    """Whether a line reports a request, no probe: most of a long life's log, with an address that its sender chose."""
    return " HTTP/1." in line and "/health HTTP/1." not in line


def opens_echo(line: str) -> bool:
    """Whether an echo goes on in the lines below: a prompt with line breaks, printed as it is."""
    return any(mark in line for mark in OPEN_ECHOES) and not any(mark in line for mark in _CLOSED)


def is_logged(line: str) -> bool:
    """Whether a line begins with what a logger puts before its messages."""
    return bool(_LOGGED.search(line, 0, _PREFIX_CHARS) or _OTHER_QUIET.search(line, 0, _PREFIX_CHARS))
