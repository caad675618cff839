"""vllmd's own log: one line an event on stderr, logfmt or JSON, secrets masked and control characters escaped."""

import contextlib
import logging
import sys
import threading
from collections.abc import Mapping
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from vllmd.model.masking import Masker
from vllmd.model.plain import plain

# A traceback fits, a dumped prompt does not.
_VALUE_LIMIT = 8000


def configure(form: str, masker: Masker, stream: TextIO | None = None) -> None:
    """Send every log line of the process to `stream` (stderr) in the form "logfmt" or "json"."""
    lines = _Lines(sys.stderr if stream is None else stream)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            Cleaner(masker),
            _renderer(form),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: lines,
    )
    # What libraries have to say arrives in the same form, and masked.
    logging.basicConfig(handlers=[_Bridge(logging.WARNING)], level=logging.WARNING, force=True)
    logging.getLogger("apscheduler").setLevel(logging.ERROR)  # it warns of each reading that is due while one is taken


class Cleaner:
    """A structlog processor: masks secrets in every value and escapes what could move a terminal's cursor."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """Return the event with clean values."""
        return {key: self._clean(value) for key, value in event.items()}

    def _clean(self, value: object) -> object:
        """Return a value that is safe to print, as deep as it goes."""
        match value:
            case None | bool() | int() | float():
                return value
            case Mapping():
                return {str(key): self._clean(inner) for key, inner in value.items()}
            case list() | tuple():
                return [self._clean(inner) for inner in value]
            case _:
                return plain(self._masker.mask(str(value)), _VALUE_LIMIT)


class _Lines:
    """The last step of every logger: writes a line. A reader that went away must not end the daemon."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def msg(self, line: str) -> None:
        """Write one line at once."""
        with self._lock, contextlib.suppress(OSError):
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = critical = msg


class _Bridge(logging.Handler):
    """Carries records of the standard library's logging over to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record."""
        fields: dict[str, Any] = {"source": record.name}
        if record.exc_info:
            fields["exc_info"] = record.exc_info
        structlog.get_logger().log(record.levelno, record.getMessage(), **fields)


def _renderer(form: str) -> Processor:
    """Return what turns an event into a line."""
    if form == "json":
        return structlog.processors.JSONRenderer()
    return structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False)
