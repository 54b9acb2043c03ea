"""Layout of an engine's blocks, in the form that `Session.set_blocks` takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import kvtide

#: Maximum bytes of a page. A larger block is divided into several planes. The daemon allows pages up to 1 GiB. It grants host
#: memory in slabs (64 MiB by default) that hold whole pages of one size, so small pages waste less of a slab.
PLANE_BYTES_MAX = 4 << 20


@dataclass(frozen=True)
class BlockMemory:
    """`count` blocks made of pieces. A piece is (address in block 0, bytes from one block to the next, bytes)."""

    #: Number of blocks.
    count: int
    #: Pieces of a block, in the order of its bytes.
    pieces: tuple[tuple[int, int, int], ...]
    #: Owner of the memory, kept alive while blocks are registered.
    keep: object = None

    @property
    def block_bytes(self) -> int:
        """Return the bytes of one block."""
        return sum(size for _, _, size in self.pieces)

    def planes(self) -> list[kvtide.Plane]:
        """Return the planes of a space for these blocks. All have one size."""
        count, size = _cut(self.block_bytes)
        return [kvtide.Plane(size)] * count

    def placed(self) -> list[tuple[int, int, int, int, int]]:
        """Return the pieces as `Session.set_blocks` takes them: (plane, member, address, stride, bytes), planes filled in order."""
        _, room = _cut(self.block_bytes)
        placed: list[tuple[int, int, int, int, int]] = []
        plane, used = 0, 0
        for address, stride, size in self.pieces:
            while size:
                part = min(size, room - used)
                placed.append((plane, 0, address, stride, part))
                address, size, used = address + part, size - part, used + part
                if used == room:
                    plane, used = plane + 1, 0
        return placed


def _cut(block_bytes: int) -> tuple[int, int]:
    """Return (number of planes, bytes per plane): the fewest planes within `PLANE_BYTES_MAX` that divide the block evenly."""
    count = -(-block_bytes // PLANE_BYTES_MAX)
    while block_bytes % count:
        count += 1
    return count, block_bytes // count


def of_addresses(first: Sequence[int], second: Sequence[int], sizes: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Return pieces from the addresses of block 0 and block 1, sorted by address."""
    pieces = sorted(zip(first, second, sizes, strict=True))
    return tuple((at, following - at, size) for at, following, size in pieces)
