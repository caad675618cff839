"""Secrets are found in no output, and no text can steer a terminal."""

import json
import unicodedata
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from vllmd.model.masking import MASK, Masker
from vllmd.model.plain import plain
from vllmd.model.secret_names import is_secret_name, is_secret_option, is_secret_variable

# The prefix keeps them apart from the words around them.
TOKENS = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=12, max_size=40).map(
    "7q".__add__
)
SECRETS = st.text(min_size=4, max_size=30).filter(lambda s: len(s.strip()) >= 4)
TEXTS = st.text(max_size=60)


@given(SECRETS, TEXTS, TEXTS)
def test_a_known_secret_never_survives(secret: str, before: str, after: str) -> None:
    """Wherever a known secret stands in a text, it is gone after masking."""
    masked = Masker([secret]).mask(before + secret + after)
    assert secret.strip() not in masked


@given(SECRETS)
def test_a_known_secret_is_found_in_any_quotes(secret: str) -> None:
    """Python's, JSON's and URLs' ways to write a secret are known too."""
    masker = Masker([secret])
    bare = secret.strip()
    for written in (repr({"k": secret}), json.dumps([secret]), f"https://h/?x={quote(bare, safe='')}&y"):
        masked = masker.mask(written)
        assert bare not in masked
        assert repr(bare)[1:-1] not in masked
        assert quote(bare, safe="") not in masked


@given(TOKENS, TEXTS)
def test_a_secret_that_is_not_known_is_found_by_its_surroundings(token: str, noise: str) -> None:
    """What looks like a secret is masked without being told."""
    noise = noise.replace(token, "")
    planted = (
        f"{noise} hf_{token} {noise}",
        f"{noise} sk-{token}",
        f"{noise} sk-proj-{token}_x",
        f"ghp_{token}",
        f"key AKIA{token.upper()} used",
        f"Authorization: Bearer {token}",
        f"{{'authorization': 'bearer {token}'}}",
        f"non-default args: {{'model': 'm', 'api_key': ['{token}', 'y{token}'], 'port': 8000}}",
        f"Namespace(api_key='{token}', port=8000)",
        f'{{"hf_token": "{token}"}}',
        f'"{{\\"api_key\\": \\"{token}\\"}}"',
        f"https://user:{token}@example.org/x",
        f"https://{token}@example.org/x",
        f"GET /v1/models?token={token}&x=1",
        f"GET /v1/models?x=1&api_key={token}",
        f"serve m --api-key {token} --port 8000",
        f"serve m --hf_token={token}",
        f"AWS_SECRET_ACCESS_KEY={token}",
        f"password: '{token}",
    )
    for text in planted:
        masked = Masker().mask(text)
        assert token not in masked
        assert token.upper() not in masked
        assert MASK in masked


@given(st.one_of(TEXTS, st.from_regex(r"[a-z_]{0,9}(key|token)[=: ]['\"\[]?.{0,20}")), st.lists(SECRETS, max_size=3))
def test_masking_twice_changes_nothing_more(text: str, secrets: list[str]) -> None:
    """A masked text is its own mask."""
    masker = Masker(secrets)
    masked = masker.mask(text + "".join(secrets))
    assert masker.mask(masked) == masked


@given(TOKENS)
def test_no_secret_of_a_launch_survives(token: str) -> None:
    """Every place of argv and environment that may hold a secret is known, whatever log it turns up in later."""
    names = [f"{token}{n}" for n in range(9)]
    argv = [
        "vllm",
        "serve",
        f"https://u:{names[0]}@hub.example/m?token={names[1]}",
        "--api-key",
        names[2],
        names[3],
        f"--hf-token={names[4]}",
        "--kv-transfer-config",
        json.dumps({"extra": {"api_key": names[5], "port": 7}}),
        "--kv-transfer-config.access_token",
        names[6],
        "--max-num-batched-tokens",
        "2048",
    ]
    environ = {"HF_TOKEN": names[7], "PROXY": f"http://u:{names[8]}@proxy", "HOME": "/home/vllm"}
    masker = Masker.from_launch(argv, environ)
    shown = " ".join(masker.mask_argv(argv)) + masker.mask(" and ".join(names))
    assert not [name for name in names if name in shown]
    assert "--max-num-batched-tokens 2048" in shown


def test_short_secrets_are_masked_in_their_own_place_only() -> None:
    """A key of three characters would hide half of every log."""
    argv = ("vllm", "serve", "abc", "--api-key", "abc", "--hf-token=xy", "--port", "80")
    masker = Masker.from_launch(argv, {"HF_TOKEN": "m"})
    assert masker.mask_argv(argv) == ("vllm", "serve", "abc", "--api-key", MASK, f"--hf-token={MASK}", "--port", "80")
    assert masker.mask("abc m") == "abc m"


