"""Text that is not ours, made fit to be shown: what could steer a terminal becomes visible. Light to import."""

# Not shown by a terminal, although Python calls them printable: fillers and joiners without width.
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")


def plain(text: str, limit: int = 400) -> str:
    r"""Return text that cannot steer a terminal: unprintable characters as \x1b, at most `limit` characters long.

    Escaped are C0 and C1 controls, DEL, line and paragraph separators, bidirectional controls, characters without
    width, lone surrogates and every space but the plain one. What was cut ends in an ellipsis.
    """
    shown = "".join(_visible(char) for char in text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _visible(char: str) -> str:
    """Return the character, or its escape if a terminal would obey it or hide it."""
    if char.isprintable():
        return f"\\u{ord(char):04x}" if char in _INVISIBLE else char
    return ascii(char)[1:-1]
