"""Worker half of the connector: one per rank, in the process that has the KV."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from .. import Channel, Plane, Session, Space, attach, identity, numa
from ..errors import DaemonGone, Error
from . import fingerprint, layout
from .chunks import NULL_BLOCK, enlarge
from .config import ConnectorConfig
from .hashes import HASH_BYTES
from .metadata import Ended, Geometry, LoadJob, StepMetadata, StoreJob, WorkerMetadata
from .reconnect import Connection
from .stats import Counts
from .transfer import BlockTransfer, DirectTransfer, rest

logger = logging.getLogger(f"vllm.{__name__}")

#: Threads that use the session. Each uses the channel and the lane with its number.
LOADS, STORES = range(2)
LANES = 2
#: Time in seconds that copies of a failed call get to end. Then the session is ended.
SETTLE_S = 10.0
#: Time in seconds that a step which computes nothing waits for a load.
IDLE_S = 0.001
#: Maximum sequences of a rank's session: one lease per running load.
SEQS_MAX = 16


def space(config: ConnectorConfig, model: str, geometry: Geometry) -> Space:
    """Return the space of a rank."""
    planes = [Plane(bytes_, kind, window) for bytes_, kind, window in geometry.planes]  # type: ignore[arg-type]
    name = config.space or f"vllm {model}"
    return Space(
        name,
        geometry.fingerprint,
        geometry.page_tokens,
        planes,
        shards=geometry.shards,
        shard=geometry.shard,
        identity=identity.text(dict(geometry.parts)),
        local=fingerprint.is_private(dict(geometry.parts)),
    )


class WorkerHalf:
    """Loads and stores the blocks that the scheduler half has chosen."""

    def __init__(self, config: ConnectorConfig, vllm_config: Any, kv_cache_config: Any) -> None:
        self._config = config
        self._vllm_config = vllm_config
        self._blocks = int(kv_cache_config.num_blocks)
        self._groups = enlarge(layout.groups(kv_cache_config, vllm_config), config.blocks_per_chunk)
        parallel = vllm_config.parallel_config
        self._rank = int(parallel.rank) % int(parallel.world_size)
        self.stats = Counts.of(vllm_config, f"rank {self._rank}")
        self.geometry: Geometry | None = None
        self._transfer: BlockTransfer | None = None
        self._connection: Connection | None = None
        self._numa_node: int | None = None
        self._kv_caches: dict[str, Any] = {}
        self._queues: dict[int, queue.SimpleQueue[tuple[Any, Any, float] | None]] = {}
        self._threads: list[threading.Thread] = []
        # Results from the threads, taken by each step.
        self._lock = threading.Condition()
        self._ended: dict[int, Ended] = {}
        self._loaded: set[str] = set()
        self._invalid_blocks: set[int] = set()
        self._invalid_requests: set[str] = set()
        #: Number of loads that have not ended, and whether the current step computes nothing.
        self._loading = 0
        self._idle = False
        # Results that the current step has yet to report.
        self._told_blocks: set[int] = set()
        self._told_ended: dict[int, Ended] = {}

    # ---- memory

    def register(self, kv_caches: dict[str, Any]) -> None:
        """Register the tensors, attach and start the threads.

        Raise ValueError if the tensors are not supported, or the fingerprint cannot be computed.
        """
        self._kv_caches = kv_caches
        tensors = layout.tensors(self._groups, kv_caches, self._blocks)
        parallel = self._vllm_config.parallel_config
        self._transfer = self._make_transfer(tensors)
        device = tensors.parts[0].tensor.device
        self._numa_node = numa.of_engine(device.type, device.index)
        parts = fingerprint.parts(
            self._vllm_config, self._config, f"{self._groups.describe()}; {tensors.describe()}; {self._transfer.fingerprint}"
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
            self._rank,
        )
        self._connection = Connection(f"rank {self.geometry.shard}", self._attach, self._config.retry_max_s, self.stats)
        self._connection.start()
        for lane, work in ((LOADS, self._load), (STORES, self._store)):
            self._queues[lane] = queue.SimpleQueue()
            thread = threading.Thread(target=self._serve, args=(lane, work), name=f"kvtide-{lane}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _make_transfer(self, tensors: layout.Tensors) -> BlockTransfer:
        staged = self._config.staging == "always" or any(part.tensor.device.type != "cpu" for part in tensors.parts)
        if not staged:
            return DirectTransfer(tensors, self._groups.ids, LANES)
        from .staging import StagedTransfer  # noqa: PLC0415 (it needs torch)

        return StagedTransfer(tensors, self._groups.ids, LANES, self._config.staging_bytes)

    def _attach(self) -> Session:
        assert self.geometry is not None
        assert self._transfer is not None
        session = attach(
            self._config.socket,
            space(self._config, self._vllm_config.model_config.model, self.geometry),
            None,
            channels=LANES,
            seqs_max=SEQS_MAX,
            timeout=self._config.attach_timeout_s,
            token_file=self._config.token_file,
            numa_node=self._numa_node,
        )
        try:
            self._transfer.bind(session)
        except BaseException:
            session.detach()
            raise
        return session

    def release(self) -> None:
        """Stop all accesses until `restore`: vLLM frees its tensors' memory."""
        self._drain()
        if self._connection is not None:
            self._connection.pause()

    def restore(self) -> None:
        """Resume: the same tensors have memory again."""
        if self._connection is not None:
            self._connection.resume()

    def _drain(self) -> None:
        """Wait until the threads have done their queued jobs, or the jobs' time limits have passed."""
        for lane in self._queues:
            done = threading.Event()
            self._queues[lane].put((None, done, 0.0))
            done.wait()

    def shutdown(self) -> None:
        """End the threads and the session.

        This takes at most the time limit of the queued jobs (the longer of `load_timeout_s` and `store_timeout_s`), then
        `SETTLE_S`, then one attempt to attach.
        """
        for lane in self._queues:
            self._queues[lane].put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._queues.clear()
        if self._connection is not None:
            self._connection.close()
        self.stats.close()

    # ---- steps

    def start_loads(self, step: StepMetadata) -> None:
        """Start the step's loads. They run in the background."""
        self._idle = step.idle
        if not step.loads:
            return
        with self._lock:
            self._loading += len(step.loads)
        assert self._transfer is not None
        after, until = self._transfer.mark(), time.monotonic() + self._config.load_timeout_s
        for job in step.loads:
            self._queues[LOADS].put((job, after, until))

    def start_stores(self, step: StepMetadata) -> None:
        """Start the step's stores. The blocks that they read are computed, or their computation is queued on the device."""
        if not step.stores:
            return
        assert self._transfer is not None
        after, until = self._transfer.mark(), time.monotonic() + self._config.store_timeout_s
        for job in step.stores:
            self._queues[STORES].put((job, after, until))

    # vLLM calls these in this order, once per step. All results of a load must be reported in one step, or vLLM would use failed
    # blocks.

    def take_loaded(self) -> tuple[set[str], set[str]]:
        """Return the requests with finished loads between steps, and those with failed loads, where blocks are numbered by
        group."""
        with self._lock:
            if self._idle and self._loading > 0 and not self._loaded:
                # Otherwise vLLM would poll without pause and keep the GIL from the loading thread.
                self._lock.wait(IDLE_S)
            self._told_blocks |= self._invalid_blocks
            self._told_ended |= self._ended
            taken = self._loaded, self._invalid_requests
            self._loaded, self._invalid_requests, self._invalid_blocks, self._ended = set(), set(), set(), {}
        return taken

    def take_invalid_blocks(self) -> set[int]:
        """Return vLLM's blocks with failed loads, for a single cache group. They belong to the requests of `take_loaded`."""
        taken, self._told_blocks = self._told_blocks, set()
        return taken

    def take_metadata(self) -> WorkerMetadata | None:
        """Return the jobs that had ended at `take_loaded`."""
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
        except Exception:  # the request must continue after any error: its blocks are computed
            logger.exception("kvtide: load of %d blocks for request %s failed; they are computed", count, job.request)
            failed = 0
        good = count if failed is None else failed
        assert self.geometry is not None
        page = self.geometry.block_bytes
        self._count({"blocks_loaded": good, "bytes_loaded": good * page, "load_seconds": time.monotonic() - began})
        with self._lock:
            if failed is not None:
                if self._groups.plain:
                    self._invalid_blocks.update(set(job.ids[failed * each :]) - {NULL_BLOCK})
                else:
                    self._invalid_requests.add(job.request)
            self._loaded.add(job.request)
            self._loading -= 1
            self._lock.notify()
            self._ended[job.job] = Ended(1, failed)
        if failed is not None:
            self._count({"blocks_load_failed": count - good})

    def _load_blocks(self, lane: int, job: LoadJob, after: Any, until: float) -> int | None:
        """Load the job's blocks. Return the index of the first that failed, or None."""
        assert self._connection is not None
        assert self._transfer is not None
        on = self._connection.attached(lane)
        if on is None:
            return 0
        channel = on[1]
        try:
            if channel.traces:
                channel.trace(job.trace)
            left = rest(until)
            lease = channel.lease(job.last, job.count, left, timeout=left)
        except Error as error:
            self._report(channel, error, f"lease of {job.count} blocks for request {job.request}")
            return 0
        try:
            failed = self._transfer.load(on, lane, lease, job.first, job.ids, after, until)
        except Exception as error:
            self._settle(on)
            if not isinstance(error, Error):
                raise
            self._report(channel, error, f"load for request {job.request}")
            failed = 0
        finally:
            try:
                lease.release()
            except Error as error:
                self._connection.failed(channel, error)  # the lease ends with its session
        if failed is not None:
            logger.warning("kvtide: load for request %s stopped after %d blocks; the others are computed", job.request, failed)
        return failed

    def _store(self, lane: int, job: StoreJob, after: Any, until: float) -> None:
        began = time.monotonic()
        count = len(job.hashes) // HASH_BYTES
        failed: int | None = 0
        try:
            failed = self._store_blocks(lane, job, after, until)
        except Exception:  # a failed store must not affect the step
            logger.exception("kvtide: store of %d blocks failed; they are not cached", count)
        good = count if failed is None else failed
        assert self.geometry is not None
        page = self.geometry.block_bytes
        counts = {"blocks_stored": good, "bytes_stored": good * page, "store_seconds": time.monotonic() - began}
        self._count(counts | ({"blocks_store_failed": count - good} if good < count else {}))
        with self._lock:
            self._ended[job.job] = Ended(1, failed)

    def _store_blocks(self, lane: int, job: StoreJob, after: Any, until: float) -> int | None:
        """Store the job's blocks. Return the index of the first that failed, or None."""
        assert self._connection is not None
        assert self._transfer is not None
        on = self._connection.attached(lane)
        if on is None:
            return 0
        try:
            if on[1].traces:
                on[1].trace(job.trace)
            return self._transfer.store(on, lane, job.first, job.parent, job.hashes, job.ids, after, self._config.level, until)
        except Exception as error:
            self._settle(on)
            if not isinstance(error, Error):
                raise
            self._report(on[1], error, f"store of {len(job.hashes) // HASH_BYTES} blocks")
            return 0

    def _settle(self, on: tuple[Session, Channel]) -> None:
        """Wait until the copies of a failed call have ended, so that the blocks can be reused. End the session if they do not."""
        assert self._connection is not None
        try:
            on[1].settle(timeout=SETTLE_S)
        except Error as error:
            self._connection.end(on[0], f"copies of a failed call did not end within {SETTLE_S:g} s: {error}")

    def _report(self, channel: Channel, error: Error, what: str) -> None:
        assert self._connection is not None
        if not isinstance(error, DaemonGone):  # logged once, when the session is given up
            logger.warning("kvtide: %s failed: %s (%s)", what, error, type(error).__name__)
        self._connection.failed(channel, error)
