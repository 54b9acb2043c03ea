"""The recipes of the package's README run as they stand."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

import kvtide
from kvtide.blocks import block_hashes

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tests_vllm"))

from place import Place  # noqa: E402


def recipe(heading: str) -> str:
    """Return the program below a heading of the README."""
    found = re.search(rf"^### {heading}\n.*?```python\n(.*?)```", (HERE.parent / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None, f"README.md has no program below {heading!r}"
    return found[1]


def test_an_engine_outlives_its_daemon(tmp_path: Path) -> None:
    place = Place(tmp_path / "daemon").start()
    kv = np.zeros((12, 4096), np.uint8)
    space = kvtide.Space("recipe", bytes([7] * 32), page_tokens=16, planes=[kvtide.Plane(4096)])
    given: dict[str, object] = {"socket": place.socket, "space": space, "kv": kv}
    exec(recipe("A daemon that restarts"), given)  # noqa: S102
    cache = given["Cache"]()  # type: ignore[operator]
    hashes = block_hashes(range(64), 16)
    kv[:4] = np.arange(1, 5, dtype=np.uint8)[:, None]
    cache.store(hashes, range(4))
    assert cache.load(hashes, range(4, 8)) == 4 and (kv[4:8] == kv[:4]).all()
    place.kill()
    for _ in range(2):
        assert cache.load(hashes, range(8, 12)) == 0, "the engine computes"
    cache.store(hashes, range(4))
    assert cache.session is None
    place.start()
    assert cache.load(hashes, range(8, 12)) == 4 and (kv[8:] == kv[:4]).all(), "the blocks survived the daemon"
    assert cache.session.alive
    cache.lose()
    place.stop()
