"""Counters of the connector, for vLLM's log and for Prometheus.

vLLM's log gets them with the output of steps. Prometheus reads them, and whether the connector is attached, at each scrape from
shared memory (`shared_stats`), because an idle engine makes no steps.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import REGISTRY, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from .shared_stats import SharedStats, Shown, read

logger = logging.getLogger(f"vllm.{__name__}")

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
    "recalls": "Requests for whose prefix the relay was asked",
    "recalls_refused": "Requests for which the relay could not be asked",
    "recalls_late": "Recalls without an answer within remote_timeout_s, or expected later; the rest was computed",
    "recalled_blocks": "Blocks that the relay brought in",
    "recall_seconds": "Time that requests waited for the relay",
    "blocks_shared": "Blocks of requests with share that the store has",
    "notes_lost": "Blocks whose tokens could not be sent to the relay",
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
    "blocks_store_below_threshold": "Blocks not stored because fewer requests than store_threshold offered them or blocks before them",
    "blocks_store_windowed": "Blocks not stored because they had left a sliding window",
    "approx_steps": "Steps of requests under the contract approx (KvtidePaged)",
    "approx_pages_needed": "Pages that these steps would have read under exact",
    "approx_pages_omitted": "Those of these pages that were not read",
    "approx_attention_omitted": "Sum over these steps of the estimated share of attention that the omitted pages would have had",
    "traces_malformed": "Lookups, leases and questions to the relay not traced because the header traceparent is malformed",
    "attach_failures": "Failed attempts to attach to the daemon",
    "attaches": "Successful attempts to attach to the daemon",
}


class Counts:
    """Counts since the last report, and the same since the start in shared memory. Thread-safe."""

    def __init__(self, shared: SharedStats | None = None) -> None:
        self._lock = threading.Lock()
        self._shared = shared
        self.data: dict[str, float] = {}

    @classmethod
    def of(cls, vllm_config: Any, part: str) -> Counts:
        """Create the counts of one part of an engine: "scheduler", or a rank."""
        engine_id = getattr(vllm_config.kv_transfer_config, "engine_id", None)
        if engine_id is None:
            return cls()
        try:
            return cls(SharedStats(str(engine_id), part, list(COUNTERS)))
        except OSError as error:  # the metrics then come with the output of steps
            logger.warning("kvtide: %s: no shared memory for metrics, so they are old while vLLM is idle: %s", part, error)
            return cls()

    def add(self, name: str, value: float = 1) -> None:
        """Add `value` to a counter. Raise KeyError if it does not exist."""
        if name not in COUNTERS:
            raise KeyError(name)
        with self._lock:
            self.data[name] = self.data.get(name, 0) + value
            if self._shared is not None:
                self._shared.add(name, value)

    def attached(self) -> None:
        """Record an attach."""
        self.add("attaches")
        with self._lock:
            if self._shared is not None:
                self._shared.attached()

    def detached(self, reason: str) -> None:
        """Record that there is no session, and why."""
        with self._lock:
            if self._shared is not None:
                self._shared.detached(reason)

    def take(self) -> KvtideStats | None:
        """Return the counts since the last call; None if nothing was counted."""
        with self._lock:
            taken, self.data = self.data, {}
        return KvtideStats(data=taken) if taken else None

    def close(self) -> None:
        """Remove the counts from shared memory."""
        with self._lock:
            shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()


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


class Present:
    """Collector that reads the present of all engines at each scrape."""

    #: vLLM unregisters collectors with such names before it creates new ones.
    _name = "vllm:kvtide"

    def __init__(
        self, engine_ids: Mapping[int, Sequence[str]], labelnames: Sequence[str], labels: Mapping[int, Sequence[Any]]
    ) -> None:
        """`engine_ids` has the possible `engine_id`s of each engine, and `labels` its label values."""
        self._engine_ids = engine_ids
        self._labelnames = list(labelnames)
        self._labels = {engine: [str(value) for value in values] for engine, values in labels.items()}
        #: What came with the output of steps. It includes ranks on other machines, which no shared memory reaches.
        self.reported: dict[int, dict[str, float]] = {engine: {} for engine in labels}

    def _families(self) -> tuple[dict[str, Any], Any, Any, Any]:
        counters = {
            name: CounterMetricFamily(f"vllm:kvtide_{name}", f"{text}.", labels=self._labelnames) for name, text in COUNTERS.items()
        }
        part = [*self._labelnames, "part"]
        return (
            counters,
            GaugeMetricFamily("vllm:kvtide_attached", "1: attached to the daemon, 0: not attached.", labels=part),
            GaugeMetricFamily("vllm:kvtide_last_attach_seconds", "Time since the last attach to the daemon.", labels=part),
            GaugeMetricFamily("vllm:kvtide_attach_error", "1, with the reason why there is no session.", labels=[*part, "reason"]),
        )

    def describe(self) -> Iterator[Any]:
        """Return all metrics without values."""
        counters, *gauges = self._families()
        yield from counters.values()
        yield from gauges

    def collect(self) -> Iterator[Any]:
        """Return all metrics. An error must not fail the scrape of vLLM's own metrics: it is logged at DEBUG."""
        counters, attached, last, failed = self._families()
        for engine, labels in self._labels.items():
            shown = self._read(engine)
            for name, family in counters.items():
                # The larger one: each may lack something that the other one has, and neither counts anything twice.
                total = max(sum(part.counters[name] for part in shown), self.reported[engine].get(name, 0))
                family.add_metric(labels, total)
            for part in shown:
                attached.add_metric([*labels, part.part], float(part.attached))
                if part.since_attach_s is not None:
                    last.add_metric([*labels, part.part], part.since_attach_s)
                if part.reason:
                    failed.add_metric([*labels, part.part, part.reason], 1)
        yield from counters.values()
        yield from (attached, last, failed)

    def _read(self, engine: int) -> list[Shown]:
        try:
            return read(self._engine_ids[engine], list(COUNTERS))
        except Exception:
            logger.debug("kvtide: cannot read the metrics of engine %s", engine, exc_info=True)
            return []


