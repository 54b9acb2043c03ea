"""`KvtideTier`: a secondary tier below vLLM's tiering offload.

vLLM moves KV between the GPU and its own region of host memory. This tier stores the region's chunks in the daemon (host memory and
NVMe) and loads them back. Select it in `kv_connector_extra_config`:

    {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 8589934592,
     "secondary_tiers": [{"type": "KvtideTier", "socket": "/run/kvtide/kvtide.sock"}]}

A chunk's key is vLLM's chained block hash and its cache group. vLLM does not report a chunk's parent when it stores the chunk, and
offers a chunk again only after its own region has lost it. Each chunk is therefore stored under its key alone.

vLLM makes one call at a time: 0.32 from the scheduler's thread, 0.33 also from another one, under a lock of its own. Only `drain_jobs`
and `shutdown` wait for the daemon.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, ClassVar

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

import kvtide
from kvtide import identity, weights
from kvtide.keyed_store import LOCAL, BlockMemory, KeyedStore, Target
from kvtide.keyed_store.store import CHANNELS, DEPTH

from . import hashes, tier_config
from .tier_transfer import Ended, Job, Jobs

logger = logging.getLogger(__name__)

#: Prometheus name: help text, and the counter's name here.
_COUNTERS = {
    "vllm:kv_offload_kvtide_lookups": ("Chunks looked up.", "looked_up"),
    "vllm:kv_offload_kvtide_hits": ("Chunks looked up and found.", "found"),
    "vllm:kv_offload_kvtide_load_failures": ("Chunks found that could not be loaded.", "load_failures"),
    "vllm:kv_offload_kvtide_store_failures": ("Chunks whose store failed.", "store_failures"),
    "vllm:kv_offload_kvtide_stores_dropped": ("Chunks not stored: store_permille reached, or no daemon.", "stores_dropped"),
    "vllm:kv_offload_kvtide_outages": ("Times that the daemon was lost.", "outages"),
}
_ATTACHED = "vllm:kv_offload_kvtide_attached"


class _Lookups(AsyncLookupManager):
    """Looks up a step's keys on a separate thread."""

    def __init__(self, tier_type: str, blocks: KeyedStore, epoch: bytes) -> None:
        self._blocks, self.epoch = blocks, epoch
        super().__init__(tier_type)

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        """Return, for each key, whether its chunk is cached."""
        epoch = self.epoch
        return self._blocks.exists([epoch + key for key in keys])


