"""Where keys stand in TOML texts: by example, and for generated texts of every shape."""

import json
import tomllib
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmd.config.toml_lines import KeyPath, Span, locate

SAMPLE = '''
mode = { memory = "active", latency = "advisory" }
[engine]   # the command
argv  = ["/opt/vllm", "serve",
         "Qwen, [x]", '--a="b"']   # also the baseline
env."a.b".c = 1
[guard]
"max-num-seqs" = { min = 32, max = 512 }
'quoted key' = """
not = "a key"
""""
last = 1979-05-27 07:32:00 # with a comment
[[fruit]]
name = "apple"
[fruit.physical]
color = "red"
[[fruit.variety]]
name = 'red'
[[fruit]]
name = "banana"
[ a . "b c" ]
x = []
y = [ [1, 2], { z = 3 }, ]
'''


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        (("mode",), Span(2, 1, 4), Span(2, 8, 43)),
        (("mode", "latency"), Span(2, 29, 7), Span(2, 39, 10)),
        (("engine",), Span(3, 2, 6), Span(3, 2, 6)),
        (("engine", "argv"), Span(4, 1, 4), Span(4, 9, 22)),
        (("engine", "argv", 1), Span(4, 23, 7), Span(4, 23, 7)),
        (("engine", "argv", 2), Span(5, 10, 11), Span(5, 10, 11)),
        (("engine", "argv", 3), Span(5, 23, 9), Span(5, 23, 9)),
        (("engine", "env", "a.b", "c"), Span(6, 11, 1), Span(6, 15, 1)),
        (("guard", "max-num-seqs"), Span(8, 1, 14), Span(8, 18, 23)),
        (("guard", "max-num-seqs", "max"), Span(8, 30, 3), Span(8, 36, 3)),
        (("guard", "quoted key"), Span(9, 1, 12), Span(9, 16, 3)),
        (("guard", "last"), Span(12, 1, 4), Span(12, 8, 19)),
        (("fruit", 0, "name"), Span(14, 1, 4), Span(14, 8, 7)),
        (("fruit", 0, "physical", "color"), Span(16, 1, 5), Span(16, 9, 5)),
        (("fruit", 0, "variety", 0, "name"), Span(18, 1, 4), Span(18, 8, 5)),
        (("fruit", 1, "name"), Span(20, 1, 4), Span(20, 8, 8)),
        (("a", "b c"), Span(21, 7, 5), Span(21, 7, 5)),
        (("a", "b c", "x"), Span(22, 1, 1), Span(22, 5, 2)),
        (("a", "b c", "y", 0, 1), Span(23, 11, 1), Span(23, 11, 1)),
        (("a", "b c", "y", 1, "z"), Span(23, 17, 1), Span(23, 21, 1)),
    ],
)
def test_every_shape_of_toml_is_located(path: KeyPath, key: Span, value: Span) -> None:
    """Tables, dotted and quoted keys, inline tables, arrays of tables and values of several lines have their place."""
    tomllib.loads(SAMPLE)
    found = locate(SAMPLE)[path]
    assert (found.key, found.value) == (key, value)


def test_windows_line_ends_change_nothing() -> None:
    """Lines and columns are the same when lines end in a carriage return and a line feed."""
    assert locate(SAMPLE.replace("\n", "\r\n")) == locate(SAMPLE)


def test_nesting_that_tomllib_accepts_is_located_too() -> None:
    """The reader's own recursion goes at least as deep as tomllib's."""
    deep = f"x = {'[' * 150}{']' * 150}"
    tomllib.loads(deep)
    assert ("x", *([0] * 149)) in locate(deep)


@dataclass
class _Written:
    """A generated text, with the line of every key in it."""

    lines: list[str] = field(default_factory=list)
    line_of: dict[KeyPath, int] = field(default_factory=dict)

    def add(self, text: str, path: KeyPath) -> None:
        """Append text that begins with this key."""
        self.line_of[path] = len(self.lines) + 1
        self.lines += text.split("\n")


_NAMES = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True),
    st.text(st.characters(codec="utf-8", exclude_characters="\x7f", min_codepoint=32), max_size=5),
)
_SPACE = st.sampled_from(["", " ", "\t", "  "])
_BREAK = st.sampled_from(["", " ", "\n", "\n  ", " # ] } \" ' = comment\n", "\n\n"])


@st.composite
def _keys(draw: st.DrawFn, name: str) -> str:
    """Write a key in one of the ways that mean this name."""
    ways = [json.dumps(name, ensure_ascii=False)]
    if name.isascii() or max(name) <= "\uffff":  # JSON writes what lies beyond as a pair, which TOML does not know
        ways.append(json.dumps(name))
    if name and all(c.isascii() and (c.isalnum() or c in "_-") for c in name):
        ways += [name, name]
    if "'" not in name and name.isprintable():
        ways.append(f"'{name}'")
    return draw(st.sampled_from(ways))


