"""Counters of the connector, for vLLM's log and for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

#: Each counter with its help text. Bytes and seconds are summed over the workers.
COUNTERS: dict[str, str] = {
    "lookups": "Requests whose prefix was looked up",
    "lookups_late": "Lookups and leases not answered within lookup_timeout_s; a later step asks again",
    "lookup_misses_by_timeout": "Lookups and leases not answered within lookup_max_s; counted as misses",
    "lookup_errors": "Lookups and leases that failed otherwise; counted as misses",
    "hit_tokens_host": "Tokens chosen for loading, of prefixes entirely in host memory",
    "hit_tokens_nvme": "Tokens chosen for loading, of prefixes at least partly on NVMe only",
    "hits_too_short": "Prefixes found but not loaded: shorter than min_hit_tokens",
    "hits_too_slow": "Prefixes found but not loaded: estimated load time above max_load_s",
    "loads": "Loads started",
    "blocks_loaded": "Blocks loaded",
    "bytes_loaded": "Bytes loaded",
    "load_seconds": "Duration of loads",
    "blocks_load_failed": "Blocks that failed to load and were computed",
    "blocks_stored": "Blocks stored, including those that were cached already",
    "bytes_stored": "Bytes of stored blocks",
    "store_seconds": "Duration of stores",
    "blocks_store_failed": "Blocks whose store failed",
    "blocks_store_skipped": "Blocks not stored because running stores reached store_bytes or an eighth of vLLM's blocks",
    "blocks_store_windowed": "Blocks not stored because they had left a sliding window",
    "attach_failures": "Failed attempts to attach to the daemon",
    "attaches": "Successful attempts to attach to the daemon",
}


class Counts:
    """Counts since the last report. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.data: dict[str, float] = {}

    def add(self, name: str, value: float = 1) -> None:
        """Add `value` to a counter. Raise KeyError if it does not exist."""
        if name not in COUNTERS:
            raise KeyError(name)
        with self._lock:
            self.data[name] = self.data.get(name, 0) + value

    def take(self) -> KvtideStats | None:
        """Return the counts and reset them; None if nothing was counted."""
        with self._lock:
            taken, self.data = self.data, {}
        return KvtideStats(data=taken) if taken else None


class KvtideStats(KVConnectorStats):
    """A report. `data` maps names in COUNTERS to numbers."""

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
    """Prometheus counters `vllm:kvtide_<name>_total`, with vLLM's labels."""

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
