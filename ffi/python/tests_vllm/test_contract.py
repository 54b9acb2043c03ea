"""vLLM has what kvtide needs of it: the installed vLLM, and the source of a newer one that is not installed.

A difference names the version, the file, what is missing there, and the way in that needs it. If a newer vLLM has a difference that
kvtide works with, `contract.ABSENT` says so.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from contract import ABSENT, CONNECTOR, NEEDED, PAGED, PROMPT, TIER, Needed
from sources import Found, Function, Package, Parameters, decorators, parameters

#: Modules of kvtide with which vLLM enters; those that they import belong to the same way in.
ENTRIES = {
    CONNECTOR: ("kvtide.vllm.connector",),
    TIER: ("kvtide.vllm.tier",),
    PAGED: ("kvtide.vllm.paged.connector", "kvtide.vllm.paged.backend", "kvtide.vllm.paged.choice"),
    PROMPT: ("kvtide.vllm.prompt",),
}


def above(package: str) -> Path:
    """Return the folder that an installed package is in."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent.parent


@functools.cache
def vllm(version: str) -> Package:
    """Return the source of a version: that of the environment, or the one that KVTIDE_VLLM_SOURCE names."""
    where = os.environ.get("KVTIDE_VLLM_SOURCE")
    for package in (Package("vllm", above("vllm")), *([Package("vllm", Path(where))] if where else [])):
        if found(package).startswith(f"{version}."):
            return package
    if os.environ.get("KVTIDE_NO_SKIP") == "1":
        pytest.fail(f"no source of vLLM {version}: KVTIDE_VLLM_SOURCE is {where!r}")
    pytest.skip(f"no source of vLLM {version}; KVTIDE_VLLM_SOURCE names the folder that `cargo xtask e2e vllm` makes")


def found(package: Package) -> str:
    """Return the version of a vLLM package."""
    text = package.above.joinpath("vllm", "_version.py").read_text()
    version = re.search(r"^__version__.* = ['\"]([^'\"]+)", text, re.MULTILINE)
    assert version is not None
    return version[1]


# ---- the table against vLLM


#: Decorators of methods that are read like attributes.
PROPERTIES = {"property", "cached_property", "setter"}


def members(needed: Needed) -> list[str]:
    """Return the members of an entry as they are written."""
    return [member.strip() for member in re.split(r"[;\n]", needed.members) if member.strip()]


def bare(member: str) -> str:
    """Return the name of a member."""
    return member.removeprefix("def ").partition("(")[0]


