"""A row of the tables that diagnosis reads: a text, where it counts, what it means, and what is said of it."""

import re
from dataclasses import dataclass

from vllmd.model.failure import FailureClass


@dataclass(frozen=True, slots=True)
class Row:
    """One text: where it counts, what it means there, and the sentence for the operator.

    `key` stands in every line that `pattern` matches; it is looked for first, since that is fast, and the fewer
    different keys there are, the faster. `starting` and `serving` are the classes before and while serving; None: the
    text says nothing then. A `root` is a cause; what is none only follows from one, and counts where no root is found.
    `cause` is the finer word of a text that asks for a remedy of its own. A text counts in errors and in what is
    printed without a level; a `quiet` one also in warnings. In `summary`, {names} are the match's and the log's numbers
    and words, and a [part] is left out if one of its names is unknown.
    """

    key: str
    pattern: re.Pattern[str]
    summary: str
    starting: FailureClass | None = None
    serving: FailureClass | None = None
    root: bool = True
    cause: str = ""
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Fact:
    """A line that is no failure, and whose numbers and words a remedy or a summary needs."""

    key: str
    pattern: re.Pattern[str]


def row(
    key: str,
    pattern: str,
    summary: str,
    starting: FailureClass | None = None,
    serving: FailureClass | None = None,
    *,
    root: bool = True,
    cause: str = "",
    quiet: bool = False,
) -> Row:
    """Return a row of a table."""
    return Row(key, re.compile(pattern, re.ASCII), summary, starting, serving, root, cause, quiet)


def both(
    key: str, pattern: str, summary: str, kind: FailureClass, *, root: bool = True, cause: str = "", quiet: bool = False
) -> Row:
    """Return a row that means the same before and while serving."""
    return row(key, pattern, summary, kind, kind, root=root, cause=cause, quiet=quiet)


def fact(key: str, pattern: str) -> Fact:
    """Return a fact of a table."""
    return Fact(key, re.compile(pattern, re.ASCII))
