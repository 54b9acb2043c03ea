"""SGLang's own host pools in host memory, and a daemon that can be killed and restarted."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tests_vllm"))

from kvtide.daemon import PrivateDaemon  # noqa: E402
from place import Place  # noqa: E402

torch = pytest.importorskip("torch")
pytest.importorskip("sglang")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # warnings about quantizations that need a GPU
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
    from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

PAGE = 16
LAYERS = 3
TOKENS = 512
LAYOUTS = ("layer_first", "page_first", "page_first_direct")


def host_pool(kind: str, layout: str, **changes: Any) -> Any:
    """Return SGLang's host pool of a device pool on the CPU, without pinned memory and second stream, which need a GPU."""
    given: dict[str, Any] = {
        "size": TOKENS,
        "page_size": PAGE,
        "dtype": torch.bfloat16,
        "layer_num": LAYERS,
        "device": "cpu",
        "enable_memory_saver": False,
    }
    host: dict[str, Any] = {"device_capacity_tokens": TOKENS, "start_layer": 0, "end_layer": LAYERS, "pin_memory": False}
    # The pools keep 10 GiB of the machine's memory free, which small machines do not have.
    with host_memory_budget_scope(1 << 30):
        if kind == "mha":
            device = MHATokenToKVPool(**(given | {"head_num": 2, "head_dim": 64, "enable_alt_stream": False} | changes))
            return MHATokenToKVPoolHost(device.get_device_pool_infos()[0].buffer_info, 2.0, 0, PAGE, layout, **host)
        device = MLATokenToKVPool(**(given | {"kv_lora_rank": 512, "qk_rope_head_dim": 64} | changes))
        info = device.get_device_pool_infos()[0].buffer_info
        return MLATokenToKVPoolHost(info, 2.0, 0, PAGE, layout, target_layer_num=LAYERS, **host)


def config(place: Place | PrivateDaemon, mla: bool = False, tp: tuple[int, int] = (0, 1), **extra: Any) -> HiCacheStorageConfig:
    """Return the configuration that SGLang's cache controller passes to a backend."""
    known = {"backend_name": "kvtide", "module_path": "kvtide.sglang", "class_name": "KvtideStorage", "interface_v1": 1}
    return HiCacheStorageConfig(
        tp_rank=tp[0],
        tp_size=tp[1],
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=mla,
        enable_storage_metrics=True,
        is_page_first_layout=False,
        model_name="test/model",
        extra_config=known | {"socket": str(place.socket), "weights_id": "test"} | extra,
    )


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A daemon for this test alone."""
    place = Place(tmp_path / "daemon").start()
    yield place
    place.stop()


@pytest.fixture
def opened() -> Iterator[Callable[..., Any]]:
    """Create backends as SGLang's factory does, with their pool registered, and close them at the end."""
    from sglang.srt.mem_cache.storage import StorageBackendFactory

    made: list[Any] = []

    def make(configuration: HiCacheStorageConfig, pool: Any) -> Any:
        backend = StorageBackendFactory.create_backend("dynamic", configuration, pool)
        made.append(backend)
        backend.register_mem_pool_host(pool)
        backend.on_host_pools_registered()
        return backend

    yield make
    for backend in made:
        backend.close()
