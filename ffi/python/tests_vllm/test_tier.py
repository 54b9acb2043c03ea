"""`KvtideTier` under vLLM's own TieringOffloadingSpec, manager and region, against a real daemon with an NVMe tier.

The worker half of that spec needs a GPU (`CPUOffloadingSpec.get_worker`). The tests drive its scheduler half like vLLM's scheduler,
and write and read the region in place of the worker.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from place import MIB, Place, until

pytest.importorskip("vllm")

from vllm.v1.core import kv_cache_utils  # noqa: E402
from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, ScheduleEndContext, make_offload_key  # noqa: E402
from vllm.v1.kv_offload.config import (  # noqa: E402
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec  # noqa: E402

from kvtide.vllm import plugin  # noqa: E402

plugin.register()

ROW = 64 << 10
ROWS = 64


def keys(name: str, count: int, group: int = 0) -> list[OffloadKey]:
    """Return keys in vLLM's form: a chained hash of 32 bytes and a group."""
    found, parent = [], name.encode()
    for _ in range(count):
        parent = hashlib.sha256(parent).digest()
        found.append(make_offload_key(parent, group))
    return found


def content(key: OffloadKey) -> np.ndarray[Any, Any]:
    """Return the bytes of a chunk."""
    seed = int.from_bytes(hashlib.sha256(key).digest()[:8], "little")
    return np.random.default_rng(seed).integers(1, 256, ROW, dtype=np.uint8)


class Engine:
    """vLLM's scheduler half, with its own region."""

    def __init__(self, socket: Path, rows: int = ROWS, layers: tuple[str, ...] = ("layer.0", "layer.1"), **tier: Any) -> None:
        tiers = [{"type": "KvtideTier", "socket": str(socket), "weights_id": "test", "epoch": "test"} | tier]
        config = OffloadingConfig(
            groups=(OffloadingGroupConfig(16, layers, 0), OffloadingGroupConfig(16, ("window.0",), 1)),
            worker_kv_bytes_per_block=ROW,
            enable_kv_cache_events=False,
            extra_config={"cpu_bytes_to_use": rows * ROW, "secondary_tiers": tiers},
            engine_id=f"kvtide-test-{uuid.uuid4().hex}",
            model=OffloadingModelConfig("test/model", "bfloat16"),
            cache=OffloadingCacheConfig(16, 1),
            parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False),
        )
        self.spec = TieringOffloadingSpec(config)
        self.manager: Any = self.spec.get_manager()
        (self.tier,) = self.manager.secondary_tiers
        self.requests = 0

    def request(self) -> ReqContext:
        self.requests += 1
        context = ReqContext(f"request-{self.requests}")
        self.manager.on_new_request(context)
        return context

    def step(self) -> None:
        self.manager.on_schedule_end(ScheduleEndContext((), ()))

    def settle(self) -> None:
        """Wait until all transfers have ended, and report them to the manager."""
        self.tier._jobs.drain()
        self.step()

    def region(self) -> np.ndarray[Any, Any]:
        """Return vLLM's region, one row per chunk. Do not keep it: the region cannot be unmapped while an array refers to it."""
        return np.asarray(self.manager.primary_tier.get_kv_memoryview()).view(np.uint8)

    def store(self, names: list[OffloadKey]) -> None:
        """Store chunks as if the worker had offloaded them."""
        context = self.request()
        output = self.manager.prepare_store(names, context)
        assert output is not None
        assert output.keys_to_store == names
        view = self.region()
        for key, row in zip(names, output.store_spec.block_ids, strict=True):
            view[row] = content(key)
        del view
        self.manager.complete_store(names, context)
        self.manager.on_request_finished(context)
        self.settle()

    def forget(self) -> None:
        """Empty the region and overwrite its bytes."""
        self.manager.reset_cache()
        self.region()[:] = 0xEE

    def found(self, names: list[OffloadKey]) -> list[LookupResult]:
        """Look up keys, step by step like the scheduler, until each is a hit or a miss. Hits are then in the region."""
        context = self.request()
        results: list[LookupResult] = []

        def known() -> bool:
            results[:] = [self.manager.lookup(key, context) for key in names]
            self.step()
            return all(result in (LookupResult.HIT, LookupResult.MISS) for result in results)

        until(known, "an answer to lookups")
        hits = [key for key, result in zip(names, results, strict=True) if result is LookupResult.HIT]
        if hits:
            spec = self.manager.prepare_load(hits, context)
            view = self.region()
            for key, row in zip(hits, spec.block_ids, strict=True):
                assert np.array_equal(view[row], content(key)), "wrong bytes"
            del view
            self.manager.complete_load(hits, context)
        self.manager.on_request_finished(context)
        return results

    def hits(self, names: list[OffloadKey]) -> int:
        return self.found(names).count(LookupResult.HIT)

    def close(self) -> None:
        self.manager.shutdown()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "daemon").start()
    yield place
    place.stop()


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    made: list[Engine] = []
    yield made
    for engine in made:
        engine.close()


