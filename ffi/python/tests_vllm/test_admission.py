"""Limits with the meaning of vLLM's OffloadingConnector: max_offload_tokens, max_load_tokens, offload_prompt_only, store_threshold,
blocks_per_chunk."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine import BLOCKS, TOKENS, Engine, full, hashes, request, window
from test_halves import same

from kvtide.daemon import PrivateDaemon
from kvtide.vllm import admission
from kvtide.vllm.admission import Offers, RequestLimits


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The warnings of a test, as a list that grows."""
    monkeypatch.setattr(admission, "_warned", set())
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    admission.logger.addHandler(handler)
    yield found
    admission.logger.removeHandler(handler)


def stored(step: Any) -> list[tuple[int, int]]:
    """Return the first block and the number of vLLM's blocks of each of the step's stores."""
    return [(job.first, len(job.ids)) for job in step.stores]


@pytest.mark.parametrize(("limit", "blocks"), [(0, 0), (TOKENS - 1, 0), (2 * TOKENS, 2), (3 * TOKENS - 1, 2), (1000, 4)])
def test_max_offload_tokens_limits_what_is_stored(daemon: PrivateDaemon, tmp_path: Path, limit: int, blocks: int) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        asked = request("r", hashes("p", 4), kv_transfer_params={"max_offload_tokens": limit})
        assert stored(engine.prefill(asked, 1.0)) == ([(0, blocks)] if blocks else [])
        engine.finish(asked)
        assert engine.step({}).stores == []
        assert "blocks_store_skipped" not in engine.scheduler.stats.data
        assert engine.free() == BLOCKS - 1
        assert engine.match(request("s", hashes("p", 4)))[0] == blocks * TOKENS, "others are not limited"


