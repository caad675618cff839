"""How many values an option takes, told from the annotation of the dataclass field that it sets.

The rules are those of `_compute_kwargs` in vLLM's engine/arg_utils.py (0.9.2 to 0.33), applied to source text.
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from vllmd.model.options import Arity


@dataclass(frozen=True, slots=True)
class Kind:
    """How many values an option takes, and whether they are JSON."""

    arity: Arity = Arity.ONE
    is_json: bool = False


_COLLECTIONS = frozenset({"list", "List", "tuple", "Tuple", "set", "Set"})
_MAPPINGS = frozenset({"dict", "Dict", "Mapping"})
_PLAIN = frozenset({"bool", "str", "int", "float"})
_DATACLASS_DECORATORS = frozenset({"config", "dataclass"})
_MAX_DEPTH = 8  # aliases of aliases; vLLM's are two deep


class FieldKinds:
    """The dataclasses and type aliases of some modules; `of` tells the kind of the option that a field makes."""

    def __init__(self, modules: Iterable[ast.Module]) -> None:
        self._classes: dict[str, ast.ClassDef] = {}
        self._aliases: dict[str, ast.expr] = {}
        for module in modules:
            for node in module.body:
                self._add(node)

    def _add(self, node: ast.stmt) -> None:
        match node:
            case ast.ClassDef():
                self._classes.setdefault(node.name, node)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._aliases.setdefault(name, value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self._aliases.setdefault(name, value)

    def fields(self, class_name: str) -> dict[str, ast.expr]:
        """Return the fields of a dataclass and of its bases, with their annotations; base classes first."""
        node = self._classes.get(class_name)
        if node is None:
            return {}
        found: dict[str, ast.expr] = {}
        for base in node.bases:
            found |= self.fields(_name(base))
        for entry in node.body:
            if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name):
                found[entry.target.id] = entry.annotation
        return found

    def of(self, class_name: str, field: str) -> Kind:
        """Return the kind of option that vLLM makes of a field; one value where the field is not found."""
        annotation = self.fields(class_name).get(field)
        return Kind() if annotation is None else _kind(self._hints(annotation))

    def _hints(self, node: ast.expr, depth: int = 0) -> frozenset[str]:
        """Return the members of a union: plain type names, none, literal, list, dict, dataclass, other."""
        if depth > _MAX_DEPTH:
            return frozenset({"other"})
        match node:
            case ast.Constant(value=None):
                return frozenset({"none"})
            case ast.Constant(value=str(text)):
                return self._quoted(text, depth)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self._hints(left, depth + 1) | self._hints(right, depth + 1)
            case ast.Subscript(value=head, slice=inner):
                return self._subscripted(_name(head), inner, depth)
            case _:
                return self._named(_name(node), depth)

    def _quoted(self, text: str, depth: int) -> frozenset[str]:
        try:
            return self._hints(ast.parse(text, mode="eval").body, depth + 1)
        except SyntaxError:
            return frozenset({"other"})

    def _subscripted(self, head: str, inner: ast.expr, depth: int) -> frozenset[str]:
        members = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        match head:
            case "Optional":
                return self._hints(inner, depth + 1) | {"none"}
            case "Union":
                return frozenset().union(*(self._hints(member, depth + 1) for member in members))
            case "Annotated" | "SkipValidation":
                return self._hints(members[0], depth + 1)
            case "Literal":
                return frozenset({"literal"})
            case _:
                return self._named(head, depth)

    def _named(self, name: str, depth: int) -> frozenset[str]:
        if name in _PLAIN:
            return frozenset({name})
        if name in _COLLECTIONS:
            return frozenset({"list"})
        if name in _MAPPINGS:
            return frozenset({"dict"})
        if name in self._classes:
            return frozenset({_class_hint(self._classes[name])})
        if name in self._aliases:
            return self._hints(self._aliases[name], depth + 1)
        return frozenset({"other"})


def _kind(hints: frozenset[str]) -> Kind:
    """Return the kind for a union of hints; the order of the questions is vLLM's."""
    if "dataclass" in hints:
        return Kind(Arity.ONE, is_json=True)
    if hints == {"bool", "str", "none"}:
        return Kind(Arity.OPTIONAL)
    if "bool" in hints:
        return Kind(Arity.BOOLEAN)
    if "literal" in hints:
        return Kind(Arity.ONE)
    if "list" in hints:
        return Kind(Arity.MANY)
    return Kind(Arity.ONE, is_json="dict" in hints and not hints & {"int", "float"})


def _class_hint(node: ast.ClassDef) -> str:
    decorators = {_name(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list}
    if decorators & _DATACLASS_DECORATORS:
        return "dataclass"
    bases = {_name(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases}
    return "dict" if bases & _MAPPINGS else "other"


def _name(node: ast.expr) -> str:
    """Return the last part of a dotted name, "" for anything else."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""
