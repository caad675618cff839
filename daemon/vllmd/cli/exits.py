"""The exit codes of every command; scripts rely on them."""

from enum import IntEnum


class Exit(IntEnum):
    """What a command's exit code means. 3 and 4 are those of LSB init scripts, 77 and 78 of sysexits.h."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_SERVING = 3
    UNREACHABLE = 4
    REFUSED = 5
    DEGRADED = 11
    NO_PERMISSION = 77
    CONFIG = 78
    INTERRUPTED = 130