def test_every_value_after_an_api_key_is_one() -> None:
    """The option takes several keys, up to the next option; a token takes one."""
    argv = ("--api-key", "key-one", "key-two", "--hf-token", "tok-one", "model")
    assert Masker().mask_argv(argv) == ("--api-key", MASK, MASK, "--hf-token", MASK, "model")


def test_what_is_no_secret_stays_readable() -> None:
    """Token counts, tokenizers and thresholds are not hidden."""
    argv = (
        "vllm",
        "serve",
        "org/model",
        "--max-num-batched-tokens=8192",
        "--tokenizer",
        "org/tokenizer",
        "--long-prefill-token-threshold",
        "512",
        "--hf-overrides",
        '{"eos_token": "</s>", "max_tokens": 7}',
    )
    assert Masker.from_launch(argv, {"TOKENIZERS_PARALLELISM": "false", "PATH": "/usr/bin"}).mask_argv(argv) == argv
    log = "Chunked prefill is enabled with max_num_batched_tokens=8192. eos_token='</s>' tokenizer='/models/m'"
    assert Masker().mask(log) == log


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("--api-key", True),
        ("--api_key", True),
        ("--api-k", True),
        ("--hf-t", True),
        ("--hf-token", True),
        ("--kv-transfer-config.api_key", True),
        ("--ssl-password", True),
        ("--api-server-count", False),
        ("--max-num-batched-tokens", False),
        ("--tokenizer", False),
        ("--long-prefill-token-threshold", False),
        ("--return-tokens-as-token-ids", False),
        ("--ssl-keyfile", False),
        ("--enable-prompt-tokens-details", False),
        ("--h", False),
        ("-", False),
    ],
)
def test_secret_options_are_told_by_their_names(name: str, *, expected: bool) -> None:
    """Options are recognised in any spelling that vLLM's parser takes."""
    assert is_secret_option(name) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("apiKey", True), ("clientSecret", True), ("token", True), ("max_tokens", False), ("key", False), ("", False)],
)
def test_secret_keys_are_told_by_their_names(name: str, *, expected: bool) -> None:
    """Keys of JSON are recognised in camel case too."""
    assert is_secret_name(name) is expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("HF_TOKEN", "abcd", True),
        ("VLLM_API_KEY", "abcd", True),
        ("AWS_SECRET_ACCESS_KEY", "abcd", True),
        ("AWS_ACCESS_KEY_ID", "abcd", True),
        ("DB_PASSWORD", "1234", True),
        ("GOOGLE_APPLICATION_CREDENTIALS_JSON", "{}", True),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("HF_TOKEN_PATH", "/home/vllm/token", False),
        ("CREDENTIALS_DIRECTORY", "/run/credentials", False),
        ("TOKEN_LIMIT", "4096", False),
        ("MONKEY", "banana", False),
        ("USE_TOKEN", "true", False),
    ],
)
def test_secret_variables_are_told_by_their_names(name: str, value: str, *, expected: bool) -> None:
    """Environment variables are secrets by their names, unless the value says that it is none."""
    assert is_secret_variable(name, value) is expected


@given(st.text(st.characters(), max_size=80), st.integers(1, 100))
def test_plain_text_is_printable_short_and_stable(text: str, limit: int) -> None:
    """No control, no invisible character and no line break is left, and a second pass changes nothing."""
    shown = plain(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit
    assert plain(shown, limit) == shown
    assert not [c for c in shown if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\rb\nc\td", r"a\rb\nc\td"),
        ("\u202eevil\u2066", r"\u202eevil\u2066"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("c1 \x9b2J \x7f", r"c1 \x9b2J \x7f"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("hidden \u3164", r"hidden \u3164"),
        ("über 日本 ▄▄ [red]", "über 日本 ▄▄ [red]"),
    ],
)
def test_control_characters_become_visible(text: str, shown: str) -> None:
    """An escape sequence is shown, not obeyed; letters of any script stay."""
    assert plain(text) == shown


def test_what_was_cut_is_marked() -> None:
    """A text over the limit ends in an ellipsis."""
    assert plain("x" * 10, 4) == "xxx…"


@given(SECRETS)
def test_a_masker_takes_any_secret(secret: str) -> None:
    """Patterns of a secret are text, not expressions."""
    assume(secret.strip() != MASK)
    assert Masker([secret, "", "ab"]).mask(f"<{secret}>") != f"<{secret}>"
