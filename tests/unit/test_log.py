"""vllmd's own log: one line an event, masked and escaped, in both forms."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from vllmd.model.masking import Masker
from vllmd.report.log import Cleaner, configure

SECRET = "s3cr3t-value"  # noqa: S105 - planted, to be found nowhere


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Leave the process's logging as it was found."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(form: str) -> io.StringIO:
    """Return the stream that the log now goes to."""
    stream = io.StringIO()
    configure(form, Masker([SECRET]), stream)
    return stream


def test_logfmt_line() -> None:
    """A line begins with time in UTC, level and event; what holds blanks is quoted."""
    stream = lines("logfmt")
    structlog.get_logger().info("decision", id="D7", reason="too slow", done=True)
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("timestamp=20")
    assert line.endswith('Z level=info event=decision id=D7 reason="too slow" done=true')


def test_json_line() -> None:
    """The JSON form is one object a line."""
    stream = lines("json")
    structlog.get_logger().warning("failure", numbers={"free_bytes": 3.0}, line=None)
    found = json.loads(stream.getvalue())
    assert (found["event"], found["level"], found["numbers"]) == ("failure", "warning", {"free_bytes": 3.0})


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_secrets_are_masked_wherever_they_stand(form: str) -> None:
    """A secret in a field, inside a container or in a traceback is in no line."""
    stream = lines(form)
    log = structlog.get_logger()
    log.info("launch", argv=["serve", f"--api-key={SECRET}"], nested={"a": {"b": SECRET}})
    try:
        raise ValueError(SECRET)
    except ValueError:
        log.exception("unexpected")
    assert SECRET not in stream.getvalue()
    assert "ValueError" in stream.getvalue()


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_an_event_is_one_line_without_escapes(form: str) -> None:
    """Line breaks and terminal escapes of foreign text are spelled out."""
    stream = lines(form)
    structlog.get_logger().info("failure", text="a\x1b[31mb\nlevel=error forged=1\r")
    (line,) = stream.getvalue().splitlines()
    assert "\x1b" not in line
    assert "x1b[31m" in line


@given(st.text())
def test_clean_text_is_printable(text: str) -> None:
    """Whatever text is logged, what is printed cannot move the cursor."""
    cleaned = Cleaner(Masker())(None, "info", {"event": text, "list": [text], "map": {"k": text}})
    assert cleaned["event"].isprintable()
    assert cleaned["list"][0].isprintable()
    assert cleaned["map"]["k"].isprintable()


def test_libraries_speak_through_it() -> None:
    """Warnings of libraries that use logging arrive in the same form and masked; their chatter does not."""
    stream = lines("json")
    logging.getLogger("httpx").warning("job missed %s", SECRET)
    logging.getLogger("apscheduler").warning("late")
    logging.getLogger("httpx").info("chatter")
    (found,) = map(json.loads, stream.getvalue().splitlines())
    assert (found["event"], found["source"], found["level"]) == ("job missed ***", "httpx", "warning")


class Gone(io.StringIO):
    """A stream whose reader went away."""

    def write(self, text: str, /) -> int:
        """Fail as a pipe without a reader does."""
        raise BrokenPipeError(len(text))


def test_a_reader_that_went_away_does_not_end_the_daemon() -> None:
    """A log that cannot be written is not an error of vllmd."""
    configure("logfmt", Masker(), Gone())
    structlog.get_logger().info("still here")


def test_debug_is_silent() -> None:
    """Debug lines are not for operators."""
    stream = lines("logfmt")
    structlog.get_logger().debug("detail")
    assert stream.getvalue() == ""