def test_max_load_tokens_limits_what_is_loaded(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        engine.prefill(request("r", hashes("p", 4)), 1.0)
        cases = ((0, 0, 0), (2 * TOKENS + 1, 0, 2 * TOKENS), (TOKENS, TOKENS, TOKENS), (999, 0, 4 * TOKENS))
        for at, (limit, computed, tokens) in enumerate(cases):
            asked = request(f"s{at}", hashes("p", 4), kv_transfer_params={"max_load_tokens": limit})
            assert engine.scheduler.matched(asked, computed)[0] == tokens


@pytest.mark.parametrize("wrong", [-1, "64", 1.5, True, [], {}])
def test_a_wrong_limit_is_ignored_with_one_warning(warnings: list[str], wrong: object) -> None:
    for _ in range(3):
        assert RequestLimits.of({"max_offload_tokens": wrong, "do_remote_decode": True}) == RequestLimits()
    (said,) = warnings
    assert "max_offload_tokens" in said
    assert repr(wrong) in said
    assert RequestLimits.of({"max_offload_tokens": 3}) == RequestLimits(None, 3)


@pytest.mark.parametrize("wrong", [[], "text", 7, {"max_offload_tokens": "x"}])
def test_wrong_parameters_do_not_fail_the_engine(daemon: PrivateDaemon, tmp_path: Path, wrong: object, warnings: list[str]) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        for name in "rs":
            asked = request(name, hashes(name, 2), kv_transfer_params=wrong)
            assert stored(engine.prefill(asked, 1.0)) == [(0, 2)]
    assert len(warnings) == 1


@pytest.mark.parametrize(("only", "blocks"), [(False, 4), (True, 2)])
def test_offload_prompt_only_stores_no_answers(daemon: PrivateDaemon, tmp_path: Path, only: bool, blocks: int) -> None:
    with Engine(tmp_path, daemon.socket, offload_prompt_only=only) as engine:
        asked = request("r", hashes("p", 4), num_prompt_tokens=2 * TOKENS + 5)
        assert stored(engine.prefill(asked, 1.0)) == [(0, blocks)], "the block with the end of the prompt has tokens of the answer"
        engine.finish(asked)
        assert engine.step({}).stores == []


def test_a_block_is_stored_after_store_threshold_offers(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket, store_threshold=3) as engine:
        for name in "ab":
            asked = request(name, hashes("p", 3))
            engine.match(asked)
            for _ in range(4):  # each request offers a block once, however many steps it takes
                assert engine.step({name: asked.num_tokens}, [(asked, 1.0)]).stores == []
            asked.num_computed_tokens = asked.num_tokens
            engine.finish(asked)
            engine.end()
        assert engine.scheduler.stats.data["blocks_store_below_threshold"] == 6
        assert stored(engine.prefill(request("c", hashes("p", 3) + hashes("new", 1)), 1.0)) == [(0, 3)], "not the new block"
        assert engine.match(request("d", hashes("p", 3)))[0] == 3 * TOKENS
        assert stored(engine.prefill(request("e", hashes("p", 3) + hashes("new", 1)), 1.0)) == []
        assert stored(engine.prefill(request("f", hashes("p", 3) + hashes("new", 1)), 1.0)) == [(3, 1)]


@pytest.mark.parametrize("threshold", [0, 1])
def test_thresholds_below_two_store_at_once(daemon: PrivateDaemon, tmp_path: Path, threshold: int) -> None:
    with Engine(tmp_path, daemon.socket, store_threshold=threshold) as engine:
        assert stored(engine.prefill(request("a", hashes("p", 3)), 1.0)) == [(0, 3)]


def test_admitted_blocks_wait_for_room_like_others(daemon: PrivateDaemon, tmp_path: Path) -> None:
    page = 2 * 2 * TOKENS * 16 * 2
    with Engine(tmp_path, daemon.socket, store_threshold=2, store_bytes=2 * page) as engine:
        engine.prefill(request("a", hashes("p", 5)), 1.0)
        asked = request("b", hashes("p", 5))
        engine.match(asked)
        found = []
        for _ in range(3):
            found += stored(engine.step({"b": asked.num_tokens}, [(asked, 1.0)]))
            engine.end()
        assert found == [(0, 2), (2, 2), (4, 1)]


def test_offers_are_bounded_and_forget_children_before_parents() -> None:
    offers, keys = Offers(2, 4), [bytes([at]) * 16 for at in range(6)]
    assert offers.offer(keys) == 0
    assert list(offers._counts) == keys[3::-1], "no more than four, the first ones"
    assert offers.offer([bytes([99]) * 16]) == 0
    assert keys[3] not in offers._counts
    assert offers.offer(keys[:4]) == 3
    assert len(offers._counts) == 4
    offers = Offers(2, 100)
    offers.offer(keys[1:])
    assert offers.offer(keys) == 0, "the first block is new, and the others would lack their parent"
    assert offers.offer(keys) == 6


@pytest.mark.parametrize("options", [{}, {"staging": "always"}])
def test_chunks_are_found_by_an_engine_with_the_same_size_only(
    daemon: PrivateDaemon, tmp_path: Path, options: dict[str, object]
) -> None:
    with Engine(tmp_path, daemon.socket, blocks_per_chunk=3, **options) as engine:
        asked = request("r", hashes("p", 8))
        assert stored(engine.prefill(asked, 1.0)) == [(0, 6)], "two chunks of three blocks; the rest is less than one"
        expected = engine.shown(asked, 6)
    with Engine(tmp_path, daemon.socket, **options) as engine:
        assert engine.match(request("s", hashes("p", 8)))[0] == 0
    with Engine(tmp_path, daemon.socket, blocks_per_chunk=3, **options) as engine:
        asked = request("t", hashes("p", 8))
        assert engine.match(asked) == (6 * TOKENS, True)
        engine.step({})
        assert engine.end() == ({"t"}, set(), set())
        assert same(engine.shown(asked, 6), expected)


@pytest.mark.parametrize("staging", ["auto", "always"])
@pytest.mark.parametrize("own", [1, 2, 3, 4, 5])
def test_a_load_that_starts_inside_a_chunk_leaves_vllms_own_blocks_alone(
    daemon: PrivateDaemon, tmp_path: Path, own: int, staging: str
) -> None:
    with Engine(tmp_path, daemon.socket, blocks_per_chunk=3, staging=staging) as engine:
        asked = request("r", hashes("p", 6))
        engine.prefill(asked, 1.0)
        expected = engine.shown(asked, 6)
        again = request("s", hashes("p", 6))
        assert engine.match(again, own * TOKENS) == ((6 - own) * TOKENS, True)
        for tensor in engine.tensors.values():
            tensor[[block.block_id for block in engine.blocks["s"][0]]] = 9.0
        engine.step({})
        assert engine.end() == ({"s"}, set(), set())
        for found, wanted in zip(engine.shown(again, 6), expected, strict=True):
            assert bool((found[:own] == 9.0).all())
            assert found[own:].equal(wanted[own:])


def test_a_failed_load_inside_a_chunk_names_only_blocks_that_it_was_to_load(
    daemon: PrivateDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine(tmp_path, daemon.socket, blocks_per_chunk=3) as engine:
        engine.prefill(request("r", hashes("p", 6)), 1.0)
        asked = request("s", hashes("p", 6))
        assert engine.match(asked, 2 * TOKENS) == (4 * TOKENS, True)
        monkeypatch.setattr(engine.worker._transfer, "load", lambda *_: 0)
        engine.step({})
        ids = [block.block_id for block in engine.blocks["s"][0]]
        assert engine.end() == ({"s"}, set(), set(ids[2:]))


def test_chunks_of_several_groups(daemon: PrivateDaemon, tmp_path: Path) -> None:
    groups = [full(2 * TOKENS), window(TOKENS)]
    with Engine(tmp_path, daemon.socket, groups, blocks_per_chunk=2) as engine:
        asked = request("r", hashes("p", 8))
        assert stored(engine.prefill(asked, 1.0)) == [(0, 6)], "a chunk of two full and four window blocks; no more at once"
        assert stored(engine.step({"r": 0})) == [(1, 6)]
        engine.end()
        expected = engine.shown(asked, 8)
        again = request("s", hashes("p", 8) + hashes("more", 2))
        assert engine.match(again, 2 * TOKENS) == (6 * TOKENS, True), "vLLM's own prefix ends inside the first chunk"
        engine.step({})
        assert engine.end() == ({"s"}, set(), set())
        assert same([tensor[1:] for tensor in engine.shown(again, 8)[:2]], [tensor[1:] for tensor in expected[:2]])
        assert same([tensor[-2:] for tensor in engine.shown(again, 8)[2:]], [tensor[-2:] for tensor in expected[2:]])


def test_chunks_that_are_too_large_are_refused_with_the_limit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="blocks_per_chunk is 65; for this model it must be at most 64"):
        Engine(tmp_path, tmp_path / "none", blocks_per_chunk=65)
