"""`KvtideStorage` with SGLang's own factory, host pools and cache controller, against a real daemon with an NVMe tier."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import LAYOUTS, PAGE, config, host_pool
from kvtide import numa
from kvtide.sglang import pools
from place import MIB, Place, until
from kvtide.daemon import PrivateDaemon, PrivateRelay
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo, PoolHitPolicy, PoolName, PoolTransfer

Opened = Callable[..., Any]


def hashes(start: int, pages: int) -> list[str]:
    """Return chained hashes of a prompt's pages in SGLang's form. (SGLang computes its own with an extension compiled at first
    use.)"""
    found, parent = [], b""
    for index in range(pages):
        parent = hashlib.sha256(parent + (start + index).to_bytes(8, "little")).digest()
        found.append(parent.hex())
    return found


def slots(pages: Sequence[int]) -> torch.Tensor:
    return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


def fill(pool: Any, seed: int) -> None:
    """Fill the pool with random bits."""
    generator = torch.Generator().manual_seed(seed)
    flat = pool.kv_buffer.view(torch.int16).reshape(-1)
    flat.copy_(torch.randint(-(1 << 15), 1 << 15, flat.shape, generator=generator, dtype=torch.int16))


def page(pool: Any, index: int) -> torch.Tensor:
    """Return a page's bits, in the pool's own order."""
    return pool.get_data_page(index * PAGE, flat=True).view(torch.int16).clone()


def stored(backend: Any, pool: Any, names: list[str], pages: Sequence[int]) -> list[torch.Tensor]:
    """Store pages, wipe them, and return their former contents."""
    before = [page(pool, index) for index in pages]
    assert backend.batch_set_v1(names, slots(pages)) == [True] * len(names)
    pool.kv_buffer.zero_()
    return before


def attached(backend: Any) -> bool:
    return all(pool.blocks.alive for pool in backend._pools.values())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_pages_come_back_byte_for_byte(place: Place, opened: Opened, kind: str, layout: str) -> None:
    pool = host_pool(kind, layout)
    backend = opened(config(place, mla=kind == "mla"), pool)
    names = hashes(0, 8)
    fill(pool, 1)
    before = stored(backend, pool, names, [3, 1, 4, 15, 9, 2, 6, 5])
    assert backend.batch_exists(names) == 8
    assert backend.batch_exists(names[:5] + hashes(900, 2) + names[5:]) == 5
    # Load into other pages than they were stored from.
    targets = [20, 21, 30, 7, 8, 40, 0, 31]
    assert backend.batch_get_v1(names, slots(targets)) == [True] * 8
    for index, expected in zip(targets, before, strict=True):
        assert torch.equal(page(pool, index), expected)
    untouched = set(range(pool.page_num)) - set(targets)
    assert all(not page(pool, index).any() for index in untouched)


@pytest.mark.parametrize(("one", "other", "share"), [(0, 2, True), (0, 1, False), (1, 1, True)])
def test_layouts_of_equal_order_share_pages(place: Place, opened: Opened, one: int, other: int, share: bool) -> None:
    first, second = host_pool("mha", LAYOUTS[one]), host_pool("mha", LAYOUTS[other])
    names = hashes(0, 4)
    fill(first, 2)
    before = stored(opened(config(place), first), first, names, range(4))
    backend = opened(config(place), second)
    assert backend.batch_exists(names) == (4 if share else 0)
    assert backend.batch_get_v1(names, slots(range(4))) == [share] * 4
    assert all(torch.equal(page(second, i), before[i]) for i in range(4)) is share


def test_tensors_and_pages_are_the_same_content(place: Place, opened: Opened) -> None:
    pool = host_pool("mha", "layer_first")
    backend = opened(config(place), pool)
    names = hashes(0, 70)  # more than one batch of copies
    fill(pool, 3)
    values = [pool.get_data_page((index % 60) * PAGE) for index in range(70)]
    assert backend.batch_set(names, values)
    found = backend.batch_get(names, [pool.get_dummy_flat_data_page() for _ in names])
    assert all(torch.equal(a.view(torch.int16), b.view(torch.int16)) for a, b in zip(found, values, strict=True))
    assert backend.batch_get_v1(names[:2], slots([50, 51])) == [True] * 2
    assert torch.equal(page(pool, 50), values[0].view(torch.int16))
    assert backend.exists(names[0])
    assert not backend.exists("other")
    assert backend.get("other", pool.get_dummy_flat_data_page()) is None
    assert torch.equal(backend.get(names[1]).view(torch.int16), values[1].view(torch.int16))
    assert backend.set("single", values[5])
    assert torch.equal(backend.get("single", torch.empty_like(values[5])).view(torch.int16), values[5].view(torch.int16))
    with pytest.raises(ValueError, match="for a page of"):
        backend.set("short", values[0][:-1])


def test_a_page_exists_when_every_rank_has_stored_its_part(place: Place, opened: Opened) -> None:
    pools = [host_pool("mha", "page_first") for _ in range(2)]
    ranks = [opened(config(place, tp=(rank, 2)), pool) for rank, pool in enumerate(pools)]
    names = hashes(0, 3)
    for seed, pool in enumerate(pools):
        fill(pool, 10 + seed)
    before = [[page(pool, index) for index in range(3)] for pool in pools]
    assert ranks[0].batch_set_v1(names, slots(range(3))) == [True] * 3
    assert [rank.batch_exists(names) for rank in ranks] == [0, 0]
    assert ranks[1].batch_set_v1(names, slots(range(3))) == [True] * 3
    assert [rank.batch_exists(names) for rank in ranks] == [3, 3]
    for pool, rank, expected in zip(pools, ranks, before, strict=True):
        pool.kv_buffer.zero_()
        assert rank.batch_get_v1(names, slots(range(3))) == [True] * 3
        assert all(torch.equal(page(pool, index), expected[index]) for index in range(3))
    # Other numbers of ranks, and ranks on other machines, have other spaces.
    alone = opened(config(place, tp=(0, 2), nodes=2), host_pool("mha", "page_first"))
    assert alone.batch_exists(names) == 0
    assert alone.batch_set_v1(names, slots(range(3))) == [True] * 3
    assert alone.batch_exists(names) == 3


def test_every_rank_finds_what_one_stored_of_latent_kv(place: Place, opened: Opened) -> None:
    pools = [host_pool("mla", "page_first_direct") for _ in range(2)]
    ranks = [opened(config(place, mla=True, tp=(rank, 2)), pool) for rank, pool in enumerate(pools)]
    names = hashes(0, 3)
    fill(pools[0], 5)
    assert ranks[0].batch_set_v1(names, slots(range(3))) == [True] * 3
    assert ranks[1].batch_get_v1(names, slots(range(3))) == [True] * 3
    assert all(torch.equal(page(pools[0], i), page(pools[1], i)) for i in range(3))


def test_pages_of_another_machine_are_found(tmp_path: Path, opened: Opened) -> None:
    pool, other = host_pool("mha", "page_first"), host_pool("mha", "page_first")
    draft, other_draft = (host_pool("mha", "page_first", head_num=1) for _ in range(2))
    names = hashes(0, 6)
    fill(pool, 20), fill(draft, 21)
    before, before_draft = ([page(of, index) for index in range(6)] for of in (pool, draft))

    def start() -> PrivateDaemon:
        return PrivateDaemon(64 << 20, slab_bytes=4 << 20, relay=True)

    with start() as first, start() as second:
        backend = opened(config(first), pool)
        backend.register_mem_host_pool_v2(draft, PoolName.DRAFT)
        assert backend.batch_set_v1(names, slots(range(6))) == [True] * 6
        state = PoolTransfer(PoolName.DRAFT, slots([4, 5]), keys=names[4:], hit_policy=PoolHitPolicy.TRAILING_PAGES)
        assert backend.batch_set_v2([state]) == {PoolName.DRAFT: [True] * 2}
        with PrivateRelay(first, tmp_path, config='[copy_out]\nwhen = "stored"\n') as relay:
            until(lambda: relay.metrics()["kvtide_relay_blocks_out_total"] >= 8, "copies")
        there = opened(config(second, remote_timeout_s=60), other)
        there.register_mem_host_pool_v2(other_draft, PoolName.DRAFT)
        with PrivateRelay(second, tmp_path) as relay:
            until(lambda: relay.metrics()["kvtide_relay_spaces"] >= 2, "two spaces")
            assert there.batch_exists([*names[:2], "nowhere", *names[2:]]) == 2
            found = there.batch_exists_v2([*names, "nowhere"], [state])
            assert (found.kv_hit_pages, found.restorable_prefix_pages) == (6, [6])
        assert there.batch_get_v1(names, slots(range(20, 26))) == [True] * 6
        state = PoolTransfer(PoolName.DRAFT, slots([24, 25]), keys=names[4:])
        assert there.batch_get_v2([state]) == {PoolName.DRAFT: [True] * 2}
    assert all(torch.equal(page(other, 20 + index), before[index]) for index in range(6))
    assert all(torch.equal(page(other_draft, 20 + index), before_draft[index]) for index in (4, 5))


def test_several_pools(place: Place, opened: Opened) -> None:
    main, draft = host_pool("mha", "layer_first"), host_pool("mha", "layer_first", head_num=1)
    backend = opened(config(place), main)
    backend.register_mem_host_pool_v2(main, PoolName.KV)
    backend.register_mem_host_pool_v2(draft, PoolName.DRAFT)
    names = hashes(0, 6)
    fill(main, 6), fill(draft, 7)
    before = [page(draft, index) for index in range(6)]
    assert backend.batch_set_v1(names, slots(range(6))) == [True] * 6

    def part(keys: list[str], pages: Sequence[int]) -> list[PoolTransfer]:
        return [PoolTransfer(PoolName.DRAFT, host_indices=slots(pages), keys=keys)]

    # Only pages 2 and 5 of the draft.
    assert backend.batch_set_v2(part([names[2], names[5]], [2, 5])) == {PoolName.DRAFT: [True] * 2}

    def exists(policy: PoolHitPolicy, keys: list[str] | None) -> Any:
        return backend.batch_exists_v2(names, [PoolTransfer(PoolName.DRAFT, keys=keys, hit_policy=policy)])

    found = exists(PoolHitPolicy.TRAILING_PAGES, names[-1:])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (6, [3, 6])
    assert found.extra_pool_hit_pages == {PoolName.KV: 6, PoolName.DRAFT: 6}
    assert exists(PoolHitPolicy.ALL_PAGES, None).kv_hit_pages == 0
    assert exists(PoolHitPolicy.TRAILING_PAGES, names[-2:]).kv_hit_pages == 0
    assert backend.batch_set_v2(part(names, range(6))) == {PoolName.DRAFT: [True] * 6}
    assert exists(PoolHitPolicy.ALL_PAGES, None).kv_hit_pages == 6
    assert exists(PoolHitPolicy.TRAILING_PAGES, names[-2:]).restorable_prefix_pages == [1, 2, 3, 4, 5, 6]
    with pytest.raises(ValueError, match="BLOCK_GROUPS"):
        exists(PoolHitPolicy.BLOCK_GROUPS, None)
    draft.kv_buffer.zero_()
    assert backend.batch_get_v2(part(names, range(10, 16))) == {PoolName.DRAFT: [True] * 6}
    assert all(torch.equal(page(draft, 10 + index), before[index]) for index in range(6))


def test_a_server_that_cleared_finds_nothing_of_before(place: Place, opened: Opened) -> None:
    pool, other = host_pool("mha", "page_first"), host_pool("mha", "page_first")
    one, two = opened(config(place), pool), opened(config(place), other)
    names = hashes(0, 3)
    fill(pool, 8)
    stored(one, pool, names, range(3))
    one.clear()
    assert one.batch_exists(names) == 0
    assert one.batch_set_v1(names, slots(range(3))) == [True] * 3
    assert one.batch_exists(names) == 3
    two.clear()  # another rank of the same server
    assert two.batch_exists(names) == 3


def test_a_restarted_daemon_serves_from_nvme(place: Place, opened: Opened) -> None:
    pool = host_pool("mha", "layer_first")
    backend = opened(config(place, level="stored"), pool)
    names = hashes(0, 12)
    fill(pool, 9)
    before = stored(backend, pool, names, range(12))
    place.kill()
    place.start()
    until(lambda: attached(backend), "attaching again")
    assert backend.batch_get_v1(names, slots(range(12))) == [True] * 12
    assert all(torch.equal(page(pool, i), before[i]) for i in range(12))
    assert backend.counts()["kv"]["outages"] == 1


def test_a_host_tier_that_is_too_small_spills_to_nvme(tmp_path: Path, opened: Opened) -> None:
    place = Place(tmp_path / "small", host_bytes=4 * MIB).start()
    try:
        pool = host_pool("mha", "page_first")  # 12 KiB per page
        backend = opened(config(place, level="stored"), pool)
        seen: list[tuple[list[str], list[torch.Tensor]]] = []
        for round in range(16):
            fill(pool, 100 + round)
            names = hashes(1000 * round, 60)
            seen.append((names, stored(backend, pool, names, range(60))))
        for names, before in seen:
            assert backend.batch_get_v1(names, slots(range(60))) == [True] * 60
            assert all(torch.equal(page(pool, i), before[i]) for i in range(60))
    finally:
        place.stop()


def test_bytes_flipped_on_disk_are_failures_and_never_served(place: Place, opened: Opened) -> None:
    pool = host_pool("mha", "page_first")
    backend = opened(config(place, level="stored"), pool)
    names = hashes(0, 8)
    fill(pool, 11)
    stored(backend, pool, names, range(8))
    place.stop()
    assert place.damage() >= 8
    place.start()
    until(lambda: attached(backend), "attaching again")
    assert backend.batch_get_v1(names, slots(range(8))) == [False] * 8
    fill(pool, 12)
    before = stored(backend, pool, names, range(8))
    assert backend.batch_get_v1(names, slots(range(8))) == [True] * 8
    assert all(torch.equal(page(pool, i), before[i]) for i in range(8))


def test_without_a_daemon_nothing_is_found_and_one_warning_says_so(
    tmp_path: Path, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(tmp_path / "later")
    pool = host_pool("mha", "page_first")
    names = hashes(0, 4)
    with caplog.at_level(logging.WARNING, "kvtide"):
        backend = opened(config(place), pool)
        for _ in range(3):
            assert backend.batch_exists(names) == 0
            assert backend.batch_set_v1(names, slots(range(4))) == [False] * 4
            assert backend.batch_get_v1(names, slots(range(4))) == [False] * 4
        assert [r.getMessage().count("cannot attach") for r in caplog.records if r.name.startswith("kvtide")] == [1]
        place.start()
        try:
            until(lambda: attached(backend), "attaching")
            fill(pool, 13)
            before = stored(backend, pool, names, range(4))
            assert backend.batch_get_v1(names, slots(range(4))) == [True] * 4
            assert all(torch.equal(page(pool, i), before[i]) for i in range(4))
            place.kill()
            assert backend.batch_exists(names) == 0
            place.start()
            until(lambda: attached(backend), "attaching again")
        finally:
            place.stop()


def test_configurations_that_are_wrong_are_refused(place: Place) -> None:
    from sglang.srt.mem_cache.storage import StorageBackendFactory

    def make(**given: Any) -> Any:
        configuration = config(place, **{k: v for k, v in given.items() if k != "tp_lcm_size"})
        configuration.tp_lcm_size = given.get("tp_lcm_size")
        return StorageBackendFactory.create_backend("dynamic", configuration, None)

    for given, text in [
        ({"sockets": "x"}, "unknown key 'sockets'"),
        ({"timeout_s": "long"}, "timeout_s in the storage backend's extra configuration is 'long'; it must be a number of seconds, or"),
        ({"attach_timeout_s": "0ms"}, "attach_timeout_s is 0.0; it must be more than 0"),
        ({"level": "kept"}, "level is 'kept'; it must be one of 'published', 'stored', 'durable'"),
        ({"weights_id": None}, "cannot hash the weights"),
        ({"tp_lcm_size": 4}, "tp_lcm_size"),
    ]:
        with pytest.raises(ValueError, match=text):
            make(**given)
    with pytest.raises(ValueError, match="no host pool 'kv' is registered"):
        make().batch_exists(["a"])


def test_slots_that_are_not_whole_pages_are_refused(place: Place, opened: Opened) -> None:
    backend = opened(config(place), host_pool("mha", "page_first"))
    names = hashes(0, 2)
    for wrong in (slots([0]), slots([0, 1]) + 1):
        with pytest.raises(ValueError, match="whole pages"):
            backend.batch_set_v1(names, wrong, HiCacheStorageExtraInfo())


def test_statistics(place: Place, opened: Opened) -> None:
    pool = host_pool("mha", "page_first")
    backend = opened(config(place), pool)
    names = hashes(0, 4)
    stored(backend, pool, names, range(4))
    backend.batch_get_v1(names, slots(range(4)))
    stats = backend.get_stats()
    assert (stats.backup_pgs, stats.prefetch_pgs) == ([4], [4])
    assert stats.backup_bandwidth[0] > 0 < stats.prefetch_bandwidth[0]
    assert backend.get_stats().backup_pgs == []
    assert backend.counts()["kv"] == {
        "looked_up": 0, "found": 0, "recalled": 0, "load_asked": 4, "loaded": 4, "store_asked": 4, "stored": 4, "outages": 0
    }  # fmt: skip


class _Apart:
    """A pool with separately allocated tensors."""

    page_size = 2

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors

    def get_page_buffer_meta(self, slots: torch.Tensor) -> tuple[list[int], list[int]]:
        first, count = int(slots[0]), len(slots)
        return [t[first].data_ptr() for t in self.tensors], [t[:count].nbytes for t in self.tensors]


def test_pools_whose_tensors_lie_in_another_order_share_nothing() -> None:
    """Pieces are ordered by address. Separately allocated tensors can be anywhere in memory."""
    whole = torch.zeros(2, 8, 4)
    keys_first, values_first = _Apart([whole[0], whole[1]]), _Apart([whole[1], whole[0]])
    assert pools.pieces_order(keys_first) == "0 1"
    assert pools.pieces_order(values_first) == "1 0"


def test_sessions_name_the_numa_node_of_the_ranks_gpu(place: Place, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def of_engine(*device: object) -> int:
        asked.append(device)
        return 4

    monkeypatch.setattr(numa, "of_engine", of_engine)
    backend = opened(config(place), host_pool("mha", LAYOUTS[0]))
    assert (asked, backend._pools["kv"].target.numa_node) == ([], None), "SGLang on CPUs has no GPU"
    pool = host_pool("mha", LAYOUTS[0])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    backend = opened(config(place), pool)
    assert (asked, backend._pools["kv"].target.numa_node) == ([("cuda", 1)], 4)
