"""The relay's KV events, read by vLLM's own decoder. `src/relay/events/wire.rs` checks that the relay writes exactly these bytes."""

from __future__ import annotations

from pathlib import Path

import msgspec
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch

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