def test_what_was_stored_is_loaded_by_another_engine(place: Place, engines: list[Engine]) -> None:
    one, other = Engine(place.socket), Engine(place.socket)
    engines += [one, other]
    names = keys("a", 20) + keys("a", 4, group=1)
    one.store(names)
    assert other.hits(names) == len(names)
    one.forget()
    assert one.hits(names) == len(names)
    assert one.found(keys("b", 3)) == [LookupResult.MISS] * 3
    # The same hash in another group names another chunk.
    assert one.found(keys("a", 6, group=1)[4:]) == [LookupResult.MISS] * 2


def test_of_a_prefix_with_a_hole_the_rest_is_there(place: Place, engines: list[Engine]) -> None:
    engine = Engine(place.socket)
    engines.append(engine)
    names = keys("hole", 6)
    engine.store(names[:2] + names[3:])
    engine.forget()
    assert engine.found(names) == [LookupResult.HIT] * 2 + [LookupResult.MISS] + [LookupResult.HIT] * 3


def test_other_weights_or_layers_share_nothing(place: Place, engines: list[Engine]) -> None:
    names = keys("c", 4)
    engines.append(Engine(place.socket))
    engines[0].store(names)
    engines.append(Engine(place.socket, weights_id="other"))
    engines.append(Engine(place.socket, layers=("layer.0", "layer.2")))
    assert [engine.hits(names) for engine in engines] == [4, 0, 0]


def test_after_a_reset_nothing_of_before_is_found(place: Place, engines: list[Engine]) -> None:
    names = keys("q", 4)
    engines += [Engine(place.socket, epoch=None), Engine(place.socket, epoch=None)]
    one, other = engines
    one.store(names)
    one.forget()  # the weights may have changed
    assert one.hits(names) == 0
    assert other.hits(names) == 4
    one.store(keys("r", 4))
    assert one.hits(keys("r", 4)) == 4
    assert other.hits(keys("r", 4)) == 0


def test_a_restarted_daemon_serves_from_nvme(place: Place, engines: list[Engine]) -> None:
    engine = Engine(place.socket, level="stored")
    engines.append(engine)
    names = keys("d", 24)
    engine.store(names)
    place.kill()
    place.start()
    until(lambda: bool(engine.tier._blocks.alive), "attaching again")
    engine.forget()
    assert engine.hits(names) == len(names)
    assert engine.tier._blocks.counts()["outages"] == 1


def test_a_host_tier_that_is_too_small_spills_to_nvme(tmp_path: Path, engines: list[Engine]) -> None:
    place = Place(tmp_path / "small", host_bytes=4 * MIB).start()
    try:
        engine = Engine(place.socket, rows=256, level="stored")
        engines.append(engine)
        names = keys("e", 192)  # 12 MiB
        for start in range(0, len(names), 32):
            engine.store(names[start : start + 32])
        engine.forget()
        assert engine.hits(names) == len(names)
    finally:
        place.stop()


def test_bytes_flipped_on_disk_are_misses_and_never_served(place: Place, engines: list[Engine]) -> None:
    engine = Engine(place.socket, level="stored")
    engines.append(engine)
    names = keys("f", 16)
    engine.store(names)
    place.stop()
    assert place.damage() >= len(names)
    place.start()
    until(lambda: bool(engine.tier._blocks.alive), "attaching again")
    engine.forget()
    # `found` compares every byte of the hits.
    assert engine.hits(names) == 0
    assert engine.tier._own["load_failures"] > 0
    # The keys can be stored again.
    engine.store(names)
    engine.forget()
    assert engine.hits(names) == len(names)


def test_of_a_load_that_fails_in_part_the_rest_is_kept(place: Place, engines: list[Engine]) -> None:
    engine = Engine(place.socket, level="stored")
    engines.append(engine)
    names = keys("p", 16)
    engine.store(names)
    place.stop()
    assert place.damage(most=1) == 1
    place.start()
    until(lambda: bool(engine.tier._blocks.alive), "attaching again")
    engine.forget()
    assert sorted(result.name for result in engine.found(names)) == ["HIT"] * 15 + ["MISS"]
    assert engine.tier._own["load_failures"] == 1


def test_a_daemon_killed_in_mid_run_costs_misses_alone(
    place: Place, engines: list[Engine], caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(place.socket)
    engines.append(engine)
    names = keys("g", 16)
    engine.store(names)
    context = engine.request()
    for key in keys("h", 16):
        engine.manager.lookup(key, context)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "kvtide"):
        place.kill()
        engine.step()
        engine.manager.on_request_finished(context)
        until(lambda: not engine.tier._blocks.alive, "noticing")
        assert engine.hits(names) == len(names)  # vLLM's own region still has them
        engine.store(keys("i", 8))
        engine.forget()
        assert engine.hits(names) == 0
        place.start()
        until(lambda: bool(engine.tier._blocks.alive), "attaching again")
    said = [record.getMessage() for record in caplog.records if record.name.startswith("kvtide")]
    assert len(said) == 2, said
    assert "continuing without it" in said[0]
    assert "attached again" in said[1]
    engine.store(names)
    engine.forget()
    assert engine.hits(names) == len(names)