class Check:
    """Compares a vLLM package with the table and with kvtide's classes."""

    def __init__(self, package: Package, kvtide: Package, table: Sequence[Needed] = NEEDED) -> None:
        self.package, self.kvtide, self.table = package, kvtide, table
        self.version = found(package)
        self.problems: list[str] = []

    def problem(self, module: str, what: str, by: str) -> None:
        path = self.package.path(module)
        file = module if path is None else path.relative_to(self.package.above)
        self.problems.append(f"vLLM {self.version}, {file}: {what}; needed by {', '.join(by.split())}")

    def run(self) -> list[str]:
        """Return all differences."""
        for needed in self.table:
            self._entry(needed)
        for ours in subclasses(self.kvtide):
            self._subclass(ours)
        return list(dict.fromkeys(self.problems))

    def _entry(self, needed: Needed) -> None:
        module, _, name = needed.where.partition(":")
        if self.package.path(module) is None:
            return self.problem(module, "there is no such module", needed.by)
        there: dict[str, Found] | None = None
        at = None
        if name:
            at = self.package.find(module, name)
            if at is None or not isinstance(at.node, ast.ClassDef):
                return self.problem(module, f"there is no class {name}", needed.by)
            there = self.package.members(at)
        for member in members(needed):
            what = f"{name}.{bare(member)}" if name else bare(member)
            known = ABSENT.get((self.version.rpartition(".")[0], f"{needed.where}.{bare(member)}"))
            if bare(member) == "__init__" and at is not None and not member.startswith("def "):
                self._call(at.module, what, self.package.constructor(at), member, needed.by)
                continue
            one = there.get(bare(member)) if there is not None else self.package.find(module, bare(member))
            if one is None:
                if known is None:
                    self.problem(at.module if at else module, f"there is no {what}", needed.by)
            elif known is not None:
                self.problem(one.module, f"{what} is there, but ABSENT says that it is not", needed.by)
            else:
                called = isinstance(one.node, Function) and not decorators(one.node) & PROPERTIES
                if isinstance(one.node, Function) and called and "(" in member:
                    self._call(one.module, what, parameters(one.node, method=bool(name)), member, needed.by)
                elif not member.startswith("def ") and called != ("(" in member):
                    self.problem(one.module, f"{what} is {'a function' if called else 'no function'}", needed.by)

    def _call(self, module: str, what: str, has: Parameters, member: str, by: str) -> None:
        """Check that a call with the member's arguments is right."""
        given = [one.strip() for one in member.partition("(")[2].rstrip(")").split(",") if one.strip()]
        positional = [one for one in given if not one.endswith("=")]
        named = {one.rstrip("=") for one in given if one.endswith("=")}
        if not has.more_positional and tuple(positional) != has.positional[: len(positional)]:
            self.problem(module, f"{what} has the parameters {', '.join(has.positional)}, and kvtide passes {', '.join(positional)}", by)
        if not has.more_named and (missing := named - {*has.positional, *has.named}):
            self.problem(module, f"{what} has no parameter {', '.join(sorted(missing))}", by)
        if more := has.required - named - {*has.positional[: len(positional)]}:
            self.problem(module, f"{what} requires {', '.join(sorted(more))}, which kvtide does not pass", by)

    def _subclass(self, ours: Ours) -> None:
        """Compare what one of kvtide's classes overrides."""
        theirs: dict[str, Found] = {}
        for where in ours.bases:
            module, _, name = where.partition(":")
            at = self.package.find(module, name)
            if at is not None and isinstance(at.node, ast.ClassDef):  # otherwise the table reports it
                theirs |= {member: one for member, one in self.package.members(at).items() if member not in theirs}
        for name, one in theirs.items():
            if isinstance(one.node, Function) and "abstractmethod" in decorators(one.node) and name not in ours.members:
                self.problem(one.module, f"{name} is abstract, and {ours.name} does not define it", " ".join(ours.ways))
        listed = {bare(m) for needed in self.table if needed.where in ours.bases for m in members(needed) if m.startswith("def ")}
        for name, node in ours.members.items():
            base = theirs.get(name)
            if name in listed and base is not None and isinstance(base.node, Function) and isinstance(node, Function):
                self._override(ours, name, base, base.node, node)

    def _override(self, ours: Ours, name: str, one: Found, theirs: Function, node: Function) -> None:
        by = " ".join(ours.ways)
        kinds = {*PROPERTIES, "classmethod", "staticmethod"}
        if decorators(theirs) & kinds != decorators(node) & kinds:
            self.problem(one.module, f"{name} is another kind of method than in {ours.name}", by)
        passed, takes = parameters(theirs, method=True), parameters(node, method=True)
        known = {*takes.positional, *takes.named}
        extra = [p for p in passed.positional if p not in known] if not takes.more_positional else []
        extra += [p for p in passed.named if p not in known and not takes.more_named]
        extra += ["**kwargs"] * (passed.more_named and not takes.more_named)
        if extra and not takes.more_named:
            self.problem(one.module, f"{name} has a parameter {', '.join(extra)}, which {ours.name} does not take", by)
        elif takes.positional[: len(passed.positional)] != passed.positional[: len(takes.positional)]:
            self.problem(one.module, f"{name} has other parameters than in {ours.name}: {', '.join(passed.positional)}", by)
        if not passed.more_positional and (more := takes.required - {*passed.positional, *passed.named}):
            self.problem(one.module, f"{name} has no parameter {', '.join(sorted(more))}, which {ours.name} requires", by)


# ---- kvtide's own source


@dataclasses.dataclass(frozen=True)
class Ours:
    """A class of kvtide with bases of vLLM's."""

    name: str
    module: str
    bases: tuple[str, ...]
    members: dict[str, ast.AST]
    ways: tuple[str, ...]


def ways(kvtide: Package) -> dict[str, tuple[str, ...]]:
    """Return, for each module of `kvtide.vllm`, the ways in that import it. Others, such as the plugin, belong to all."""
    reached: dict[str, list[str]] = {}
    for way, entries in ENTRIES.items():
        waiting = list(entries)
        while waiting:
            module = waiting.pop()
            path = kvtide.path(module)
            if way in reached.get(module, ()) or not module.startswith("kvtide.vllm.") or path is None:
                continue
            reached.setdefault(module, []).append(way)
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom):
                    for alias in node.names:
                        origin, name = kvtide.origin(module, node, alias.asname or alias.name)
                        waiting += [origin, f"{origin}.{name}"]
    folder = kvtide.above / "kvtide" / "vllm"
    files = [path.relative_to(kvtide.above).with_suffix("") for path in sorted(folder.rglob("*.py"))]
    modules = [".".join(file.parts).removesuffix(".__init__") for file in files]
    return {module: tuple(reached.get(module, ())) for module in modules}


