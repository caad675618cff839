"""Profiles: the order and the thresholds of the policies, read from files."""

import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest

from captures import GIB, failure_of, situation
from config_texts import COMMAND, load
from vllmd.cli.check import examine
from vllmd.config.profiles import FOLDER, load_profile, profile_of, threshold_readers
from vllmd.decide.propose import propose
from vllmd.errors import ConfigError, Finding
from vllmd.model.failure import FailureClass
from vllmd.model.flags import UTILIZATION
from vllmd.model.server import Phase
from vllmd.model.thresholds import Thresholds
from vllmd_policies import BUILT_IN
from vllmd_policies.profile import DEFAULT, Profile


def written(folder: Path, text: str) -> str:
    """Write a profile; return its path."""
    file = folder / "mine.toml"
    file.write_text(text, encoding="utf-8")
    return str(file)


def wrong_with(folder: Path, text: str) -> Finding:
    """Return the only finding about a profile of this text."""
    with pytest.raises(ConfigError) as raised:
        load_profile(written(folder, text))
    (finding,) = raised.value.findings
    return finding


def test_the_default_profile_says_what_the_code_does() -> None:
    """Its file names every policy and every threshold, with the values that the code takes without a file."""
    assert load_profile(DEFAULT) == Profile(BUILT_IN, Thresholds())
    table = tomllib.loads((FOLDER / "default.toml").read_text("utf-8"))
    assert set(table["thresholds"]) == {field.name for field in fields(Thresholds)}
    assert len(table["order"]) == len(BUILT_IN)


def test_every_threshold_has_its_reason() -> None:
    """Each line of the default profile's table ends with what the number is and where it is from."""
    lines = (FOLDER / "default.toml").read_text("utf-8").partition("[thresholds]")[2].splitlines()
    assert [line for line in lines if "=" in line.partition("#")[0] and not line.partition("#")[2].strip()] == []


def test_the_cautious_profile_is_more_cautious() -> None:
    """Margins, steps and patience are larger, ceilings and what is taken of a host are smaller, nothing else moves."""
    cautious, default = load_profile("cautious"), Profile()
    assert cautious.policies == default.policies
    larger = {"margin_bytes", "context_bytes", "host_margin_part", "blind_step", "unified_step", "rise_margin"}
    larger |= {"first_pool_part", "fixed_pool_factor", "capture_margin_part", "reserve_growth", "least_repeated_bytes"}
    larger |= {"host_kept_gib", "deadline_factor", "patience"}
    for field in fields(Thresholds):
        mine, usual = getattr(cautious.thresholds, field.name), getattr(default.thresholds, field.name)
        assert mine == usual or (mine > usual) == (field.name in larger), field.name
    assert cautious.thresholds != default.thresholds


def test_a_profile_of_ones_own_changes_what_it_names(tmp_path: Path) -> None:
    """Order and values are the file's, sizes may be written with their unit, the rest is the default's."""
    text = 'order = ["no_flag_helps", "kv_pool_too_small"]\n[thresholds]\nmargin_bytes = "1GiB"\nblind_step = 0.05\n'
    profile = load_profile(written(tmp_path, text))
    assert [policy.__name__ for policy in profile.policies] == ["no_flag_helps", "kv_pool_too_small"]
    assert profile.thresholds == replace(Thresholds(), margin_bytes=GIB, blind_step=0.05)
    assert load_profile(written(tmp_path, "")) == Profile()


