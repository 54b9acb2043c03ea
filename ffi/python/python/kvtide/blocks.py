"""The block API: a cache behind an engine's own tensors. Describe the tensors as blocks, hash prompts, store and load blocks by hash.

An example: one session stores three blocks of a prompt and loads them into other blocks. `socket` is the daemon's socket.

>>> import kvtide, numpy
>>> from kvtide.blocks import Level, block_hashes, pieces
>>> kv = numpy.zeros((8, 4096), numpy.uint8)       # the engine's memory: 8 blocks of 4,096 bytes
>>> space = kvtide.Space("blocks-example", bytes([7] * 32), page_tokens=16, planes=[kvtide.Plane(4096)])
>>> with kvtide.attach(socket, space) as session, session.channel() as channel:
...     session.set_blocks(8, pieces(kv, plane=0, block_dim=0), keep=kv)
...     kv[:3] = 1                                 # stands for the prefill
...     hashes = block_hashes(range(50), page_tokens=16, salt=b"user 1")
...     stored = channel.store(0, None, hashes, [0, 1, 2], level=Level.PUBLISHED)
...     found = channel.lookup(hashes).blocks
...     with channel.lease(hashes[found - 1], found, seconds=30.0) as lease:
...         loaded = channel.load(lease, 0, [5, 6, 7])
>>> len(hashes), stored.failed, stored.level, found
(3, [], <Level.PUBLISHED: 0>, 3)
>>> loaded.status, bool((kv[5:] == 1).all())
('ok', True)

Arrays are never copied. Supported: numpy arrays, torch tensors on a CPU, and objects with `__array_interface__`.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ._native import Completion, CopyResult, Lease, LookupResult

__all__ = [
    "HASH_BYTES",
    "PIECES_MAX",
    "UNNAMED",
    "Completion",
    "CopyResult",
    "Lease",
    "Level",
    "LookupResult",
    "Piece",
    "block_hashes",
    "pieces",
]

#: Bytes of a block's hash.
HASH_BYTES = 16
#: Maximum pieces of one array's block. A larger number means very small copies, and probably a wrong `block_dim`.
PIECES_MAX = 1 << 16
#: Invalid id. If all ids of a name have it, the name is removed.
UNNAMED = 0xFFFF_FFFF


class Level(enum.IntEnum):
    """How far a store has got. A higher level includes the lower ones.

    >>> Level.STORED >= Level.PUBLISHED
    True
    >>> str(Level.DURABLE)                             # the name in configuration files
    'durable'
    """

    #: Other engines find the block while the daemon lives.
    PUBLISHED = 0
    #: The block also survives `kill -9` of the daemon.
    STORED = 1
    #: The block also survives power loss.
    DURABLE = 2

    def __str__(self) -> str:
        return self.name.lower()

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class Piece(NamedTuple):
    """A piece of one plane of every block: `nbytes` bytes at `base + block * stride`.

    A page consists of its plane's pieces, concatenated in the given order.
    """

    #: Index of the plane in the space.
    plane: int
    #: Which of a named block's ids addresses the piece; 0 for blocks without names.
    member: int
    #: Address of the piece in block 0.
    base: int
    #: Bytes from the piece in one block to the piece in the next block.
    stride: int
    #: Bytes of the piece.
    nbytes: int


class _Memory(NamedTuple):
    """Address, shape and strides (in bytes) of an array."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


def _memory(array: Any) -> _Memory:
    """Return the memory of a torch tensor or of an object with numpy's array interface.

    Raise ValueError if it is not writable host memory, TypeError if it is neither.
    """
    if hasattr(array, "data_ptr"):
        if array.device.type != "cpu":
            raise ValueError(f"pieces: the tensor is on {array.device}; blocks must be in host memory")
        item = array.element_size()
        strides = tuple(stride * item for stride in array.stride())
        return _Memory(array.data_ptr(), tuple(array.shape), strides, item)
    interface = getattr(array, "__array_interface__", None)
    if interface is None:
        raise TypeError(f"pieces: {type(array).__name__} is neither a torch tensor nor a numpy array")
    address, read_only = interface["data"]
    if read_only:
        raise ValueError("pieces: the array is read-only, but loads write to it")
    shape, item = tuple(interface["shape"]), int(interface["typestr"][2:])
    strides = interface.get("strides")
    if strides is None:
        strides = tuple(itertools.accumulate((item, *shape[:0:-1]), lambda step, size: step * size))[::-1]
    return _Memory(address, shape, tuple(strides), item)


