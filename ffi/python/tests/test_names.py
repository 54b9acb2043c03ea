"""Names that engines' configurations have do not change, and no name shadows a builtin."""

from __future__ import annotations

import ast
import builtins
import importlib.metadata
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvtide
import kvtide.sglang
import kvtide.vllm

BUILTINS = {name for name in dir(builtins) if not name.startswith("_")}
#: Methods that SGLang calls by these names.
GIVEN = {("storage.py", "set")}


def shadows(path: Path) -> Iterator[str]:
    """Yield the functions, classes, parameters and variables of a file that have a builtin's name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        else:
            continue
        if name in BUILTINS and (path.name, name) not in GIVEN:
            yield f"{path.name}:{node.lineno}: {name}"


def test_no_name_shadows_a_builtin() -> None:
    folder = Path(kvtide.__file__).parent
    files = [*folder.rglob("*.py"), *folder.rglob("*.pyi")]
    assert folder / "_native.pyi" in files
    assert [found for path in files for found in shadows(path)] == []


def test_a_shadowed_builtin_is_found(tmp_path: Path) -> None:
    source = tmp_path / "wrong.py"
    source.write_text("def load(hash):\n    id = hash\n\nclass Piece:\n    bytes: int\n    def all(self): ...\n")
    found = sorted(shadows(source))
    assert found == ["wrong.py:1: hash", "wrong.py:2: id", "wrong.py:5: bytes", "wrong.py:6: all"]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("kvtide.vllm", "KvtideConnector"),  # kv_connector_module_path and kv_connector, module_path and type of a tier
        ("kvtide.vllm", "KvtideTier"),
        ("kvtide.vllm.connector", "KvtideConnector"),
        ("kvtide.vllm.tier", "KvtideTier"),
        ("kvtide.sglang", "KvtideStorage"),  # module_path and class_name
        ("kvtide.sglang.storage", "KvtideStorage"),
    ],
)
def test_names_in_engines_configurations_stay(module: str, name: str) -> None:
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    if spec.submodule_search_locations is not None:
        assert name in {"kvtide.vllm": kvtide.vllm, "kvtide.sglang": kvtide.sglang}[module].__all__
    else:
        tree = ast.parse(Path(spec.origin).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


def test_the_entry_point_of_vllm_stays() -> None:
    points = importlib.metadata.entry_points(group="vllm.general_plugins")
    assert [point.value for point in points if point.name == "kvtide"] == ["kvtide.vllm.plugin:register"]


def test_public_names_exist() -> None:
    for name in kvtide.__all__:
        assert getattr(kvtide, name) is not None
    for name in kvtide.blocks.__all__:
        assert getattr(kvtide.blocks, name) is not None
    assert kvtide.Lease is kvtide.blocks.Lease and kvtide.Level is kvtide.blocks.Level


def test_a_level_is_a_number_with_an_order_and_a_name() -> None:
    assert [str(level) for level in kvtide.Level] == ["published", "stored", "durable"]
    assert kvtide.Level.PUBLISHED < kvtide.Level.STORED < kvtide.Level.DURABLE
    assert f"{kvtide.Level.STORED} {kvtide.Level.STORED:>8}" == "stored   stored"
