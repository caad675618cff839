"""The canonical form of the server's command line."""

from collections.abc import Mapping, Sequence

import pytest

from option_catalogues import real_catalogue
from vllmd.errors import CommandError
from vllmd.model.argv import Command, UnknownOption, canonical_name, parse_command
from vllmd.model.flags import Flags, FlagValue
from vllmd.model.options import Arity, Catalogue, Dialect, Option

REAL = real_catalogue()
NOTHING_KNOWN = Catalogue({})
PAIRED = Catalogue(
    {
        "enable-chunked-prefill": Option(
            "enable-chunked-prefill",
            ("--enable-chunked-prefill",),
            Arity.BOOLEAN,
            negations=("--disable-chunked-prefill",),
        )
    },
    "0.33.0",
)


def with_level_key(key: str) -> Catalogue:
    """Return a catalogue in which -O is a short form of --compilation-config."""
    option = Option("compilation-config", ("--compilation-config", "-O"), is_json=True)
    return Catalogue({option.name: option}, dialect=Dialect(level_key=key, suffixed_json=False))


def serve(*words: str, catalogue: Catalogue = REAL) -> Command:
    """Read the words after `vllm serve`."""
    return parse_command(("vllm", "serve", *words), 2, catalogue)


def api_server(*words: str) -> Command:
    """Read the words after `python -m vllm.entrypoints.openai.api_server`."""
    return parse_command(("python", "-m", "vllm.entrypoints.openai.api_server", *words), 3, REAL)


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["--max-num-seqs", "8"], {"max-num-seqs": "8"}),
        (["--max_num_seqs=8"], {"max-num-seqs": "8"}),
        (["--max-num-se", "8"], {"max-num-seqs": "8"}),
        (["--max_num_se=8"], {"max-num-seqs": "8"}),
        (["--max-num-seqs", "8", "--max-num-seqs=16"], {"max-num-seqs": "16"}),
        (["--max-num-batched-tokens", "2K"], {"max-num-batched-tokens": "2K"}),
        (["--max-model-len", "-1"], {"max-model-len": "-1"}),
        (["--watermark", "-.5"], {"watermark": "-.5"}),
        (["-tp", "2"], {"tensor-parallel-size": "2"}),
        (["-tp=2"], {"tensor-parallel-size": "2"}),
        (["-n2"], {"nnodes": "2"}),
        (["-qawq"], {"quantization": "awq"}),
        (["-t", "2"], {"tensor-parallel-size": "2"}),
        (["-O3"], {"optimization-level": "3"}),
        (["-O", "3"], {"optimization-level": "3"}),
        (["-O=3"], {"optimization-level": "3"}),
        (["--device-memory-utilization", "0.5"], {"gpu-memory-utilization": "0.5"}),
        (["--enforce-eager"], {"enforce-eager": True}),
        (["--no-enforce-eager"], {"enforce-eager": False}),
        (["--no_enforce_eag"], {"enforce-eager": False}),
        (["--enforce-eager", "--no-enforce-eager"], {"enforce-eager": False}),
        (["--disable-log-stats"], {"disable-log-stats": True}),
        (["--hf-token"], {"hf-token": True}),
        (["--hf-token", "t"], {"hf-token": "t"}),
        (["--served-model-name", "a", "b"], {"served-model-name": ("a", "b")}),
        (["--served-model-name=a"], {"served-model-name": ("a",)}),
        (["--numa-bind-nodes", "0", "-1"], {"numa-bind-nodes": ("0", "-1")}),
        (["--middleware", "a.b", "--middleware=c"], {"middleware": ("a.b", "c")}),
        (["--allowed-origins", '["*",  "x"]'], {"allowed-origins": '["*","x"]'}),
        (["--chat-template", "- {{ x }}"], {"chat-template": "- {{ x }}"}),
        (["--root-path", ""], {"root-path": ""}),
    ],
)
def test_every_way_to_write_an_option_has_one_canonical_form(words: list[str], flags: dict[str, FlagValue]) -> None:
    """An option is read the way vLLM's parser reads it, whatever its spelling."""
    command = serve("M", *words)
    assert dict(command.flags) == flags
    assert command.problems == ()
    assert parse_command(command.argv(), 2, REAL) == command


