"""`KvtideTier`: vLLM's tiering offload with kvtide beneath it.

vLLM moves KV between the GPU and a region of host memory that it owns; this secondary tier stores the region's chunks with the
daemon, in host memory and on NVMe, and loads them back into it. It is named in `kv_connector_extra_config`:

    {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 8589934592,
     "secondary_tiers": [{"type": "KvtideTier", "socket": "/run/kvtide/kvtide.sock"}]}

A chunk's key is vLLM's chained block hash and the number of its cache group; what stands before it is not said when it is stored (vLLM
offers a chunk again only when its own region has lost it), so each is kept under its key alone. All calls below come from the
scheduler's thread and none waits for the daemon, but for `drain_jobs` and `shutdown`.
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
from kvtide.keyed import BlockMemory, KeyedBlocks, Target
from kvtide.keyed.blocks import CHANNELS, DEPTH

from . import hashes, tier_config, weights
from .tier_jobs import Ended, Job, Jobs

logger = logging.getLogger(__name__)

#: Prometheus names, what they count, and the counter of ours.
_COUNTERS = {
    "vllm:kv_offload_kvtide_lookups": ("Chunks that kvtide was asked for.", "looked_up"),
    "vllm:kv_offload_kvtide_hits": ("Of those, the ones it had.", "found"),
    "vllm:kv_offload_kvtide_load_failures": ("Chunks that kvtide had and could not load.", "load_failures"),
    "vllm:kv_offload_kvtide_store_failures": ("Chunks that kvtide could not keep.", "store_failures"),
    "vllm:kv_offload_kvtide_stores_dropped": ("Chunks not stored: too much was waiting, or no daemon was there.", "stores_dropped"),
    "vllm:kv_offload_kvtide_outages": ("Times that the daemon was lost.", "outages"),
}
_ATTACHED = "vllm:kv_offload_kvtide_attached"


class _Lookups(AsyncLookupManager):
    """Asks for a step's keys on a thread of its own."""

    def __init__(self, tier_type: str, blocks: KeyedBlocks, epoch: bytes) -> None:
        self._blocks, self.epoch = blocks, epoch
        super().__init__(tier_type)

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        """Of each key whether its chunk is there."""
        epoch = self.epoch
        return self._blocks.exists([epoch + key for key in keys])


