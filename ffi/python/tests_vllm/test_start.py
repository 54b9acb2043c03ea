"""The connector's checks of vLLM's configuration, and its changes, at start."""

from __future__ import annotations

import logging
import subprocess
import sys
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

import pytest
from engine import full, vllm_config
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

from kvtide.vllm import KvtideConnector, plugin
from kvtide.vllm.tier import KvtideTier

CACHE = KVCacheConfig(num_blocks=4, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["a"], full())])
BOTH = list(KVConnectorRole)


def config(tmp_path: Any, **transfer: Any) -> Any:
    """Return vLLM's configuration with the shortest form of the connector's, and changes to it."""
    made = vllm_config(tmp_path)
    made.kv_transfer_config = KVTransferConfig(**({"kv_connector": "KvtideConnector", "kv_role": "kv_both"} | transfer))
    return made


@pytest.mark.parametrize("role", BOTH)
def test_without_prefix_caching_it_does_not_start_and_says_what_to_set(tmp_path: Any, role: KVConnectorRole) -> None:
    made = config(tmp_path)
    made.cache_config.enable_prefix_caching = False
    with pytest.raises(ValueError, match="prefix caching is off.*--enable-prefix-caching"):
        KvtideConnector(made, role, CACHE)


def test_failed_loads_are_computed_though_nobody_says_so(tmp_path: Any) -> None:
    made = config(tmp_path)
    assert made.kv_transfer_config.kv_load_failure_policy == "fail", "vLLM's default, which fails the request"
    KvtideConnector(made, KVConnectorRole.SCHEDULER, CACHE).shutdown()
    assert made.kv_transfer_config.kv_load_failure_policy == "recompute", "vLLM's scheduler reads it next"


@pytest.mark.parametrize(
    ("role", "does"),
    [
        ("kv_both", "kv_both: loads and stores"),
        ("kv_consumer", "kv_consumer: loads, never stores"),
        ("kv_producer", "kv_producer: stores, never loads"),
    ],
)
def test_it_says_once_what_it_does(tmp_path: Any, caplog: pytest.LogCaptureFixture, role: str, does: str) -> None:
    made = config(tmp_path, kv_role=role, kv_connector_extra_config={"socket": "/tmp/s", "level": "durable"})
    logging.getLogger("vllm").addHandler(caplog.handler)  # vLLM's loggers do not propagate
    try:
        with caplog.at_level(logging.INFO, "vllm"):
            halves = [KvtideConnector(made, half, CACHE) for half in BOTH]
    finally:
        logging.getLogger("vllm").removeHandler(caplog.handler)
    for half in halves:
        half.shutdown()
    (said,) = {record.getMessage() for record in caplog.records if "kvtide:" in record.getMessage()}
    assert [text for text in (does, "through /tmp/s", "durable", "recompute") if text not in said] == []


def test_the_wheel_registers_the_connector_with_vllm() -> None:
    (found,) = [point for point in entry_points(group="vllm.general_plugins") if point.name == "kvtide"]
    found.load()()
    found.load()()  # vLLM may call it several times
    transfer = KVTransferConfig(kv_connector="KvtideConnector", kv_role="kv_both")
    assert KVConnectorFactory.get_connector_class(transfer) is KvtideConnector
    assert SecondaryTierFactory.get_tier_class({"type": "KvtideTier"}) is KvtideTier


def test_a_vllm_without_such_registries_starts_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        if name.endswith("tiering.factory"):
            raise ModuleNotFoundError(name)
        return SimpleNamespace(KVConnectorFactory=SimpleNamespace())

    monkeypatch.setattr(plugin.importlib, "import_module", missing)
    plugin.register()


def test_the_plugin_imports_neither_torch_nor_vllm() -> None:
    code = (
        "import sys; sys.modules['vllm'] = sys.modules['torch'] = None\n"
        "from importlib.metadata import entry_points\n"
        "[point] = [p for p in entry_points(group='vllm.general_plugins') if p.name == 'kvtide']\n"
        "point.load()()\n"
        "print(sorted(m for m in sys.modules if m.partition('.')[0] in ('vllm', 'torch', 'numpy')))\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.strip() == "['torch', 'vllm']", "the two that cannot be imported here, and nothing below them"
