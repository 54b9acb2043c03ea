"""Digests of sealed pages. A digest remains after the page was evicted, and bounds the product of any query with the page's keys.

Digests of a plane are uint8 [blocks, kv_heads, digest_bytes(dim)]. A bound is never below the true largest product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvtide import _native

from .. import launch
from ..memory import DTYPES
from .blocks import Rows, check_index, rows_of


def digest_bytes(channels: int) -> int:
    """Return the digest bytes of a page's keys, for one KV head."""
    return 4 * channels + 4


def _check_digests(digests: Tensor, kv_heads: int, channels: int, device: torch.device) -> None:
    expected = (kv_heads, digest_bytes(channels))
    dense = digests.dim() == 3 and digests.is_contiguous()
    if digests.dtype != torch.uint8 or not dense or digests.shape[1:] != expected or digests.device != device:
        raise ValueError(
            f"digests {tuple(digests.shape)} {digests.dtype} on {digests.device} must be uint8 [blocks, {expected[0]}, {expected[1]}], "
            f"dense, on {device}"
        )


def _check_build(keys: Tensor, blocks: Tensor, tokens: Tensor, digests: Tensor, to_blocks: Tensor) -> Rows:
    rows = rows_of("keys", [keys], [])
    check_index("blocks", blocks, keys)
    check_index("tokens of blocks", tokens, keys, blocks.shape[0])
    check_index("blocks of the digests", to_blocks, keys, blocks.shape[0])
    _check_digests(digests, keys.shape[2], keys.shape[3], keys.device)
    return rows


@torch.library.custom_op("kvtide::digest_build", mutates_args=("digests",), device_types="cpu")
def digest_build(keys: Tensor, blocks: Tensor, tokens: Tensor, digests: Tensor, to_blocks: Tensor) -> None:
    """Build digests of the first `tokens[i]` tokens of block `blocks[i]` of `keys` [blocks, tokens, heads, dim], into
    `to_blocks[i]` of the plane's digests. `to_blocks` must not repeat."""
    rows = _check_build(keys, blocks, tokens, digests, to_blocks)
    items = torch.stack([index.to(torch.int64) for index in (blocks, tokens, to_blocks)], 1)
    if bool((items < 0).any()):
        raise ValueError(f"block or tokens {items.min().item()}: must not be negative")
    _native.digest_build(rows.given, rows.shape, keys.dtype == torch.bfloat16, items.tolist(), _plane(digests, keys.shape[3]))


@digest_build.register_kernel("cuda")
def _(keys: Tensor, blocks: Tensor, tokens: Tensor, digests: Tensor, to_blocks: Tensor) -> None:
    rows = _check_build(keys, blocks, tokens, digests, to_blocks)
    launch.of(keys).digest_build(rows, blocks, tokens, digests, to_blocks)


@digest_build.register_fake
def _(keys: Tensor, blocks: Tensor, tokens: Tensor, digests: Tensor, to_blocks: Tensor) -> None:
    _check_build(keys, blocks, tokens, digests, to_blocks)


def _plane(digests: Tensor, channels: int) -> dict[str, int]:
    blocks, kv_heads, _ = digests.shape
    return {"digests": digests.data_ptr(), "blocks": blocks, "kv_heads": kv_heads, "channels": channels}


def _check_scores(
    query: Tensor,
    digests: Tensor,
    block_ids: Tensor,
    lengths: Tensor,
    page_tokens: int,
    scale: float,
    sealed: Tensor | None,
    starts: Tensor | None,
) -> Tensor:
    """Check the arguments and allocate the bounds."""
    if query.dim() != 3 or query.dtype not in DTYPES or digests.dim() != 3 or query.shape[1] % max(1, digests.shape[1]):
        raise ValueError(
            f"query {tuple(query.shape)} {query.dtype} must be [seqs, heads, dim] of float16 or bfloat16, its heads a multiple of the KV "
            f"heads of digests {tuple(digests.shape)}"
        )
    seqs, heads, channels = query.shape
    _check_digests(digests, digests.shape[1], channels, query.device)
    if block_ids.dim() != 2 or block_ids.shape[0] != seqs or block_ids.device != query.device:
        raise ValueError(f"block ids {tuple(block_ids.shape)} must be [seqs, blocks], for {seqs} sequences, on {query.device}")
    for what, index in (("lengths", lengths), ("sealed", sealed), ("starts", starts)):
        if index is not None:
            check_index(what, index, query, seqs)
    if page_tokens < 1 or not scale > 0:
        raise ValueError(f"pages of {page_tokens} tokens, scale {scale}: both must be positive")
    return torch.empty(seqs, heads, block_ids.shape[1], dtype=torch.float32, device=query.device)