class KvtidePromMetrics(KVConnectorPromMetrics):
    """Prometheus metrics `vllm:kvtide_*`, with vLLM's labels."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Mapping[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: Mapping[int, list[Any]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters: dict[str, dict[int, Any]] = {}
        self._present: Present | None = None
        # With several API servers Prometheus adds up files of its own client and runs no collector. Ray has its own metrics.
        if metric_types[Counter] is Counter and "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            ids = _engine_ids(vllm_config, list(per_engine_labelvalues))
            self._present = Present(ids, labelnames, per_engine_labelvalues)
            REGISTRY.register(self._present)
            return
        counter = metric_types[Counter]
        for name, question in COUNTERS.items():
            made = counter(name=f"vllm:kvtide_{name}", documentation=f"{question}.", labelnames=labelnames)
            self._counters[name] = {engine: made.labels(*labels) for engine, labels in per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, value in transfer_stats_data.items():
            if name not in COUNTERS or value <= 0:
                continue
            if self._present is None:
                self._counters[name][engine_idx].inc(value)
            else:
                reported = self._present.reported[engine_idx]
                reported[name] = reported.get(name, 0) + value


def _engine_ids(vllm_config: Any, engines: Sequence[int]) -> dict[int, list[str]]:
    """Return the possible values of `engine_id` in each engine's processes. With data parallelism vLLM appends the engine's number
    there, but not in the API server."""
    own = getattr(vllm_config.kv_transfer_config, "engine_id", None)
    if own is None:
        return {engine: [] for engine in engines}
    return {engine: [f"{own}_dp{engine}"] + [str(own)] * (len(engines) == 1) for engine in engines}
