"""Store, find and load blocks by key. Each call reports success per key. A missing daemon is not an error: every key fails."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import kvtide
from kvtide import errors, identity
from kvtide._native import local_hash

from . import pipeline
from .reconnect import GONE, Connection, Target
from .remote import Remote

logger = logging.getLogger(__name__)

LOOKUP, LOAD, STORE = range(3)
#: Channels that a store's `Target` needs, one per kind of call: a lookup does not wait for copies of loads or stores.
CHANNELS = 3
#: Requests that a channel has room for, and the most that run at once. The rest is room for the release of leases.
DEPTH, WINDOW = 64, 32
#: Time in seconds that running copies get to end after their request ended. Then the session is ended, which ends the copies.
SETTLE_S = 10.0
#: Longest lease of a load, in seconds. A lease does not end while a load from it runs; the daemon requires a limit.
LEASE_S = 60.0
#: Errors that concern a single block and not the session.
ORDINARY = (
    errors.NotFound, errors.NoSpace, errors.NotAdmitted, errors.OverBudget, errors.Corrupt, errors.TransferFailed, errors.Lost, errors.Busy,
)


#: Keys that begin with this have blocks that no other machine can use, so relays do not copy them.
LOCAL = b"local to this machine "


def key_hash(key: bytes) -> bytes:
    """Return the 16-byte hash under which a key's block is cached."""
    digest = hashlib.blake2b(key, digest_size=16, person=b"kvtide-keyed").digest()
    return local_hash(digest) if key.startswith(LOCAL) else digest


def _copied(answer: kvtide.Completion) -> bool:
    """Return whether all requested blocks were copied."""
    return isinstance(answer.result, kvtide.CopyResult) and answer.result.status == "ok" and not answer.result.failed


