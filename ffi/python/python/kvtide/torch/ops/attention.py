"""Attention over pages.

Queries are ragged: sequence s of the batch has the rows `q_starts[s] .. q_starts[s + 1]` of `query` [tokens, heads, head_dim],
which are its last tokens; `lengths[s]` counts all its tokens. `pages` is [frames, 2, kv_heads, page_tokens, head_dim], or latent
vectors [frames, page_tokens, 576] (MLA: a vector is the key, and its first 512 elements are the value). `block_table` [seqs,
blocks] maps a page of a sequence to its frame; negative means absent. A query sees the tokens up to its own; with `window` > 0,
only the last `window` of them.

Each page's partial result is computed independently, and partials are merged in index order. So the result agrees bit for bit with
that of `kvtide.torch.Paging`, whose pages may become readable in any order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvtide import _native

from .. import cuda
from ..memory import DTYPES, LATENT_DIM, LATENT_VALUE_DIM

#: Maximum number of pages with a reported attention share.
TOP_MAX = _native.SCORE_WORDS - _native.SCORE_HEAD


def _check_pages(pages: Tensor) -> None:
    heads = pages.dim() == 5 and pages.shape[1] == 2
    if not heads and not (pages.dim() == 3 and pages.shape[2] == LATENT_DIM):
        raise ValueError(
            f"pages {tuple(pages.shape)} must be [frames, 2, kv_heads, page_tokens, head_dim], or latent vectors [frames, page_tokens, "
            f"{LATENT_DIM}]"
        )


def _kv(pages: Tensor) -> tuple[int, int, int]:
    """Return the pages' KV heads, tokens, and key dimension."""
    if pages.dim() == 3:
        return 1, pages.shape[1], pages.shape[2]
    return pages.shape[2], pages.shape[3], pages.shape[4]


def _value_dim(pages: Tensor) -> int:
    """Return the value dimension."""
    return LATENT_VALUE_DIM if pages.dim() == 3 else pages.shape[4]


def _out(query: Tensor, pages: Tensor) -> Tensor:
    """Allocate the attention output."""
    return torch.empty(*query.shape[:2], _value_dim(pages), dtype=query.dtype, device=query.device)


def _check(query: Tensor, pages: Tensor, lengths: Tensor, q_starts: Tensor, window: int) -> None:
    """Check shapes and types without reading the tensors. Raise ValueError with the difference."""
    _check_pages(pages)
    if query.dim() != 3:
        raise ValueError(f"query {tuple(query.shape)} must be [tokens, heads, head_dim]")
    if query.dtype != pages.dtype or query.dtype not in DTYPES:
        raise ValueError(f"query is {query.dtype} and pages are {pages.dtype}: both must be float16, or both bfloat16")
    kv_heads, _, head_dim = _kv(pages)
    if query.shape[2] != head_dim:
        raise ValueError(f"query has head_dim {query.shape[2]}, pages have {head_dim}")
    if query.shape[1] % kv_heads != 0:
            raise ValueError(f"query has {query.shape[1]} heads, which is not a multiple of the pages' {kv_heads} KV heads")
    if window < 0:
            raise ValueError(f"window {window}: must be 0 (none) or a number of tokens")
    _check_batch(pages, lengths, q_starts, query)


def _check_batch(pages: Tensor, lengths: Tensor, q_starts: Tensor, rows: Tensor) -> None:
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


def _check_table(block_table: Tensor, lengths: Tensor) -> None:
    if block_table.dim() != 2 or block_table.shape[0] != lengths.shape[0]:
        raise ValueError(f"block table {tuple(block_table.shape)} must be [seqs, blocks], for {lengths.shape[0]} sequences")


def _check_new(
    pages: Tensor, key: Tensor, value: Tensor | None, block_table: Tensor, lengths: Tensor, q_starts: Tensor
) -> None:
    _check_pages(pages)
    if (value is None) != (pages.dim() == 3):
        raise ValueError("latent vectors are keys alone; other pages need keys and values")
    kv_heads, _, head_dim = _kv(pages)
    for what, rows in (("key", key), ("value", key if value is None else value)):
        if rows.dim() != 3 or rows.shape != key.shape or rows.shape[1:] != (kv_heads, head_dim):
            raise ValueError(f"{what} {tuple(rows.shape)} must be [tokens, {kv_heads}, {head_dim}] for these pages")
        if rows.dtype != pages.dtype:
            raise ValueError(f"{what} is {rows.dtype}, pages are {pages.dtype}")
    _check_batch(pages, lengths, q_starts, key)
    _check_table(block_table, lengths)


