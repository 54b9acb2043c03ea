"""A daemon of this build, and sessions with it. KVTIDED names the binary (`cargo xtask python` sets it)."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Set before torch is imported. For these small models the synchronization of threads costs more than the arithmetic: nine times as
# much on a loaded machine with two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

import kvtide
from kvtide import _native, errors
from kvtide.daemon import PrivateDaemon

#: Tokens and bytes per page of the spaces below.
PAGE_TOKENS = 16
PAGE_BYTES = 4096
PLANES = 2


#: Statuses of a caller's mistakes: the text of the status alone does not say what to change.
MISTAKES = (errors.Invalid, errors.NotFound, errors.OutOfRange, errors.LimitReached, errors.WrongState)
GENERAL = {code: text for _, code, text in _native.STATUSES if errors.BY_CODE.get(code) in MISTAKES}
from_code = errors.from_code


def with_reason(code: int, text: str) -> errors.Error:
    """Create an exception as the native module does. Fail the test if a caller's mistake has no reason."""
    assert code not in GENERAL or not text.endswith(f": {GENERAL[code]}"), f"an error without a reason: {text}"
    return from_code(code, text)


errors.from_code = with_reason  # the native module looks it up when it raises for the first time


@pytest.fixture(scope="session")
def daemon() -> Iterator[PrivateDaemon]:
    """A daemon shared by all tests that do not damage it."""
    # Spaces with cached blocks stay after their sessions end, and each fingerprint has its own.
    with PrivateDaemon(256 << 20, slab_bytes=4 << 20, config="[limits]\nspaces_max = 256\n") as daemon:
        yield daemon


def space(name: str, /, **changes: object) -> kvtide.Space:
    """Return a space of two planes."""
    given: dict[str, object] = {
        "name": name,
        "fingerprint": bytes(32),
        "page_tokens": PAGE_TOKENS,
        "planes": [kvtide.Plane(PAGE_BYTES)] * PLANES,
    }
    return kvtide.Space(**(given | changes))  # type: ignore[arg-type]


@pytest.fixture
def session(daemon: PrivateDaemon, request: pytest.FixtureRequest) -> Iterator[kvtide.Session]:
    """A session with its own space, and 64 frames of tier 0."""
    with kvtide.attach(daemon.socket, space(request.node.name), [64], lanes=2, channels=2) as session:
        yield session
