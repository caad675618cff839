"""Readers of single values: each takes what TOML gave, returns what the settings hold, or says what is wrong."""

import difflib
import ipaddress
import math
import re
from collections.abc import Callable
from urllib.parse import urlsplit

from vllmd.config.durations import parse_duration, parse_size, show_duration, show_size
from vllmd.errors import VllmdError

Reader = Callable[[object], object]

_YEAR_S = 366 * 86400.0
_SOCKET_PATH_LIMIT = 107  # sun_path of struct sockaddr_un holds 108 bytes with the closing NUL
_FLAG_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_PROFILE_NAME = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[^\]]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})", re.ASCII)
_BREAKER = re.compile(r"([0-9]{1,6}) in (\S+)", re.ASCII)
_LAST_PORT = 65535
_SCHEMA_VERSION = 1


class WrongValueError(VllmdError):
    """A value that a key cannot take: `problem` completes "KEY …".

    `index` is the bad element of an array, `found` what to say of the value when it must not be quoted.
    """

    def __init__(
        self,
        problem: str,
        wanted: str,
        hint: str = "",
        *,
        index: int | None = None,
        found: str = "",
        code: str = "E104",
    ) -> None:
        super().__init__(f"{problem}, wanted {wanted}")
        self.problem = problem
        self.wanted = wanted
        self.hint = hint
        self.index = index
        self.found = found
        self.code = code


def schema_version(value: object) -> int:
    """Read the version of the configuration's own form."""
    if value != _SCHEMA_VERSION or isinstance(value, bool):
        raise WrongValueError("names a form that this vllmd does not know", str(_SCHEMA_VERSION), code="E107")
    return _SCHEMA_VERSION


def duration(low_s: float = 0.0, high_s: float = _YEAR_S) -> Reader:
    """Read a duration above zero into seconds."""

    def read(value: object) -> float:
        seconds = parse_duration(value)
        if seconds is None:
            raise WrongValueError("is not a duration", "a duration", 'write "1s", "800ms" or 0.8 (seconds)')
        if seconds <= 0 or not low_s <= seconds <= high_s:
            low = f"{show_duration(low_s)} or more" if low_s else "more than 0"
            raise _out_of_range(f"{low}, at most {show_duration(high_s)}")
        return seconds

    return read


def off_or(read: Reader) -> Reader:
    """Read "off" into None, and anything else as `read` does."""

    def read_either(value: object) -> object:
        if value == "off":
            return None
        try:
            return read(value)
        except WrongValueError as error:
            error.problem = error.problem.replace("is not", 'is neither "off" nor')
            error.wanted = f'"off", or {error.wanted}'
            raise

    return read_either


def size(low_bytes: int, high_bytes: int | None = None) -> Reader:
    """Read a size into bytes."""

    def read(value: object) -> int:
        size_bytes = parse_size(value)
        if size_bytes is None:
            raise WrongValueError("is not a size", "a size", 'write "256MiB", "2GiB" or a number of bytes')
        if size_bytes < low_bytes or (high_bytes is not None and size_bytes > high_bytes):
            low = show_size(low_bytes)
            raise _out_of_range(f"{low} or more" if high_bytes is None else f"{low} to {show_size(high_bytes)}")
        return size_bytes

    return read


def whole(low: int, high: int | None = None) -> Reader:
    """Read a whole number."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise WrongValueError("is not a whole number", "a whole number")
        if value < low or (high is not None and value > high):
            raise _out_of_range(f"{low} or more" if high is None else f"{low} to {high}")
        return value

    return read


def number(above: float = -math.inf, up_to: float = math.inf) -> Reader:
    """Read a finite number that lies above one limit and not above the other."""

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            raise WrongValueError("is not a number", "a number")
        if not above < value <= up_to:
            limits = f"more than {above:g}" if up_to == math.inf else f"more than {above:g}, at most {up_to:g}"
            raise _out_of_range(limits)
        return float(value)

    return read


def switch(value: object) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise WrongValueError("is neither true nor false", "true or false")
    return value


def choice(*names: str) -> Callable[[object], str]:
    """Read one of these words."""

    def read(value: object) -> str:
        if value not in names:
            near = difflib.get_close_matches(value, names, 1) if isinstance(value, str) else []
            hint = f'did you mean "{near[0]}"?' if near else ""
            raise WrongValueError(f"is none of {', '.join(names)}", f"one of {', '.join(names)}", hint)
        return str(value)

    return read


def text(value: object) -> str:
    """Read a text of printable characters."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise WrongValueError("is not a text", "a text of printable characters")
    return value