def subclasses(kvtide: Package) -> Iterator[Ours]:
    """Yield kvtide's classes with bases of vLLM's."""
    for module, by in ways(kvtide).items():
        known = kvtide.names(module)
        for name, node in known.items():
            if not isinstance(node, ast.ClassDef):
                continue
            bases = []
            for base in node.bases:
                expression = base.value if isinstance(base, ast.Subscript) else base
                bound = known.get(expression.id) if isinstance(expression, ast.Name) else None
                if isinstance(bound, ast.ImportFrom) and isinstance(expression, ast.Name):
                    origin, real = kvtide.origin(module, bound, expression.id)
                    bases += [f"{origin}:{real}"] * origin.startswith("vllm.")
            if bases:
                own = {member: one.node for member, one in kvtide.members(Found(module, node)).items() if one.node is not None}
                # Another name for a method stands for it.
                for member, one in own.items():
                    if isinstance(one, ast.Assign) and isinstance(one.value, ast.Name):
                        own[member] = own.get(one.value.id, one)
                yield Ours(name, module, tuple(bases), own, by)


def unlisted(package: Package, kvtide: Package, table: Sequence[Needed] = NEEDED) -> list[str]:
    """Return what kvtide's source uses of vLLM and the table does not list for its way in, and overrides that kvtide has not."""
    listed: dict[str, set[str]] = {}
    for needed in table:
        for name in [needed.where.replace(":", "."), *(f"{needed.where.replace(':', '.')}.{bare(m)}" for m in members(needed))]:
            listed.setdefault(name, set()).update(needed.by.split())
    problems = []

    def use(module: str, node: ast.AST, by: tuple[str, ...], name: str) -> None:
        if name not in listed:
            problems.append(f"{module}, line {getattr(node, 'lineno', 0)}: {name} is not in the table")
        elif absent := set(by) - listed[name]:
            problems.append(f"{module}, line {getattr(node, 'lineno', 0)}: {name} is in the table, but not for {', '.join(sorted(absent))}")

    for module, by in ways(kvtide).items():
        path = kvtide.path(module)
        assert path is not None
        tree = ast.parse(path.read_text())
        modules: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] == "vllm":
                for alias in node.names:
                    at = package.find(node.module or "", alias.name)
                    if at is not None and at.node is None:
                        modules[alias.asname or alias.name] = at.module
                    else:
                        use(module, node, by, f"{node.module}.{alias.name}")
            elif isinstance(node, ast.Import):
                modules |= {alias.asname or alias.name: alias.name for alias in node.names if alias.name.partition(".")[0] == "vllm"}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"vllm(\.\w+)+", node.value):
                if not any(name.startswith(f"{node.value}.") for name in listed):
                    problems.append(f"{module}, line {node.lineno}: {node.value} is not in the table")
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                use(module, node, by, f"{modules[node.value.id]}.{node.attr}")
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and isinstance(node.args[0], ast.Name):
                if node.args[0].id in modules and isinstance(node.args[1], ast.Constant):
                    use(module, node, by, f"{modules[node.args[0].id]}.{node.args[1].value!s}")
    ours = list(subclasses(kvtide))
    for one in ours:
        for base in one.bases:
            at = package.find(*base.split(":"))
            theirs = package.members(at) if at is not None and isinstance(at.node, ast.ClassDef) else {}
            for name in one.members:
                if name in theirs and isinstance(theirs[name].node, Function) and not name.startswith("_"):
                    use(one.module, one.members[name], one.ways, f"{base.replace(':', '.')}.{name}")
    for needed in table:
        for member in members(needed):
            if member.startswith("def "):
                for way in needed.by.split():
                    if not any(needed.where in one.bases and bare(member) in one.members and way in one.ways for one in ours):
                        problems.append(f"the table says that {way} overrides {needed.where}.{bare(member)}, and it does not")
    return problems


def ours() -> Package:
    """Return kvtide's own source, as it is installed."""
    return Package("kvtide", above("kvtide"))


@pytest.mark.parametrize("version", ["0.32", "0.33"])
def test_vllm_has_what_kvtide_needs(version: str) -> None:
    problems = Check(vllm(version), ours()).run()
    assert not problems, "\n".join(["", *problems])


