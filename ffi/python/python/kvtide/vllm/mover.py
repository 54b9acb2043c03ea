"""Copies between vLLM's blocks and the cache: straight, where vLLM's tensors are in host memory."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from .. import Channel, Session
from ..blocks import Piece, pieces
from ..errors import DaemonGone, TimedOut
from .hashes import HASH_BYTES
from .layout import Tensors

#: Blocks that have names at once, in each lane.
NAMES = 512


class Mover(Protocol):
    """What moves blocks. Each thread has a `lane` of its own: 0 and up.

    `on` is a session and a channel of it. Calls last until `until`, a time of `time.monotonic`, and raise kvtide's errors.
    """

    def bind(self, session: Session) -> None:
        """Tells a new session where the blocks are. Waits for the calls of the one before."""

    def load(
        self, on: tuple[Session, Channel], lane: int, lease: int, first: int, ids: Sequence[int], after: Any, until: float
    ) -> int | None:
        """Blocks of a lease into those of `ids`; the first that failed, by its place, or None. Error: none is to be trusted."""

    def store(
        self, on: tuple[Session, Channel], lane: int, first: int, parent: bytes | None, hashes: bytes, ids: Sequence[int],
        after: Any, level: str, until: float,
    ) -> int | None:  # fmt: skip
        """Those of `ids` under `hashes`; the first that failed, by its place, or None."""

    def mark(self) -> Any:
        """What `after` waits for: that everything which was given to the device until now is done."""


def rest(until: float) -> float:
    """The seconds until then. TimedOut: it has passed."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimedOut(f"its time was over {-left:.3f} s before this part of it could begin")
    return left


class Lanes:
    """Which session the lanes are for: it changes while none of them is in a call."""

    def __init__(self, count: int) -> None:
        self._locks = [threading.Lock() for _ in range(count)]
        self._session: Session | None = None

    @contextlib.contextmanager
    def using(self, lane: int, session: Session) -> Iterator[None]:
        """A call of a lane. DaemonGone: the lanes are another session's by now."""
        with self._locks[lane]:
            if self._session is not session:
                raise DaemonGone("its session was replaced by another before it began")
            yield

    @contextlib.contextmanager
    def changing(self, session: Session) -> Iterator[None]:
        """No lane is in a call; afterwards, unless that fails, they are this session's."""
        with contextlib.ExitStack() as held:
            for lock in self._locks:
                held.enter_context(lock)
            yield
            self._session = session


class DirectMover:
    """vLLM's tensors are the session's blocks.

    With one cache group vLLM's block ids are theirs too. With several a block is made of as many of vLLM's, and goes by a name.
    """

    def __init__(self, tensors: Tensors, members: int, lanes: int) -> None:
        self._tensors = tensors
        self._members = members
        self._lanes = Lanes(lanes)

    def bind(self, session: Session) -> None:
        described: list[Piece] = []
        for part in self._tensors.parts:
            described += pieces(part.tensor, plane=part.plane, block_dim=0, member=part.member)
        with self._lanes.changing(session):
            session.set_blocks(self._tensors.blocks, described, keep=[part.tensor for part in self._tensors.parts])

    def _runs(self, session: Session, lane: int, ids: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
        """The blocks in runs that can be asked for at once: each run's place, and what its blocks are called until the next one."""
        if self._members == 1:
            yield 0, ids
            return
        for at in range(0, len(ids) // self._members, NAMES):
            some = ids[at * self._members : (at + NAMES) * self._members]
            session.name_blocks(lane * NAMES, some)
            yield at, range(lane * NAMES, lane * NAMES + len(some) // self._members)

    def load(
        self, on: tuple[Session, Channel], lane: int, lease: int, first: int, ids: Sequence[int], after: Any, until: float
    ) -> int | None:
        session, channel = on
        with self._lanes.using(lane, session):
            for at, blocks in self._runs(session, lane, ids):
                copied = channel.load(lease, first + at, blocks, timeout=rest(until))
                if copied.status != "ok":
                    return at + min(copied.failed, default=0)
        return None

    def store(
        self, on: tuple[Session, Channel], lane: int, first: int, parent: bytes | None, hashes: bytes, ids: Sequence[int],
        after: Any, level: str, until: float,
    ) -> int | None:  # fmt: skip
        session, channel = on
        with self._lanes.using(lane, session):
            for at, blocks in self._runs(session, lane, ids):
                part = hashes[at * HASH_BYTES : (at + len(blocks)) * HASH_BYTES]
                copied = channel.store(first + at, parent, part, blocks, level=level, timeout=rest(until))
                if copied.status != "ok":
                    return at + min(copied.failed, default=0)
                parent = part[-HASH_BYTES:]
        return None

    def mark(self) -> Any:
        return None