def absolute_path(value: object) -> str:
    """Read an absolute path: the daemon's working folder is not the operator's."""
    path = text(value)
    if not path.startswith("/"):
        raise WrongValueError("is not an absolute path", "an absolute path", "write the path from / on")
    return path


def profile(value: object) -> str:
    """Read the name of a profile that comes with vllmd, or the absolute path of another one's file."""
    name = text(value)
    if not name.startswith("/") and not _PROFILE_NAME.fullmatch(name):
        raise WrongValueError("names no profile", "a name, or an absolute path", "write the path from / on")
    return name


def socket_path(value: object) -> str:
    """Read the absolute path of a UNIX socket."""
    path = absolute_path(value)
    if len(path.encode()) > _SOCKET_PATH_LIMIT:
        raise WrongValueError("is too long for a UNIX socket", f"at most {_SOCKET_PATH_LIMIT} bytes")
    return path


def address(value: object) -> str:
    """Read HOST:PORT, an IPv6 host in brackets."""
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None or (match["ipv6"] and not _is_ipv6(match["ipv6"])):
        raise WrongValueError("is not an address", "HOST:PORT", 'write "127.0.0.1:9842" or "[::1]:9842"')
    if not 1 <= int(match["port"]) <= _LAST_PORT:
        raise WrongValueError(f"has no port {match['port']}", f"a port of 1 to {_LAST_PORT}", code="E105")
    return match[0]


def server_url(value: object) -> str:
    """Read the base URL of a server: http or https, a host, a port; no user, path or query."""
    wrong = WrongValueError("is not a server's URL", "http://HOST:PORT", 'write "http://127.0.0.1:8000"')
    if not isinstance(value, str) or not value.isprintable():
        raise wrong
    try:
        url = urlsplit(value)
        port = url.port
    except ValueError:
        raise wrong from None
    extras = url.username or url.password or url.query or url.fragment or url.path.strip("/")
    if url.scheme not in ("http", "https") or not url.hostname or port == 0 or extras:
        raise wrong
    return value.rstrip("/")


def command(value: object) -> tuple[str, ...]:
    """Read a command as an array of texts: no shell ever sees it."""
    example = 'write an array: ["vllm", "serve", "MODEL"]'
    if not isinstance(value, list | tuple) or not value:
        raise WrongValueError("is not a command", "an array of one text or more", example)
    for index, word in enumerate(value):
        if not isinstance(word, str) or "\0" in word or (index == 0 and not word.strip()):
            raise WrongValueError(
                f"has no text at position {index + 1}",
                "texts only",
                "write a text in quotes",
                index=index,
                found=type(word).__name__,  # the word itself may be the value of --api-key
            )
    return tuple(value)


def flag_names(value: object) -> frozenset[str]:
    """Read names of vLLM's options into their canonical form."""
    if not isinstance(value, list | tuple):
        raise WrongValueError("is not an array", "an array of vLLM option names", 'write ["dtype", "quantization"]')
    names = [canonical_flag(name) if isinstance(name, str) else None for name in value]
    if None in names:
        wanted = "the names of vLLM options"
        hint = "write it like kv-cache-dtype"
        raise WrongValueError("holds what is no option's name", wanted, hint, index=names.index(None))
    return frozenset(name for name in names if name is not None)


def canonical_flag(name: str) -> str | None:
    """Return an option's name as vLLM's long options read, without its dashes in front; None if it is no such name."""
    name = name.removeprefix("--").replace("_", "-")
    return name if _FLAG_NAME.fullmatch(name) else None


def permission(value: object) -> object:
    """Read whether a flag may be moved: true or false. A table of bounds permits too and is read key by key."""
    if isinstance(value, bool) or value == {}:
        return value
    raise WrongValueError("is no guard", "{ min = …, max = …, step = … }, true or false")


def crash_breaker(value: object) -> tuple[int, float]:
    """Read "5 in 15m" into crashes and the seconds they fall in."""
    match = _BREAKER.fullmatch(value) if isinstance(value, str) else None
    window_s = parse_duration(match[2]) if match else None
    if match is None or not window_s or int(match[1]) < 1:
        raise WrongValueError("is not a crash breaker", "CRASHES in DURATION", 'write "5 in 15m"')
    return int(match[1]), window_s


def _out_of_range(wanted: str) -> WrongValueError:
    return WrongValueError("is out of range", wanted, code="E105")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond what a float holds
        return False


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
