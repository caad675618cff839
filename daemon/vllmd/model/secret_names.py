"""Tells by its name whether an option, a key or an environment variable holds a secret."""

import re
from itertools import pairwise

_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])")
# A name with one of these words is a secret's, wherever the word stands.
_ALWAYS = frozenset(
    {
        "apikey",
        "authorization",
        "credential",
        "credentials",
        "passphrase",
        "passwd",
        "password",
        "secret",
        "secrets",
    }
)
_LAST = frozenset({"token", "key"})  # a secret where the name ends in it: hf-token, access_key
# Names that end in these say where a secret lies, or are no secret at all.
_PLACES = frozenset({"dir", "directory", "file", "path", "url"})
# Tokens of a tokenizer: eos_token and its like.
_TOKENIZER = frozenset({"audio", "bos", "cls", "eos", "image", "mask", "pad", "sep", "stop", "unk", "video"})
# vLLM's own, which its parser also takes abbreviated (vLLM 0.32, entrypoints/serve/utils/api_utils.py redacts these).
_VLLM = ("api-key", "hf-token", "watermark-config")
_MANY = "api-key"  # takes one value or more
_NO_SECRET = frozenset({"true", "false", "none", "null", "yes", "no", "on", "off"})


def is_secret_name(name: str) -> bool:
    """Whether a key or an option of this name holds a secret (`api_key`, `hf-token`, `clientSecret`)."""
    words = _words(name)
    if not words or words[-1] in _PLACES:
        return False
    if not _ALWAYS.isdisjoint(words) or ("api", "key") in pairwise(words):
        return True
    if words[-1] not in _LAST:
        return False
    return words == ["token"] or (len(words) > 1 and words[-2] not in _TOKENIZER)


def is_secret_option(option: str) -> bool:
    """Whether an option as written on a command line holds a secret: also abbreviated, also with underscores."""
    return is_secret_name(option) or any(_abbreviates(option, full) for full in _VLLM)


def takes_many_values(option: str) -> bool:
    """Whether several values may follow this secret option."""
    return _abbreviates(option, _MANY)


def is_secret_variable(name: str, value: str) -> bool:
    """Whether an environment variable holds a secret. `TOKEN_LIMIT=4096` and `TOKENIZERS_PARALLELISM` do not."""
    words = _words(name)
    if not words or words[-1] in _PLACES or value.lower() in _NO_SECRET:
        return False
    telling = _ALWAYS | _LAST | {"keys"}
    return words[-1] in telling or (not telling.isdisjoint(words) and not value.isdigit())


def _words(name: str) -> list[str]:
    """Return the words of a name, in lower case: apiKey, API_KEY and api-key have the same."""
    return [word.lower() for word in _WORD.findall(name)]


def _abbreviates(option: str, full: str) -> bool:
    """Whether vLLM's parser takes this spelling for the option: itself, or a prefix beyond its first dash."""
    name = option.lstrip("-").replace("_", "-")
    return full.startswith(name) and len(name) > full.index("-") + 1