class KvtideTier(SecondaryTierManager):
    """A secondary tier of vLLM's `TieringOffloadingSpec`. vLLM makes it, in the scheduler's process."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **given: Any,
    ) -> None:
        """`given`: the rest of the tier's configuration; see `tier_config.TierConfig`.

        ValueError: an unknown key, weights that cannot be hashed. `Invalid`, `WrongVersion`, `NotPermitted`: the daemon's refusal.
        """
        locality = given.pop("locality", None)
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = Locality.LOCAL if locality is None else Locality(locality)
        self._config = config = tier_config.parse(given)
        rows, row_bytes = primary_kv_view.shape or (0, 0)
        if not rows or not row_bytes or not primary_kv_view.c_contiguous:
            raise ValueError(f"kvtide: vLLM's region is {primary_kv_view.shape}: a tier needs rows of bytes, one a chunk")
        # Its address alone: vLLM releases the view before it unmaps the region, which it cannot while an array shows it.
        address = int(np.asarray(primary_kv_view).ctypes.data)
        memory = BlockMemory(rows, ((address, row_bytes, row_bytes),))
        offloading = offloading_spec.config
        found = tier_config.parts(offloading, row_bytes, self._weights(offloading.model.name))
        space = kvtide.Space(
            config.space or f"vllm-tier-{PurePath(offloading.model.name).name}",
            tier_config.digest(found),
            max(group.tokens_per_block for group in offloading.groups) * offloading.cache.blocks_per_chunk,
            memory.planes(),
        )
        target = Target(
            config.socket, space, memory, config.token_file, channels=CHANNELS, depth=DEPTH, timeout=config.attach_timeout_s
        )
        self._blocks = KeyedBlocks(target, f"tier {space.name!r}", timeout=config.timeout_s, level=config.level)
        self._jobs = Jobs(self._blocks.load, self._blocks.store, max(1, rows * config.store_permille // 1000))
        self._epoch = hashes.named_epoch(config.epoch)
        self._lookups = _Lookups(tier_type, self._blocks, self._epoch)
        self._refused: bool | None = None
        self._counted: dict[str, int] = {}
        self._own = dict.fromkeys(("load_failures", "store_failures", "stores_dropped"), 0)
        logger.info("kvtide: tier %r of %d rows of %d bytes; fingerprint of %s", space.name, rows, row_bytes, found)

    def _weights(self, model: str) -> str:
        """What stands for the weights."""
        if self._config.weights_id is not None:
            return f"named {self._config.weights_id}"
        try:
            if not os.path.exists(model):
                raise FileNotFoundError(f"{model!r} is no folder, and vLLM does not tell a tier which revision of it is served")
            return weights.model_digest(model, None, None).hex()
        except OSError as error:
            raise ValueError(
                f"kvtide: the weights are part of what KV is cached under, and cannot be hashed: {error}."
                ' Name them by "weights_id" of the tier, with another name for other weights'
            ) from error

    def _seeded_at_random(self) -> bool:
        """Whether vLLM's block hashes mean nothing to another process. Known once vLLM has made the first of them."""
        if self._refused is None:
            seed = kv_cache_utils.get_none_hash_seed()
            random = os.environ.get("PYTHONHASHSEED") is None and seed != kv_cache_utils.DEFAULT_NONE_HASH_SEED
            self._refused = random and not self._config.private
            if self._refused:
                logger.error(
                    "kvtide: vLLM seeds its block hashes at random in every process, so that nothing that is stored could be found"
                    " after a restart or by another engine: the tier stores and finds nothing. Set PYTHONHASHSEED to the same number"
                    ' for all of them, or choose --prefix-caching-hash-algo sha256; "private": true uses kvtide for this process alone'
                )
        return self._refused

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Chunks are offered as they are computed."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Forgets what was asked for the request."""
        self._lookups.cleanup(req_context.req_id)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """HIT or MISS where that is known, RETRY until then: the answer comes by the next step."""
        if not self._blocks.alive or self._seeded_at_random():
            return LookupResult.MISS
        found = self._lookups.lookup(key, req_context)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Stores chunks from their rows of vLLM's region."""
        job = self._job(job_metadata)
        if not self._blocks.alive or self._seeded_at_random():
            self._jobs.drop(job)
        else:
            self._jobs.store(job)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Loads chunks into their rows of vLLM's region."""
        self._jobs.load(self._job(job_metadata))

    def _job(self, given: TransferJob) -> Job:
        return Job(given.job_id, tuple(given.keys), tuple(int(row) for row in given.chunk_ids), self._epoch)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """What has ended since the last call. Keys that could not be loaded are misses for the requests that are waiting."""
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
        """Sends off the step's lookups."""
        self._lookups.flush()

    def drain_jobs(self) -> None:
        """Waits until no transfer is under way; each has a deadline.

        vLLM calls this when its caches are reset, as they are when weights have changed in place: from here on is a new epoch.
        """
        self._jobs.drain()
        if self._config.epoch is None:
            self._epoch = self._lookups.epoch = hashes.new_epoch()

    def shutdown(self) -> None:
        """Ends threads and session. When it returns nothing touches vLLM's region any more."""
        self._lookups.shutdown()
        self._jobs.close()
        self._blocks.close()

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """The metrics of this tier, beside those that vLLM keeps of every tier."""
        counters = {name: OffloadingCounterMetadata(documentation=text) for name, (text, _) in _COUNTERS.items()}
        return {**counters, _ATTACHED: OffloadingGaugeMetadata(documentation="1: the kvtide daemon is there; 0: it is not.")}

    def get_stats(self) -> OffloadingConnectorStats | None:
        """What has been counted since the last call."""
        counts = self._blocks.counts() | self._own
        stats = OffloadingConnectorStats()
        for name, (_, ours) in _COUNTERS.items():
            if more := counts[ours] - self._counted.get(ours, 0):
                stats.increase_counter(name, more)
        stats.set_gauge(_ATTACHED, int(self._blocks.alive))
        self._counted = counts
        return stats