@torch.library.custom_op("kvtide::digest_scores", mutates_args=(), device_types="cpu")
def digest_scores(
    query: Tensor,
    digests: Tensor,
    block_ids: Tensor,
    lengths: Tensor,
    page_tokens: int,
    scale: float,
    sealed: Tensor | None = None,
    starts: Tensor | None = None,
) -> Tensor:
    """Return upper bounds of the products of each query [seqs, heads, dim] with a page's keys, times `scale`: float32 [seqs, heads,
    blocks].

    The bound is inf if the page has no digest (pages beyond `sealed` tokens; without `sealed`, a last partial page), and -inf
    outside the sequence's tokens `starts .. lengths`. Pages need not be readable."""
    bounds = _check_scores(query, digests, block_ids, lengths, page_tokens, scale, sealed, starts)
    query, ids = query.contiguous(), block_ids.to(torch.int32).contiguous()
    asked = {
        "query": query.data_ptr(),
        "bf16": query.dtype == torch.bfloat16,
        "group": query.shape[1] // digests.shape[1],
        "block_ids": ids.data_ptr(),
        "columns": ids.shape[1],
        "lengths": lengths.tolist(),
        "sealed": [] if sealed is None else sealed.tolist(),
        "starts": [] if starts is None else starts.tolist(),
        "page_tokens": page_tokens,
        "scale": scale,
        "bounds": bounds.data_ptr(),
    }
    _native.digest_scores(_plane(digests, query.shape[2]), asked)
    return bounds


@digest_scores.register_kernel("cuda")
def _(
    query: Tensor,
    digests: Tensor,
    block_ids: Tensor,
    lengths: Tensor,
    page_tokens: int,
    scale: float,
    sealed: Tensor | None = None,
    starts: Tensor | None = None,
) -> Tensor:
    bounds = _check_scores(query, digests, block_ids, lengths, page_tokens, scale, sealed, starts)
    launch.of(query).digest_scores(query, digests, block_ids, lengths, page_tokens, scale, sealed, starts, bounds)
    return bounds


@digest_scores.register_fake
def _(
    query: Tensor,
    digests: Tensor,
    block_ids: Tensor,
    lengths: Tensor,
    page_tokens: int,
    scale: float,
    sealed: Tensor | None = None,
    starts: Tensor | None = None,
) -> Tensor:
    return _check_scores(query, digests, block_ids, lengths, page_tokens, scale, sealed, starts)


def _check_select(bounds: Tensor, budget: int, keep_first: int, keep_last: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if bounds.dim() != 3 or bounds.dtype != torch.float32 or not bounds.is_contiguous():
        raise ValueError(f"bounds {tuple(bounds.shape)} {bounds.dtype} must be float32 [seqs, heads, blocks], dense")
    if budget < 1 or min(keep_first, keep_last) < 0:
        raise ValueError(f"budget {budget}, keep_first {keep_first}, keep_last {keep_last}: at least 1, and not negative")
    seqs, _, columns = bounds.shape
    new = bounds.new_empty
    chosen, counts = new((seqs, budget), dtype=torch.int32), new((seqs,), dtype=torch.int32)
    return new((seqs, columns)), chosen, counts, new((seqs,))


@torch.library.custom_op("kvtide::digest_select", mutates_args=(), device_types="cpu")
def digest_select(
    bounds: Tensor, budget: int, keep_first: int = 0, keep_last: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Choose the best pages of each sequence. Return:

    float32 [seqs, blocks]: estimates (inf: must be read; -inf: outside the sequence). int32 [seqs, budget]: chosen pages in
    ascending order, then -1. int32 [seqs]: their number. float32 [seqs]: the share of the estimates that was not chosen.

    The first `keep_first` and the last `keep_last` pages are chosen first."""
    estimates, chosen, counts, omitted = _check_select(bounds, budget, keep_first, keep_last)
    seqs, heads, columns = bounds.shape
    _native.digest_select(
        {
            "bounds": bounds.data_ptr(),
            "seqs": seqs,
            "heads": heads,
            "columns": columns,
            "budget": budget,
            "keep_first": keep_first,
            "keep_last": keep_last,
            "estimates": estimates.data_ptr(),
            "chosen": chosen.data_ptr(),
            "counts": counts.data_ptr(),
            "omitted": omitted.data_ptr(),
        }
    )
    return estimates, chosen, counts, omitted


@digest_select.register_kernel("cuda")
def _(bounds: Tensor, budget: int, keep_first: int = 0, keep_last: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    results = _check_select(bounds, budget, keep_first, keep_last)
    launch.of(bounds).digest_select(bounds, budget, keep_first, keep_last, *results)
    return results


@digest_select.register_fake
def _(bounds: Tensor, budget: int, keep_first: int = 0, keep_last: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _check_select(bounds, budget, keep_first, keep_last)