@pytest.mark.parametrize(
    ("text", "code", "line", "key", "found", "hint"),
    [
        ('order = [\n "kv_pool_to_small",\n]', "E111", 2, "order", '"kv_pool_to_small"', '"kv_pool_too_small"'),
        ('order = ["start_oom", "start_oom"]', "E112", 1, "order", '"start_oom"', ""),
        ("order = [3]", "E111", 1, "order", "3", ""),
        ("order = [[3]]", "E111", 1, "order", "[3]", ""),
        ("order = []", "E104", 1, "order", "[]", ""),
        ('order = "start_oom"', "E104", 1, "order", '"start_oom"', ""),
        ("oder = []", "E201", 1, "oder", "oder", '"order"'),
        ("thresholds = 1", "E104", 1, "thresholds", "1", ""),
        ("[thresholds]\nblind_steps = 1", "E201", 2, "thresholds.blind_steps", "blind_steps", '"blind_step"'),
        ('[thresholds]\nblind_step = "x"', "E104", 2, "thresholds.blind_step", '"x"', ""),
        ("[thresholds]\nblind_step = true", "E104", 2, "thresholds.blind_step", "true", ""),
        ("[thresholds]\nblind_step = nan", "E104", 2, "thresholds.blind_step", "nan", ""),
        ("[thresholds]\nblind_step = 0", "E105", 2, "thresholds.blind_step", "0", ""),
        ("[thresholds]\nblind_step = 1.5", "E105", 2, "thresholds.blind_step", "1.5", ""),
        ("[thresholds]\npatience = 2.5", "E104", 2, "thresholds.patience", "2.5", ""),
        ('[thresholds]\nmargin_bytes = "1TB/s"', "E104", 2, "thresholds.margin_bytes", '"1TB/s"', "256MiB"),
        ("[thresholds]\nmargin_bytes = 0", "E105", 2, "thresholds.margin_bytes", "0", ""),
        ("[thresholds]\nladder_tokens = [512, 256]", "E104", 2, "thresholds.ladder_tokens", "[512, 256]", ""),
        ("[thresholds]\nladder_tokens = []", "E104", 2, "thresholds.ladder_tokens", "[]", ""),
        ('[thresholds]\nladder_tokens = ["a"]', "E104", 2, "thresholds.ladder_tokens", '["a"]', ""),
        ("[thresholds", "E101", 1, "", "", ""),
    ],
)
def test_what_a_profile_cannot_hold_is_named_with_its_place(
    tmp_path: Path, text: str, code: str, line: int, key: str, found: str, hint: str
) -> None:
    """File, line, key, what was found, what is wanted, and the nearest known name."""
    finding = wrong_with(tmp_path, text)
    assert (finding.code, finding.line, finding.key, finding.found) == (code, line, key, found)
    assert finding.file == str(tmp_path / "mine.toml")
    assert finding.wanted
    assert hint in finding.hint


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    """An operator mends a file in one go."""
    with pytest.raises(ConfigError, match=r"names no policy.*unknown threshold.*blind_step"):
        load_profile(written(tmp_path, 'order = ["x"]\n[thresholds]\ny = 1\nblind_step = 2\n'))


def test_a_profile_that_is_not_there_points_at_its_name(tmp_path: Path) -> None:
    """By name the nearest one is offered; by path the file is named."""
    settings, _ = load(tmp_path, f'{COMMAND}[policies]\nprofile = "cautios"\n')
    with pytest.raises(ConfigError) as raised:
        profile_of(settings)
    (finding,) = raised.value.findings
    assert (finding.code, finding.file, finding.line) == ("E110", str(tmp_path / "0.toml"), 4)
    assert 'did you mean "cautious"?' in finding.hint
    settings, _ = load(tmp_path, f'{COMMAND}[policies]\nprofile = "{tmp_path}/none.toml"\n')
    with pytest.raises(ConfigError, match="cannot be read") as raised:
        profile_of(settings)
    assert raised.value.findings[0].file == f"{tmp_path}/none.toml"
    assert raised.value.findings[0].notes == (f"policies.profile is set in {tmp_path}/0.toml:4",)


@pytest.mark.parametrize(("value", "code"), [('"../mine.toml"', "E104"), ("3", "E104"), ('""', "E104")])
def test_a_profile_is_a_name_or_an_absolute_path(tmp_path: Path, value: str, code: str) -> None:
    """The daemon's working folder is not the operator's."""
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, f"{COMMAND}[policies]\nprofile = {value}\n")
    assert [finding.code for finding in raised.value.findings] == [code]


def test_check_reports_a_bad_profile_like_other_findings(tmp_path: Path) -> None:
    """`vllmd check` shows the profile's own file and line, and `run` would end with them."""
    config = tmp_path / "c.toml"
    path = written(tmp_path, "[thresholds]\nblind_stop = 0.1\n")
    config.write_text(f'{COMMAND}[policies]\nprofile = "{path}"\n', encoding="utf-8")
    findings = examine("default", config, {"PATH": "/nowhere"}).findings
    (found,) = (finding for finding in findings if finding.key == "thresholds.blind_stop")
    assert (found.file, found.line, found.hint) == (path, 2, 'did you mean "blind_step"?')


def test_thresholds_reach_the_policies() -> None:
    """A larger blind step is taken where no number was printed; another order hears another policy."""
    failure = failure_of(FailureClass.RUNTIME_OOM, Phase.SERVING)
    cautious = load_profile("cautious")
    wishes = [
        propose(situation(failure, {UTILIZATION: "0.9"}, thresholds=profile.thresholds), profile.policies)
        for profile in (Profile(), cautious)
    ]
    assert [dict(wish.changes) for wish in wishes if wish] == [{UTILIZATION: "0.88"}, {UTILIZATION: "0.87"}]


@pytest.mark.parametrize("name", sorted(threshold_readers()))
def test_every_threshold_has_a_reader_that_takes_its_default(name: str) -> None:
    """No default lies outside what a file could say."""
    default = getattr(Thresholds(), name)
    assert threshold_readers()[name](list(default) if isinstance(default, tuple) else default) == default