@pytest.mark.parametrize(
    ("words", "name", "text"),
    [
        (["--compilation-config", '{"b": 1, "a": [1, 2]}'], "compilation-config", '{"a":[1,2],"b":1}'),
        (["-cc", '{"a": 1}'], "compilation-config", '{"a":1}'),
        (["-cc.mode=3", "-cc.backend", "eager"], "compilation-config", '{"backend":"eager","mode":3}'),
        (["-cc.pass_config.fuse_x", "true"], "compilation-config", '{"pass_config":{"fuse_x":true}}'),
        (["--compilation_config.pass_config.a", "1"], "compilation-config", '{"pass_config":{"a":1}}'),
        (["--compilation-conf.mode", "3"], "compilation-config", '{"mode":3}'),
        (["-cc.ops+", "a", "-cc.ops+=b,c"], "compilation-config", '{"ops":["a","b","c"]}'),
        (["-sc.x", "80k", "-sc.y", "1.5k", "-sc.z", "1.5K"], "speculative-config", '{"x":80000,"y":1500,"z":"1.5K"}'),
        (["-sc.a.b", "1", "-sc.a.b", "2"], "speculative-config", '{"a":{"b":2}}'),
        (["-sc.a", "1", "-sc.a.b", "2"], "speculative-config", '{"a":{"b":2}}'),
        (["--speculative-config", '{"a":1}', "--speculative-config.b", "2"], "speculative-config", '{"b":2}'),
        (["-sc.a", "1", "--speculative-config.b", "2"], "speculative-config", '{"b":2}'),
        (["--hf-overrides", "not json"], "hf-overrides", "not json"),
    ],
)
def test_json_and_dotted_options_make_one_json_text(words: list[str], name: str, text: str) -> None:
    """Dotted keys become one sorted JSON text; as in vLLM they replace a JSON text of the same option."""
    command = serve("M", *words)
    assert dict(command.flags) == {name: text}
    assert parse_command(command.argv(), 2, REAL) == command


@pytest.mark.parametrize("words", [["-O3"], ["-O", "3"], ["-O=3"], ["-O.level=3"], ["-O", '{"level": 3}']])
def test_in_old_versions_the_o_option_sets_a_key_of_the_compilation_config(words: list[str]) -> None:
    """-O3 is what it was in the version at hand: a level of --compilation-config."""
    command = serve("M", *words, catalogue=with_level_key("level"))
    assert command.argv() == ("vllm", "serve", "M", "--compilation-config", '{"level":3}')


def test_a_suffix_stays_a_text_where_the_version_reads_it_so() -> None:
    """Versions before human numbers in dotted options keep 80g as a text."""
    assert dict(serve("-O.size", "80g", catalogue=with_level_key("mode")).flags) == {
        "compilation-config": '{"size":"80g"}'
    }


def test_the_paired_negative_of_new_versions_is_the_same_option() -> None:
    """--disable-chunked-prefill of 0.33 switches --enable-chunked-prefill off."""
    command = serve("M", "--disable-chunked-prefill", catalogue=PAIRED)
    assert command.argv() == ("vllm", "serve", "M", "--no-enable-chunked-prefill")


@pytest.mark.parametrize(
    "words",
    [
        ["M", "--port", "1"],
        ["--port", "1", "M"],
        ["--enforce-eager", "M"],
        ["--model", "M"],
        ["--model=M", "--port", "1"],
        ["--port", "1", "--", "M"],
        ["--model", "M", "--model", "N"],
    ],
)
def test_serve_takes_its_model_as_a_word_or_as_an_option(words: list[str]) -> None:
    """`vllm serve` has one model, and it is rendered as the first word."""
    command = serve(*words)
    assert (command.model, command.problems) == ("M", ())
    assert command.argv()[:3] == ("vllm", "serve", "M")


def test_a_word_next_to_the_model_option_is_stray() -> None:
    """VLLM refuses a word when --model is given too, so it is reported."""
    command = serve("N", "--model", "M")
    assert (command.model, command.positionals) == ("M", ("N",))
    assert command.problems == ("'N' belongs to no option, and the model is 'M'",)


def test_a_word_with_a_dash_is_no_model() -> None:
    """What follows a lone -- and begins with a dash is not taken for the model, let alone for an option."""
    assert serve("--", "--enforce-eager").problems == (
        "'--enforce-eager' belongs to no option, and is no name of a model",
    )


