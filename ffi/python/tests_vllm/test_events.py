"""KV events: the relay's, read by vLLM's own decoder (`src/relay/events/wire.rs` checks that the relay writes exactly these bytes), and the
connector's."""

from __future__ import annotations

from pathlib import Path

import msgspec
from engine import TOKENS, Engine, hashes, request
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from kvtide.daemon import PrivateDaemon
from kvtide.vllm.events import Announced

FIXTURES = Path(__file__).parents[3] / "src/relay/events/testdata/vllm.txt"


def test_vllms_own_classes_read_every_batch() -> None:
    decoder = msgspec.msgpack.Decoder(KVEventBatch)
    lines = dict(line.split(": ") for line in FIXTURES.read_text().splitlines())
    batches = {name: decoder.decode(bytes.fromhex(text)) for name, text in lines.items()}
    assert batches["empty"].events == [] and batches["cleared"].events == [AllBlocksCleared()]
    (root,) = batches["root"].events
    assert isinstance(root, BlockStored)
    assert (root.block_hashes, root.parent_block_hash, root.block_size, root.medium) == ([1, 2**64 - 1], None, 4, "CPU")
    assert root.token_ids == [i * 40_000 for i in range(8)]
    (child,) = batches["child"].events
    assert (child.block_hashes, child.parent_block_hash, child.lora_name) == ([300], 2**40, "a")
    stored, removed = batches["storage"].events
    assert (stored.medium, stored.parent_block_hash) == ("STORAGE", 127)
    assert isinstance(removed, BlockRemoved) and (removed.block_hashes, removed.medium) == ([128, 65536], "STORAGE")
    assert len(batches["long"].events[0].block_hashes) == 20


def publishing(engine: Engine) -> Announced:
    """Turn KV events of an engine on, as vLLM's `kv_events_config` does."""
    half = engine.scheduler
    half._announced = Announced(half._page_tokens, half._hashes_a_block, announced_max=8)
    return half._announced


def described(events: list[object]) -> list[tuple[str, object, object]]:
    """Return kind, hashes and parent of events."""
    return [(type(e).__name__, e.block_hashes, getattr(e, "parent_block_hash", "")) for e in events]  # type: ignore[attr-defined]


def test_the_connector_announces_what_was_stored_and_found(daemon: PrivateDaemon, tmp_path: Path) -> None:
    names = hashes("p", 3)
    tokens = list(range(3 * TOKENS + 1))
    with Engine(tmp_path, daemon.socket) as engine:
        assert engine.scheduler.take_events() == [], "off unless vLLM publishes events"
        publishing(engine)
        engine.prefill(request("r", names, all_token_ids=tokens), 1.0)
        events = engine.scheduler.take_events()
        public = [maybe_convert_block_hash(name) for name in names]
        assert described(events) == [("BlockStored", [public[at]], public[at - 1] if at else None) for at in range(3)]
        assert [event.token_ids for event in events] == [tokens[at : at + TOKENS] for at in range(0, 3 * TOKENS, TOKENS)]
        assert events[0].block_size == TOKENS and events[0].medium == "CPU"
        # A lookup that finds them changes nothing; one that finds less removes the others.
        assert engine.match(request("s", names, all_token_ids=tokens)) == (3 * TOKENS, True)
        assert engine.scheduler.take_events() == []
    with Engine(tmp_path, daemon.socket) as other:
        announced = publishing(other)
        assert other.match(request("t", names + hashes("q", 1), all_token_ids=tokens * 2)) == (3 * TOKENS, True)
        assert [kind for kind, _, _ in described(other.scheduler.take_events())] == ["BlockStored"] * 3
        announced.gone(request("t", names), 1)
        assert described(other.scheduler.take_events()) == [("BlockRemoved", public[1:], "")]
        # Salted prompts are nobody else's, and the table is bounded.
        announced.there(request("u", hashes("salted", 2), cache_salt="s", all_token_ids=tokens), 0, 2)
        assert other.scheduler.take_events() == []
        announced.there(request("v", hashes("more", 8), all_token_ids=tokens * 8), 0, 8)
        kinds = [kind for kind, _, _ in described(other.scheduler.take_events())]
        assert kinds == ["BlockStored"] * 8 + ["BlockRemoved"]
        other.scheduler.reset()
        ((kind, removed, _),) = described(other.scheduler.take_events())
        assert kind == "BlockRemoved" and len(removed) == 8  # type: ignore[arg-type]
