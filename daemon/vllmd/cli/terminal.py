"""What the terminal wants and can show: colour and characters. Pure."""

from collections.abc import Mapping


def wants_colour(choice: str, environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """Whether to colour, by the first that says so: --color, NO_COLOR, FORCE_COLOR, no terminal, TERM=dumb.

    `choice` is auto, always or never. See https://no-color.org and https://force-color.org.
    """
    if choice != "auto":
        return choice == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return is_terminal and environ.get("TERM") != "dumb"


def is_utf8(environ: Mapping[str, str], encoding: str | None) -> bool:
    """Whether both the locale and the stream's encoding are UTF-8; the locale is LC_ALL, else LC_CTYPE, else LANG."""
    names = (environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    locale = next((name for name in names if name), "")
    return all("utf8" in said.lower().replace("-", "") for said in (locale, encoding or ""))
