"""SGLang's own cache controller, its threads and its configuration, over `KvtideStorage` and a real daemon.

One process plays a server with one rank. Its process group uses gloo, and SGLang's own override sets its parallel sizes. The
kernels that move pages to a GPU are not called. Page hashes are given, because SGLang compiles its hash function (with OpenSSL's
headers) at first use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import LAYERS, PAGE, TOKENS, config
from place import PATIENCE_S, Place
from sglang.srt.managers import cache_controller
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.runtime_context import get_parallel
from test_storage import fill, hashes, page, slots


class Allocator:
    """The parts of a device's allocator that the controller uses."""

    def __init__(self, pool: Any) -> None:
        self.pool, self.page_size = pool, PAGE

    def get_kvcache(self) -> Any:
        return self.pool


@pytest.fixture
def alone() -> Iterator[Any]:
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    widths = {"attn_dcp_size": 1, "attn_dcp_rank": 0, "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "nnodes": 1}
    with get_parallel().override(**widths):
        yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


@pytest.fixture
def controller(alone: Any, place: Place) -> Iterator[Callable[[int], Any]]:
    """Create a controller with the backend attached, with or without zero copy."""
    made: list[Any] = []

    def make(interface_v1: int) -> Any:
        with host_memory_budget_scope(1 << 30):
            device = MHATokenToKVPool(
                size=TOKENS,
                page_size=PAGE,
                dtype=torch.bfloat16,
                layer_num=LAYERS,
                device="cpu",
                enable_memory_saver=False,
                head_num=2,
                head_dim=64,
                enable_alt_stream=False,
            )
            host = MHATokenToKVPoolHost(
                device.get_device_pool_infos()[0].buffer_info,
                2.0,
                0,
                PAGE,
                "layer_first",
                pin_memory=False,
                device_capacity_tokens=TOKENS,
                start_layer=0,
                end_layer=LAYERS,
            )
        found = cache_controller.HiCacheController(
            Allocator(device), host, PAGE, alone, threading.Event(), attn_cp_group=alone, attn_tp_group=alone, io_backend="direct"
        )
        extra = config(place, interface_v1=interface_v1).extra_config
        found.attach_storage_backend("dynamic", model_name="test/model", storage_backend_extra_config=extra)
        made.append(found)
        return found

    yield make
    for each in made:
        each.detach_storage_backend()


@pytest.mark.parametrize(("writes", "reads"), [(1, 1), (0, 1), (1, 0)])
def test_what_one_controller_backs_up_another_prefetches(
    controller: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch, writes: int, reads: int
) -> None:
    names = hashes(0, 20)
    monkeypatch.setattr(cache_controller, "get_storage_hash_str", lambda *_, **__: list(names))
    writer, reader = controller(writes), controller(reads)
    fill(writer.mem_pool_host, 1)
    before = [page(writer.mem_pool_host, index) for index in range(16)]
    writer.write_storage(slots(range(16)), list(range(16 * PAGE)), hash_value=names[:16])
    written = writer.ack_backup_queue.get(timeout=PATIENCE_S)
    assert written.completed_tokens == 16 * PAGE

    asked = reader.prefetch("request", list(range(20 * PAGE)))
    hit = reader.prefetch_hit_queue.get(timeout=PATIENCE_S)
    assert hit is asked
    assert hit.storage_hit_count == 16 * PAGE
    assert hit.hash_value == names[:16]
    hit.host_indices = reader.mem_pool_host.alloc(16 * PAGE)
    reader.prefetch_buffer.put(hit)
    acks = [reader.ack_prefetch_queue.get(timeout=PATIENCE_S) for _ in range(2)]
    assert [ack.completed_tokens for ack in acks] == [16 * PAGE, None]
    assert acks[1].completed_req
    pages = hit.host_indices.reshape(16, PAGE)[:, 0] // PAGE
    assert all(torch.equal(page(reader.mem_pool_host, int(at)), before[index]) for index, at in enumerate(pages))


def test_a_daemon_that_dies_costs_the_controller_hits_alone(
    controller: Callable[[int], Any], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = hashes(0, 8)
    monkeypatch.setattr(cache_controller, "get_storage_hash_str", lambda *_, **__: list(names))
    one = controller(1)
    one.write_storage(slots(range(8)), list(range(8 * PAGE)), hash_value=names)
    assert one.ack_backup_queue.get(timeout=PATIENCE_S).completed_tokens == 8 * PAGE
    one.prefetch("known", list(range(8 * PAGE)))
    hit = one.prefetch_hit_queue.get(timeout=PATIENCE_S)
    assert hit.storage_hit_count == 8 * PAGE
    place.kill()
    # The found pages are gone: none of them counts as loaded.
    hit.host_indices = one.mem_pool_host.alloc(8 * PAGE)
    one.prefetch_buffer.put(hit)
    assert [one.ack_prefetch_queue.get(timeout=PATIENCE_S).completed_tokens for _ in range(2)] == [0, None]
    one.prefetch("later", list(range(8 * PAGE)))
    assert one.prefetch_hit_queue.get(timeout=PATIENCE_S).storage_hit_count == 0
    one.write_storage(slots(range(8)), list(range(8 * PAGE)), hash_value=names)
    assert one.ack_backup_queue.get(timeout=PATIENCE_S).completed_tokens == 0
