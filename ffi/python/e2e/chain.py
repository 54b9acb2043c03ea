"""Exact models of a prefix cache: an unbounded one, and an LRU cache."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence

#: Tokens of vLLM's blocks in these tests: the minimum of its CPU attention.
BLOCK_TOKENS = 32


def blocks(tokens: Sequence[int]) -> list[bytes]:
    """Return a name for each full block. It covers the block's tokens and all before them."""
    names, name = [], b""
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        chunk = b"".join(t.to_bytes(2, "little") for t in tokens[start : start + BLOCK_TOKENS])
        names.append(name := hashlib.sha256(name + chunk).digest())
    return names


def computed(prompt: Sequence[int], output: Sequence[int]) -> list[bytes]:
    """Return the blocks that an engine has computed when a request ends. The last token's KV was never computed."""
    return blocks([*prompt, *output][:-1])


def usable(prompt: Sequence[int]) -> int:
    """Return the blocks of a prompt that a hit may cover. Its last token is always computed, because it gives the first logits."""
    return (len(prompt) - 1) // BLOCK_TOKENS


class Cache:
    """Blocks by name. With `room`, at most that many; the least recently used goes first, children before their parents."""

    def __init__(self, room: int | None = None) -> None:
        self._room = room
        self._held: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def hit_tokens(self, prompt: Sequence[int]) -> int:
        """Return the tokens of the longest cached prefix that an engine can use."""
        found = 0
        for name in blocks(prompt)[: usable(prompt)]:
            if name not in self._held:
                break
            found += 1
        return found * BLOCK_TOKENS

    def missing(self, names: Iterable[bytes]) -> int:
        """Return how many of the names are not cached."""
        return sum(name not in self._held for name in names)

    def use(self, names: Sequence[bytes]) -> None:
        """Insert or touch a request's blocks, last one first, so that no block outlives its parent."""
        for name in reversed(names):
            self._held[name] = None
            self._held.move_to_end(name)
        while self._room is not None and len(self._held) > self._room:
            self._held.popitem(last=False)