class KeyedStore:
    """Cached blocks of an engine's memory, under keys. Thread-safe; calls of one kind run one after another."""

    def __init__(
        self,
        target: Target,
        what: str,
        *,
        timeout: float = 10.0,
        level: kvtide.Level = kvtide.Level.PUBLISHED,
        remote_timeout: float = 0.0,
    ) -> None:
        """Attach to `target`; `what` names the blocks in the log.

        `timeout` (seconds) bounds each call, except `recall`, which `remote_timeout` bounds (0: no relay is asked). `level` is the level at
        which a store is complete.

        Raise `Invalid`, `WrongVersion`, `NotPermitted` or `TooBig` if the daemon rejects the first attempt to attach.
        """
        self._connection = Connection(target, what)
        self._remote = Remote(self._connection, what, remote_timeout)
        self._what, self._timeout, self._level = what, timeout, level
        self._depth, self._blocks = min(WINDOW, target.depth // 2), target.memory.count
        self._counts: Counter[str] = Counter()
        self._counts_lock = threading.Lock()

    @property
    def alive(self) -> bool:
        """Return whether a session with the daemon exists, as far as is known."""
        return self._connection.alive

    def exists(self, keys: Sequence[bytes]) -> list[bool]:
        """Return, for each key, whether its block is cached now. It may be evicted before it is loaded."""

        def flow(channel: kvtide.Channel, key: bytes, left: Callable[[], float]) -> pipeline.Flow:
            asked = key_hash(key)
            answer = yield lambda: channel.start_lookup(asked, timeout=left())
            return isinstance(answer.result, kvtide.LookupResult) and answer.result.blocks == 1

        found = self._call(LOOKUP, "looked_up", "found", keys, [0] * len(keys), lambda c, k, _, left: flow(c, k, left))
        if logger.isEnabledFor(logging.DEBUG):
            identity.log_lookup(logger, self._what, b"".join(map(key_hash, keys)), sum(found))
        return found

    def recall(self, keys: Sequence[bytes]) -> int:
        """Have blocks of other machines brought in. Return how many of the keys, from the first on, have a cached block then."""
        came = self._remote.recall([key_hash(key) for key in keys])
        with self._counts_lock:
            self._counts["recalled"] += came
        return came

    def load(self, keys: Sequence[bytes], blocks: Sequence[int]) -> list[bool]:
        """Copy each key's block into the engine's block at the same index of `blocks`. Return, for each key, whether all bytes
        arrived.

        After a failure the contents of the engine's block are undefined. After return nothing writes to `blocks`. Raise `OutOfRange` if
        the memory has no such block.
        """

        def flow(channel: kvtide.Channel, key: bytes, block: int, left: Callable[[], float]) -> pipeline.Flow:
            asked = key_hash(key)
            answer = yield lambda: channel.start_lease(asked, 1, min(self._timeout, LEASE_S), timeout=left())
            if not isinstance(answer.result, kvtide.Lease):
                return False
            lease = answer.result
            try:
                answer = yield lambda: channel.start_load(lease, 0, [block], timeout=left())
            finally:
                with contextlib.suppress(errors.Error):  # the session ended, and the lease with it
                    lease.release()
            return _copied(answer)

        return self._call(LOAD, "load_asked", "loaded", keys, blocks, flow)

    def store(self, keys: Sequence[bytes], blocks: Sequence[int]) -> list[bool]:
        """Cache the engine's blocks under the keys. Return, for each key, whether it is cached.

        A block can be found when its store is complete. A block that is cached already is not copied. After return nothing reads
        `blocks`. Raise `OutOfRange` if the memory has no such block.
        """

        def flow(channel: kvtide.Channel, key: bytes, block: int, left: Callable[[], float]) -> pipeline.Flow:
            asked = key_hash(key)
            answer = yield lambda: channel.start_store(0, None, asked, [block], level=self._level, timeout=left())
            return _copied(answer)

        return self._call(STORE, "store_asked", "stored", keys, blocks, flow)

    def counts(self) -> dict[str, int]:
        """Return block counts since the start (looked_up, found, recalled, load_asked, loaded, store_asked, stored), and outages."""
        with self._counts_lock:
            counts = dict(self._counts)
        names = ("looked_up", "found", "recalled", "load_asked", "loaded", "store_asked", "stored")
        return {name: counts.get(name, 0) for name in names} | {"outages": self._connection.outages}

    def close(self) -> None:
        """End the session. After return nothing accesses the engine's memory."""
        self._connection.close()

    def _call(
        self,
        index: int,
        asked: str,
        got: str,
        keys: Sequence[bytes],
        blocks: Sequence[int],
        flow: Callable[[kvtide.Channel, bytes, int, Callable[[], float]], pipeline.Flow],
    ) -> list[bool]:
        """Run a flow per key, last key first: if memory is short, the start of a prefix is then evicted last.

        Raise ValueError if `keys` and `blocks` differ in length, `OutOfRange` if the memory has no such block.
        """
        if len(keys) != len(blocks):
            raise ValueError(f"{len(keys)} keys and {len(blocks)} blocks: give one block per key")
        for block in blocks:
            if not 0 <= block < self._blocks:
                raise errors.OutOfRange(f"block {block}: the memory has {self._blocks} blocks")
        ran = pipeline.Ran([])
        went = [False] * len(keys)
        with self._connection.channel(index) as channel:
            if channel is not None:
                deadline = time.monotonic() + self._timeout

                def left() -> float:
                    return max(0.001, deadline - time.monotonic())

                pairs: Iterable[tuple[bytes, int]] = zip(reversed(keys), reversed(blocks))
                each = [flow(channel, key, block, left) for key, block in pairs]
                ran = self._run(channel, each, deadline, asked)
                went = ran.got[::-1]
        if ran.unsettled:
            self._connection.settle()
        with self._counts_lock:
            self._counts[asked] += len(keys)
            self._counts[got] += sum(went)
        return went

    def _run(self, channel: kvtide.Channel, each: list[pipeline.Flow], deadline: float, asked: str) -> pipeline.Ran:
        """Run the flows to completion and wait for their copies. `unsettled` in the result: detach to stop the remaining copies."""
        try:
            ran = pipeline.run(channel, each, window=self._depth, deadline=deadline)
            if ran.unsettled:
                channel.settle(timeout=SETTLE_S)
                ran.unsettled = False
        except errors.Error as error:
            # Copies may still run; only detaching stops them and returns the blocks to the engine.
            gone = isinstance(error, errors.DaemonGone)
            self._connection.lose_channel(channel, GONE if gone else f"requests did not end in time ({error})")
            return pipeline.Ran([False] * len(each), error, unsettled=True)
        if ran.error is not None and not isinstance(ran.error, ORDINARY):
            logger.debug("kvtide %s: %s: %s", self._what, asked, ran.error)
        return ran
