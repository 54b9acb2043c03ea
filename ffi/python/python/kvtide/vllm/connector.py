"""The class that vLLM calls. Each method belongs to the scheduler half or the worker half; vLLM carries messages between them."""

from __future__ import annotations

import logging
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from . import roles
from .config import ConnectorConfig
from .metadata import Geometry, StepMetadata, WorkerMetadata
from .scheduler import SchedulerHalf
from .stats import KvtidePromMetrics, KvtideStats
from .worker import WorkerHalf

logger = logging.getLogger(f"vllm.{__name__}")


class KvtideConnector(KVConnectorBase_V1, SupportsHMA):
    """vLLM's KV connector to a kvtide daemon. Its options are those of `kvtide.vllm.config.ConnectorConfig`."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        config = ConnectorConfig.parse(transfer.kv_connector_extra_config)
        allowed = roles.of(transfer)
        roles.check_prefix_caching(vllm_config.cache_config)
        self._scheduler: SchedulerHalf | None = None
        self._worker: WorkerHalf | None = None
        if role == KVConnectorRole.SCHEDULER:
            roles.recompute_failed_loads(transfer)
            logger.info(
                "kvtide: %s (kv_role), through %s; a store is complete at level %s; vLLM recomputes blocks that fail to load"
                " (kv_load_failure_policy recompute)",
                allowed,
                config.socket,
                config.level,
            )
            self._scheduler = SchedulerHalf(config, vllm_config, kv_cache_config)
        else:
            self._worker = WorkerHalf(config, vllm_config, kv_cache_config)

    @property
    def requires_kv_delivery(self) -> bool:
        """Return False: delivery is optional for a cache. Blocks that are not stored are computed again."""
        return False

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Return False: the connector does not work layer by layer."""
        return False

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Return None: every layout is supported in which blocks are pieces of memory."""
        return None

    @classmethod
    def supports_sleep_mode(cls, *_: Any) -> bool:
        """Return True: see `release_kv_caches` and `restore_kv_caches`."""
        return True

    # ---- worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Register the tensors of this rank's layers."""
        if self._worker is not None:
            self._worker.register(kv_caches)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """Return this rank's geometry, for the scheduler half."""
        return None if self._worker is None else self._worker.geometry

    def release_kv_caches(self) -> None:
        """Stop all accesses: the engine goes to sleep, and its tensors lose their memory."""
        if self._worker is not None:
            self._worker.release()

    #: Another name for the same method.
    unregister_kv_caches = release_kv_caches

    def restore_kv_caches(self) -> None:
        """Resume: the engine is awake, and its tensors have memory at the same addresses."""
        if self._worker is not None:
            self._worker.restore()

    def _bound(self) -> StepMetadata:
        found = self._get_connector_metadata()
        assert isinstance(found, StepMetadata), type(found)
        return found

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Start the step's loads."""
        if self._worker is not None:
            self._worker.start_loads(self._bound())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: loads are not layer by layer."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing: stores are not layer by layer."""

    def wait_for_save(self) -> None:
        """Start the step's stores. Their blocks are held until the stores end."""
        if self._worker is not None:
            self._worker.start_stores(self._bound())

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Return the requests with finished loads between steps. Stores hold blocks, not requests."""
        return (None, None) if self._worker is None else (None, self._worker.take_loaded()[0] or None)

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Return the requests with finished loads, and those with failed loads, where blocks are numbered by group."""
        assert self._worker is not None
        loaded, failed = self._worker.take_loaded()
        return base.KVConnectorTransferResults(finished_recving=loaded, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks with failed loads, for models with a single cache group."""
        return set() if self._worker is None else self._worker.take_invalid_blocks()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """Return the jobs that ended."""
        return None if self._worker is None else self._worker.take_metadata()

    # ---- scheduler

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Set vLLM's cache manager."""
        super().bind_kv_cache_manager(kv_cache_manager)
        if self._scheduler is not None:
            self._scheduler.bind(kv_cache_manager)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[Any, KVConnectorHandshakeMetadata]) -> None:
        """Set the geometry of all ranks."""
        if self._scheduler is not None:
            self._scheduler.meet([rank for rank in metadata.values() if isinstance(rank, Geometry)])

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        """Set the geometry of all ranks, for vLLM versions that pass only tensor-parallel ranks."""
        self.set_xfer_handshake_metadata_pp_aware(dict(metadata))

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Return the tokens that the cache has beyond vLLM's own; None: ask again later."""
        assert self._scheduler is not None
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Record the blocks that vLLM allocated for the request."""
        assert self._scheduler is not None
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[CacheHitSource, int]:
        """Return the source of the tokens: DISK if at least part of the prefix is only on NVMe, else HOST."""
        if num_external_tokens == 0:
            return {}
        assert self._scheduler is not None
        source = CacheHitSource.HOST if self._scheduler.in_host(request) else CacheHitSource.DISK
        return {source: num_external_tokens}

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Return the loads and stores that the step starts."""
        assert self._scheduler is not None
        return self._scheduler.step(scheduler_output.num_scheduled_tokens)

    def update_connector_output(self, connector_output: Any) -> None:
        """Process the workers' reports."""
        reported = connector_output.kv_connector_worker_meta
        if self._scheduler is not None and isinstance(reported, WorkerMetadata):
            self._scheduler.ended(reported)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Store the request's last full blocks. vLLM may free all blocks that stores do not hold."""
        assert self._scheduler is not None
        self._scheduler.finished(request)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Do the same as `request_finished`, for several cache groups."""
        return self.request_finished(request, [])

    def take_events(self) -> list[Any]:
        """Return KV events about blocks in the daemon, for vLLM's own stream of events."""
        return [] if self._scheduler is None else self._scheduler.take_events()

    def has_pending_push_work(self) -> bool:
        """Return whether stores hold blocks. An idle engine then keeps stepping until they are freed."""
        return self._scheduler is not None and self._scheduler.pending()

    def has_pending_block_frees(self) -> bool:
        """Return whether some blocks are held only by stores. Waiting for them is cheaper than preempting a request."""
        return self._scheduler is not None and self._scheduler.holds_alone()

    def reset_cache(self) -> bool | None:
        """Make all stored blocks unfindable for this engine: its weights may have changed."""
        return None if self._scheduler is None else self._scheduler.reset()

    # ---- both

    def get_kv_connector_stats(self) -> Any:
        """Return the counts since the last call."""
        if self._worker is not None:
            return self._worker.stats.take()
        assert self._scheduler is not None
        return self._scheduler.stats.take()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvtideStats:
        """Create statistics from `data`."""
        return KvtideStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]
    ) -> KvtidePromMetrics:
        """Create the Prometheus counters."""
        return KvtidePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """End running loads and stores, and detach."""
        if self._worker is not None:
            self._worker.shutdown()
        if self._scheduler is not None:
            self._scheduler.shutdown()
