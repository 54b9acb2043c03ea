"""What a prefix cache can hit: exact models of one with room for everything, and of one that forgets what was used longest ago."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence

#: Tokens of vLLM's blocks in these tests: the smallest that its CPU attention takes.
BLOCK_TOKENS = 32


def blocks(tokens: Sequence[int]) -> list[bytes]:
    """A name for each full block, which covers its tokens and all before them."""
    names, name = [], b""
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        chunk = b"".join(t.to_bytes(2, "little") for t in tokens[start : start + BLOCK_TOKENS])
        names.append(name := hashlib.sha256(name + chunk).digest())
    return names


def computed(prompt: Sequence[int], output: Sequence[int]) -> list[bytes]:
    """The blocks whose KV an engine has when a request ends: the last token's was never computed."""
    return blocks([*prompt, *output][:-1])


def usable(prompt: Sequence[int]) -> int:
    """Blocks of a prompt that a hit may cover: its last token is computed in any case, as it gives the first logits."""
    return (len(prompt) - 1) // BLOCK_TOKENS


class Cache:
    """Whole blocks by name; with `room`, at most so many, and what was used longest ago goes first, leaves before what they stand on."""

    def __init__(self, room: int | None = None) -> None:
        self._room = room
        self._held: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def hit_tokens(self, prompt: Sequence[int]) -> int:
        """Tokens of the longest prefix that is here, as far as an engine can use it."""
        found = 0
        for name in blocks(prompt)[: usable(prompt)]:
            if name not in self._held:
                break
            found += 1
        return found * BLOCK_TOKENS

    def missing(self, names: Iterable[bytes]) -> int:
        """How many of these are not here."""
        return sum(name not in self._held for name in names)

    def use(self, names: Sequence[bytes]) -> None:
        """A request's blocks, first to last, are used or come: the deepest first, so that no block outlives what it stands on."""
        for name in reversed(names):
            self._held[name] = None
            self._held.move_to_end(name)
        while self._room is not None and len(self._held) > self._room:
            self._held.popitem(last=False)
