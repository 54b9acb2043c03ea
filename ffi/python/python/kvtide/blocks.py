"""An engine's own tensors as blocks, and the hashes of prefixes: what `Session.set_blocks` and `Channel.store` take.

Arrays are looked at and never copied: numpy arrays, torch tensors on a CPU, and whatever else has `__array_interface__`.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

__all__ = ["HASH_BYTES", "PIECES_MAX", "UNNAMED", "Piece", "block_hashes", "pieces"]

#: Bytes of a block's hash.
HASH_BYTES = 16
#: Most pieces that a block of one array may fall into: beyond it a block is copied in crumbs, and another layout is meant.
PIECES_MAX = 1 << 16
#: An id that is none: for each member of a name, it takes the name away.
UNNAMED = 0xFFFF_FFFF


class Piece(NamedTuple):
    """One piece of a plane's part of every block: `bytes` bytes at `base + block * stride`.

    The bytes of a page are those of its plane's pieces, one after another in the order in which they are given.
    """

    plane: int
    #: Which of a named block's ids addresses it; 0 where blocks are numbered once.
    member: int
    #: Address of the piece of block 0.
    base: int
    #: Bytes from a block's piece to that of the next block.
    stride: int
    bytes: int


class _Memory(NamedTuple):
    """Where an array's elements are; strides in bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


def _memory(array: Any) -> _Memory:
    """The memory of a torch tensor or of anything with numpy's array interface."""
    if hasattr(array, "data_ptr"):
        if array.device.type != "cpu":
            raise ValueError(f"pieces: the tensor is on {array.device}, blocks are copied in host memory alone")
        item = array.element_size()
        strides = tuple(stride * item for stride in array.stride())
        return _Memory(array.data_ptr(), tuple(array.shape), strides, item)
    interface = getattr(array, "__array_interface__", None)
    if interface is None:
        raise TypeError(f"pieces: {type(array).__name__} is neither a torch tensor nor a numpy array")
    address, read_only = interface["data"]
    if read_only:
        raise ValueError("pieces: the array is read-only, and loads write to it")
    shape, item = tuple(interface["shape"]), int(interface["typestr"][2:])
    strides = interface.get("strides")
    if strides is None:
        strides = tuple(itertools.accumulate((item, *shape[:0:-1]), lambda step, size: step * size))[::-1]
    return _Memory(address, shape, tuple(strides), item)


def pieces(array: Any, *, plane: int, block_dim: int, member: int = 0) -> list[Piece]:
    """The pieces of an array's blocks, which are its slices along dimension `block_dim`.

    A block may lie in one run or in many, wherever its dimension stands. Pieces come in the order of memory, whatever
    the order of the dimensions: engines that share a space lay their tensors out in the same way, which belongs into the
    space's fingerprint. The array must stay where it is: see `keep` of `Session.set_blocks`.

    Raises `ValueError`: the array is not writable host memory, has no blocks, overlaps itself, or a block falls into more
    than `PIECES_MAX` runs. `TypeError`: it is no array.
    """
    address, shape, strides, itemsize = _memory(array)
    if not -len(shape) <= block_dim < len(shape):
        raise ValueError(f"pieces: dimension {block_dim} of {len(shape)}")
    block_dim %= len(shape)
    if 0 in shape:
        raise ValueError(f"pieces: an array of shape {list(shape)} has no blocks")
    if any(stride <= 0 for stride, size in zip(strides, shape, strict=True) if size > 1):
        raise ValueError(f"pieces: strides of {list(strides)} bytes: elements overlap, or go backwards")
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
        raise ValueError(f"pieces: a block falls into {count} runs of {run} bytes, more than {PIECES_MAX}")
    step = strides[block_dim] if shape[block_dim] > 1 else reach
    outer = [range(0, size * stride, stride) for stride, size in reversed(inner[merged:])]
    return [Piece(plane, member, address + sum(at), step, run) for at in itertools.product(*outer)]


def block_hashes(
    tokens: Sequence[int], page_tokens: int, *, salt: bytes = b"", parent: bytes | None = None, extra: Iterable[bytes] = ()
) -> list[bytes]:
    """The hashes of a prompt's whole blocks, each of them of its tokens and of all before it.

    `salt` keeps an engine's users apart: equal tokens under different salts have different hashes. `extra` is what else a
    block's KV depends on (the content of an image, an adapter), one for each block as far as it goes. `parent` is the hash of
    the block before the first one, to go on with a prompt. 16 bytes each; chained BLAKE2b over 64-bit tokens.
    """
    if page_tokens < 1:
        raise ValueError(f"page_tokens: {page_tokens}")
    before = parent if parent is not None else hashlib.blake2b(salt, digest_size=HASH_BYTES, person=b"kvtide-root").digest()
    if len(before) != HASH_BYTES:
        raise ValueError(f"parent: {len(before)} bytes, a hash has {HASH_BYTES}")
    more, whole = iter(extra), len(tokens) // page_tokens * page_tokens
    pack, found = struct.Struct(f"<{page_tokens}Q").pack, []
    for start in range(0, whole, page_tokens):
        block = hashlib.blake2b(before, digest_size=HASH_BYTES, person=b"kvtide-block")
        block.update(pack(*tokens[start : start + page_tokens]))
        block.update(next(more, b""))
        before = block.digest()
        found.append(before)
    return found