def test_the_table_lists_all_that_kvtide_imports_and_overrides() -> None:
    problems = unlisted(vllm("0.32"), ours())
    assert not problems, "\n".join(["", *problems])


# ---- the checks against wrong tables


BASE, REQUEST = "vllm.distributed.kv_transfer.kv_connector.v1.base", "vllm.v1.request"


@pytest.fixture
def adapter(tmp_path: Path) -> Package:
    """A `kvtide.vllm` with two adapters, each with a mistake."""
    folder = tmp_path / "kvtide" / "vllm"
    folder.mkdir(parents=True)
    (folder / "tier.py").write_text(
        "from vllm.v1.core import kv_cache_utils\n"
        "from vllm.v1.request import Request, RequestStatus\n"
        "seed = kv_cache_utils.init_none_hash\n"
    )
    (folder / "connector.py").write_text(
        "from vllm.distributed.kv_transfer.kv_connector.v1.base import SupportsHMA\n"
        "class Connector(SupportsHMA):\n"
        "    def request_finished_all_groups(self, request): ...\n"
    )
    return Package("kvtide", tmp_path)


@pytest.mark.parametrize(
    ("needed", "said"),
    [
        (Needed("vllm.v1.requests", TIER), "vllm.v1.requests: there is no such module"),
        (Needed(f"{REQUEST}:Requests", TIER), "vllm/v1/request.py: there is no class Requests"),
        (Needed(f"{REQUEST}:Request", TIER, "forget()"), "vllm/v1/request.py: there is no Request.forget"),
        (Needed(f"{REQUEST}:Request", TIER, "num_forgotten"), "vllm/v1/request.py: there is no Request.num_forgotten"),
        (Needed(f"{REQUEST}:RequestStatus", TIER, "FORGOTTEN"), "vllm/v1/request.py: there is no RequestStatus.FORGOTTEN"),
        (Needed(f"{REQUEST}:Request", TIER, "num_tokens()"), "vllm/v1/request.py: Request.num_tokens is no function"),
        (Needed(f"{REQUEST}:Request", TIER, "is_finished"), "vllm/v1/request.py: Request.is_finished is a function"),
        (Needed("vllm.v1.core.block_pool:BlockPool", TIER, "free_blocks(blocks)"), "kvtide passes blocks"),
        (Needed("vllm.v1.core.block_pool:BlockPool", TIER, "touch(blocks, gently=)"), "BlockPool.touch has no parameter gently"),
        (Needed("vllm.v1.core.block_pool:BlockPool", TIER, "touch()"), "BlockPool.touch requires blocks, which kvtide does not pass"),
        (Needed("vllm.v1.kv_offload.tiering.base:JobResult", TIER, "__init__(job_id=)"), "JobResult.__init__ requires success"),
    ],
)
def test_what_vllm_lacks_is_reported(tmp_path: Path, needed: Needed, said: str) -> None:
    (problem,) = Check(vllm("0.32"), Package("kvtide", tmp_path), [needed]).run()
    assert said in problem
    assert problem.startswith("vLLM 0.32.0, vllm") and problem.endswith("; needed by KvtideTier")


def test_an_override_with_other_parameters_is_reported(adapter: Package) -> None:
    base = f"{BASE}:SupportsHMA"
    (problem,) = Check(vllm("0.32"), adapter, [Needed(base, CONNECTOR, "def request_finished_all_groups")]).run()
    assert "request_finished_all_groups has a parameter block_ids, which Connector does not take; needed by KvtideConnector" in problem


def test_what_the_table_lacks_is_reported(adapter: Package) -> None:
    table = [Needed(f"{REQUEST}:Request", PAGED), Needed(f"{BASE}:SupportsHMA", CONNECTOR), Needed(f"{REQUEST}", TIER, "def request")]
    assert unlisted(vllm("0.32"), adapter, table) == [
        "kvtide.vllm.tier, line 2: vllm.v1.request.Request is in the table, but not for KvtideTier",
        "kvtide.vllm.tier, line 2: vllm.v1.request.RequestStatus is not in the table",
        "kvtide.vllm.tier, line 3: vllm.v1.core.kv_cache_utils.init_none_hash is not in the table",
        f"kvtide.vllm.connector, line 3: {BASE}.SupportsHMA.request_finished_all_groups is not in the table",
        "the table says that KvtideTier overrides vllm.v1.request.request, and it does not",
    ]
