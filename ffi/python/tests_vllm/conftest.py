"""Tests that need an environment with vLLM (`cargo xtask e2e vllm` creates it), but no vLLM process. KVTIDED names the daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Before torch is imported: its threads would take the daemon's cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from kvtide.daemon import PrivateDaemon


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a cache of digests and fingerprints, and a directory for shared statistics, per test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def daemon() -> Iterator[PrivateDaemon]:
    """A daemon with 64 MiB of host memory."""
    with PrivateDaemon(64 << 20, slab_bytes=1 << 20) as daemon:
        yield daemon
