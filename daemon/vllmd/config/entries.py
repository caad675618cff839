"""From nested tables to flat entries "section.key", every unknown key found; later sources laid over earlier ones."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from vllmd.config import schema
from vllmd.config.sources import Source
from vllmd.config.toml_lines import KeyPath
from vllmd.config.values import Reader, canonical_flag
from vllmd.errors import Finding

_LIKE_ENOUGH = 0.6  # difflib's own cutoff: "max_size" for "size"
_TYPING_ERROR = 0.9  # "max-num-seq" is one of max-num-seqs, "max-num-active-seqs" is another option


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's value with its source, and the entries of earlier sources that it replaces."""

    key: str
    read: Reader
    value: object
    source: Source
    path: KeyPath
    replaced: tuple["Entry", ...] = ()

    @property
    def label(self) -> str:
        """The key as a message names it: without its section."""
        return ".".join(str(part) for part in self.path[1:] or self.path)

    @property
    def origin(self) -> str:
        """Where the value was set."""
        return self.source.origin(self.path)

    @property
    def written(self) -> str:
        """The value as its author wrote it, without secrets."""
        return self.source.written(self.path, self.value)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the replaced sources say."""
        return tuple(
            f"{old.origin} also sets it to {old.written}; {self.source.word} wins" for old in reversed(self.replaced)
        )


Entries = Mapping[str, Entry]


def read_entries(source: Source) -> tuple[dict[str, Entry], list[Finding]]:
    """Return a source's known keys, and a finding for each unknown one."""
    entries: dict[str, Entry] = {}
    findings: list[Finding] = []
    for path, item in _walk(source, source.data, (), ""):
        if isinstance(item, Finding):
            findings.append(item)
        elif path in entries:
            message = f"`{item.label}` is set twice, as `{entries[path].label}` in {entries[path].origin}"
            finding = Finding("E203", message, item.key, found=item.label, wanted="each key once")
            findings.append(source.at_key(finding, item.path))
        else:
            entries[path] = item
    return entries, findings


def lay_over(below: Entries, above: Entries) -> dict[str, Entry]:
    """Return the entries of both: tables merge, values replace, and a value replaces what a table had below it."""
    gone = tuple(f"{path}." for path, entry in above.items() if not isinstance(entry.value, Mapping))
    kept = {path: entry for path, entry in below.items() if not path.startswith(gone)}
    for path, entry in above.items():
        old = kept.pop(path, None)
        kept[path] = replace(entry, replaced=(*old.replaced, old)) if old else entry
    return kept


def _walk(
    source: Source, table: Mapping[str, object], at: KeyPath, section: str
) -> Iterator[tuple[str, Entry | Finding]]:
    """Yield each key with its canonical path, or a finding about it.

    A guard's table is an entry of its own beside its bounds: an empty one permits the flag.
    """
    for name, value in table.items():
        here = (*at, name)
        path = _canonical_path(section, name)
        reader = schema.reader_of(path)
        if path == "mode" and isinstance(value, str):  # one word for every domain
            for domain in schema.names_under("mode"):
                yield f"mode.{domain}", Entry("mode", schema.read_mode, value, source, here)
        elif "." in name or _is_no_flag(path, value):
            yield path, _unknown(source, here, value, section)
        elif isinstance(value, Mapping) and schema.is_table(path):
            if reader:
                yield path, Entry(path, reader, {}, source, here)
            yield from _walk(source, value, here, path)
        elif reader:
            yield path, Entry(path, reader, value, source, here)
        elif schema.is_table(path):
            yield path, _no_table(source, here, value, path)
        else:
            yield path, _unknown(source, here, value, section)


def _canonical_path(section: str, name: str) -> str:
    """Return the path as the schema spells it: flags have dashes, and no dashes in front."""
    if section == "guard" and name != "frozen":
        name = canonical_flag(name) or name
    return f"{section}.{name}" if section else name


def _is_no_flag(path: str, value: object) -> bool:
    """Whether a key of [guard] is no flag: its value is no guard, or it is a flag that vllmd moves but for a letter."""
    flag = schema.guarded_flag(path)
    if flag is None or flag in schema.MOVABLE:
        return False
    return not isinstance(value, bool | Mapping) or bool(
        difflib.get_close_matches(flag, schema.MOVABLE, 1, _TYPING_ERROR)
    )


def _no_table(source: Source, at: KeyPath, value: object, path: str) -> Finding:
    names = ", ".join(schema.names_under(path))
    return source.at_value(
        Finding(
            code="E104",
            message=f"{path} is not a table",
            key=path,
            found=source.written(at, value),
            wanted=f"a table of {names}",
        ),
        at,
    )


def _unknown(source: Source, at: KeyPath, value: object, section: str) -> Finding:
    name = str(at[-1])
    is_section = not section and isinstance(value, Mapping)
    known = schema.names_under(section)
    return source.at_key(
        Finding(
            code="E202" if is_section else "E201",
            message=f"unknown {'section' if is_section else 'key'} `{name}`",
            key=_canonical_path(section, name),
            found=name,
            wanted=f"one of {', '.join(known)}" if known else "true, false or {}: a switch has no bounds",
            hint=_meant(name, known),
        ),
        at,
    )


def _meant(name: str, known: tuple[str, ...]) -> str:
    """Return the nearest key of the same table, or the section that has a key of this very name."""
    if near := difflib.get_close_matches(name.lower(), known, 1, _LIKE_ENOUGH):
        return f'did you mean "{near[0]}"?'
    section = schema.section_of(name)
    return f"{name} belongs in [{section}]" if section else ""
