"""What holds for every command line: its canonical form says the same, and is the same for every spelling."""

import json
from collections import Counter

from hypothesis import example, given, settings
from hypothesis import strategies as st

from option_catalogues import real_catalogue
from vllmd.model.argv import Command, parse_command
from vllmd.model.options import Arity, Catalogue, Option

REAL = real_catalogue()
unhurried = settings(deadline=None)  # a busy machine is no failure
LONG_SPELLINGS = [
    spelling for option in REAL.options.values() for spelling in option.spellings if spelling.startswith("--")
]
LONG_SPELLINGS += [f"--no-{option.name}" for option in REAL.options.values() if option.arity is Arity.BOOLEAN]
BEGINNINGS = Counter(spelling[:end] for spelling in LONG_SPELLINGS for end in range(3, len(spelling) + 1))
OPTIONS = [option for option in REAL.options.values() if option.name not in {"model", "help"}]

texts = st.text(alphabet="ab-_.=+, {}\"'é0", max_size=6)
words = st.one_of(
    texts,
    st.sampled_from(LONG_SPELLINGS),
    st.sampled_from([s for option in OPTIONS for s in option.spellings]),
    st.builds(lambda spelling, text: f"{spelling}={text}", st.sampled_from(LONG_SPELLINGS), texts),
    st.sampled_from(["--", "-1", "-O3", "-O", "3", "-cc.mode=3", "-cc.a.b", "--hf-overrides.x+", "--nonsense", "-zz"]),
)


def read(argv: list[str], catalogue: Catalogue = REAL) -> Command:
    """Read the words after `vllm serve`."""
    return parse_command(("vllm", "serve", *argv), 2, catalogue)


@st.composite
def spelled(draw: st.DrawFn, option: Option, value: str) -> list[str]:
    """One of the ways to write an option with a value."""
    name = draw(st.sampled_from(option.spellings))
    if name.startswith("--"):
        name = draw(st.sampled_from([name, "--" + name[2:].replace("-", "_"), *_abbreviations(name)]))
    separate = not value.startswith("-") or value in {"-1", "-"}
    return draw(st.sampled_from([[f"{name}={value}"], [name, value]] if separate else [[f"{name}={value}"]]))


def _abbreviations(name: str) -> list[str]:
    """Return the unambiguous abbreviations of a long spelling."""
    shorter = [name[:end] for end in range(3, len(name))]
    return [s for s in shorter if BEGINNINGS[s] == 1]


@unhurried
@given(st.lists(words, max_size=8))
def test_any_words_can_be_read(argv: list[str]) -> None:
    """No command line makes the reading fail, with or without a catalogue."""
    read(argv)
    read(argv, Catalogue({}))


@unhurried
@example(argv=["--model", "--additional-config"])
@given(st.lists(words, max_size=8))
def test_the_canonical_form_says_the_same(argv: list[str]) -> None:
    """Reading what was rendered gives the command again, whenever vLLM would not refuse its words."""
    command = read(argv)
    if not command.problems:
        assert parse_command(command.argv(), 2, REAL) == command


@unhurried
@given(st.data())
def test_every_spelling_of_one_option_gives_one_form(data: st.DataObject) -> None:
    """Dashes, underscores, =, abbreviations and short forms of an option with a value mean the same."""
    option = data.draw(st.sampled_from([o for o in OPTIONS if o.arity is Arity.ONE and not o.is_json]))
    value = data.draw(st.one_of(texts, st.sampled_from(["8", "-1", "-", "a b", "--x", "1.5k"])))
    command = read(["M", *data.draw(spelled(option, value))])
    assert command.problems == ()
    assert dict(command.flags) == {option.name: value}
    assert command.argv() == read(["M", f"--{option.name}={value}"]).argv()


@unhurried
@given(st.data())
def test_every_spelling_of_a_switch_gives_one_form(data: st.DataObject) -> None:
    """A switch is on or off, however it is written."""
    option = data.draw(st.sampled_from([o for o in OPTIONS if o.arity is Arity.BOOLEAN]))
    on = data.draw(st.booleans())
    name = f"--{option.name}" if on else f"--no-{option.name}"
    written = data.draw(st.sampled_from([name, "--" + name[2:].replace("-", "_"), *_abbreviations(name)]))
    assert dict(read(["M", written]).flags) == {option.name: on}


keys = st.text(alphabet="abc_", min_size=1, max_size=3)
leaves = st.one_of(st.integers(), st.booleans(), st.none(), st.lists(st.integers()), st.text(alphabet="xyz"))


@unhurried
@given(st.dictionaries(keys, leaves, min_size=1, max_size=4))
def test_dotted_options_equal_their_json(settings: dict[str, object]) -> None:
    """A JSON object and its keys written with dots give the same flags."""
    dotted = [f"-cc.{key}={json.dumps(value)}" for key, value in settings.items()]
    whole = ["--compilation-config", json.dumps(settings, indent=1)]
    assert read(["M", *dotted]).argv() == read(["M", *whole]).argv()
