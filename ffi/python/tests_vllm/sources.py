"""Classes and functions of a Python package, read from its source. Nothing of it is imported."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Found:
    """A name's definition, and the module that contains it. `None` for a module itself."""

    module: str
    node: ast.AST | None


@dataclass(frozen=True)
class Parameters:
    """Parameters of a function as its caller sees them, without `self` and `cls`."""

    positional: tuple[str, ...]
    #: Those by name alone.
    named: tuple[str, ...]
    required: frozenset[str]
    #: It has `*args`, `**kwargs`.
    more_positional: bool
    more_named: bool


class Package:
    """The source of a package: its name, and the folder that it is in. Other packages there are not read."""

    def __init__(self, name: str, above: Path) -> None:
        self.name, self.above = name, above

    def path(self, module: str) -> Path | None:
        """Return the file of a module; None also for one of another package."""
        if module.partition(".")[0] != self.name:
            return None
        base = self.above.joinpath(*module.split("."))
        return next((path for path in (base / "__init__.py", base.with_suffix(".py")) if path.is_file()), None)

    @functools.cached_property
    def _known(self) -> dict[str, dict[str, ast.AST]]:
        return {}

    def names(self, module: str) -> dict[str, ast.AST]:
        """Return what a module defines and imports, also where only a type checker or one branch does. Of several definitions the
        last one, which is the implementation after overloads."""
        if module not in self._known:
            path = self.path(module)
            assert path is not None, module
            self._known[module] = dict(_bound(ast.parse(path.read_text()).body))
        return self._known[module]

    def find(self, module: str, name: str) -> Found | None:
        """Return a name of a module, wherever it is defined."""
        path = self.path(module)
        if path is None:
            return None
        node = self.names(module).get(name)
        if isinstance(node, ast.ImportFrom):
            origin, real = self.origin(module, node, name)
            if origin != module and self.path(origin) is not None:
                return self.find(origin, real)
            if self.path(origin) is None:  # of another package
                return Found(module, node)
        if self.path(f"{module}.{name}") is not None:
            return Found(f"{module}.{name}", None)
        return None if node is None else Found(module, node)

    def origin(self, module: str, node: ast.ImportFrom, name: str) -> tuple[str, str]:
        """Return the module from which an import of `module` takes a name, and the name there."""
        real = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
        if not node.level:
            return node.module or "", real
        path, parts = self.path(module), module.split(".")
        parts = parts[: len(parts) - node.level + (path is not None and path.name == "__init__.py")]
        return ".".join([*parts, *([node.module] if node.module else [])]), real

    def members(self, found: Found) -> dict[str, Found]:
        """Return a class's attributes and methods with those of its bases, and what its methods assign to `self`."""
        assert isinstance(found.node, ast.ClassDef)
        members: dict[str, Found] = {}
        for base in reversed(found.node.bases):
            expression = base.value if isinstance(base, ast.Subscript) else base
            above = self.find(found.module, expression.id) if isinstance(expression, ast.Name) else None
            if above is not None and isinstance(above.node, ast.ClassDef):
                members |= self.members(above)
        own = dict(_bound(found.node.body))
        for function in [node for node in own.values() if isinstance(node, Function)]:
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    if isinstance(node.value, ast.Name) and node.value.id == "self":
                        own.setdefault(node.attr, node)
        return members | {name: Found(found.module, node) for name, node in own.items()}

    def constructor(self, found: Found) -> Parameters:
        """Return the parameters of a class's constructor: of `__init__`, or the fields of a dataclass."""
        members = self.members(found)
        made = members.get("__init__")
        if made is not None and isinstance(made.node, Function):
            return parameters(made.node, method=True)
        fields = {name: node.node for name, node in members.items() if isinstance(node.node, ast.AnnAssign)}
        fields = {name: node for name, node in fields.items() if "ClassVar" not in ast.unparse(node.annotation)}
        required = frozenset(name for name, node in fields.items() if node.value is None)
        return Parameters(tuple(fields), (), required, False, False)


def parameters(function: Function, *, method: bool) -> Parameters:
    """Return the parameters of a function or, if `method`, of a method."""
    given = function.args
    positional = [one.arg for one in (*given.posonlyargs, *given.args)]
    required = set(positional[: len(positional) - len(given.defaults)])
    required |= {one.arg for one, default in zip(given.kwonlyargs, given.kw_defaults) if default is None}
    if method and "staticmethod" not in decorators(function):
        del positional[0]
    named = tuple(one.arg for one in given.kwonlyargs)
    names = frozenset(required & {*positional, *named})
    return Parameters(tuple(positional), named, names, given.vararg is not None, given.kwarg is not None)


def decorators(function: Function) -> set[str]:
    """Return the names of a function's decorators."""
    return {ast.unparse(one).rpartition(".")[2] for one in function.decorator_list}


def _bound(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """Yield the names that statements bind, in their order."""
    for node in body:
        if isinstance(node, ast.ClassDef | Function):
            yield node.name, node
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from ((alias.asname or alias.name, node) for alias in node.names)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from ((one.id, node) for one in ast.walk(target) if isinstance(one, ast.Name))
        elif isinstance(node, ast.If | ast.Try):
            for part in (node.body, *(one.body for one in getattr(node, "handlers", [])), node.orelse):
                yield from _bound(part)
