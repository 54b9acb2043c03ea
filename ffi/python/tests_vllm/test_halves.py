"""Both halves of the connector with a daemon: loads return the stored bytes, and no call waits for the cache."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from engine import BLOCKS, TOKENS, Engine, full, hashes, request, window
from waiting import attached

from kvtide.daemon import PrivateDaemon
from kvtide.errors import Again, NotFound
from kvtide.vllm.worker import IDLE_S


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("options", [{}, {"staging": "always"}, {"staging": "always", "staging_bytes": 1}])
def test_what_one_engine_stores_another_loads(daemon: PrivateDaemon, tmp_path: Path, options: dict[str, object]) -> None:
    prompt = hashes("p", 5)
    with Engine(tmp_path, daemon.socket, **options) as first:
        asked = request("r", prompt)
        first.prefill(asked, 1.0)
        expected = first.shown(asked, 5)
        first.finish(asked)
        assert first.free() == BLOCKS - 1, "held for nothing any more; one is vLLM's null block"
    with Engine(tmp_path, daemon.socket, **options) as second:
        assert second.match(request("other", hashes("q", 5))) == (0, False)
        longer = request("r", prompt + hashes("more", 1))
        assert second.match(longer) == (5 * TOKENS, True)
        assert len(second.step({}).loads) == 1
        assert second.end() == ({"r"}, set(), set())
        assert same(second.shown(longer, 5), expected)


def test_a_consumer_loads_and_never_stores(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket, role="kv_consumer") as consumer, Engine(tmp_path, daemon.socket) as other:
        own = request("own", hashes("own", 3))
        assert consumer.prefill(own, 1.0).stores == []
        consumer.finish(own)
        assert consumer.free() == BLOCKS - 1, "its blocks are held for nothing"
        assert other.match(request("own", hashes("own", 3))) == (0, False)
        stored = request("stored", hashes("p", 3))
        other.prefill(stored, 2.0)
        loaded = request("loaded", hashes("p", 3))
        assert consumer.match(loaded) == (3 * TOKENS, True)
        assert len(consumer.step({}).loads) == 1
        assert consumer.end() == ({"loaded"}, set(), set())
        assert same(consumer.shown(loaded, 3), other.shown(stored, 3))


def test_a_producer_stores_and_never_loads(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket, role="kv_producer") as producer, Engine(tmp_path, daemon.socket) as other:
        assert [(job.first, len(job.ids)) for job in producer.prefill(request("r", hashes("p", 3)), 1.0).stores] == [(0, 3)]
        again = request("s", hashes("p", 3) + hashes("more", 1))
        assert producer.match(again) == (0, False)
        step = producer.step({"s": again.num_tokens}, [(again, 1.0)])
        assert step.loads == []
        assert [(job.first, len(job.ids)) for job in step.stores] == [(3, 1)], "cached blocks are not stored again"
        producer.end()
        assert other.match(request("t", hashes("p", 3) + hashes("more", 1))) == (4 * TOKENS, True)


def test_the_last_token_is_always_computed(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        engine.prefill(request("r", hashes("p", 3)), 1.0)
        assert engine.scheduler.matched(request("whole", hashes("p", 3), more=0), 0)[0] == 2 * TOKENS
        assert engine.scheduler.matched(request("part", hashes("p", 3)), TOKENS)[0] == 2 * TOKENS, "beyond vLLM's own"
        assert engine.scheduler.matched(request("all", hashes("p", 3)), 3 * TOKENS) == (0, False)


def test_only_new_blocks_are_stored(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        stored = engine.prefill(request("r", hashes("p", 3)), 1.0).stores
        assert [(job.first, len(job.ids)) for job in stored] == [(0, 3)]
        again = engine.prefill(request("s", hashes("p", 3) + hashes("s", 2)), 2.0).stores
        assert [(job.first, len(job.ids)) for job in again] == [(3, 2)]
        assert engine.prefill(request("t", hashes("p", 3)), 2.0).stores == []


def test_chunks_are_stored_as_they_fill_blocks(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        asked = request("r", hashes("p", 4))
        engine.match(asked)
        begun = []
        for chunk in (TOKENS - 1, 2, 2 * TOKENS - 1, TOKENS):
            step = engine.step({"r": chunk})
            asked.num_computed_tokens += chunk
            begun.append([(job.first, len(job.ids)) for job in step.stores])
        assert begun == [[], [(0, 1)], [(1, 2)], [(3, 1)]]


def test_tokens_that_a_drafter_guessed_are_not_stored(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        asked = request("r", hashes("p", 2))
        engine.match(asked)
        asked.block_hashes = hashes("p", 1)  # the second block consists of guesses: it has no hash
        assert [(job.first, len(job.ids)) for job in engine.step({"r": 2 * TOKENS}).stores] == [(0, 1)]


def test_stores_hold_their_blocks_until_they_end(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        asked = request("r", hashes("p", 4))
        engine.match(asked)
        engine.step({"r": asked.num_tokens}, [(asked, 1.0)])
        assert not engine.scheduler.holds_alone()
        asked.num_computed_tokens = asked.num_tokens
        engine.finish(asked)
        assert engine.free() == BLOCKS - 1 - 4
        assert engine.scheduler.pending()
        assert engine.scheduler.holds_alone()
        engine.end()
        assert engine.free() == BLOCKS - 1
        assert not engine.scheduler.pending()


def test_more_than_store_bytes_waits_for_a_later_step(daemon: PrivateDaemon, tmp_path: Path) -> None:
    page = 2 * 2 * TOKENS * 16 * 2
    with Engine(tmp_path, daemon.socket, store_bytes=2 * page) as engine:
        asked = request("r", hashes("p", 5))
        engine.match(asked)
        counts = []
        for _ in range(3):
            counts.append(sum(len(job.ids) for job in engine.step({"r": asked.num_tokens}, [(asked, 1.0)]).stores))
            assert engine.step({"r": 0}).stores == [], "no more while these stores run"
            engine.end()
        assert counts == [2, 2, 1]
        late = request("s", hashes("s", 5))
        engine.match(late)
        late.num_computed_tokens = late.num_tokens
        engine.finish(late)
        assert engine.scheduler.stats.data["blocks_store_skipped"] == 3


def test_a_request_that_is_over_stores_what_it_has(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        asked = request("r", hashes("p", 3))
        engine.match(asked)
        engine.compute(asked, 1.0)
        asked.num_computed_tokens = 2 * TOKENS  # aborted during its prefill
        engine.finish(asked)
        assert [len(job.ids) for job in engine.step({}).stores] == [2]
        engine.end()
        assert engine.scheduler.matched(request("s", hashes("p", 3)), 0)[0] == 2 * TOKENS
        assert engine.free() == BLOCKS - 1


def test_two_requests_with_one_prefix_store_it_once(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        a, b = request("a", hashes("p", 3)), request("b", hashes("p", 3) + hashes("b", 1))
        engine.match(a)
        engine.match(b)
        step = engine.step({"a": a.num_tokens, "b": b.num_tokens}, [(a, 1.0), (b, 1.0)])
        assert [(job.first, len(job.ids)) for job in step.stores] == [(0, 3), (3, 1)]
        engine.end()
        assert engine.scheduler.matched(request("c", hashes("p", 3) + hashes("b", 1)), 0)[0] == 4 * TOKENS


def test_a_failed_load_names_its_blocks_and_what_it_had_promised_is_not_stored(
    daemon: PrivateDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        engine.prefill(request("r", hashes("p", 4)), 1.0)
        asked = request("s", hashes("p", 4))
        assert engine.match(asked) == (4 * TOKENS, True)
        monkeypatch.setattr(engine.worker._transfer, "load", lambda *_: 1)
        step = engine.step({})
        ids = [block.block_id for block in engine.blocks["s"][0]]
        assert engine.end() == ({"s"}, set(), set(ids[1:]))
        assert step.loads[0].ids == ids
        stats = engine.worker.stats.take()
        assert stats is not None
        assert stats.data["blocks_load_failed"] == 3
        # The blocks are gone and the request was aborted. vLLM still counts all promised tokens as computed.
        engine.scheduler._tracked["s"].next_store = 1
        engine.finish(asked)
        assert engine.step({}).stores == []


def test_what_a_load_ends_with_is_told_in_one_step(daemon: PrivateDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        engine.prefill(request("r", hashes("p", 4)), 1.0)
        assert engine.match(request("s", hashes("p", 4))) == (4 * TOKENS, True)
        monkeypatch.setattr(engine.worker._transfer, "load", lambda *_: 1)
        step = engine.scheduler.step({})
        assert engine.worker.take_loaded() == (set(), set())
        engine.worker.start_loads(step)
        engine.worker._drain()  # it ends between two calls that vLLM makes in a step
        assert engine.worker.take_invalid_blocks() == set()
        assert engine.worker.take_metadata() is None
        loaded, _, invalid = engine.end()
        assert (loaded, len(invalid)) == ({"s"}, 3)
        assert engine.scheduler._tracked["s"].failed


def test_a_lease_that_a_full_channel_does_not_drop_is_dropped_by_a_later_step(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        engine.prefill(request("r", hashes("p", 2)), 1.0)
        asked = request("s", hashes("p", 2))
        assert engine.scheduler.matched(asked, 0)[0] == 2 * TOKENS
        held = engine.scheduler._tracked["s"].held
        assert held is not None
        lease, refusals = held.lease, [Again("the ring is full")] * 2

        def release() -> None:
            if refusals:
                raise refusals.pop()
            lease.release()

        held.lease = SimpleNamespace(release=release)  # type: ignore[assignment]
        engine.scheduler.finished(asked)
        for undropped in ([held], []):
            assert engine.scheduler._undropped == [held]
            engine.step({})
            assert engine.scheduler._undropped == undropped
        with pytest.raises(NotFound):
            engine.scheduler._channel().truncate(lease.seq, 0, timeout=10.0)


def test_without_a_daemon_it_serves_and_attaches_when_there_is_one(tmp_path: Path) -> None:
    socket = tmp_path / "kvtide.sock"
    with Engine(tmp_path, socket) as engine:
        asked = request("r", hashes("p", 2))
        assert engine.match(asked) == (0, False)
        assert engine.step({"r": asked.num_tokens}).stores == []
        engine.finish(asked)
        assert engine.free() == BLOCKS - 1
        assert engine.scheduler.stats.data["attach_failures"] >= 1
        with PrivateDaemon(64 << 20, slab_bytes=1 << 20) as daemon:
            socket.symlink_to(daemon.socket)
            for connection in (engine.scheduler._connection, engine.worker._connection):
                assert connection is not None
                attached(connection)
            engine.prefill(request("s", hashes("p", 2)), 1.0)
            assert engine.scheduler.matched(request("t", hashes("p", 2)), 0)[0] == 2 * TOKENS


def test_a_window_that_left_a_block_ends_the_prefix(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        asked = request("r", hashes("p", 4))
        engine.match(asked)
        blocks = engine.blocks["r"][0]
        engine.pool.free_blocks([blocks[2]])
        blocks[2] = engine.pool.null_block
        assert [(job.first, len(job.ids)) for job in engine.step({"r": asked.num_tokens}).stores] == [(0, 2)]
        assert engine.step({"r": 1}).stores == []
        assert engine.scheduler.stats.data["blocks_store_windowed"] == 2


def test_reset_is_a_new_epoch(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        engine.prefill(request("r", hashes("p", 2)), 1.0)
        running = request("s", hashes("p", 2) + hashes("s", 1))
        assert engine.match(running)[0] == 2 * TOKENS
        engine.step({"s": 1})
        engine.end()
        engine.give_back("r", "s")
        assert engine.scheduler.reset()
        assert engine.scheduler.matched(running, 0) == (0, False), "it was preempted, and is of both epochs"
        engine.allocate(running)
        assert engine.step({"s": 3 * TOKENS}).stores == []
        assert engine.scheduler.matched(request("t", hashes("p", 2)), 0) == (0, False)
        engine.prefill(request("u", hashes("p", 2)), 3.0)
        assert engine.scheduler.matched(request("v", hashes("p", 2)), 0)[0] == 2 * TOKENS
    with Engine(tmp_path, daemon.socket) as engine:
        assert engine.scheduler.matched(request("r", hashes("p", 2)), 0)[0] == 2 * TOKENS, "the files' weights again"


def test_a_reset_while_vllm_keeps_blocks_of_before_stops_the_cache_until_one_succeeds(
    daemon: PrivateDaemon, tmp_path: Path
) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        engine.prefill(request("r", hashes("p", 2)), 1.0)
        assert not engine.scheduler.reset(), "the request's blocks are in use: vLLM's own cache still has them"
        between = request("s", hashes("p", 2))
        assert engine.prefill(between, 2.0).stores == [], "its parents may be from before the reset"
        engine.give_back("r", "s")
        assert engine.scheduler.matched(request("t", hashes("p", 2)), 0) == (0, False)
        assert engine.scheduler.reset()
        engine.prefill(request("u", hashes("p", 2)), 3.0)
        assert engine.scheduler.matched(request("v", hashes("p", 2)), 0)[0] == 2 * TOKENS


def test_engines_whose_weights_differ_share_nothing(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        engine.prefill(request("r", hashes("p", 2)), 1.0)
    for given in ({"seed": 1}, {"weights_id": "other"}, {"epoch": "step 1"}):
        with Engine(tmp_path, daemon.socket, **given) as engine:  # type: ignore[arg-type]
            assert engine.match(request("r", hashes("p", 2))) == (0, False), given


def test_what_differs_from_the_engine_whose_blocks_are_not_found_is_logged_once(
    daemon: PrivateDaemon, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("vllm").addHandler(caplog.handler)  # vLLM's loggers do not propagate
    try:
        with caplog.at_level(logging.INFO, "vllm"):
            for given in ({}, {}, {"weights_id": "other"}):
                caplog.clear()
                with Engine(tmp_path, daemon.socket, space="told", **given) as engine:
                    engine.prefill(request("r", hashes("p", 2)), 1.0)
                records = {id(record): record for record in caplog.records}.values()  # some are handled twice
                said = [text for record in records if "no blocks are found" in (text := record.getMessage())]
                expected = "kvtide: no blocks are found for 'told': the stored ones are of an engine with different weights"
                assert said == [expected] * bool(given), given
    finally:
        logging.getLogger("vllm").removeHandler(caplog.handler)


def test_adapters_of_one_name_are_told_apart_by_content(daemon: PrivateDaemon, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    weights = folder / "adapter_model.safetensors"
    with Engine(tmp_path, daemon.socket) as engine:
        for number, content, found in ((1, b"one", 0), (2, b"two!", 0), (3, b"one", 2 * TOKENS)):
            weights.write_bytes(content)
            lora = SimpleNamespace(lora_int_id=number, lora_name="a", lora_path=str(folder), load_inplace=False)
            asked = request(f"r{number}", hashes("p", 2), lora_request=lora)
            assert engine.scheduler.matched(asked, 0) == (None, False), "it is being read"
            next(reversed(engine.scheduler._lora._known.values())).result(60)
            assert engine.match(asked)[0] == found, content
            engine.step({asked.request_id: asked.num_tokens - found}, [(asked, 1.0)])
            engine.end()
        lora = SimpleNamespace(lora_int_id=4, lora_name="b", lora_path=str(tmp_path / "none"), load_inplace=False)
        asked = request("r4", hashes("p", 2), lora_request=lora)
        assert engine.scheduler.matched(asked, 0) == (None, False)
        with pytest.raises(FileNotFoundError):
            next(reversed(engine.scheduler._lora._known.values())).result(60)
        assert engine.match(asked) == (0, False)
        assert engine.step({"r4": asked.num_tokens}).stores == []


def test_an_adapter_that_is_loaded_in_place_is_read_once_for_each_request(daemon: PrivateDaemon, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    weights = folder / "adapter_model.safetensors"
    with Engine(tmp_path, daemon.socket) as engine:
        for at, (content, in_place, found) in enumerate(((b"one", False, 0), (b"two!", True, 0), (b"three", True, 0), (b"two!", True, 2))):
            weights.write_bytes(content)
            lora = SimpleNamespace(lora_int_id=1, lora_name="a", lora_path=str(folder), load_inplace=in_place)
            asked = request(f"r{at}", hashes("p", 2), lora_request=lora)
            assert engine.scheduler.matched(asked, 0) == (None, False), "it is being read"
            next(reversed(engine.scheduler._lora._known.values())).result(60)
            assert engine.match(asked)[0] == found * TOKENS, content
            engine.step({asked.request_id: asked.num_tokens - found * TOKENS}, [(asked, 1.0)])
            engine.end()
        lora = SimpleNamespace(lora_int_id=1, lora_name="a", lora_path=str(folder), load_inplace=False)
        assert engine.scheduler.matched(request("s", hashes("p", 2), lora_request=lora), 0) == (None, False), "it is another by now"


def test_a_daemon_that_died_is_replaced_by_the_next_one(tmp_path: Path) -> None:
    socket = tmp_path / "kvtide.sock"
    with PrivateDaemon(64 << 20, slab_bytes=1 << 20) as first:
        socket.symlink_to(first.socket)
        with Engine(tmp_path, socket) as engine:
            engine.prefill(request("r", hashes("p", 2)), 1.0)
            asked = request("s", hashes("p", 2))
            assert engine.match(asked) == (2 * TOKENS, True)
            first.kill()
            engine.step({})
            loaded, _, invalid = engine.end()
            assert (loaded, len(invalid)) == ({"s"}, 2)
            assert engine.match(request("t", hashes("p", 2))) == (0, False)
            with PrivateDaemon(64 << 20, slab_bytes=1 << 20) as second:
                fresh = tmp_path / "fresh"
                fresh.symlink_to(second.socket)
                fresh.replace(socket)
                for connection in (engine.scheduler._connection, engine.worker._connection):
                    assert connection is not None
                    attached(connection)
                engine.prefill(request("u", hashes("p", 2)), 1.0)
                assert engine.scheduler.matched(request("v", hashes("p", 2)), 0)[0] == 2 * TOKENS


def test_asleep_nothing_touches_the_tensors_and_awake_it_goes_on(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        engine.prefill(request("r", hashes("p", 2)), 1.0)
        assert engine.match(request("s", hashes("p", 2))) == (2 * TOKENS, True)
        engine.step({})
        engine.worker.release()
        assert engine.worker.take_loaded() == ({"s"}, set()), "the running load has ended"
        assert engine.worker.take_invalid_blocks() == set()
        assert engine.worker._connection is not None
        assert engine.worker._connection.channel(0) is None
        assert engine.match(request("t", hashes("p", 2))) == (2 * TOKENS, True)
        engine.step({})
        assert len(engine.end()[2]) == 2, "no memory to load into"
        engine.worker.restore()
        assert engine.match(request("u", hashes("p", 2))) == (2 * TOKENS, True)
        engine.step({})
        assert engine.end() == ({"u"}, set(), set())


@pytest.mark.parametrize("staging", ["auto", "always"])
@pytest.mark.parametrize("sizes", [(TOKENS, TOKENS), (2 * TOKENS, TOKENS)])
def test_groups_are_stored_together_and_loaded_together(
    daemon: PrivateDaemon, tmp_path: Path, sizes: tuple[int, int], staging: str
) -> None:
    groups = [full(sizes[0]), window(sizes[1])]
    with Engine(tmp_path, daemon.socket, groups, staging=staging) as first:
        asked = request("r", hashes("p", 6))
        first.prefill(asked, 1.0)
        expected = first.shown(asked, 4)
    with Engine(tmp_path, daemon.socket, groups, staging=staging) as second:
        longer = request("r", hashes("p", 4) + hashes("more", 2))
        assert second.match(longer) == (4 * TOKENS, True), "between steps: failures are reported by request"
        second.step({})
        assert second.end() == ({"r"}, set(), set())
        # In a window's plane only the blocks inside the window must be loaded.
        assert same(second.shown(longer, 4)[:2], expected[:2])
        read = [tensor[-2:] for tensor in second.shown(longer, 4)[2:]]
        assert same(read, [tensor[-2:] for tensor in expected[2:]])


def test_a_step_with_nothing_to_compute_waits_for_loads_and_no_other_does(
    daemon: PrivateDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        engine.prefill(request("r", hashes("p", 2)), 1.0)
        waited: list[float] = []
        monkeypatch.setattr(engine.worker._lock, "wait", waited.append)
        assert engine.match(request("s", hashes("p", 2))) == (2 * TOKENS, True)
        engine.worker._loading += 1  # simulates a load that does not end
        engine.step({"r": 1})
        engine.end()
        assert waited == []
        engine.step({})
        engine.worker.take_loaded()
        assert waited == [IDLE_S]
        engine.worker._loading -= 1
        engine.step({})
        engine.worker.take_loaded()
        assert (engine.worker._loading, len(waited)) == (0, 1)
