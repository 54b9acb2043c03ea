"""Make vllm.txt: KV events as msgspec encodes the classes of vLLM 0.28 and later.

    pip install msgspec
    python make.py > vllm.txt

The classes are declared as in vllm/distributed/kv_events.py, without their methods.
"""

import msgspec


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list
    parent_block_hash: bytes | int | None
    token_ids: list
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


def stored(medium, hashes, parent, lora):
    tokens = [i * 40_000 for i in range(len(hashes) * 4)]
    locality = "LOCAL" if medium == "STORAGE" else None
    return BlockStored(hashes, parent, tokens, 4, None, medium, lora, locality=locality)


CASES = {
    "empty": [],
    "cleared": [AllBlocksCleared()],
    "root": [stored("CPU", [1, 2**64 - 1], None, None)],
    "child": [stored("CPU", [300], 2**40, "a")],
    "storage": [
        stored("STORAGE", [70_000], 127, None),
        BlockRemoved([128, 65_536], "STORAGE", locality="LOCAL"),
    ],
    "long": [stored("CPU", list(range(1, 21)), None, None), BlockRemoved(list(range(1, 21)), "CPU")],
}

for name, events in CASES.items():
    batch = EventBatch(1_700_000_000.25, events)
    print(f"{name}: {msgspec.msgpack.Encoder().encode(batch).hex()}")
