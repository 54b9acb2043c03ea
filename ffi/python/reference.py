"""Write docs/reference/python.md from the docstrings of the package.

    python ffi/python/reference.py            # from the repository's root

It reads the sources and imports nothing, so it needs neither torch nor an engine. `tests/test_reference.py` fails if the page and the
docstrings differ.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = Path(__file__).parent / "python/kvtide"
PAGE = Path(__file__).parents[2] / "docs/reference/python.md"

#: Public modules in the order of the page. Names that several of them export are described with the first.
MODULES = (
    "kvtide",
    "kvtide.blocks",
    "kvtide.errors",
    "kvtide.daemon",
    "kvtide.keyed_store",
    "kvtide.torch",
    "kvtide.torch.ops",
    "kvtide.torch.backends",
    "kvtide.torch.layouts",
    "kvtide.vllm",
    "kvtide.sglang",
)
#: The adapters' classes have the engines' methods. Their own pages describe them.
ELSEWHERE = {
    "KvtideConnector": "vllm.md",
    "KvtidePaged": "vllm-paged.md",
    "KvtideTier": "vllm.md#kvtidetier",
    "KvtideStorage": "sglang.md",
}

HEAD = """<!-- Written by ffi/python/reference.py from the docstrings. Do not edit: change the docstring and run it again. -->

# Python reference

All public names of the package `kvtide`. [ffi/python](../../ffi/python/README.md) shows how to install it and whole examples,
[concepts.md](../concepts.md) explains the terms. Everything else in the package may change without notice.
"""

Definition = ast.FunctionDef | ast.ClassDef | ast.AnnAssign | ast.Assign


@dataclass
class Module:
    """A parsed source file."""

    name: str
    lines: list[str]
    tree: ast.Module
    #: Definitions at the top level, and names that are imported from the package, as (module, name).
    defined: dict[str, Definition] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def public(self) -> list[str]:
        """Return `__all__`; without it, the names of public classes and functions."""
        found = self.defined.get("__all__")
        if isinstance(found, ast.Assign):
            return list(ast.literal_eval(found.value))
        kinds = (ast.ClassDef, ast.FunctionDef)
        return [name for name, node in self.defined.items() if isinstance(node, kinds) and not name.startswith("_")]


def parse(name: str) -> Module | None:
    """Parse a module of the package. Return None if it does not exist."""
    path = PACKAGE.joinpath(*name.split(".")[1:])
    for source in (path / "__init__.py", path.with_suffix(".py"), path.with_suffix(".pyi")):
        if source.is_file():
            break
    else:
        return None
    text = source.read_text()
    module = Module(name, text.splitlines(), ast.parse(text))
    folder = name if source.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            parts = folder.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1] + (node.module.split(".") if node.module else []))
            module.imported |= {alias.asname or alias.name: (base, alias.name) for alias in node.names}
    for node in module.tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            module.defined.setdefault(node.name, node)  # implementations for devices repeat the name `_`
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            module.defined[node.target.id] = node
        elif isinstance(node, ast.Assign):
            module.defined |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    return module


def find(module: Module, name: str) -> tuple[Module, Definition] | None:
    """Return the definition of a name, in the module or where it is imported from. None for a submodule or a dunder name."""
    if name in module.defined:
        return module, module.defined[name]
    if name not in module.imported:
        return None
    base, original = module.imported[name]
    source = parse(base)
    if source is None or parse(f"{base}.{original}") is not None:
        return None
    return find(source, original)


def comment(module: Module, node: ast.stmt) -> str:
    """Return the `#:` lines above a definition. An earlier definition shares them if nothing is between."""
    at, found = node.lineno - 2, []
    while at >= 0 and (line := module.lines[at].strip()).startswith("#:"):
        found.insert(0, line[2:].strip())
        at -= 1
    return "\n".join(found)


def text(docstring: str | None, what: str) -> str:
    """Return a docstring as Markdown: examples become code. Raise ValueError if there is none."""
    if not docstring:
        raise ValueError(f"{what} is public and has no docstring")
    parts = re.split(r"\n\s*\n", docstring)
    return "\n\n".join(f"```python\n{part}\n```" if part.startswith(">>>") else part for part in parts)


def parameter(name: str, annotation: ast.expr | None, default: ast.expr | None) -> str:
    typed = f": {ast.unparse(annotation)}" if annotation is not None else ""
    equals = " = " if typed else "="
    return name + typed + (f"{equals}{ast.unparse(default)}" if default is not None else "")


def signature(node: ast.FunctionDef, *, method: bool = False) -> str:
    """Return name, parameters and result of a function, as code. A method's own object is left out."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    shown = [parameter(arg.arg, arg.annotation, value) for arg, value in zip(positional, defaults, strict=True)][method:]
    if given.kwonlyargs:
        shown.append("*")
    shown += [parameter(a.arg, a.annotation, value) for a, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{node.name}({', '.join(shown)}){result}"


def decorators(node: ast.FunctionDef) -> set[str]:
    return {decorator.id for decorator in node.decorator_list if isinstance(decorator, ast.Name)}


def item(code: str, words: str) -> str:
    """Return a list item: code, then its description."""
    return f"- `{code}`" + (f": {words}" if words else "").replace("\n", "\n  ").replace("\n  \n", "\n\n")


def constant(module: Module, node: ast.AnnAssign | ast.Assign, name: str) -> str:
    """Return the list item of a constant or an attribute."""
    typed = f": {ast.unparse(node.annotation)}" if isinstance(node, ast.AnnAssign) else ""
    value = node.value
    shown = f" = {ast.unparse(value)}" if value is not None and len(ast.unparse(value)) < 40 else ""
    return item(name + typed + shown, comment(module, node))


def members(module: Module, node: ast.ClassDef) -> list[str]:
    """Return the list items of a class: attributes, properties, methods."""
    items: list[str] = []
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and not part.target.id.startswith("_"):
            items.append(constant(module, part, part.target.id))
        elif isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name) and not part.targets[0].id.startswith("_"):
            items.append(constant(module, part, part.targets[0].id))
        elif isinstance(part, ast.FunctionDef) and (not part.name.startswith("_") or part.name == "__init__"):
            words, is_property = ast.get_docstring(part), "property" in decorators(part)
            if part.name == "__init__" and words is None:
                continue  # the class describes its parameters
            words = text(words, f"{module.name}.{node.name}.{part.name}")
            if is_property:
                items.append(item(f"{part.name}: {ast.unparse(part.returns) if part.returns else 'object'}", words))
            else:
                items.append(item(signature(part, method="staticmethod" not in decorators(part)), words))
    return items


