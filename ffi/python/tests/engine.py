"""An engine with its own blocks, for tests: writes the expected content of a prefix's blocks, and verifies it."""

from __future__ import annotations

import hashlib

import numpy as np

import kvtide
from kvtide.blocks import HASH_BYTES, pieces

#: Number of blocks. Pages: K and V of a layer in separate pieces, and a plane of another size.
BLOCKS = 64
PAGES = (2 * 512, 384)


def space(name: str, **changes: object) -> kvtide.Space:
    """Return a space for these pages that no other engine shares."""
    fingerprint = hashlib.sha256(name.encode()).digest()
    given: dict[str, object] = {"name": name, "fingerprint": fingerprint, "page_tokens": 16}
    given["planes"] = [kvtide.Plane(page) for page in PAGES]
    return kvtide.Space(**(given | changes))  # type: ignore[arg-type]


def hashes(prefix: int, blocks: int) -> list[bytes]:
    """Return the hashes of a prefix's blocks."""
    return [(prefix << 64 | block + 1).to_bytes(HASH_BYTES, "little") for block in range(blocks)]


class Tensors:
    """The engine's memory: K and V in one tensor with the block dimension in the middle, the others with blocks first."""

    def __init__(self, blocks: int = BLOCKS) -> None:
        self.kv = np.zeros((2, blocks, 16, 32), np.uint8)
        self.state = np.zeros((blocks, 384), np.uint8)

    def pieces(self) -> list[kvtide.Piece]:
        return pieces(self.kv, plane=0, block_dim=1) + pieces(self.state, plane=1, block_dim=0)

    @staticmethod
    def content(prefix: int, index: int) -> np.ndarray:
        """Return the content of a block of a prefix; no two are equal."""
        at = np.arange(sum(PAGES), dtype=np.uint64)
        return ((at * 7 + at // 251 + prefix * 97 + index * 31) & 0xFF).astype(np.uint8)

    def write(self, block: int, prefix: int, index: int) -> None:
        content = self.content(prefix, index)
        self.kv[:, block] = content[: PAGES[0]].reshape(2, 16, 32)
        self.state[block] = content[PAGES[0] :]

    def holds(self, block: int, prefix: int, index: int) -> bool:
        held = np.concatenate([self.kv[:, block].ravel(), self.state[block]])
        return bool((held == self.content(prefix, index)).all())

    def store(self, channel: kvtide.Channel, prefix: int, blocks: int) -> kvtide.CopyResult:
        """Store a prefix from its first block on."""
        for index in range(blocks):
            self.write(index, prefix, index)
        return channel.store(0, None, hashes(prefix, blocks), range(blocks))
