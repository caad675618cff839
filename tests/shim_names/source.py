"""vLLM's Python source, read from its wheel as text: nothing of it is run or unpacked."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from zipfile import ZipFile

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source:
    """The modules of one wheel, by their paths below `vllm/`."""

    def __init__(self, wheel: Path) -> None:
        self._archive = ZipFile(wheel)
        self._names = frozenset(name.removeprefix("vllm/") for name in self._archive.namelist() if name[-3:] == ".py")
        self.module = cache(self._module)

    def _module(self, path: str) -> ast.Module:
        """Return a module; an empty one where there is none."""
        text = self._archive.read(f"vllm/{path}") if path in self._names else b""
        return ast.parse(text)

    def below(self, folder: str, name: str) -> Iterator[ast.Module]:
        """Yield every module of this name below a folder."""
        yield from (
            self.module(path) for path in sorted(self._names) if path.startswith(folder) and path.endswith(name)
        )

    def class_(self, name: str, *paths: str) -> ast.ClassDef | None:
        """Return a class from the first of these modules that has it."""
        found = (node for path in paths for node in self.module(path).body if isinstance(node, ast.ClassDef))
        return next((node for node in found if node.name == name), None)


def members(found: ast.ClassDef | None) -> set[str]:
    """Return the names that a class body binds: fields, methods, properties."""
    names: set[str] = set()
    for node in found.body if found is not None else ():
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Assign(targets=targets):
                names.update(target.id for target in targets if isinstance(target, ast.Name))
    return names


def method(found: ast.ClassDef | None, name: str) -> Function | None:
    """Return a method of a class."""
    nodes = found.body if found is not None else ()
    return next((n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name == name), None)


def function(tree: ast.Module, name: str) -> Function | None:
    """Return a function of a module's own, not one of a class."""
    return next(
        (n for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name == name), None
    )


def attributes(found: ast.AST | None, owner: str, *, stored: bool) -> set[str]:
    """Return the attributes of a name (`self`) that are stored, or read, anywhere in a piece of code."""
    wanted = ast.Store if stored else ast.Load
    return {
        node.attr
        for node in (ast.walk(found) if found is not None else ())
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, wanted) and ast.unparse(node.value) == owner
    }


def calls(found: ast.AST | None) -> set[str]:
    """Return the last names of what a piece of code calls: `sock.bind(…)` is bind."""
    names: set[str] = set()
    for node in ast.walk(found) if found is not None else ():
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    names.add(name)
    return names


def bound(tree: ast.Module) -> set[str]:
    """Return the names that a module has: what it defines and what it imports."""
    names: set[str] = set()
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names.add(name)
            case ast.ImportFrom(names=aliases):
                names.update(alias.asname or alias.name for alias in aliases)
    return names
