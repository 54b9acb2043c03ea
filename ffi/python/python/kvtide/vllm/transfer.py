"""Copies between vLLM's blocks and the cache, without staging if vLLM's tensors are in host memory."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol

from .. import Channel, Lease, Level, Session
from ..blocks import Piece, pieces
from ..errors import DaemonGone, TimedOut
from .hashes import HASH_BYTES
from .layout import Tensors

#: Block names per lane.
NAMES = 512


class BlockTransfer(Protocol):
    """Moves blocks. Each calling thread has its own `lane`, counted from 0.

    `on` is a session and one of its channels. Calls end by `until` (`time.monotonic` seconds) and raise kvtide's errors.
    """

    #: Part of the fingerprint: if it changes, engines no longer find the blocks that they stored before.
    fingerprint: ClassVar[str]

    def bind(self, session: Session) -> None:
        """Register the blocks with a new session. Wait for running calls on the previous one."""

    def load(
        self, on: tuple[Session, Channel], lane: int, lease: Lease | int, first: int, ids: Sequence[int], after: Any, until: float
    ) -> int | None:
        """Load blocks of a lease into those of `ids`. Return the index of the first failed block, or None. After an error all count
        as failed.
        """

    def store(
        self, on: tuple[Session, Channel], lane: int, first: int, parent: bytes | None, hashes: bytes, ids: Sequence[int],
        after: Any, level: Level, until: float,
    ) -> int | None:  # fmt: skip
        """Store the blocks of `ids` under `hashes`. Return the index of the first failed block, or None."""

    def mark(self) -> Any:
        """Return a marker for `after`: calls wait until all work that was given to the device so far is done."""


def rest(until: float) -> float:
    """Return the seconds until `until`. Raise TimedOut if it has passed."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimedOut(f"the time limit passed {-left:.3f} s before this part could start")
    return left


class Lanes:
    """The session that the lanes use. It changes only while no lane is in a call."""

    def __init__(self, count: int) -> None:
        self._locks = [threading.Lock() for _ in range(count)]
        self._session: Session | None = None

    @contextlib.contextmanager
    def using(self, lane: int, session: Session) -> Iterator[None]:
        """Run a call of a lane. Raise DaemonGone if the lanes now use another session."""
        with self._locks[lane]:
            if self._session is not session:
                raise DaemonGone("the session was replaced before the call started")
            yield

    @contextlib.contextmanager
    def changing(self, session: Session) -> Iterator[None]:
        """Run the block while no lane is in a call. If it succeeds, the lanes use `session` afterwards."""
        with contextlib.ExitStack() as held:
            for lock in self._locks:
                held.enter_context(lock)
            yield
            self._session = session


class DirectTransfer:
    """Transfer for tensors in host memory: vLLM's tensors are the session's blocks.

    With one vLLM block id per block of kvtide, block numbers are vLLM's ids. Otherwise a block has a name that stands for its ids.
    """

    fingerprint: ClassVar[str] = "DirectMover"

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
        """Yield the blocks in groups for one request each: the group's start, and block numbers that are valid until the next
        group."""
        if self._members == 1:
            yield 0, ids
            return
        for at in range(0, len(ids) // self._members, NAMES):
            some = ids[at * self._members : (at + NAMES) * self._members]
            session.name_blocks(lane * NAMES, some)
            yield at, range(lane * NAMES, lane * NAMES + len(some) // self._members)

    def load(
        self, on: tuple[Session, Channel], lane: int, lease: Lease | int, first: int, ids: Sequence[int], after: Any, until: float
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
        after: Any, level: Level, until: float,
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
