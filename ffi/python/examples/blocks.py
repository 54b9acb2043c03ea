"""Use kvtide as a cache behind an engine's own tensors: one engine stores a prompt's KV, another one loads it.

    python examples/blocks.py [SOCKET]

Without a socket it starts a private daemon (kvtided on the PATH, or the path in KVTIDED). Needs numpy.
"""

from __future__ import annotations

import hashlib
import sys
from contextlib import ExitStack

import numpy as np

import kvtide
from kvtide.blocks import block_hashes, pieces
from kvtide.daemon import PrivateDaemon

LAYERS, PAGE_TOKENS, HEADS, DIM, BLOCKS = 4, 16, 2, 64, 128


class Engine:
    """An engine with its own paged KV, [K and V, layers, blocks, tokens, heads, dim], and kvtide as its cache."""

    def __init__(self, socket: str) -> None:
        self.kv = np.zeros((2, LAYERS, BLOCKS, PAGE_TOKENS, HEADS, DIM), np.float16)
        page = self.kv[:, :, 0].nbytes
        model = hashlib.sha256(f"weights of the example; float16 {self.kv.shape}".encode()).digest()
        space = kvtide.Space("example", model, PAGE_TOKENS, [kvtide.Plane(page)])
        self.session = kvtide.attach(socket, space)
        self.session.set_blocks(BLOCKS, pieces(self.kv, plane=0, block_dim=2), keep=self.kv)
        self.channel = self.session.channel()
        self.free = list(range(BLOCKS))

    def prefill(self, tokens: list[int], user: bytes) -> tuple[list[int], int]:
        """Return a prompt's blocks, and how many of them came from the cache."""
        hashes = block_hashes(tokens, PAGE_TOKENS, salt=user)
        blocks = [self.free.pop() for _ in hashes]
        cached = self.load(hashes, blocks)
        for index in range(cached, len(blocks)):
            self.compute(blocks[index], tokens[: (index + 1) * PAGE_TOKENS])
        if cached < len(blocks):
            parent = hashes[cached - 1] if cached else None
            stored = self.channel.store(cached, parent, hashes[cached:], blocks[cached:])
            print(f"stored {len(blocks) - cached - len(stored.failed)} blocks: {stored.status}")
        return blocks, cached

    def load(self, hashes: list[bytes], blocks: list[int]) -> int:
        """Load the cached blocks of a prefix. Return how many of its first blocks are valid."""
        found = self.channel.lookup(hashes).blocks
        if found == 0:
            return 0
        try:
            with self.channel.lease(hashes[found - 1], found, seconds=30.0) as lease:
                loaded = self.channel.load(lease, 0, blocks[:found])
        except kvtide.errors.NotFound:
            return 0  # evicted since the lookup
        return min(loaded.failed, default=found)

    def compute(self, block: int, tokens: list[int]) -> None:
        """Compute the KV of a block. Stands for a model: the result depends on all tokens up to the block's end."""
        seed = int.from_bytes(hashlib.sha256(repr(tokens).encode()).digest()[:8], "little")
        self.kv[:, :, block] = np.random.default_rng(seed).standard_normal(self.kv[:, :, block].shape)

    def close(self) -> None:
        self.session.detach()


def main(socket: str) -> None:
    tokens = [token * 7 % 1000 for token in range(40 * PAGE_TOKENS)]
    first = Engine(socket)
    written, cached = first.prefill(tokens, b"alice")
    assert cached == 0
    expected = first.kv[:, :, written].copy()
    first.close()

    second = Engine(socket)
    read, cached = second.prefill(tokens + [1] * PAGE_TOKENS, b"alice")
    print(f"the second engine loaded {cached} of {len(read)} blocks")
    assert cached == len(written) and (second.kv[:, :, read[:cached]] == expected).all()
    _, cached = second.prefill(tokens, b"bob")
    print(f"another user's equal prompt: {cached} blocks")
    assert cached == 0
    second.close()


if __name__ == "__main__":
    with ExitStack() as stack:
        given = sys.argv[1] if len(sys.argv) > 1 else str(stack.enter_context(PrivateDaemon(256 << 20)).socket)
        main(given)
