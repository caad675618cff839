"""What the installed vLLM accepts on its command line, read from its source as text, never by importing it."""

import ast
import contextlib
import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec

from vllmd.model.options import Arity, Catalogue, Dialect, Option
from vllmd.observe.installation import Installation
from vllmd.observe.option_calls import declared_options
from vllmd.observe.option_files import config_files, declaring_files, parser_file
from vllmd.observe.option_kinds import FieldKinds

_FORMAT = 1  # of the cache; to be raised when this reading changes what it finds
_HELP = Option("help", ("-h", "--help"), Arity.NONE)  # argparse adds it by itself
_LEVEL_KEY = re.compile(r"-O\.(level|mode)\b")
_INVERSES = {"--enable-": "--disable-", "--disable-": "--enable-"}


class _Cached(msgspec.Struct, frozen=True):
    """One cache file: the catalogue and what it was read from."""

    format: int
    package_dir: str
    version: str | None
    stamp: str
    catalogue: Catalogue


def read_catalogue(installation: Installation, cache_dir: Path | None) -> Catalogue:
    """Return all options of an installation; an empty catalogue where its source cannot be read or understood.

    The cache holds one file for each package folder, valid for the version and stamp it was made from; a cache that
    cannot be read or written is as good as none.
    """
    if installation.package_dir is None:
        return Catalogue({}, installation.version)
    cache = None if cache_dir is None else cache_dir / _cache_name(installation.package_dir)
    cached = None if cache is None else _load(cache, installation)
    if cached is not None:
        return cached
    catalogue = _read(Path(installation.package_dir), installation.version)
    if cache is not None and catalogue.readable:
        _store(cache, installation, catalogue)
    return catalogue


def _read(package_dir: Path, version: str | None) -> Catalogue:
    """Read the source files."""
    try:
        declaring = [_parse(file) for file in declaring_files(package_dir)]
        kinds = FieldKinds([*declaring, *(_parse(file) for file in config_files(package_dir))])
        parser = parser_file(package_dir)
        parser_text = "" if parser is None else parser.read_text(encoding="utf-8")
    except (OSError, SyntaxError, ValueError):  # gone, not Python of this version, not UTF-8 or with a null byte
        return Catalogue({}, version)
    options = _by_name(option for module in declaring for option in declared_options(module, kinds))
    if not options:
        return Catalogue({}, version)
    if "class EnableDisableAction" in parser_text:  # 0.33
        options = {name: _paired(option) for name, option in options.items()}
    dialect = _dialect(parser_text) if parser_text else Dialect()
    return Catalogue({**options, _HELP.name: _HELP}, version, str(package_dir), dialect)


def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_bytes(), filename=str(file))


def _by_name(options: Iterable[Option]) -> dict[str, Option]:
    """Return the options by their names; the first declaration of a name counts."""
    found: dict[str, Option] = {}
    for option in options:
        found.setdefault(option.name, option)
    return found


def _paired(option: Option) -> Option:
    """Return a BOOLEAN with the spellings that vLLM 0.33 pairs it with: --disable-x switches --enable-x off."""
    if option.arity is not Arity.BOOLEAN:
        return option
    inverses = (
        inverse + spelling.removeprefix(prefix)
        for spelling in option.spellings
        for prefix, inverse in _INVERSES.items()
        if spelling.startswith(prefix)
    )
    return replace(option, negations=tuple(inverses))


def _dialect(parser_text: str) -> Dialect:
    """Tell the parser's dialect from what its source mentions."""
    level = _LEVEL_KEY.search(parser_text)
    return Dialect(
        level_key=level[1] if level else None,
        suffixed_json="human_readable_int(value_str)" in parser_text,
        config_file_negates='f"--no-{key}"' in parser_text,
    )


def _cache_name(package_dir: str) -> str:
    return f"options-{hashlib.sha256(package_dir.encode()).hexdigest()[:16]}.json"


def _load(cache: Path, installation: Installation) -> Catalogue | None:
    """Return the cached catalogue if it was made from this very installation."""
    try:
        cached = msgspec.json.decode(cache.read_bytes(), type=_Cached)
    except (OSError, msgspec.DecodeError):
        return None
    made_from = (cached.format, cached.package_dir, cached.version, cached.stamp)
    wanted = (_FORMAT, installation.package_dir, installation.version, installation.stamp)
    return cached.catalogue if made_from == wanted else None


def _store(cache: Path, installation: Installation, catalogue: Catalogue) -> None:
    """Replace the cache file as a whole: a reader sees the old one or the new one."""
    cached = _Cached(_FORMAT, installation.package_dir or "", installation.version, installation.stamp, catalogue)
    draft = cache.with_suffix(f".{os.getpid()}.tmp")
    with contextlib.suppress(OSError):  # a cache that cannot be written costs a tenth of a second at the next start
        cache.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(msgspec.json.encode(cached))
        draft.replace(cache)
