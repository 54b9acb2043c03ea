"""These run in an environment that has vLLM (`cargo xtask e2e vllm` makes it), without a vLLM process. KVTIDED names the daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Before torch is imported: its threads take the cores from the daemon's.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from kvtide.daemon import PrivateDaemon


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests and fingerprints are remembered for one test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def daemon() -> Iterator[PrivateDaemon]:
    """A daemon of 64 MiB."""
    with PrivateDaemon(64 << 20, slab_bytes=1 << 20) as daemon:
        yield daemon
