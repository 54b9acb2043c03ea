"""The connector class that vLLM calls. Each method belongs to the scheduler half or to the worker."""

from __future__ import annotations

import logging
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from .. import roles
from ..stats import KvtidePromMetrics, KvtideStats
from .config import PagedConfig, check
from .metadata import OmittedReport, PagedStep
from .scheduler import Scheduler
from .worker import Worker

logger = logging.getLogger(f"vllm.{__name__}")


class KvtidePaged(KVConnectorBase_V1):
    """vLLM's KV connector for decoding over kvtide's pages. Its options are those of `PagedConfig`."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        config = PagedConfig.parse(vllm_config.kv_transfer_config.kv_connector_extra_config)
        self.worker: Worker | None = None
        self._scheduler: Scheduler | None = None
        if role == KVConnectorRole.SCHEDULER:
            check(vllm_config, config)
            # kvtide finds prefixes itself. Without vLLM's own cache no two requests share a block id, so the first one names the
            # request. vLLM's scheduler creates this half before its cache manager, which reads the setting.
            vllm_config.cache_config.enable_prefix_caching = False
            roles.recompute_failed_loads(vllm_config.kv_transfer_config)
            self._scheduler = Scheduler(config, vllm_config, kv_cache_config)
        else:
            self.worker = Worker(config, vllm_config, kv_cache_config)

    @property
    def requires_kv_delivery(self) -> bool:
        """Return False: a block that is not published is computed again."""
        return False

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Return True: each layer waits for its pages."""
        return True

    # ---- worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Attach. vLLM's tensors are bookkeeping only; they say on which device the layers compute."""
        assert self.worker is not None
        self.worker.start(str(next(iter(kv_caches.values())).device))

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Publish, drop and create sequences before the step computes."""
        found = self._get_connector_metadata()
        assert isinstance(found, PagedStep), type(found)
        assert self.worker is not None
        self.worker.change(found)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: the attention backend waits for the layer's pages."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing: the attention backend writes the layer's pages."""

    def wait_for_save(self) -> None:
        """Do nothing."""

    def build_connector_worker_meta(self) -> OmittedReport | None:
        """Return the omissions since the last call; None: there are none."""
        return None if self.worker is None else self.worker.take_omitted()

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks of requests with lost pages. vLLM computes these requests again."""
        return set() if self.worker is None else self.worker.take_lost()

    # ---- scheduler

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Return the tokens of the request's cached prefix; None: ask again later."""
        assert self._scheduler is not None
        return self._scheduler.matched(request)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Record how much of the prefix vLLM uses."""
        assert self._scheduler is not None
        self._scheduler.allocated(request, num_external_tokens)

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[CacheHitSource, int]:
        """Return the source of the tokens: DISK if at least part of the prefix is only on NVMe, else HOST."""
        if num_external_tokens == 0:
            return {}
        assert self._scheduler is not None
        return {CacheHitSource.HOST if self._scheduler.in_host(request) else CacheHitSource.DISK: num_external_tokens}

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Return what became of requests since the last step."""
        assert self._scheduler is not None
        return self._scheduler.build(scheduler_output)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """End the request's sequence with the next step. vLLM may use its block ids for others from now on."""
        assert self._scheduler is not None
        return False, self._scheduler.finished(request)

    def update_connector_output(self, connector_output: Any) -> None:
        """Record the omissions of requests under `approx`."""
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, OmittedReport) and self._scheduler is not None:
            self._scheduler.reported(report)

    def reset_cache(self) -> bool | None:
        """Make all published blocks unfindable for this engine: its weights may have changed."""
        return None if self._scheduler is None else self._scheduler.reset()

    def has_pending_push_work(self) -> bool:
        """Return whether sequences wait to be dropped."""
        return self._scheduler is not None and self._scheduler.pending()

    # ---- both

    def get_kv_connector_stats(self) -> Any:
        """Return the counts since the last call."""
        half = self.worker or self._scheduler
        return None if half is None else half.stats.take()

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
        """Detach."""
        for half in (self.worker, self._scheduler):
            if half is not None:
                half.shutdown()
