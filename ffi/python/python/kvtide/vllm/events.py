"""KV events in vLLM's own stream about blocks that the daemon has, under vLLM's hashes. vLLM's own events are about its GPU blocks.

The daemon does not report evictions to engines, so this is what lookups and stores have shown: a block is announced when it was stored or
found, and removed when a lookup does not find it any more. The relay's stream (docs/design/relay.md) has all blocks and all changes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVCacheEvent
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

#: Where the blocks are, as far as routers distinguish.
MEDIUM = "CPU"
#: Blocks that are announced at a time. Those seen least recently are removed for others.
ANNOUNCED_MAX = 100_000


def plain(request: Any) -> bool:
    """Return whether the hashes of a request's blocks depend on tokens and adapter alone. Routers cannot recognize others, and tokens
    behind a salt are not for others to see."""
    return not (getattr(request, "cache_salt", None) or getattr(request, "mm_features", None) or getattr(request, "prompt_embeds", None) is not None)


def wanted(vllm_config: Any) -> bool:
    """Return whether vLLM publishes KV events."""
    config = getattr(vllm_config, "kv_events_config", None)
    return config is not None and bool(config.enable_kv_cache_events)


class Announced:
    """The blocks that were announced, and events that vLLM has not taken yet. All calls come from the scheduler's thread."""

    def __init__(self, page_tokens: int, hashes_a_block: int, announced_max: int = ANNOUNCED_MAX) -> None:
        self._page_tokens = page_tokens
        self._hashes_a_block = hashes_a_block
        self._announced_max = announced_max
        self._blocks: OrderedDict[bytes, None] = OrderedDict()
        self._events: list[KVCacheEvent] = []

    def _hash(self, request: Any, block: int) -> bytes:
        """Return vLLM's hash of a block: that of its last tokens."""
        found: bytes = request.block_hashes[(block + 1) * self._hashes_a_block - 1]
        return found

    def there(self, request: Any, first: int, end: int) -> None:
        """The daemon has the blocks from `first` to `end` of a request's prefix, and all before them."""
        if not plain(request):
            return
        adapter = request.lora_request
        for block in range(first, min(end, len(request.block_hashes) // self._hashes_a_block)):
            name = self._hash(request, block)
            if name in self._blocks:
                self._blocks.move_to_end(name)
                continue
            self._blocks[name] = None
            tokens = request.all_token_ids[block * self._page_tokens : (block + 1) * self._page_tokens]
            self._events.append(
                BlockStored(
                    block_hashes=[maybe_convert_block_hash(name)],
                    parent_block_hash=maybe_convert_block_hash(self._hash(request, block - 1)) if block else None,
                    token_ids=list(tokens),
                    block_size=self._page_tokens,
                    lora_id=None,
                    medium=MEDIUM,
                    lora_name=None if adapter is None else adapter.lora_name,
                )
            )
        while len(self._blocks) > self._announced_max:
            self._removed([self._blocks.popitem(last=False)[0]])

    def gone(self, request: Any, first: int) -> None:
        """The daemon does not have the block `first` of a request's prefix, so a lookup finds none of those after it."""
        blocks = range(first, len(request.block_hashes) // self._hashes_a_block)
        names = [name for block in blocks if (name := self._hash(request, block)) in self._blocks]
        for name in names:
            del self._blocks[name]
        self._removed(names)

    def clear(self) -> None:
        """Remove all blocks."""
        self._removed(list(self._blocks))
        self._blocks.clear()

    def _removed(self, names: Sequence[bytes]) -> None:
        if names:
            self._events.append(BlockRemoved(block_hashes=[maybe_convert_block_hash(name) for name in names], medium=MEDIUM))

    def take(self) -> list[KVCacheEvent]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events
