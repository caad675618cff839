"""The options of `--config file.yaml` put into the argv, where and how vLLM itself puts them.

Source: `_pull_args_from_config` and `load_config_file` of vLLM's argument parser (utils/argparse_utils.py, 0.9.2 to
0.33), tried against the real parser of 0.32.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vllmd.errors import CommandError
from vllmd.model.argv import parse_command
from vllmd.model.options import Arity, Catalogue


def expand_config_file(argv: Sequence[str], program_length: int, catalogue: Catalogue) -> tuple[str, ...]:
    """Return the argv with `--config FILE` replaced by what the file says, before the operator's own options.

    The command line wins, since the last setting of an option counts. False becomes `--no-NAME` only in the form
    `python -m …api_server`: `vllm serve` ignores it, because its outer parser is asked and has no such option. Raises
    CommandError, naming the file and where known the line, for what vLLM would refuse or silently ignore.
    """
    program, words = tuple(argv[:program_length]), list(argv[program_length:])
    _refuse_unread_forms(words)
    if "--config" not in words:
        return tuple(argv)
    place = words.index("--config")
    if place + 1 == len(words):
        raise CommandError("--config expects the name of a YAML file")
    file, own = words[place + 1], words[:place] + words[place + 2 :]
    settings = _load(file)
    with_subcommand = program[-1:] == ("serve",)
    if not with_subcommand:
        return (*program, *_options(settings, catalogue, negates=catalogue.dialect.config_file_negates), *own)
    if parse_command((*program, *own), program_length, catalogue).model is not None:
        settings.pop("model", None)  # `vllm serve MODEL` wins over the file
    elif "model" not in settings:
        raise CommandError(f"no model is given, neither on the command line nor in {file}")
    leading = 1 if own and not own[0].startswith("-") else 0
    return (*program, *own[:leading], *_options(settings, catalogue, negates=False), *own[leading:])


def _refuse_unread_forms(words: Sequence[str]) -> None:
    """Refuse the ways to name a file that vLLM's parser does not look for."""
    attached = next((word for word in words if word.startswith("--config=")), None)
    if attached is not None:
        name = attached.removeprefix("--config=")
        raise CommandError(f"vLLM ignores the file of {attached}: it reads it only as two words, --config {name}")
    if list(words).count("--config") > 1:
        raise CommandError("--config is given twice; vLLM reads one file")


def _load(file: str) -> dict[str, Any]:
    """Return the mapping of a YAML file."""
    import yaml  # noqa: PLC0415 (most commands have no such file, and the import takes 20 ms)

    if Path(file).suffix not in {".yaml", ".yml"}:
        raise CommandError(f"{file}: vLLM reads only files that end in .yaml or .yml")
    try:
        settings = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}:" if error.problem_mark else ""
        raise CommandError(f"{file}:{line} not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise CommandError(f"{file}: not YAML: {error}") from error
    if not isinstance(settings, dict):
        found = "nothing" if settings is None else f"a {type(settings).__name__}"
        raise CommandError(f"{file}: expected `option: value` lines, found {found}")
    return _with_text_keys(file, settings)


def _with_text_keys(file: str, settings: dict[Any, Any]) -> dict[str, Any]:
    """Return the settings; CommandError where a key is no text (YAML reads `on:` as True)."""
    for key in settings:
        if not isinstance(key, str):
            raise CommandError(f"{file}: {key!r} is no name of an option")
    return settings


def _options(settings: dict[str, Any], catalogue: Catalogue, *, negates: bool) -> Iterator[str]:
    """Yield the words that vLLM makes of the settings."""
    for name, value in settings.items():
        match value:
            case True:
                yield f"--{name}"
            case False:
                option = catalogue.options.get(name)
                if negates and option is not None and option.arity is Arity.BOOLEAN:
                    yield f"--no-{name}"
            case list():
                if value:
                    yield f"--{name}"
                    yield from (str(item) for item in value)
            case dict():
                yield from (f"--{name}", json.dumps(value, default=str))
            case _:
                yield from (f"--{name}", str(value))
