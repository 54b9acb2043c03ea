"""The half of the connector that runs where the KV is: one for each rank."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from .. import Channel, Plane, Session, Space, attach
from ..errors import DaemonGone, Error
from . import fingerprint, layout
from .config import Config
from .hashes import HASH_BYTES
from .link import Link
from .metadata import Ended, Geometry, LoadJob, StepMetadata, StoreJob, WorkerMetadata
from .mover import DirectMover, Mover, rest
from .stats import Counts

logger = logging.getLogger(f"vllm.{__name__}")

#: Threads that use the session, each with a channel and a lane of this number.
LOADS, STORES = range(2)
LANES = 2
#: How long copies of a call that failed may go on before their session is ended. Seconds.
SETTLE_S = 10.0
#: How long a step in which nothing is computed waits for a load to end. Seconds.
IDLE_S = 0.001
#: Sequences that a rank's session has at once: a lease each, of loads.
SEQS_MAX = 16


def space(config: Config, model: str, geometry: Geometry) -> Space:
    """The space of a rank."""
    planes = [Plane(bytes_, kind, window) for bytes_, kind, window in geometry.planes]  # type: ignore[arg-type]
    name = config.space or f"vllm {model}"
    return Space(name, geometry.fingerprint, geometry.page_tokens, planes, shards=geometry.shards, shard=geometry.shard)


class WorkerHalf:
    """Loads and stores what the scheduler's half has chosen."""

    def __init__(self, config: Config, vllm_config: Any, kv_cache_config: Any) -> None:
        self._config = config
        self._vllm_config = vllm_config
        self._blocks = int(kv_cache_config.num_blocks)
        self._groups = layout.groups(kv_cache_config, vllm_config)
        self.stats = Counts()
        self.geometry: Geometry | None = None
        self._mover: Mover | None = None
        self._link: Link | None = None
        self._kv_caches: dict[str, Any] = {}
        self._queues: dict[int, queue.SimpleQueue[tuple[Any, Any, float] | None]] = {}
        self._threads: list[threading.Thread] = []
        # What the threads report, taken by each step.
        self._lock = threading.Condition()
        self._ended: dict[int, Ended] = {}
        self._loaded: set[str] = set()
        self._invalid_blocks: set[int] = set()
        self._invalid_requests: set[str] = set()
        #: Loads that were begun and have not ended, and whether the step that runs has nothing else to do than to wait for them.
        self._loading = 0
        self._idle = False
        # Of these what the step that runs has yet to tell.
        self._told_blocks: set[int] = set()
        self._told_ended: dict[int, Ended] = {}

    # ---- memory

    def register(self, kv_caches: dict[str, Any]) -> None:
        """The tensors are there. ValueError: they cannot be cached, or the fingerprint cannot be made."""
        self._kv_caches = kv_caches
        tensors = layout.tensors(self._groups, kv_caches, self._blocks)
        parallel = self._vllm_config.parallel_config
        self._mover = self._make_mover(tensors)
        parts = fingerprint.parts(
            self._vllm_config, self._config, f"{self._groups.describe()}; {tensors.describe()}; {type(self._mover).__name__}"
        )
        self.geometry = Geometry(
            fingerprint.digest(parts),
            tuple(parts.items()),
            self._groups.page_tokens,
            tuple(
                (bytes_, group.kind, group.window_tokens)
                for bytes_, group in zip(tensors.page_bytes, self._groups.groups, strict=True)
            ),
            self._groups.members,
            int(parallel.world_size),
            int(parallel.rank) % int(parallel.world_size),
        )
        self._link = Link(f"rank {self.geometry.shard}", self._attach, self._config.retry_max_s, self.stats)
        self._link.start()
        for lane, work in ((LOADS, self._load), (STORES, self._store)):
            self._queues[lane] = queue.SimpleQueue()
            thread = threading.Thread(target=self._serve, args=(lane, work), name=f"kvtide-{lane}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _make_mover(self, tensors: layout.Tensors) -> Mover:
        staged = self._config.staging == "always" or any(part.tensor.device.type != "cpu" for part in tensors.parts)
        if not staged:
            return DirectMover(tensors, self._groups.ids, LANES)
        from .staging import StagedMover  # noqa: PLC0415 (it needs torch)

        return StagedMover(tensors, self._groups.ids, LANES, self._config.staging_bytes)

    def _attach(self) -> Session:
        assert self.geometry is not None
        assert self._mover is not None
        session = attach(
            self._config.socket,
            space(self._config, self._vllm_config.model_config.model, self.geometry),
            None,
            channels=LANES,
            seqs_max=SEQS_MAX,
            timeout=self._config.attach_timeout_s,
            token_file=self._config.token_file,
        )
        try:
            self._mover.bind(session)
        except BaseException:
            session.detach()
            raise
        return session

    def release(self) -> None:
        """vLLM takes its tensors' memory away: nothing may touch it until `restore`."""
        self._drain()
        if self._link is not None:
            self._link.pause()

    def restore(self) -> None:
        """The same tensors have memory again."""
        if self._link is not None:
            self._link.resume()

    def _drain(self) -> None:
        """Waits until the threads have done what they were given, or its time is over."""
        for lane in self._queues:
            done = threading.Event()
            self._queues[lane].put((None, done, 0.0))
            done.wait()

    def shutdown(self) -> None:
        """Ends the threads and the session.

        It takes no longer than the time of what they were given (the longer of `load_timeout_s` and `store_timeout_s`), then
        `SETTLE_S`, then an attempt to attach.
        """
        for lane in self._queues:
            self._queues[lane].put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._queues.clear()
        if self._link is not None:
            self._link.close()

    # ---- steps

    def start_loads(self, step: StepMetadata) -> None:
        """Begins a step's loads: they go on while vLLM does other things."""
        self._idle = step.idle
        if not step.loads:
            return
        with self._lock:
            self._loading += len(step.loads)
        assert self._mover is not None
        after, until = self._mover.mark(), time.monotonic() + self._config.load_timeout_s
        for job in step.loads:
            self._queues[LOADS].put((job, after, until))

    def start_stores(self, step: StepMetadata) -> None:
        """Begins a step's stores: what they read is computed, or given to the device."""
        if not step.stores:
            return
        assert self._mover is not None
        after, until = self._mover.mark(), time.monotonic() + self._config.store_timeout_s
        for job in step.stores:
            self._queues[STORES].put((job, after, until))

    # vLLM asks in this order, once a step: what a load has ended with is told in one step, or part of it would be believed without the rest.

    def take_loaded(self) -> tuple[set[str], set[str]]:
        """Requests whose loads between steps have ended, and those of them whose loads failed where blocks are numbered by group."""
        with self._lock:
            if self._idle and self._loading > 0 and not self._loaded:
                # vLLM would come back at once, again and again, and keep the interpreter from the thread that loads.
                self._lock.wait(IDLE_S)
            self._told_blocks |= self._invalid_blocks
            self._told_ended |= self._ended
            taken = self._loaded, self._invalid_requests
            self._loaded, self._invalid_requests, self._invalid_blocks, self._ended = set(), set(), set(), {}
        return taken

    def take_invalid_blocks(self) -> set[int]:
        """vLLM's blocks whose loads failed, where there is one group: those of `take_loaded`'s requests."""
        taken, self._told_blocks = self._told_blocks, set()
        return taken

    def take_metadata(self) -> WorkerMetadata | None:
        """The jobs that had ended by then."""
        taken, self._told_ended = self._told_ended, {}
        return WorkerMetadata(taken) if taken else None

    # ---- the threads

    def _serve(self, lane: int, work: Callable[[int, Any, Any, float], None]) -> None:
        jobs = self._queues[lane]
        while (item := jobs.get()) is not None:
            job, after, until = item
            if job is None:
                after.set()
                continue
            work(lane, job, after, until)

    def _count(self, counts: dict[str, float]) -> None:
        for name, value in counts.items():
            self.stats.add(name, value)

    def _load(self, lane: int, job: LoadJob, after: Any, until: float) -> None:
        began = time.monotonic()
        each = self._groups.ids
        count = len(job.ids) // each
        try:
            failed = self._load_blocks(lane, job, after, until)
        except Exception:  # whatever it is, the request must go on: its blocks are computed
            logger.exception("kvtide: a load of %d blocks for request %s failed; they are computed", count, job.request)
            failed = 0
        good = count if failed is None else failed
        assert self.geometry is not None
        page = self.geometry.block_bytes
        self._count({"blocks_loaded": good, "bytes_loaded": good * page, "load_seconds": time.monotonic() - began})
        with self._lock:
            if failed is not None:
                if self._groups.plain:
                    self._invalid_blocks.update(job.ids[failed * each :])
                else:
                    self._invalid_requests.add(job.request)
            self._loaded.add(job.request)
            self._loading -= 1
            self._lock.notify()
            self._ended[job.job] = Ended(1, failed)
        if failed is not None:
            self._count({"blocks_load_failed": count - good})

    def _load_blocks(self, lane: int, job: LoadJob, after: Any, until: float) -> int | None:
        """The first block that failed, or None."""
        assert self._link is not None
        assert self._mover is not None
        on = self._link.attached(lane)
        if on is None:
            return 0
        channel = on[1]
        try:
            left = rest(until)
            lease = channel.lease(job.last, job.count, left, timeout=left)
        except Error as error:
            self._report(channel, error, f"a lease on {job.count} blocks for request {job.request}")
            return 0
        try:
            failed = self._mover.load(on, lane, lease.seq, job.first, job.ids, after, until)
        except Exception as error:
            self._settle(on)
            if not isinstance(error, Error):
                raise
            self._report(channel, error, f"a load for request {job.request}")
            failed = 0
        finally:
            try:
                channel.seq_drop(lease.seq)
            except Error as error:
                self._link.failed(channel, error)  # a lease ends with its session at the latest
        if failed is not None:
            logger.warning("kvtide: of a load for request %s, %d blocks came; the others are computed", job.request, failed)
        return failed

    def _store(self, lane: int, job: StoreJob, after: Any, until: float) -> None:
        began = time.monotonic()
        count = len(job.hashes) // HASH_BYTES
        failed: int | None = 0
        try:
            failed = self._store_blocks(lane, job, after, until)
        except Exception:  # a step must not suffer from it
            logger.exception("kvtide: a store of %d blocks failed; they are not cached", count)
        good = count if failed is None else failed
        assert self.geometry is not None
        page = self.geometry.block_bytes
        counts = {"blocks_stored": good, "bytes_stored": good * page, "store_seconds": time.monotonic() - began}
        self._count(counts | ({"blocks_store_failed": count - good} if good < count else {}))
        with self._lock:
            self._ended[job.job] = Ended(1, failed)

    def _store_blocks(self, lane: int, job: StoreJob, after: Any, until: float) -> int | None:
        """The first block that failed, or None."""
        assert self._link is not None
        assert self._mover is not None
        on = self._link.attached(lane)
        if on is None:
            return 0
        try:
            return self._mover.store(on, lane, job.first, job.parent, job.hashes, job.ids, after, self._config.level, until)
        except Exception as error:
            self._settle(on)
            if not isinstance(error, Error):
                raise
            self._report(on[1], error, f"a store of {len(job.hashes) // HASH_BYTES} blocks")
            return 0

    def _settle(self, on: tuple[Session, Channel]) -> None:
        """Waits until no copy of a failed call is under way: only then may the blocks be used for something else."""
        assert self._link is not None
        try:
            on[1].settle_blocks(timeout=SETTLE_S)
        except Error as error:
            self._link.end(on[0], f"copies of a call that failed did not end in {SETTLE_S:g} s: {error}")

    def _report(self, channel: Channel, error: Error, what: str) -> None:
        assert self._link is not None
        if not isinstance(error, DaemonGone):  # that is said once, when the session is given up
            logger.warning("kvtide: %s failed: %s (%s)", what, error, type(error).__name__)
        self._link.failed(channel, error)
