"""Locate a host pool's pages, as reported by the pool.

Pools that storage backends can read in place have `get_page_buffer_meta(indices)`. It returns addresses and sizes of the pieces of
the pages with these token slots, for every layout. Two pages are enough, since all pages have the same shape.
"""

from __future__ import annotations

from typing import Any

import torch

from kvtide.keyed_store import BlockMemory
from kvtide.keyed_store.memory import of_addresses


class Unsupported(ValueError):
    """The pool's pages cannot be read in place."""


def slots_a_page(pool: Any) -> int:
    """Return the token slots per page, as SGLang's indices count them."""
    return int(getattr(pool, "logical_page_size", None) or getattr(pool, "page_size", None) or 1)


def _addresses(pool: Any, page: int) -> tuple[list[int], list[int]]:
    slots = slots_a_page(pool)
    try:
        found = pool.get_page_buffer_meta(torch.arange(page * slots, (page + 1) * slots))
    except (AttributeError, NotImplementedError, ValueError, AssertionError) as error:
        raise Unsupported(
            f"kvtide: {type(pool).__name__} in layout {getattr(pool, 'layout', None)!r} does not report page addresses: {error!r}"
        ) from error
    if not found or not found[0]:
        raise Unsupported(f"kvtide: {type(pool).__name__} has no memory of its own")
    return [int(at) for at in found[0]], [int(size) for size in found[1]]


def memory(pool: Any) -> BlockMemory:
    """Return all pages of a pool as blocks. Block `i` is the page that starts at slot `i * slots_a_page`.

    Raise Unsupported if the pool does not report its pages, has fewer than two, or they are not evenly spaced.
    """
    pages = int(pool.size) * int(getattr(pool, "dcp_size", 1)) // slots_a_page(pool)
    if pages < 2:
        raise Unsupported(f"kvtide: {type(pool).__name__} has {pages} pages; at least two are needed")
    first, sizes = _addresses(pool, 0)
    second, also = _addresses(pool, 1)
    if sizes != also or len(first) != len(second):
        raise Unsupported(f"kvtide: pages 0 and 1 of {type(pool).__name__} differ: {sizes} and {also} bytes")
    last, _ = _addresses(pool, pages - 1)
    strides = [b - a for a, b in zip(first, second, strict=True)]
    if any(a + stride * (pages - 1) != z for a, stride, z in zip(first, strides, last, strict=True)):
        raise Unsupported(f"kvtide: the pages of {type(pool).__name__} in layout {pool.layout!r} are not evenly spaced")
    return BlockMemory(pages, of_addresses(first, second, sizes), keep=pool)


def pieces_order(pool: Any) -> str:
    """Return the memory order of the pieces that a pool reports, which is the byte order of a page.

    Tensors that are allocated separately may have another order in the next process. Empty for pools of a single tensor, whose
    order is fixed.
    """
    if isinstance(getattr(pool, "kv_buffer", None), torch.Tensor):
        return ""
    first, _ = _addresses(pool, 0)
    return " ".join(str(piece) for piece in sorted(range(len(first)), key=first.__getitem__))


def order(pool: Any) -> str:
    """Return the element order of a page with its pieces sorted by address.

    `layer_first` and `page_first_direct` are ordered by layer, then token, and may therefore share pages. `page_first` is ordered
    by token, then layer. Other layouts are named by themselves.
    """
    layout = str(getattr(pool, "layout", "none"))
    return {"layer_first": "layer, token", "page_first_direct": "layer, token", "page_first": "token, layer"}.get(layout, layout)


def blocks_of(pool: Any, keys: int, host_indices: Any) -> list[int] | None:
    """Return the blocks of `keys` pages with slots `host_indices`; None if the slots are not one whole page per key."""
    slots = slots_a_page(pool)
    if host_indices is None or int(host_indices.numel()) != keys * slots:
        return None
    firsts = [int(slot) for slot in host_indices.reshape(keys, slots)[:, 0].tolist()] if keys else []
    return None if any(slot % slots for slot in firsts) else [slot // slots for slot in firsts]