def test_loads_of_a_daemon_that_dies_fail_and_name_their_chunks(place: Place, engines: list[Engine]) -> None:
    engine = Engine(place.socket)
    engines.append(engine)
    names = keys("j", 16)
    engine.store(names)
    engine.forget()
    context = engine.request()

    def promised() -> bool:
        results = [engine.manager.lookup(key, context) for key in names]
        if all(result is LookupResult.HIT_PENDING for result in results):
            return True
        engine.step()
        return False

    # In this step all are hits. Their loads are submitted at its end, when the daemon is already gone.
    until(promised, "hits")
    place.kill()
    engine.step()
    engine.settle()
    assert [engine.manager.lookup(key, context) for key in names] == [LookupResult.MISS] * len(names)
    engine.manager.on_request_finished(context)
    assert engine.tier._own["load_failures"] == len(names)


def test_without_a_daemon_vllm_serves_from_its_own_region(
    tmp_path: Path, engines: list[Engine], caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(tmp_path / "later")
    with caplog.at_level(logging.WARNING, "kvtide"):
        engine = Engine(place.socket)
        engines.append(engine)
        names = keys("k", 8)
        engine.store(names)
        assert engine.hits(names) == len(names)
        assert engine.found(keys("l", 4)) == [LookupResult.MISS] * 4
        assert [r.getMessage().count("cannot attach") for r in caplog.records if r.name.startswith("kvtide")] == [1]
        place.start()
        try:
            until(lambda: bool(engine.tier._blocks.alive), "attaching")
            engine.forget()
            engine.store(names)
            engine.forget()
            assert engine.hits(names) == len(names)
        finally:
            place.stop()


def test_stores_beyond_the_bound_are_dropped_and_counted(place: Place, engines: list[Engine]) -> None:
    engine = Engine(place.socket, store_permille=1)
    engines.append(engine)
    with engine.tier._blocks._connection.channel(2):  # blocks stores while this thread holds the channel
        contexts = [engine.request() for _ in range(3)]
        for index, context in enumerate(contexts):
            (name,) = keys(f"m{index}", 1)
            engine.manager.prepare_store([name], context)
            engine.manager.complete_store([name], context)
        engine.step()  # ends the step in which the jobs were submitted
        engine.step()
        assert engine.tier._own["stores_dropped"] == 2
    engine.settle()
    for context in contexts:
        engine.manager.on_request_finished(context)
    stats = engine.manager.get_stats().reduce()
    assert stats["vllm:kv_offload_kvtide_stores_dropped"] == 2
    assert stats["vllm:kv_offload_kvtide_attached"] == 1


def test_every_metric_is_declared(place: Place, engines: list[Engine]) -> None:
    engine = Engine(place.socket)
    engines.append(engine)
    engine.store(keys("n", 4))
    engine.forget()
    engine.hits(keys("n", 6))
    stats = engine.manager.get_stats()
    declared = TieringOffloadingSpec.build_metric_definitions(engine.spec.extra_config)
    ours = {name for name in stats.data["data"] if "kvtide" in name}
    assert ours <= declared.keys()
    assert stats.reduce()["vllm:kv_offload_kvtide_lookups"] == 6
    assert stats.reduce()["vllm:kv_offload_kvtide_hits"] == 4


def test_hashes_seeded_at_random_are_refused(
    place: Place, engines: list[Engine], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.setattr(kv_cache_utils, "_NONE_HASH_SEED", "0123456789abcdef")
    names = keys("o", 4)
    engines += [Engine(place.socket), Engine(place.socket, private=True)]
    for engine in engines:
        engine.store(names)
        engine.forget()
    assert [engine.hits(names) for engine in engines] == [0, 4]
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(said) == 1
    assert "PYTHONHASHSEED" in said[0]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"sockets": "x"}, "unknown key 'sockets'"),
        ({"timeout_s": "long"}, "timeout_s in an entry of secondary_tiers is 'long'; it must be a number of seconds, or"),
        ({"timeout_s": "0s"}, "timeout_s is 0.0; it must be more than 0"),
        ({"level": "kept"}, "level is 'kept'; it must be one of 'published', 'stored', 'durable'"),
        ({"store_permille": 0}, "store_permille is 0; it must be more than 0"),
        ({"store_permille": 1001}, "store_permille is 1001; it must be from 1 to 1000"),
        ({"weights_id": None}, "cannot hash the weights"),
    ],
)
def test_configurations_that_are_wrong_are_refused(tmp_path: Path, given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Engine(tmp_path / "nobody.sock", **given)
