"""The connector's class, as far as it can be tested without vLLM's processes."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA

import kvtide.vllm
from kvtide.vllm import KvtideConnector
from kvtide.vllm.metadata import Ended, WorkerMetadata
from kvtide.vllm.stats import COUNTERS, Counts


def test_without_vllm_the_package_imports_and_the_connector_says_what_it_needs() -> None:
    code = (
        "import sys; sys.modules['vllm'] = None\n"
        "import kvtide.vllm, kvtide.vllm.hashes, kvtide.vllm.config\n"
        "try: kvtide.vllm.KvtideConnector\n"
        "except ImportError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert "kvtide.vllm.KvtideConnector needs vLLM 0.32 or newer" in said
    with pytest.raises(AttributeError, match="no attribute 'KvtideConector'"):
        _ = kvtide.vllm.KvtideConector


def test_every_method_that_vllm_has_abstract_is_there() -> None:
    assert issubclass(KvtideConnector, KVConnectorBase_V1)
    assert issubclass(KvtideConnector, SupportsHMA)
    assert not KvtideConnector.__abstractmethods__
    assert KvtideConnector.requires_piecewise_for_cudagraph({}) is False
    assert KvtideConnector.get_required_kvcache_layout(None) is None


def test_a_job_ends_when_all_ranks_have_reported_and_fails_if_it_did_on_one() -> None:
    one = WorkerMetadata({1: Ended(1), 2: Ended(1, 4)})
    both = one.aggregate(WorkerMetadata({1: Ended(1), 2: Ended(1, 3), 3: Ended(1)}))
    assert isinstance(both, WorkerMetadata)
    assert both.ended == {1: Ended(2), 2: Ended(2, 3), 3: Ended(1)}


def test_counts_reach_the_log_and_prometheus() -> None:
    counts = Counts()
    assert counts.take() is None
    counts.add("lookups")
    counts.add("bytes_loaded", 5)
    with pytest.raises(KeyError):
        counts.add("lokups")
    first = counts.take()
    assert first is not None
    assert counts.take() is None
    again = KvtideConnector.build_kv_connector_stats({"lookups": 2}).aggregate(first)
    assert again.reduce() == {"lookups": 3, "bytes_loaded": 5}
    registry = CollectorRegistry()

    def counter(**given: Any) -> Counter:
        return Counter(**given, registry=registry)

    metrics = KvtideConnector.build_prom_metrics(
        SimpleNamespace(kv_transfer_config=None), {Gauge: Gauge, Counter: counter, Histogram: Histogram}, ["engine"], {0: ["0"]}
    )
    metrics.observe(again.data | {"of_another_version": 1}, 0)
    assert registry.get_sample_value("vllm:kvtide_lookups_total", {"engine": "0"}) == 3
    assert registry.get_sample_value("vllm:kvtide_bytes_loaded_total", {"engine": "0"}) == 5
    assert len(list(registry.collect())) == len(COUNTERS)
