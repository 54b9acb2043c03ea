"""Storing, finding and loading blocks by key. Each call says of each key whether it went well; none raises for want of a daemon."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import kvtide
from kvtide import errors

from . import flows
from .attachment import GONE, Attachment, Target

logger = logging.getLogger(__name__)

#: The session's channels: one each, so that none waits for another's copies.
LOOKUP, LOAD, STORE = range(3)
CHANNELS = 3
#: Requests of a channel that the session makes room for, and how many of them are under way at most: the others are leases' ends.
DEPTH, WINDOW = 64, 32
#: How long copies that have begun may go on after their request has ended; then the session ends, and they with it. Seconds.
SETTLE_S = 10.0
#: How long a load's lease lasts at most: it does not end while it is being loaded from, and the daemon allows no lease without end. Seconds.
LEASE_S = 60.0
#: Ends of requests that concern their block alone.
ORDINARY = (errors.NotFound, errors.NoSpace, errors.NotAdmitted, errors.Corrupt, errors.TransferFailed, errors.Lost, errors.Busy)


def hash_of(key: bytes) -> bytes:
    """The hash, 16 bytes, under which a key's block is kept."""
    return hashlib.blake2b(key, digest_size=16, person=b"kvtide-keyed").digest()


def _copied(answer: kvtide.Done) -> bool:
    """Whether all that was asked for was copied."""
    return isinstance(answer.result, kvtide.Copied) and answer.result.status == "ok" and not answer.result.failed


class KeyedBlocks:
    """Blocks of an engine's memory under keys. Any thread may call it; calls of one kind take turns."""

    def __init__(self, target: Target, what: str, *, timeout: float = 10.0, level: str = "published") -> None:
        """`timeout` (seconds) bounds each call, `level` is what a stored block must have reached.

        Raises what `Attachment` does: `Invalid`, `WrongVersion`, `NotPermitted`.
        """
        self._attachment = Attachment(target, what)
        self._what, self._timeout, self._level = what, timeout, level
        self._depth = min(WINDOW, target.depth // 2)
        self._counts: Counter[str] = Counter()
        self._counts_lock = threading.Lock()

    @property
    def alive(self) -> bool:
        """Whether a daemon is there, as far as anybody has noticed."""
        return self._attachment.alive

    def exists(self, keys: Sequence[bytes]) -> list[bool]:
        """Of each key whether its block is cached now. It may be gone before it is loaded."""

        def flow(channel: kvtide.Channel, key: bytes, left: Callable[[], float]) -> flows.Flow:
            asked = hash_of(key)
            answer = yield lambda: channel.start_lookup(asked, timeout=left())
            return isinstance(answer.result, kvtide.Found) and answer.result.blocks == 1

        return self._call(LOOKUP, "looked_up", "found", keys, [0] * len(keys), lambda c, k, _, left: flow(c, k, left))

    def load(self, keys: Sequence[bytes], blocks: Sequence[int]) -> list[bool]:
        """Copies each key's block into the engine's block of the same place in `blocks`. Of each whether all its bytes are there.

        Where they are not, what the block holds is undefined. When it returns nothing writes to `blocks` any more.
        """

        def flow(channel: kvtide.Channel, key: bytes, block: int, left: Callable[[], float]) -> flows.Flow:
            asked = hash_of(key)
            answer = yield lambda: channel.start_lease(asked, 1, min(self._timeout, LEASE_S), timeout=left())
            if not isinstance(answer.result, kvtide.Lease):
                return False
            lease = answer.result.seq
            try:
                answer = yield lambda: channel.start_load(lease, 0, [block], timeout=left())
            finally:
                with contextlib.suppress(errors.Error):  # of a session that is over, and the lease with it
                    channel.seq_drop(lease)
            return _copied(answer)

        return self._call(LOAD, "load_asked", "loaded", keys, blocks, flow)

    def store(self, keys: Sequence[bytes], blocks: Sequence[int]) -> list[bool]:
        """Keeps the engine's blocks under the keys. Of each whether it is kept: it is found from then on, and not before.

        A block that is kept already is not copied. When it returns nothing reads from `blocks` any more.
        """

        def flow(channel: kvtide.Channel, key: bytes, block: int, left: Callable[[], float]) -> flows.Flow:
            asked = hash_of(key)
            answer = yield lambda: channel.start_store(0, None, asked, [block], level=self._level, timeout=left())
            return _copied(answer)

        return self._call(STORE, "store_asked", "stored", keys, blocks, flow)

    def counts(self) -> dict[str, int]:
        """Since the start, blocks that were looked_up, found, load_asked, loaded, store_asked, stored; and outages of the daemon."""
        with self._counts_lock:
            counts = dict(self._counts)
        names = ("looked_up", "found", "load_asked", "loaded", "store_asked", "stored")
        return {name: counts.get(name, 0) for name in names} | {"outages": self._attachment.outages}

    def close(self) -> None:
        """Ends the session. When it returns nothing touches the engine's memory any more."""
        self._attachment.close()

    def _call(
        self,
        index: int,
        asked: str,
        got: str,
        keys: Sequence[bytes],
        blocks: Sequence[int],
        flow: Callable[[kvtide.Channel, bytes, int, Callable[[], float]], flows.Flow],
    ) -> list[bool]:
        """Runs a flow for each key, deepest first: where memory is short the beginnings of prefixes are then the last to go."""
        if len(keys) != len(blocks):
            raise ValueError(f"{len(keys)} keys and {len(blocks)} blocks: one block a key")
        ran = flows.Ran([])
        went = [False] * len(keys)
        with self._attachment.channel(index) as channel:
            if channel is not None:
                deadline = time.monotonic() + self._timeout

                def left() -> float:
                    return max(0.001, deadline - time.monotonic())

                pairs: Iterable[tuple[bytes, int]] = zip(reversed(keys), reversed(blocks))
                each = [flow(channel, key, block, left) for key, block in pairs]
                ran = self._run(channel, each, deadline, asked)
                went = ran.got[::-1]
        if ran.unsettled:
            self._attachment.settle()
        with self._counts_lock:
            self._counts[asked] += len(keys)
            self._counts[got] += sum(went)
        return went

    def _run(self, channel: kvtide.Channel, each: list[flows.Flow], deadline: float, asked: str) -> flows.Ran:
        """Runs flows to their end, and waits until no copy of theirs is under way; unsettled: only the session's end ends them."""
        try:
            ran = flows.run(channel, each, window=self._depth, deadline=deadline)
            if ran.unsettled:
                channel.settle_blocks(timeout=SETTLE_S)
                ran.unsettled = False
        except errors.Error as error:
            # Detaching ends what is under way: the blocks are the engine's again only then.
            gone = isinstance(error, errors.DaemonGone)
            self._attachment.lose_channel(channel, GONE if gone else f"requests did not end in time ({error})")
            return flows.Ran([False] * len(each), error, unsettled=True)
        if ran.error is not None and not isinstance(ran.error, ORDINARY):
            logger.debug("kvtide %s: %s: %s", self._what, asked, ran.error)
        return ran
