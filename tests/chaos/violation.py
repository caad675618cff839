"""What must never happen, happened."""


class Violation(AssertionError):  # noqa: N818 - it is the word of the report
    """An invariant does not hold; the message says which, and what was seen instead."""