def test_the_module_takes_its_model_only_as_an_option() -> None:
    """`python -m …api_server` has --model, the last one counts, and a word is stray."""
    command = api_server("--model", "A", "--model=B", "-tp", "2")
    assert command.argv()[3:] == ("--model", "B", "--tensor-parallel-size", "2")
    assert api_server("A").problems == ("'A' belongs to no option, and in this form the model is given by --model",)


def test_a_model_may_be_left_to_vllm() -> None:
    """Without a model nothing is put in its place."""
    assert serve("--port", "1").argv() == ("vllm", "serve", "--port", "1")


def test_an_unknown_option_is_named_with_the_nearest_one_and_kept() -> None:
    """An option that this vLLM lacks is reported, and stays in the argv with its value."""
    command = serve("M", "--max-num-sequences", "8", "-zz")
    assert command.unknown == (UnknownOption("--max-num-sequences", "--max-num-seqs"), UnknownOption("-zz"))
    assert command.argv() == ("vllm", "serve", "M", "--max-num-sequences", "8", "-zz")
    assert command.problems[0] == "this vLLM has no option --max-num-sequences; did you mean --max-num-seqs?"


def test_an_ambiguous_abbreviation_is_unknown_with_its_candidates() -> None:
    """An abbreviation of two options is reported with both."""
    command = serve("M", "--max-cpu", "1", "--lo", "x")
    assert dict(command.flags)["max-cpu-loras"] == "1"
    assert command.unknown[0].candidates[:2] == ("--load-format", "--log-config-file")
    assert command.problems[0].startswith("--lo is ambiguous: it could be --load-format, ")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--max-num-seqs"], "--max-num-seqs expects a value"),
        (["--max-num-seqs", "--enforce-eager"], "--max-num-seqs expects a value"),
        (["--api-key"], "--api-key expects a value"),
        (["--enforce-eager=true"], "--enforce-eager takes no value, found 'true'"),
        (["--enforce-eager", "true"], "'true' belongs to no option, and the model is 'M'"),
        (["--help=all"], "--help only prints the options and ends"),
        (["-cc.mode"], "-cc.mode expects a value"),
        (["-=0"], "'-=0' belongs to no option, and the model is 'M'"),
    ],
)
def test_what_argparse_would_refuse_is_told_before_the_start(words: list[str], problem: str) -> None:
    """Missing and superfluous values are sentences for the operator."""
    assert serve("M", *words).problems == (problem,)


@pytest.mark.parametrize(
    ("value", "rendered"),
    [
        ("8", ("--max-num-seqs", "8")),
        ("-1", ("--max-num-seqs=-1",)),
        ("-x", ("--max-num-seqs=-x",)),
        ("", ("--max-num-seqs=",)),
    ],
)
def test_a_value_that_looks_like_an_option_is_attached(value: str, rendered: tuple[str, ...]) -> None:
    """A value that begins with a dash survives."""
    command = serve("M", f"--max-num-seqs={value}")
    assert command.argv()[3:] == rendered
    assert parse_command(command.argv(), 2, REAL) == command


@pytest.mark.parametrize(
    ("changes", "rendered"),
    [
        ({"gpu-memory-utilization": "0.8"}, ("--gpu-memory-utilization", "0.8", "--enforce-eager")),
        ({"gpu-memory-utilization": None}, ("--enforce-eager",)),
        ({"enforce-eager": False}, ("--gpu-memory-utilization", "0.9", "--no-enforce-eager")),
        ({"max-num-seqs": "4", "enforce-eager": None}, ("--gpu-memory-utilization", "0.9", "--max-num-seqs", "4")),
        ({"api-key": "k", "enforce-eager": None}, ("--gpu-memory-utilization", "0.9", "--api-key", "k")),
        (
            {"compilation-config": '{"b": 1, "a": 2}', "enforce-eager": None},
            ("--gpu-memory-utilization", "0.9", "--compilation-config", '{"a":2,"b":1}'),
        ),
        ({"disable-log-stats": False}, ("--gpu-memory-utilization", "0.9", "--enforce-eager")),
    ],
)
def test_changes_are_set_in_place(changes: Mapping[str, FlagValue | None], rendered: tuple[str, ...]) -> None:
    """Changed options keep their place, new ones come last, and None removes; the result reads back the same."""
    command = serve("M", "--gpu_memory_utilization=0.9", "--enforce-eager").with_changes(changes)
    assert command.argv()[3:] == rendered
    assert parse_command(command.argv(), 2, REAL) == command


