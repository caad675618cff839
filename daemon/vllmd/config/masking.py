"""Keeps secrets out of findings: the text of a configuration may hold keys and tokens, in the command above all."""

import re

from vllmd.model.masking import MASK, Masker
from vllmd.model.secret_names import is_secret_option

_QUOTED = r"\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'"
_STRING = re.compile(_QUOTED)
_ARRAY = re.compile(rf"\[(?:{_QUOTED}|[^\]\"'])*")
# An option and its value as neighbours in an array: "--api-key", "…"
_NEIGHBOURS = re.compile(rf"([\"'])(--?[\w.-]+)\1(\s*,\s*)(?:{_QUOTED})")


class TextMasker:
    """Masks lines and values of one configuration's text, whose arrays may be argvs with secrets."""

    def __init__(self, text: str = "") -> None:
        # A lone "--" keeps the values of an array's last option from running on into the next array.
        words = [word for array in _ARRAY.findall(text) for word in ("--", *_strings(array))]
        self._masker = Masker.from_launch(words, {})

    def mask(self, text: str) -> str:
        """Return a part of the text with every secret replaced."""
        return self._masker.mask(_NEIGHBOURS.sub(_without_value, text))


def _strings(array: str) -> list[str]:
    return [quoted[1:-1] for quoted in _STRING.findall(array)]


def _without_value(found: re.Match[str]) -> str:
    quote, option, comma = found.groups()
    return f'{quote}{option}{quote}{comma}"{MASK}"' if is_secret_option(option) else found[0]
