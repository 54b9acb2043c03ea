"""A daemon of this build, and sessions with it. KVTIDED names the binary (`cargo xtask python` sets it)."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Before torch is imported: threads that wait for each other cost more than these small models' arithmetic, nine times as much on
# a machine of two cores that has other work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

import kvtide
from kvtide.daemon import PrivateDaemon

#: Tokens and bytes of a page of the spaces below.
PAGE_TOKENS = 16
PAGE_BYTES = 4096
PLANES = 2


@pytest.fixture(scope="session")
def daemon() -> Iterator[PrivateDaemon]:
    """One that all tests share which do not harm it."""
    # Spaces with content stay when nobody is attached, and there is one for each fingerprint.
    with PrivateDaemon(256 << 20, slab_bytes=4 << 20, config="[limits]\nspaces_max = 256\n") as daemon:
        yield daemon


def space(name: str, **changes: object) -> kvtide.Space:
    """A space of two planes."""
    given: dict[str, object] = {
        "name": name,
        "fingerprint": bytes(32),
        "page_tokens": PAGE_TOKENS,
        "planes": [kvtide.Plane(PAGE_BYTES)] * PLANES,
    }
    return kvtide.Space(**(given | changes))  # type: ignore[arg-type]


@pytest.fixture
def session(daemon: PrivateDaemon, request: pytest.FixtureRequest) -> Iterator[kvtide.Session]:
    """A session with a space of its own, and 64 frames of tier 0."""
    with kvtide.attach(daemon.socket, space(request.node.name), [64], lanes=2, channels=2) as session:
        yield session