class KvtideTier(SecondaryTierManager):
    """A secondary tier of vLLM's `TieringOffloadingSpec`. vLLM creates it in the scheduler's process."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **given: Any,
    ) -> None:
        """Attach, or start to retry. `given` is the rest of the tier's configuration: see `tier_config.TierConfig`.

        Raise ValueError for an unknown key or weights that cannot be hashed, and `Invalid`, `WrongVersion`, `NotPermitted` or
        `TooBig` if the daemon rejects the tier.
        """
        locality = given.pop("locality", None)
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = Locality.LOCAL if locality is None else Locality(locality)
        self._config = config = tier_config.TierConfig.parse(given)
        rows, row_bytes = primary_kv_view.shape or (0, 0)
        if not rows or not row_bytes or not primary_kv_view.c_contiguous:
            raise ValueError(f"kvtide: vLLM's region has shape {primary_kv_view.shape}; a tier needs one row of bytes per chunk")
        # Keep only the address: vLLM releases the view before it unmaps the region, and cannot while an array refers to it.
        address = int(np.asarray(primary_kv_view).ctypes.data)
        memory = BlockMemory(rows, ((address, row_bytes, row_bytes),))
        offloading = offloading_spec.config
        found = tier_config.parts(offloading, row_bytes, self._weights(offloading.model.name))
        space = kvtide.Space(
            config.space or f"vllm-tier-{PurePath(offloading.model.name).name}",
            tier_config.digest(found),
            max(group.tokens_per_block for group in offloading.groups) * offloading.cache.blocks_per_chunk,
            memory.planes(),
            identity=identity.text(found),
        )
        target = Target(
            config.socket, space, memory, config.token_file, channels=CHANNELS, depth=DEPTH, timeout=config.attach_timeout_s
        )
        self._blocks = KeyedStore(target, f"tier {space.name!r}", timeout=config.timeout_s, level=config.level)
        self._jobs = Jobs(self._blocks.load, self._blocks.store, max(1, rows * config.store_permille // 1000))
        self._epoch = hashes.named_epoch(config.epoch)
        self._lookups = _Lookups(tier_type, self._blocks, self._epoch)
        self._refused: bool | None = None
        self._counted: dict[str, int] = {}
        self._own = dict.fromkeys(("load_failures", "store_failures", "stores_dropped"), 0)
        logger.info("kvtide: tier %r: %d rows of %d bytes; fingerprint of %s", space.name, rows, row_bytes, found)

    def _weights(self, model: str) -> str:
        """Return the identity of the weights. Raise ValueError if they cannot be hashed."""
        if self._config.weights_id is not None:
            return f"named {self._config.weights_id}"
        try:
            if not os.path.exists(model):
                raise FileNotFoundError(f"{model!r} is not a folder, and vLLM does not tell a tier the revision that it serves")
            return weights.model_digest(model, None, None).hex()
        except OSError as error:
            raise ValueError(
                f"kvtide: cannot hash the weights, which are part of the fingerprint: {error}."
                ' Set "weights_id" of the tier to a name, and use another name for other weights'
            ) from error

    def _seeded_at_random(self) -> bool:
        """Return whether vLLM's block hashes are unusable in other processes. Known once vLLM has computed the first one."""
        if self._refused is None:
            seed = kv_cache_utils.get_none_hash_seed()
            random = os.environ.get("PYTHONHASHSEED") is None and seed != kv_cache_utils.DEFAULT_NONE_HASH_SEED
            self._refused = random and not self._config.private
            if self._refused:
                logger.error(
                    "kvtide: vLLM seeds its block hashes at random in every process, so no stored block could be found"
                    " after a restart or by another engine: the tier stores and finds nothing. Set PYTHONHASHSEED to the same"
                    " number for all processes, or use --prefix-caching-hash-algo sha256."
                    ' "private": true uses kvtide for this process alone'
                )
        return self._refused

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Return the default: vLLM offers chunks as they are computed."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Forget the request's lookups."""
        self._lookups.cleanup(req_context.req_id)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Return HIT or MISS if the answer is known, else RETRY. The answer arrives by the next step."""
        if not self._blocks.alive or self._seeded_at_random():
            return LookupResult.MISS
        found = self._lookups.lookup(key, req_context)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Store chunks from their rows of vLLM's region."""
        job = self._job(job_metadata)
        if not self._blocks.alive or self._seeded_at_random():
            self._jobs.drop(job)
        else:
            self._jobs.store(job)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Load chunks into their rows of vLLM's region."""
        self._jobs.load(self._job(job_metadata))

    def _job(self, given: TransferJob) -> Job:
        return Job(given.job_id, tuple(given.keys), tuple(int(row) for row in given.chunk_ids), self._epoch)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Return the jobs that ended since the last call. Keys that failed to load become misses for waiting requests."""
        return [self._result(ended) for ended in self._jobs.ended()]

    def _result(self, ended: Ended) -> JobResult:
        failed = [key for key, went in zip(ended.job.keys, ended.went, strict=True) if not went]
        moved = len(ended.went) - len(failed)
        if ended.load:
            self._own["load_failures"] += len(failed)
            self._lookups.mark_miss(failed)
        else:
            self._own["stores_dropped" if ended.dropped else "store_failures"] += len(failed)
        succeeded = [key for key, went in zip(ended.job.keys, ended.went, strict=True) if went]
        return JobResult(
            job_id=ended.job.number,
            success=not failed,
            successful_keys=tuple(succeeded) if ended.load and failed and succeeded else None,
            transfer_time=ended.seconds,
            transfer_bytes=moved * self.block_size_bytes,
        )

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Send the step's lookups."""
        self._lookups.flush()

    def drain_jobs(self) -> None:
        """Wait until no transfer is running. Each has a deadline.

        vLLM calls this when it resets its caches, for example after weights changed in place. A new epoch starts here, unless the
        configuration names one.
        """
        self._jobs.drain()
        if self._config.epoch is None:
            self._epoch = self._lookups.epoch = LOCAL + hashes.new_epoch()

    def shutdown(self) -> None:
        """End the threads and the session. After return nothing accesses vLLM's region."""
        self._lookups.shutdown()
        self._jobs.close()
        self._blocks.close()

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """Return the metrics of this tier. vLLM has others for every tier."""
        counters = {name: OffloadingCounterMetadata(documentation=text) for name, (text, _) in _COUNTERS.items()}
        return {**counters, _ATTACHED: OffloadingGaugeMetadata(documentation="1: attached to the kvtide daemon; 0: not attached.")}

    def get_stats(self) -> OffloadingConnectorStats | None:
        """Return the counts since the last call, and whether a daemon is attached."""
        counts = self._blocks.counts() | self._own
        stats = OffloadingConnectorStats()
        for name, (_, ours) in _COUNTERS.items():
            if more := counts[ours] - self._counted.get(ours, 0):
                stats.increase_counter(name, more)
        stats.set_gauge(_ATTACHED, int(self._blocks.alive))
        self._counted = counts
        return stats
