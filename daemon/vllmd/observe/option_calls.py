"""The options that a module declares: its add_argument calls and its frontend dataclasses, read as text.

vLLM writes `kwargs = get_kwargs(SomeConfig)`, sometimes changes an entry, and then
`group.add_argument("--some-name", "-sn", **kwargs["some_field"])`. The frontend's options are added in a loop, so there
the fields of the dataclass are the options.
"""

import ast
from collections.abc import Iterator
from dataclasses import replace

from vllmd.model.argv import canonical_name
from vllmd.model.options import Arity, Option
from vllmd.observe.option_kinds import FieldKinds, Kind

_FRONTEND_CLASS = "FrontendArgs"
_FRONTEND_KWARGS = "frontend_kwargs"
_SWITCHES = frozenset({"store_true", "store_false", "store_const", "help", "version"})

Field = tuple[str, str]  # class name, field name


def declared_options(module: ast.Module, kinds: FieldKinds) -> Iterator[Option]:
    """Yield the options of a module in the order of its source."""
    reader = _ModuleReader(module, kinds)
    if any(isinstance(node, ast.ClassDef) and node.name == _FRONTEND_CLASS for node in module.body):
        yield from reader.frontend_options()
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda node: node.lineno):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            yield from reader.option(call)


class _ModuleReader:
    """Knows which name in a module stands for which dataclass's keyword arguments, and how they were changed."""

    def __init__(self, module: ast.Module, kinds: FieldKinds) -> None:
        self._kinds = kinds
        self._values: dict[str, ast.expr] = {}
        self._changes: dict[tuple[str, str], list[tuple[str, ast.expr | None]]] = {}
        for node in ast.walk(module):
            self._note(node)

    def _note(self, node: ast.AST) -> None:
        """Remember `name = value`, `name["field"]["key"] = value` and `del name["field"]["key"]`."""
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._values[name] = value
            case ast.Assign(targets=[ast.Subscript() as target], value=value):
                self._note_change(target, value)
            case ast.Delete(targets=targets):
                for deleted in targets:
                    self._note_change(deleted, None)

    def _note_change(self, target: ast.expr, value: ast.expr | None) -> None:
        match target:
            case ast.Subscript(
                value=ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(field))),
                slice=ast.Constant(value=str(key)),
            ):
                self._changes.setdefault((name, field), []).append((key, value))
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key))):
                self._changes.setdefault((name, ""), []).append((key, value))

    def frontend_options(self) -> Iterator[Option]:
        """Yield one option for each field of the frontend's dataclass."""
        for field in self._kinds.fields(_FRONTEND_CLASS):
            kind = self._changed(self._kinds.of(_FRONTEND_CLASS, field), _FRONTEND_KWARGS, field)
            name = field.replace("_", "-")
            yield Option(name, (f"--{name}",), kind.arity, kind.is_json)

    def option(self, call: ast.Call) -> Iterator[Option]:
        """Yield the option of an add_argument call; nothing for a positional or a computed name."""
        literals = (arg.value for arg in call.args if isinstance(arg, ast.Constant))
        spellings = tuple(text for text in literals if isinstance(text, str) and text.startswith("-"))
        long = next((text for text in spellings if text.startswith("--")), None)
        if long is None:
            return
        kind = Kind()
        for keyword in call.keywords:
            if keyword.arg is None:
                kind = self._referred(keyword.value)
        for keyword in call.keywords:
            if keyword.arg is not None:
                kind = _with_keyword(kind, keyword.arg, keyword.value)
        yield Option(canonical_name(long), spellings, kind.arity, kind.is_json)

    def _referred(self, node: ast.expr) -> Kind:
        """Return the kind that `**node` brings: `kwargs["field"]`, a name for it, or a dict that unpacks it."""
        match node:
            case ast.Dict(keys=keys, values=values):
                unpacked = (value for key, value in zip(keys, values, strict=True) if key is None)
                return next((self._referred(value) for value in unpacked), Kind())
            case ast.Name(id=name) if name in self._values:
                return self._changed(self._referred(self._values[name]), name, "")
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(field))):
                return self._changed(self._kinds.of(self._class_of(self._values.get(name)), field), name, field)
            case ast.Subscript(value=ast.Call() as call, slice=ast.Constant(value=str(field))):
                return self._kinds.of(self._class_of(call), field)
            case _:
                return Kind()

    @staticmethod
    def _class_of(node: ast.expr | None) -> str:
        """Return SomeConfig of `get_kwargs(SomeConfig)`, "" for anything else."""
        match node:
            case ast.Call(func=ast.Name(id="get_kwargs"), args=[ast.Name(id=name)]):
                return name
            case _:
                return ""

    def _changed(self, kind: Kind, name: str, field: str) -> Kind:
        """Return the kind after the changes that the module makes to an entry."""
        for key, value in self._changes.get((name, field), ()):
            kind = _with_keyword(kind, key, value)
        return kind


def _with_keyword(kind: Kind, key: str, value: ast.expr | None) -> Kind:
    """Return the kind after one keyword argument of add_argument; None: the argument was deleted."""
    match key, value:
        case "nargs", None | ast.Constant(value=None):
            return kind if kind.arity is Arity.APPEND else replace(kind, arity=Arity.ONE)
        case "nargs", ast.Constant(value=count):
            return replace(kind, arity=Arity.OPTIONAL if count == "?" else Arity.MANY)
        case "action", ast.Constant(value="append"):
            return replace(kind, arity=Arity.APPEND)
        case "action", ast.Constant(value=str(action)) if action in _SWITCHES:
            return replace(kind, arity=Arity.NONE)
        case "action", ast.Attribute(attr="BooleanOptionalAction") | ast.Name(id="BooleanOptionalAction"):
            return replace(kind, arity=Arity.BOOLEAN)
        case "type", ast.expr():
            return replace(kind, is_json=_reads_json(value))
        case _:
            return kind


def _reads_json(node: ast.expr) -> bool:
    """Whether a `type=` mentions json.loads, alone or wrapped."""
    return any(isinstance(part, ast.Attribute) and part.attr == "loads" for part in ast.walk(node))
