"""Checks of the shapes that attention takes: pages, queries, block tables. They read no tensor, so they do not wait for a GPU."""

from __future__ import annotations

from torch import Tensor

from .memory import DTYPES, LATENT_DIM, LATENT_VALUE_DIM


def check_pages(pages: Tensor) -> None:
    heads = pages.dim() == 5 and pages.shape[1] == 2
    if not heads and not (pages.dim() == 3 and pages.shape[2] == LATENT_DIM):
        raise ValueError(
            f"pages {tuple(pages.shape)} must be [frames, 2, kv_heads, page_tokens, head_dim], or latent vectors [frames, page_tokens, "
            f"{LATENT_DIM}]"
        )


def kv(pages: Tensor) -> tuple[int, int, int]:
    """Return the pages' KV heads, tokens, and key dimension."""
    if pages.dim() == 3:
        return 1, pages.shape[1], pages.shape[2]
    return pages.shape[2], pages.shape[3], pages.shape[4]


def value_dim(pages: Tensor) -> int:
    """Return the value dimension."""
    return LATENT_VALUE_DIM if pages.dim() == 3 else pages.shape[4]


def check(query: Tensor, pages: Tensor, lengths: Tensor, q_starts: Tensor, window: int) -> None:
    """Check shapes and types without reading the tensors. Raise ValueError with the difference."""
    check_pages(pages)
    if query.dim() != 3:
        raise ValueError(f"query {tuple(query.shape)} must be [tokens, heads, head_dim]")
    if query.dtype != pages.dtype or query.dtype not in DTYPES:
        raise ValueError(f"query is {query.dtype} and pages are {pages.dtype}: both must be float16, or both bfloat16")
    kv_heads, _, head_dim = kv(pages)
    if query.shape[2] != head_dim:
        raise ValueError(f"query has head_dim {query.shape[2]}, pages have {head_dim}")
    if query.shape[1] % kv_heads != 0:
        raise ValueError(f"query has {query.shape[1]} heads, which is not a multiple of the pages' {kv_heads} KV heads")
    if window < 0:
        raise ValueError(f"window {window}: must be 0 (none) or a number of tokens")
    check_batch(pages, lengths, q_starts, query)


def check_batch(pages: Tensor, lengths: Tensor, q_starts: Tensor, rows: Tensor) -> None:
    if lengths.dim() != 1 or q_starts.shape != (lengths.shape[0] + 1,):
        raise ValueError(f"lengths {tuple(lengths.shape)} and q_starts {tuple(q_starts.shape)} must be [seqs] and [seqs + 1]")
    devices = {str(tensor.device) for tensor in (rows, pages, lengths, q_starts)}
    if len(devices) > 1:
        raise ValueError(f"tokens, pages, lengths and q_starts must be on one device, not on {sorted(devices)}")
    dense = 1
    strides: list[int] = []
    for size in reversed(pages.shape[1:]):
        strides.insert(0, dense)
        dense *= size
    if list(pages.stride()[1:]) != strides:
        raise ValueError(f"pages with strides {pages.stride()}: a frame must be dense")


def check_table(block_table: Tensor, lengths: Tensor) -> None:
    if block_table.dim() != 2 or block_table.shape[0] != lengths.shape[0]:
        raise ValueError(f"block table {tuple(block_table.shape)} must be [seqs, blocks], for {lengths.shape[0]} sequences")