def test_an_option_that_this_vllm_lacks_is_never_added() -> None:
    """A change that names an unknown option is refused, unless the operator gave that option."""
    with pytest.raises(CommandError, match=r"vLLM 0\.32\.0 has no option --swap-space"):
        serve("M").with_changes({"swap-space": "4"})
    assert serve("M", "--swap-space", "8").with_changes({"swap-space": "4"}).argv()[3:] == ("--swap-space", "4")
    assert serve("M").with_changes({"swap-space": None}).argv() == ("vllm", "serve", "M")


@pytest.mark.parametrize(
    ("words", "rendered"),
    [
        (["M", "--foo_bar=1"], ["M", "--foo-bar", "1"]),
        (["M", "--foo", "--bar", "1", "-tp", "2"], ["M", "--foo", "--bar", "1", "-tp", "2"]),
        (["M", "--api-key", "a", "b"], ["M", "--api-key", "a", "b"]),
        (["--port", "1", "M"], ["M", "--port", "1"]),
        (["M", "--no-foo"], ["M", "--no-foo"]),
        (["M", "--foo", "--no-foo"], ["M", "--no-foo"]),
        (["M", "--middleware", "a", "--middleware", "b"], ["M", "--middleware", "a", "--middleware", "b"]),
        (["M", "--foo.a=1", "--foo.b", "x"], ["M", "--foo", '{"a":1,"b":"x"}']),
        (["M", "--len", "-1"], ["M", "--len=-1"]),
        (["M", "-O3"], ["M", "--optimization-level", "3"]),
    ],
)
def test_without_a_catalogue_the_reading_is_generic(words: list[str], rendered: list[str]) -> None:
    """Where vLLM's source cannot be read nothing is unknown, and the argv keeps its meaning."""
    command = serve(*words, catalogue=NOTHING_KNOWN)
    assert list(command.argv()[2:]) == rendered
    assert command.problems == ()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("--gpu_memory_utilization", "gpu-memory-utilization"),
        ("gpu_memory_utilization", "gpu-memory-utilization"),
        ("--max-num-seqs=8", "max-num-seqs"),
        ("compilation_config.pass_config", "compilation-config.pass_config"),
        ("-tp", "-tp"),
    ],
)
def test_names_have_one_form(text: str, name: str) -> None:
    """A name from a configuration file or a command line is brought into the form that Flags uses."""
    assert canonical_name(text) == name


def test_equal_meanings_make_equal_commands() -> None:
    """Two operators who mean the same have the same command."""
    spellings: Sequence[Sequence[str]] = (
        ("M", "-tp", "2", "--max_num_seqs=8", "-O3"),
        ("--model", "M", "--tensor-parallel-size=2", "--max-num-se", "8", "-O", "3"),
    )
    assert len({serve(*words).argv() for words in spellings}) == 1


@pytest.mark.parametrize(
    ("moved", "new", "becomes"),
    [
        ({"a": "1", "b": "9"}, {"a": "1", "b": "2"}, {"a": "1", "b": "9"}),
        ({"a": "1", "b": "9"}, {"a": "5", "b": "2", "c": "7"}, {"a": "5", "b": "9", "c": "7"}),
        ({"a": "1", "b": "9"}, {"a": "1", "b": "3"}, {"a": "1", "b": "3"}),
        ({"b": "2"}, {"a": "1", "b": "3"}, {"b": "3"}),
        ({"a": "1", "b": "2", "e": "8"}, {"b": "2"}, {"b": "2", "e": "8"}),
    ],
    ids=["the same", "others changed", "the moved one changed", "one removed", "one added"],
)
def test_what_was_moved_is_moved_off_a_new_command_too(
    moved: dict[str, str], new: dict[str, str], becomes: dict[str, str]
) -> None:
    """Unless the operator has written that option otherwise meanwhile: his word counts."""
    old = Flags((("a", "1"), ("b", "2")))
    assert dict(Flags(tuple(moved.items())).rebased(old, Flags(tuple(new.items())))) == becomes
