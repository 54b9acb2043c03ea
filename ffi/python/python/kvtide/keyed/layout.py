"""Where an engine's blocks are: what `Session.set_blocks` is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import kvtide

#: Most bytes of a plane's page: a block of more is cut into planes. The daemon takes up to 1 GiB and grants host memory in slabs,
#: 64 MiB unless configured, that hold whole pages of one size: small pages waste less of a slab.
PLANE_BYTES_MAX = 4 << 20


@dataclass(frozen=True)
class BlockMemory:
    """`count` blocks in pieces, each (address of block 0's, bytes from one block to the next, bytes)."""

    count: int
    pieces: tuple[tuple[int, int, int], ...]
    #: What owns the memory.
    keep: object = None

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return sum(size for _, _, size in self.pieces)

    def planes(self) -> list[kvtide.Plane]:
        """The planes of a space for these blocks, all of one size."""
        count, size = _cut(self.block_bytes)
        return [kvtide.Plane(size)] * count

    def placed(self) -> list[tuple[int, int, int, int, int]]:
        """The pieces as `Session.set_blocks` takes them: (plane, member, address, stride, bytes), planes filled in order."""
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
    """How many planes of how many bytes hold a block: as few as keep to the limit and divide it evenly."""
    count = -(-block_bytes // PLANE_BYTES_MAX)
    while block_bytes % count:
        count += 1
    return count, block_bytes // count


def of_addresses(first: Sequence[int], second: Sequence[int], sizes: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Pieces from the addresses of block 0 and block 1, in the order of their addresses."""
    pieces = sorted(zip(first, second, sizes, strict=True))
    return tuple((at, following - at, size) for at, following, size in pieces)