def described(module: Module, name: str, node: Definition) -> str:
    """Return the section of a class or a function, or the list item of a constant."""
    what = f"{module.name}.{name}"
    if isinstance(node, ast.FunctionDef):
        return f"### `{name}`\n\n```python\n{signature(node)}\n```\n\n{text(ast.get_docstring(node), what)}\n"
    if isinstance(node, ast.ClassDef):
        made = next((part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), None)
        head = f"{name}{signature(made, method=True).removeprefix('__init__').removesuffix(' -> None')}" if made is not None else ""
        head = f"```python\n{head}\n```\n\n" if head else ""
        words = text(ast.get_docstring(node), what)
        if name in ELSEWHERE:
            return f"### class `{name}`\n\n{words}\n\nSee [{ELSEWHERE[name]}]({ELSEWHERE[name]}).\n"
        body = "\n".join(line for line in members(module, node) if not line.startswith("- `__init__"))
        if made is not None and (more := ast.get_docstring(made)) is not None:
            words += f"\n\n{more}"
        return f"### class `{name}`\n\n{head}{words}\n" + (f"\n{body}\n" if body else "")
    return constant(module, node, name)


def errors(module: Module) -> str:
    """Return the section of the exceptions: a table."""
    rows = ["| exception | built-in base | meaning |", "| --- | --- | --- |"]
    for name, node in module.defined.items():
        if isinstance(node, ast.ClassDef):
            bases = ", ".join(f"`{base.id}`" for base in node.bases if isinstance(base, ast.Name) and base.id not in ("Error",))
            rows.append(f"| `{name}` | {bases} | {text(ast.get_docstring(node), name)} |".replace("\n", " "))
    constants = [described(module, name, module.defined[name]) for name in ("BY_CODE",)]
    return "\n".join([*rows, "", *constants, ""])


def page() -> str:
    """Return the page. Raise ValueError if a public name has no docstring."""
    sections, seen = [HEAD], set[str]()
    for name in MODULES:
        module = parse(name)
        assert module is not None, name
        sections.append(f"## {name}\n\n{text(ast.get_docstring(module.tree), name)}\n")
        if name == "kvtide.errors":
            sections.append(errors(module))
            seen |= set(module.public)
            continue
        constants, bodies, also = [], [], []
        for public in module.public:
            found = None if public == "__version__" else find(module, public)
            if found is None:
                continue  # a submodule
            if public in seen:
                also.append(f"`{public}`")
                continue
            seen.add(public)
            section = described(found[0], public, found[1])
            (constants if section.startswith("- ") else bodies).append(section)
        if also:
            sections.append(f"Described above: {', '.join(also)}.\n")
        if constants:
            sections.append("\n".join(constants) + "\n")
        sections += bodies
    return "\n".join(sections)


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE)
