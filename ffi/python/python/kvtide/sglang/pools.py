"""Where a host pool's pages are, told by the pool itself.

Every pool that storage backends may read in place has `get_page_buffer_meta(indices)`: addresses and sizes of the pieces of the pages
whose token slots those are, whatever its layout. From two pages the rest follows, since all pages have the same shape.
"""

from __future__ import annotations

from typing import Any

import torch

from kvtide.keyed import BlockMemory
from kvtide.keyed.layout import of_addresses


class Unsupported(ValueError):
    """A pool whose pages cannot be read in place."""


def slots_a_page(pool: Any) -> int:
    """Token slots of a page as SGLang's indices count them."""
    return int(getattr(pool, "logical_page_size", None) or getattr(pool, "page_size", None) or 1)


def _addresses(pool: Any, page: int) -> tuple[list[int], list[int]]:
    slots = slots_a_page(pool)
    try:
        found = pool.get_page_buffer_meta(torch.arange(page * slots, (page + 1) * slots))
    except (AttributeError, NotImplementedError, ValueError, AssertionError) as error:
        raise Unsupported(
            f"kvtide: {type(pool).__name__} in layout {getattr(pool, 'layout', None)!r} does not say where its pages are: {error!r}"
        ) from error
    if not found or not found[0]:
        raise Unsupported(f"kvtide: {type(pool).__name__} has no memory of its own")
    return [int(at) for at in found[0]], [int(size) for size in found[1]]


def memory(pool: Any) -> BlockMemory:
    """All pages of a pool as blocks; block `i` is the page of slots `i * slots_a_page` on.

    Unsupported: the pool does not tell, or its pages are not evenly spaced.
    """
    pages = int(pool.size) * int(getattr(pool, "dcp_size", 1)) // slots_a_page(pool)
    if pages < 2:
        raise Unsupported(f"kvtide: {type(pool).__name__} has {pages} pages; a cache needs two at least")
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
    """In which order the pieces that a pool tells lie in memory, which is that of a page's bytes: tensors that are allocated one by one
    may lie otherwise in the next process. Empty for pools of one tensor, where it is always the same."""
    if isinstance(getattr(pool, "kv_buffer", None), torch.Tensor):
        return ""
    first, _ = _addresses(pool, 0)
    return " ".join(str(piece) for piece in sorted(range(len(first)), key=first.__getitem__))


def order(pool: Any) -> str:
    """How a page's numbers follow each other where its pieces stand in the order of their addresses.

    By layer and then token in `layer_first` and `page_first_direct`, which may therefore share pages; by token and then layer in
    `page_first`; anything else is its own.
    """
    layout = str(getattr(pool, "layout", "none"))
    return {"layer_first": "layer, token", "page_first_direct": "layer, token", "page_first": "token, layer"}.get(layout, layout)


def blocks_of(pool: Any, keys: int, host_indices: Any) -> list[int] | None:
    """The blocks of `keys` pages whose slots are `host_indices`; None if those are not whole pages, one a key."""
    slots = slots_a_page(pool)
    if host_indices is None or int(host_indices.numel()) != keys * slots:
        return None
    firsts = [int(slot) for slot in host_indices.reshape(keys, slots)[:, 0].tolist()] if keys else []
    return None if any(slot % slots for slot in firsts) else [slot // slots for slot in firsts]