def _given(
    query: Tensor, pages: Tensor, lengths: Tensor, q_starts: Tensor, scale: float, window: int
) -> dict[str, object]:
    """Return the call's arguments for the native module on the CPU. `query` is dense."""
    _check(query, pages, lengths, q_starts, window)
    if bool((lengths < 0).any()) or bool((q_starts < 0).any()):
        raise ValueError(f"lengths {lengths.tolist()} and q_starts {q_starts.tolist()} must not be negative")
    kv_heads, page_tokens, head_dim = _kv(pages)
    return {
        "query": query.data_ptr(),
        "tokens": query.shape[0],
        "pages": pages.data_ptr(),
        "frames": pages.shape[0],
        "frame_bytes": pages.stride(0) * pages.element_size(),
        "heads": query.shape[1],
        "kv_heads": kv_heads,
        "page_tokens": page_tokens,
        "head_dim": head_dim,
        "value_dim": _value_dim(pages),
        "bf16": pages.dtype == torch.bfloat16,
        "lengths": lengths.tolist(),
        "starts": q_starts.tolist(),
        "scale": scale,
        "window": window,
    }


@torch.library.custom_op("kvtide::append", mutates_args=("pages",), device_types="cpu")
def append(
    pages: Tensor, key: Tensor, value: Tensor | None, block_table: Tensor, lengths: Tensor, q_starts: Tensor
) -> None:
    """Write keys and values [tokens, kv_heads, head_dim] of each sequence's last tokens into their pages. Latent vectors are keys
    [tokens, 1, 576] without values."""
    _check_new(pages, key, value, block_table, lengths, q_starts)
    counts = q_starts.diff().to(torch.int64)
    if int(q_starts[-1]) != key.shape[0] or int(q_starts[0]) != 0 or bool((counts < 0).any()):
        raise ValueError(f"q_starts {q_starts.tolist()}: must rise from 0 to the {key.shape[0]} new tokens")
    rows = torch.arange(len(counts)).repeat_interleave(counts)
    positions = torch.arange(key.shape[0]) - q_starts[rows] + (lengths - counts)[rows]
    page_tokens = _kv(pages)[1]
    block, token = positions // page_tokens, positions % page_tokens
    if bool((positions < 0).any()) or bool((block >= block_table.shape[1]).any()):
        raise ValueError(f"new tokens are outside their sequences' {lengths.tolist()} tokens, or their {block_table.shape[1]} blocks")
    frame = block_table[rows, block].to(torch.int64)
    if bool((frame < 0).any()) or bool((frame >= pages.shape[0]).any()):
        raise ValueError(f"a page of the new tokens is in none of the {pages.shape[0]} frames")
    if value is None:
        pages[frame, token] = key[:, 0]
    else:
        pages[frame, 0, :, token] = key
        pages[frame, 1, :, token] = value


@append.register_kernel("cuda")
def _(
    pages: Tensor, key: Tensor, value: Tensor | None, block_table: Tensor, lengths: Tensor, q_starts: Tensor
) -> None:
    _check_new(pages, key, value, block_table, lengths, q_starts)
    cuda.of(pages).append(pages, key, value, block_table, lengths, q_starts)


@append.register_fake
def _(
    pages: Tensor, key: Tensor, value: Tensor | None, block_table: Tensor, lengths: Tensor, q_starts: Tensor
) -> None:
    _check_new(pages, key, value, block_table, lengths, q_starts)


@torch.library.custom_op("kvtide::attend", mutates_args=(), device_types="cpu")
def attend(
    query: Tensor,
    pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    q_starts: Tensor,
    q_tokens: int,
    scale: float,
    window: int = 0,
) -> Tensor:
    """Compute attention when every page is readable. `q_tokens`: at least the number of queries of any sequence."""
    query = query.contiguous()
    given = _given(query, pages, lengths, q_starts, scale, window)
    _check_table(block_table, lengths)
    out = _out(query, pages)
    _native.attend(given, block_table.tolist(), out.data_ptr())
    return out