@st.composite
def _strings(draw: st.DrawFn) -> str:
    """Write a string in one of TOML's four ways."""
    text = draw(st.text(st.characters(codec="utf-8", min_codepoint=32, exclude_characters="\x7f"), max_size=12))
    literal = text.replace("'", "")
    basic = json.dumps(text, ensure_ascii=False)[1:-1]
    ending = draw(st.sampled_from(["", '"', '""']))
    ways = [f'"{basic}"', f"'{literal}'", f"'''{literal}\n[x]\nk = 1'''", f'"""{basic}\nk = {{\n{ending}"""']
    return draw(st.sampled_from(ways))


_SCALARS = st.one_of(
    _strings(),
    st.sampled_from(
        ["1", "-0.5", "1e3", "true", "inf", "0xff", "1_000", "1979-05-27", "07:32:00", "1979-05-27 07:32:00Z"]
    ),
)


@st.composite
def _inline_tables(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    names = draw(st.lists(_NAMES, max_size=3, unique=True))
    pairs = [f"{draw(_keys(n))}{draw(_SPACE)}={draw(_SPACE)}{draw(values)}" for n in names]
    space = draw(_SPACE)
    return "{" + space + f"{space},{space}".join(pairs) + space + "}"


@st.composite
def _arrays(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    elements = draw(st.lists(values, max_size=3))
    gap, end = draw(_BREAK), draw(st.sampled_from(["", ","])) if elements else ""
    return "[" + gap + f"{gap},{gap}".join(elements) + gap + end + gap + "]"


_VALUES = st.recursive(_SCALARS, lambda inner: st.one_of(_inline_tables(inner), _arrays(inner)), max_leaves=6)


@st.composite
def _documents(draw: st.DrawFn) -> _Written:
    """Write a document of tables and arrays of tables, with plain and dotted keys."""
    written = _Written()
    for _ in range(draw(st.integers(0, 3))):
        written.lines.append(draw(st.sampled_from(["", "# [not] a = table"])))
    _write_pairs(draw, written, ())
    for name in draw(st.lists(_NAMES, max_size=3, unique=True)):
        key = draw(_keys(name))
        if any(path[0] == name for path in written.line_of):
            continue
        if draw(st.booleans()):
            written.add(f"{draw(_SPACE)}[{draw(_SPACE)}{key}{draw(_SPACE)}]", (name,))
            _write_pairs(draw, written, (name,))
        else:
            for index in range(draw(st.integers(1, 2))):
                written.add(f"[[{key}]] # one more", (name, index))
                _write_pairs(draw, written, (name, index))
    return written


def _write_pairs(draw: st.DrawFn, written: _Written, table: KeyPath) -> None:
    for name in draw(st.lists(_NAMES, max_size=4, unique=True)):
        parts = [name, *draw(st.lists(_NAMES, max_size=2))]
        key = f"{draw(_SPACE)}.{draw(_SPACE)}".join(draw(_keys(part)) for part in parts)
        ending = draw(st.sampled_from(["", " # a comment = 1", "\n", "\n# [x]"]))
        written.add(f"{draw(_SPACE)}{key} = {draw(_VALUES)}{ending}", (*table, *parts))


@settings(max_examples=60, deadline=None)
@given(_documents())
def test_every_key_is_located_on_its_line(written: _Written) -> None:
    """Whatever a valid text looks like, each key is found on the line where it was written."""
    text = "\n".join(written.lines)
    tomllib.loads(text)
    found = locate(text)
    assert {path: found[path].key.line for path in written.line_of} == written.line_of


@settings(max_examples=60, deadline=None)
@given(_documents())
def test_every_value_is_located_whole(written: _Written) -> None:
    """The text found for each value means that very value, and every value of the text is found."""
    text = "\n".join(written.lines)
    found = locate(text)
    for path, value in _leaves((), tomllib.loads(text)):
        written_value = found[path].text
        assert repr(tomllib.loads(f"x = {written_value}")["x"]) == repr(value)
        span = found[path].value
        assert text.split("\n")[span.line - 1][span.column - 1 :].startswith(written_value.split("\n")[0])
        assert span.width == max(1, len(written_value.split("\n")[0]))


def _leaves(path: KeyPath, node: object) -> list[tuple[KeyPath, object]]:
    match node:
        case dict():
            return [leaf for name, inner in node.items() for leaf in _leaves((*path, name), inner)]
        case list():
            return [leaf for index, inner in enumerate(node) for leaf in _leaves((*path, index), inner)]
        case _:
            return [(path, node)]
