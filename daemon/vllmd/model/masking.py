"""Makes text fit to be stored and shown: secrets become `***`. What could steer a terminal: see `plain`."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus

from vllmd.model.secret_names import (
    is_secret_name,
    is_secret_option,
    is_secret_variable,
    takes_many_values,
)

MASK = "***"
SHORTEST_KNOWN = 4  # a shorter secret is masked in its own place only: everywhere else it would hide half the log

# Keys and tokens that are known by their shape: Hugging Face, OpenAI style, GitHub, AWS, JSON web tokens.
_SHAPE = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{10,}|sk-[\w-]{8,}|gh[oprsu]_[A-Za-z0-9]{10,}|github_pat_\w{10,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}|eyJ[\w-]{4,}\.[\w-]+\.[\w-]+)",
)
_BEARER = re.compile(r"\b(bearer\s+)[^\s'\",]+", re.IGNORECASE)
_USERINFO = re.compile(r"://[^\s/?#'\"<>]*@")
_QUOTED = r"'(?:[^'\\]|\\.)*+'?|\"(?:[^\"\\]|\\.)*+\"?"  # a missing end quote: the line was cut
_BARE = r"[^\s,;&)}\]'\"]++"
_LIST = rf"\[(?:{_QUOTED}|[^\]'\"])*+\]?"
# `api_key': ['…']` in vLLM's "non-default args", `token=…` in an URL, `"password": "…"` in JSON, also inside a string.
_NAMED = re.compile(
    rf"(?<![\w.-])([\w.-]++)(\\*[\"']?\s*[=:]\s*+)(?:\\+\"[^\"\\]*+(?:\\+\")?|{_LIST}|{_QUOTED}|{_BARE})"
)
_OPTION = re.compile(rf"(?<![\w-])(--?[A-Za-z][\w.-]*+)(\s++)(?:{_QUOTED}|(?!-){_BARE})")
_URL_PASSWORD = re.compile(r"://[^\s/?#'\"<>:]*:([^\s/?#'\"<>]*)@")
_URL_QUERY = re.compile(r"[?&;]([\w.-]+)=([^\s&;#'\"]+)")


class Masker:
    """Replaces secrets in text: the ones it knows, in whatever way they were written, and what looks like one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._forms = {form for secret in secrets for form in _forms(secret) if len(form) >= SHORTEST_KNOWN}
        self._known = _any_of(self._forms)

    @classmethod
    def from_launch(cls, argv: Sequence[str], environ: Mapping[str, str]) -> "Masker":
        """Return a masker that knows the secrets of a launch's argv and environment."""
        found = [secret for _, secrets in _read_argv(argv) for secret in secrets]
        for name, value in environ.items():
            found += [value] if is_secret_variable(name, value) else _secrets_in(value)[1]
        return cls(found)

    def learn(self, other: "Masker") -> None:
        """Know the secrets of another masker, too: those of a new configuration beside those of the running server."""
        self._forms |= other._forms  # noqa: SLF001 - of its own class
        self._known = _any_of(self._forms)

    def mask(self, text: str) -> str:
        """Return the text with every secret replaced. Masking twice changes nothing more."""
        for _ in range(len(text) + 2):  # what a mask joins can be a secret itself; known ones only shrink the text
            masked = self._masked_once(text)
            if masked == text:
                break
            text = masked
        return text

    def mask_argv(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the argv with every secret replaced, also short ones where an option takes them."""
        return tuple(self.mask(arg) for arg, _ in _read_argv(argv))

    def _masked_once(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(MASK, text)
        text = _SHAPE.sub(MASK, text)
        text = _BEARER.sub(rf"\g<1>{MASK}", text)
        text = _USERINFO.sub(f"://{MASK}@", text)
        text = _NAMED.sub(lambda found: _named(found, is_secret=is_secret_name(found[1])), text)
        return _OPTION.sub(lambda found: _named(found, is_secret=is_secret_option(found[1])), text)


def _named(found: re.Match[str], *, is_secret: bool) -> str:
    """Return `name=value` with its value masked if the name is one of a secret."""
    return f"{found[1]}{found[2]}{MASK}" if is_secret else found[0]


def _any_of(forms: set[str]) -> re.Pattern[str] | None:
    """Return what finds any of these texts, the longest first; None for no text."""
    longest_first = sorted(forms, key=lambda form: (-len(form), form))
    return re.compile("|".join(map(re.escape, longest_first))) if forms else None


def _forms(secret: str) -> Iterator[str]:
    """Yield a secret as it may stand in a log: itself, its lines, in Python's and JSON's quotes, in an URL."""
    bare = secret.strip()
    yield from (bare, *bare.splitlines())
    yield from (repr(bare)[1:-1], json.dumps(bare)[1:-1], json.dumps(bare, ensure_ascii=False)[1:-1])
    yield from (quote(bare, safe="", errors="replace"), quote_plus(bare, errors="replace"))


def _read_argv(argv: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each argument with its secrets masked, and the secrets."""
    awaiting = ""  # the secret option whose values follow
    for arg in argv:
        if arg.startswith("-"):
            name, equals, value = arg.partition("=")
            awaiting = name if is_secret_option(name) and not equals else ""
            if equals and is_secret_option(name):
                yield f"{name}={MASK}", [value]
            else:
                masked, secrets = _secrets_in(value)
                yield name + equals + masked, secrets
        elif awaiting:
            awaiting = awaiting if takes_many_values(awaiting) else ""
            yield MASK, [arg]
        else:
            yield _secrets_in(arg)


def _secrets_in(value: str) -> tuple[str, list[str]]:
    """Return a value with the secrets of its JSON, `key=value` or URL parts masked, and those secrets."""
    if value[:1] in ("{", "["):
        found: list[str] = []
        try:
            masked = _mask_json(json.loads(value), found, hidden=False)
        except (ValueError, RecursionError):
            return value, []
        return (json.dumps(masked), found) if found else (value, [])
    pairs = [pair.partition("=") for pair in value.split(",")]
    found = [part for name, _, part in pairs if part and is_secret_name(name)]
    found += [password for password in _URL_PASSWORD.findall(value) if password]
    found += [part for name, part in _URL_QUERY.findall(value) if is_secret_name(name)]
    return value, found


def _mask_json(node: Any, found: list[str], *, hidden: bool) -> Any:  # noqa: ANN401 - JSON may hold anything
    """Return the node with everything below a secret's name masked; what was there is added to `found`."""
    match node:
        case dict():
            return {k: _mask_json(v, found, hidden=hidden or is_secret_name(k)) for k, v in node.items()}
        case list():
            return [_mask_json(item, found, hidden=hidden) for item in node]
        case None | bool():
            return node
        case _ if hidden:
            found.append(str(node))
            return MASK
        case _:
            return node
