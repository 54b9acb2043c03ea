"""Counters of the connector: in vLLM's log line, and for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

#: Each counter and the question that it answers. All count up; bytes and seconds are summed over the workers.
COUNTERS: dict[str, str] = {
    "lookups": "Requests whose prefix was looked up",
    "lookups_late": "Lookups and leases not answered within lookup_timeout_s, asked again in a later step",
    "lookup_misses_by_timeout": "Lookups and leases not answered within lookup_max_s, taken as misses",
    "lookup_errors": "Lookups and leases that failed otherwise, taken as misses",
    "hit_tokens_host": "Tokens that were to be loaded, of prefixes in host memory",
    "hit_tokens_nvme": "Tokens that were to be loaded, of prefixes on NVMe at least in part",
    "hits_too_short": "Prefixes found that were not loaded because they were shorter than min_hit_tokens",
    "hits_too_slow": "Prefixes found that were not loaded because that was estimated to take longer than max_load_s",
    "loads": "Loads begun",
    "blocks_loaded": "Blocks loaded",
    "bytes_loaded": "Bytes loaded",
    "load_seconds": "Time that loads took",
    "blocks_load_failed": "Blocks that were promised, failed to load, and were computed",
    "blocks_stored": "Blocks stored, or found to be cached already",
    "bytes_stored": "Bytes of those blocks",
    "store_seconds": "Time that stores took",
    "blocks_store_failed": "Blocks whose store failed",
    "blocks_store_skipped": "Blocks not stored because as much as store_bytes was under way",
    "blocks_store_windowed": "Blocks not stored because a sliding window had left them",
    "attach_failures": "Attempts to attach to the daemon that failed",
    "attaches": "Attempts to attach to the daemon that succeeded",
}


class Counts:
    """Counts since the last report, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.data: dict[str, float] = {}

    def add(self, name: str, value: float = 1) -> None:
        """Counts. KeyError: there is no such counter."""
        if name not in COUNTERS:
            raise KeyError(name)
        with self._lock:
            self.data[name] = self.data.get(name, 0) + value

    def take(self) -> KvtideStats | None:
        """What was counted, which is then forgotten; None if nothing was."""
        with self._lock:
            taken, self.data = self.data, {}
        return KvtideStats(data=taken) if taken else None


class KvtideStats(KVConnectorStats):
    """A report. `data` maps names of COUNTERS to numbers."""

    data: dict[str, Any]

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        return {name: round(value, 4) for name, value in self.data.items()}

    def is_empty(self) -> bool:
        return not any(self.data.values())


class KvtidePromMetrics(KVConnectorPromMetrics):
    """`vllm:kvtide_<name>_total`, labelled as vLLM labels its own."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Mapping[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: Mapping[int, list[Any]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        counter = metric_types[Counter]
        self._counters: dict[str, dict[int, Any]] = {}
        for name, question in COUNTERS.items():
            made = counter(name=f"vllm:kvtide_{name}", documentation=f"{question}.", labelnames=labelnames)
            self._counters[name] = {engine: made.labels(*labels) for engine, labels in per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, value in transfer_stats_data.items():
            if name in self._counters and value > 0:
                self._counters[name][engine_idx].inc(value)
