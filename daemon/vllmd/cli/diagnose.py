"""`vllmd diagnose`: what failed in a log of vLLM, and what helps, by the rules that the daemon lives by."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from vllmd.decide.diagnose import diagnose as diagnosed
from vllmd.decide.explain import remedy_of
from vllmd.errors import VllmdError
from vllmd.model.argv import parse_command
from vllmd.model.decision import Proposal, Wish
from vllmd.model.failure import Failure
from vllmd.model.flags import Flags, FlagValue, show_value
from vllmd.model.host_facts import read_host_facts
from vllmd.model.launch_end import LaunchEnd, ProcessState
from vllmd.model.masking import Masker
from vllmd.model.options import Catalogue
from vllmd.observe.log_file import LogFile
from vllmd_policies import BUILT_IN


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about a log: the server's options, how it ended or that it lives, and what else is known."""

    words: Sequence[str] = ()
    exit_code: int | None = None
    state: str = "exited"
    version: str | None = None
    context: Mapping[str, Any] = field(default_factory=dict)


_TUNING = frozenset({Wish.CHANGE_FLAGS, Wish.SET_ENV})


@click.command("diagnose")
@click.argument("log", type=click.Path(path_type=Path, exists=True, dir_okay=False, readable=True))
@click.option("--exit-code", type=int, help="How the server ended; negative for a signal.")
@click.option("--argv", default="", metavar="WORDS", help="The server's options, as in a shell.")
@click.option("--vllm-version", metavar="V", help="vLLM's version, where the log does not say it.")
@click.option("--state", type=click.Choice([s.value for s in ProcessState]), default="exited", help="Of the process.")
@click.option("--context", default="{}", metavar="JSON", help="What else is known: an object of facts about the host.")
@click.option("--json", "wants_json", is_flag=True, help="Print one JSON object.")
def diagnose(
    log: Path,
    exit_code: int | None,
    argv: str,
    vllm_version: str | None,
    state: str,
    context: str,
    *,
    wants_json: bool,
) -> None:
    """Say what failed in LOG, a log of vLLM, and what helps. Needs no daemon and changes nothing.

    The daemon decides by the same rules, but moves only flags that its configuration lets it.
    """
    question = Question(_words_of(argv), exit_code, state, vllm_version, _facts_of(context))
    try:
        failure, remedy = answer(LogFile(log), question)
    except OSError as error:
        raise click.BadParameter(f"{log} cannot be read: {error.strerror}", param_hint="LOG") from error
    except VllmdError as error:
        raise click.BadParameter(str(error), param_hint="--context") from error
    click.echo(json.dumps(as_document(failure, remedy)) if wants_json else as_text(failure, remedy))


def explain(lines: Iterable[str], question: Question) -> Mapping[str, Any]:
    """Return the answer for a log's lines as a JSON object."""
    return as_document(*answer(lines, question))


def answer(lines: Iterable[str], question: Question) -> tuple[Failure, Proposal]:
    """Return what failed and what helps. VllmdError: a fact of the context has a wrong type."""
    end = LaunchEnd(
        exit_code=question.exit_code,
        state=ProcessState(question.state),
        flags=flags_of(question.words),
        version=question.version,
        host=read_host_facts(question.context),
    )
    failure = diagnosed(lines, end, Masker.from_launch(question.words, end.host.environ))
    return failure, remedy_of(failure, end, BUILT_IN)


def _words_of(argv: str) -> list[str]:
    """Return the words of --argv; exit code 2 where its quotes do not close."""
    try:
        return shlex.split(argv)
    except ValueError as error:
        raise click.BadParameter(f"{error}: {argv!r}", param_hint="--argv") from error


def flags_of(words: Sequence[str]) -> Flags:
    """Return the options among a server's words; what stands before the first one names program and model."""
    first = next((place for place, word in enumerate(words) if word.startswith("-") and word != "-m"), len(words))
    return parse_command(("vllm", "serve", "model", *words[first:]), 2, Catalogue({})).flags


def _facts_of(context: str) -> Mapping[str, Any]:
    """Return the object of --context; exit code 2 where it is none."""
    try:
        found: Any = json.loads(context)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"no JSON: {error}", param_hint="--context") from error
    if not isinstance(found, dict):
        raise click.BadParameter(f"an object is wanted, found {context!r:.60}", param_hint="--context")
    return found


def as_document(failure: Failure, remedy: Proposal) -> Mapping[str, Any]:
    """Return the answer as a JSON object."""
    evidence = failure.evidence
    return {
        "class": failure.kind,
        "phase": failure.phase,
        "action": remedy.wish,
        "set": {_spelled(name): value for name, value in remedy.changes.items()},
        "env": dict(remedy.env),
        "tunable": remedy.wish in _TUNING,
        "advice": remedy.reason,
        "evidence": None if evidence is None else {"line": evidence.line, "text": evidence.text},
        "numbers": dict(failure.numbers),
    }


def as_text(failure: Failure, remedy: Proposal) -> str:
    """Return the answer for people."""
    lines = [f"{failure.kind} ({failure.phase})", f"  why     {failure.summary}"]
    if failure.evidence is not None:
        lines.append(f"  line    {failure.evidence.line}: {failure.evidence.text}")
    lines.append(f"  action  {remedy.wish}")
    lines += [f"  set     {_spelled(name)} {_shown(value)}" for name, value in remedy.changes.items()]
    lines += [
        f"  set     {name}={value}" if value is not None else f"  unset   {name}" for name, value in remedy.env.items()
    ]
    lines.append(f"  advice  {remedy.reason}")
    return "\n".join(lines)


def _shown(value: FlagValue | None) -> str:
    """Return a value as it is typed."""
    return "(remove it)" if value is None else "" if value is True else show_value(value)


def _spelled(name: str) -> str:
    """Return an option as it is typed."""
    return name if name.startswith("-") else f"--{name}"
