"""Grades answers of the diagnosis against labelled logs: the class, and the remedy with its flags and variables."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vllmd.cli.diagnose import Question, explain

DATA = Path(__file__).parent / "data"
_AGAIN = frozenset({"retry-unchanged", "wait-then-retry", "restart"})  # one action, in the words of the labels

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Labelled:
    """A log with what is known besides it and what it means."""

    name: str
    lines: list[str]
    question: Question
    expected: Entry


def labelled_of(case: Entry, folder: Path) -> Labelled:
    """Return a case of a file: its log is in it, or in the file that it names."""
    log = case["log"] if "log" in case else (folder / case["file"]).read_text(encoding="utf-8")
    context = {"hardware": case["hardware"], **(case.get("context") or {})}
    question = Question(
        words=[str(word) for word in case["argv"]],
        exit_code=case["exit_code"],
        state=case["process_state"],
        version=case["vllm_version"],
        context=context,
    )
    return Labelled(case.get("id") or case["file"], log.split("\n"), question, case["expected"])


def in_folder(folder: Path) -> list[Labelled]:
    """Return the cases of a folder, one a file."""
    files = sorted(folder.glob("*.yaml"))
    return [labelled_of(yaml.safe_load(file.read_text(encoding="utf-8")), folder) for file in files]


def in_list(file: Path) -> list[Labelled]:
    """Return the cases of one file."""
    return [labelled_of(case, file.parent) for case in yaml.safe_load(file.read_text(encoding="utf-8"))]


def answer_to(case: Labelled) -> Entry:
    """Return what `vllmd diagnose --json` prints."""
    answer: Entry = json.loads(json.dumps(explain(case.lines, case.question)))
    return answer


def wrong_with(answer: Entry, expected: Entry) -> list[str]:
    """Return what is wrong with an answer; nothing if all is right."""
    found = []
    if answer["class"] not in {expected["class"], *expected["also_class"]}:
        found.append(f"class {answer['class']}, not {expected['class']}")
    remedy = {key: answer[key] for key in ("action", "set", "env")}
    if not any(matches(entry, remedy, extra=False) for entry in expected["accept"]):
        found.append(f"remedy {remedy} is none of {expected['accept']}")
    found += [f"remedy {remedy} is forbidden by {e}" for e in expected["forbid"] if matches(e, remedy, extra=True)]
    return found


def matches(entry: Entry, remedy: Entry, *, extra: bool) -> bool:
    """Whether a remedy is the one that an entry describes; `extra`: further flags and variables do not matter."""
    wanted = entry.get("action", remedy["action"])
    if wanted != remedy["action"] and not {wanted, remedy["action"]} <= _AGAIN:
        return False
    more = entry.get("extra", extra)
    return all(_parts_match(entry.get(part) or {}, remedy[part], extra=more) for part in ("set", "env"))


def _parts_match(wanted: Entry, given: Entry, *, extra: bool) -> bool:
    if not all(name in given and fits(value, given[name]) for name, value in wanted.items()):
        return False
    return extra or set(given) <= set(wanted)


def fits(wanted: Any, given: Any) -> bool:
    """Whether a value is the one that a label describes."""
    match wanted:
        case "*":
            return given is not None
        case None | bool():
            return wanted is given
        case _ if given is None or isinstance(given, bool):
            return False
        case dict():
            parts = _mapping(given)
            return all(key in parts and fits(value, parts[key]) for key, value in wanted.items())
        case [low, high]:
            return _lies_in(_number(given), low, high)
        case _:
            return str(wanted) == str(given) or (_number(given) is not None and _number(wanted) == _number(given))


def _lies_in(value: float | None, low: Any, high: float) -> bool:
    if value is None:
        return False
    match low:
        case "<":
            return value < high
        case ">":
            return value > high
        case _:
            return bool(low <= value <= high)


def _mapping(value: Any) -> Entry:
    """Return the parts of an option that is written as JSON or as k=v,k=v."""
    if isinstance(value, dict):
        return value
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = dict(part.split("=", 1) for part in value.split(",") if "=" in part)
    return parsed if isinstance(parsed, dict) else {}


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