def pieces(array: Any, *, plane: int, block_dim: int, member: int = 0) -> list[Piece]:
    """Return the pieces of an array's blocks, which are its slices along dimension `block_dim`.

    A block may consist of one contiguous run or of many. Pieces are in memory order, independent of the order of dimensions.
    Engines that share a space must therefore use the same tensor layout; include it in the space's fingerprint. The array must not
    move: see `keep` of `Session.set_blocks`.

    Raise `ValueError` if the array is not writable host memory, has no blocks, overlaps itself, or a block consists of more than
    `PIECES_MAX` runs. Raise `TypeError` if it is not an array.
    """
    address, shape, strides, itemsize = _memory(array)
    if not -len(shape) <= block_dim < len(shape):
        raise ValueError(f"pieces: block_dim is out of range: dimension {block_dim} of {len(shape)}")
    block_dim %= len(shape)
    if 0 in shape:
        raise ValueError(f"pieces: an array of shape {list(shape)} has no blocks")
    if any(stride <= 0 for stride, size in zip(strides, shape, strict=True) if size > 1):
        raise ValueError(f"pieces: strides of {list(strides)} bytes: elements overlap or run backwards")
    inner = [d for d in zip(strides, shape, strict=True) if d[1] > 1]
    if shape[block_dim] > 1:
        inner.remove((strides[block_dim], shape[block_dim]))
    inner.sort()
    run, merged = itemsize, 0
    for stride, size in inner:
        if stride != run:
            break
        run, merged = run * size, merged + 1
    reach, count = run, 1
    for stride, size in inner[merged:]:
        if stride < reach:
            raise ValueError(f"pieces: strides of {list(strides)} bytes: elements overlap")
        reach, count = reach + (size - 1) * stride, count * size
    if count > PIECES_MAX:
        raise ValueError(f"pieces: a block consists of {count} runs of {run} bytes, more than {PIECES_MAX}")
    step = strides[block_dim] if shape[block_dim] > 1 else reach
    outer = [range(0, size * stride, stride) for stride, size in reversed(inner[merged:])]
    return [Piece(plane, member, address + sum(at), step, run) for at in itertools.product(*outer)]


def block_hashes(
    tokens: Sequence[int], page_tokens: int, *, salt: bytes = b"", parent: bytes | None = None, extra: Iterable[bytes] = ()
) -> list[bytes]:
    """Return the hashes of a prompt's full blocks. Each hash covers the block's tokens and all tokens before it.

    `salt` isolates users of one engine: equal tokens under different salts have different hashes. `extra` is other content that a
    block's KV depends on (an image, an adapter), one item per block; blocks beyond its end have none. `parent` is the hash of the
    block before the first one, to continue a prompt; its hash covers its salt already. To isolate only what follows a common prefix, give
    the salt as the first item of `extra`. Hashes have 16 bytes: chained BLAKE2b over 64-bit tokens.

    >>> one, two = block_hashes([1, 2, 3, 4, 5], page_tokens=2)     # the last token is not in a full block
    >>> block_hashes([1, 2], page_tokens=2) == [one]
    True
    >>> block_hashes([3, 4], page_tokens=2, parent=one) == [two]
    True

    Raise ValueError if `page_tokens` is below 1, `parent` is not 16 bytes, both `salt` and `parent` are given, or a token is not from 0 to
    2**64 - 1.
    """
    if page_tokens < 1:
        raise ValueError(f"page_tokens: {page_tokens}; it must be at least 1")
    if salt and parent is not None:
        raise ValueError("salt: the hash of `parent` covers its salt; to isolate what follows it, give the salt as the first item of `extra`")
    before = parent if parent is not None else hashlib.blake2b(salt, digest_size=HASH_BYTES, person=b"kvtide-root").digest()
    if len(before) != HASH_BYTES:
        raise ValueError(f"parent: {len(before)} bytes; a hash has {HASH_BYTES}")
    more, whole = iter(extra), len(tokens) // page_tokens * page_tokens
    pack, found = struct.Struct(f"<{page_tokens}Q").pack, []
    for start in range(0, whole, page_tokens):
        block = hashlib.blake2b(before, digest_size=HASH_BYTES, person=b"kvtide-block")
        try:
            block.update(pack(*tokens[start : start + page_tokens]))
        except struct.error as error:
            raise ValueError(f"tokens: {tokens[start : start + page_tokens]!r} (from token {start} on): {error}") from error
        block.update(next(more, b""))
        before = block.digest()
        found.append(before)
    return found