@attend.register_kernel("cuda")
def _(
    query: Tensor,
    pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    q_starts: Tensor,
    q_tokens: int,
    scale: float,
    window: int = 0,
) -> Tensor:
    _check(query, pages, lengths, q_starts, window)
    _check_table(block_table, lengths)
    return cuda.of(pages).attend(query, pages, block_table, lengths, q_starts, q_tokens, scale, window)


@attend.register_fake
def _(
    query: Tensor,
    pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    q_starts: Tensor,
    q_tokens: int,
    scale: float,
    window: int = 0,
) -> Tensor:
    _check(query, pages, lengths, q_starts, window)
    _check_table(block_table, lengths)
    return _out(query, pages)


def _scores(words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Convert the kernels' scores, int64 [seqs, words], to tensors: pages, logarithms of their shares, logarithm of the rest."""
    seqs, count = words.shape[0], (words[:, 0] >> 48) & 0xFFFF
    halves = words.view(torch.int16).view(seqs, words.shape[1], 4)
    named = torch.arange(words.shape[1] - _native.SCORE_HEAD, device=words.device) < count[:, None]
    silent = words[:, 0] == -1
    named &= ~silent[:, None]
    index = words.view(torch.int32).view(seqs, words.shape[1], 2)[:, _native.SCORE_HEAD :, 0]
    logs = halves[:, _native.SCORE_HEAD :, 2].contiguous().view(torch.float16).to(torch.float32)
    rest = halves[:, 2, 0].contiguous().view(torch.float16).to(torch.float32)
    index, logs = torch.where(named, index, -1), torch.where(named, logs, -torch.inf)
    return index, logs, torch.where(silent, torch.nan, rest)


@torch.library.custom_op("kvtide::attend_mass", mutates_args=(), device_types="cpu")
def attend_mass(
    query: Tensor,
    pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    q_starts: Tensor,
    q_tokens: int,
    scale: float,
    window: int = 0,
    top: int = 16,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute attention like `attend`, and report the pages that got most of it. Return the output and:

    int32 [seqs, top]: pages with the largest shares, largest first, then -1. float32 [seqs, top]: natural logarithms of their
    shares over all queries and heads, rounded to float16. float32 [seqs]: the logarithm of the other pages' total share; -inf
    without other pages, NaN if a page was missing."""
    query = query.contiguous()
    given = _given(query, pages, lengths, q_starts, scale, window)
    _check_table(block_table, lengths)
    _check_top(top)
    out, words = _out(query, pages), torch.empty(lengths.shape[0], _native.SCORE_WORDS, dtype=torch.int64)
    _native.attend_mass(given, block_table.tolist(), out.data_ptr(), top, words.data_ptr())
    index, logs, rest = _scores(words)
    return out, index[:, :top].contiguous(), logs[:, :top].contiguous(), rest


def _check_top(top: int) -> None:
    if not 0 <= top <= TOP_MAX:
        raise ValueError(f"the {top} largest shares were requested; top must be from 0 to {TOP_MAX}")


@attend_mass.register_kernel("cuda")
def _(
    query: Tensor,
    pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    q_starts: Tensor,
    q_tokens: int,
    scale: float,
    window: int = 0,
    top: int = 16,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check(query, pages, lengths, q_starts, window)
    _check_table(block_table, lengths)
    _check_top(top)
    given = (query, pages, block_table, lengths, q_starts, q_tokens, scale, window, top)
    out, words = cuda.of(pages).attend_mass(*given)
    index, logs, rest = _scores(words)
    return out, index[:, :top].contiguous(), logs[:, :top].contiguous(), rest


@attend_mass.register_fake
def _(
    query: Tensor,
    pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    q_starts: Tensor,
    q_tokens: int,
    scale: float,
    window: int = 0,
    top: int = 16,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check(query, pages, lengths, q_starts, window)
    _check_table(block_table, lengths)
    _check_top(top)
    seqs, new = lengths.shape[0], query.new_empty
    index, logs = new((seqs, top), dtype=torch.int32), new((seqs, top), dtype=torch.float32)
    return _out(query, pages), index, logs, new((seqs,), dtype=torch.float32)
