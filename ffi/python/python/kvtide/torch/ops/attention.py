"""Attention over pages.

Queries are ragged: sequence s of the batch has the rows `q_starts[s] .. q_starts[s + 1]` of `query` [tokens, heads, head_dim],
which are its last tokens; `lengths[s]` counts all its tokens. `pages` is [frames, 2, kv_heads, page_tokens, head_dim], or latent
vectors [frames, page_tokens, 576] (MLA: a vector is the key, and its first 512 elements are the value). `block_table` [seqs,
blocks] maps a page of a sequence to its frame; negative means absent. A query sees the tokens up to its own; with `window` > 0,
only the last `window` of them.

In kvtide's own kernels each page's partial result is computed independently, and partials are merged in index order. So the result
agrees bit for bit with that of `kvtide.torch.Paging`, whose pages may become readable in any order. Other backends (`backend`) differ
in rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvtide import _native

from .. import backends, cuda
from ..shapes import check, check_batch, check_pages, check_table, kv, value_dim


def _out(query: Tensor, pages: Tensor) -> Tensor:
    """Allocate the attention output."""
    return torch.empty(*query.shape[:2], value_dim(pages), dtype=query.dtype, device=query.device)


def _check_new(
    pages: Tensor, key: Tensor, value: Tensor | None, block_table: Tensor, lengths: Tensor, q_starts: Tensor
) -> None:
    check_pages(pages)
    if (value is None) != (pages.dim() == 3):
        raise ValueError("latent vectors are keys alone; other pages need keys and values")
    kv_heads, _, head_dim = kv(pages)
    for what, rows in (("key", key), ("value", key if value is None else value)):
        if rows.dim() != 3 or rows.shape != key.shape or rows.shape[1:] != (kv_heads, head_dim):
            raise ValueError(f"{what} {tuple(rows.shape)} must be [tokens, {kv_heads}, {head_dim}] for these pages")
        if rows.dtype != pages.dtype:
            raise ValueError(f"{what} is {rows.dtype}, pages are {pages.dtype}")
    check_batch(pages, lengths, q_starts, key)
    check_table(block_table, lengths)


def _given(
    query: Tensor, pages: Tensor, lengths: Tensor, q_starts: Tensor, scale: float, window: int
) -> dict[str, object]:
    """Return the call's arguments for the native module on the CPU. `query` is dense."""
    check(query, pages, lengths, q_starts, window)
    if bool((lengths < 0).any()) or bool((q_starts < 0).any()):
        raise ValueError(f"lengths {lengths.tolist()} and q_starts {q_starts.tolist()} must not be negative")
    kv_heads, page_tokens, head_dim = kv(pages)
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
        "value_dim": value_dim(pages),
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
    page_tokens = kv(pages)[1]
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
    backend: str | None = None,
) -> Tensor:
    """Compute attention when every page is readable. `q_tokens`: at least the number of queries of any sequence. `backend`: the
    kernels on a GPU, one of `backends.names()`; by default those that `KVTIDE_ATTENTION` names, else kvtide's.

    Raise ValueError if the backend is unknown, or a library that is not installed or does not take the call."""
    backends.check_host(backend, "pages are")
    query = query.contiguous()
    given = _given(query, pages, lengths, q_starts, scale, window)
    check_table(block_table, lengths)
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
    backend: str | None = None,
) -> Tensor:
    check(query, pages, lengths, q_starts, window)
    check_table(block_table, lengths)
    given = (query, pages, block_table, lengths, q_starts, q_tokens, scale, window)
    return cuda.of(pages).attend_by(backends.requested(backend), *given)[1]


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
    backend: str | None = None,
) -> Tensor:
    check(query, pages, lengths, q_starts, window)
    check_table(block_table, lengths)
    return _out(query, pages)


def attention_backend(
    query: Tensor,
    pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    q_starts: Tensor,
    q_tokens: int,
    scale: float,
    window: int = 0,
    backend: str | None = None,
) -> backends.Choice:
    """Return which backend `attend` uses for these arguments, and why not the libraries that `auto` tries before it. Raise the errors
    of `attend`."""
    check(query, pages, lengths, q_starts, window)
    check_table(block_table, lengths)
    if pages.device.type == "cpu":
        backends.check_host(backend, "pages are")
        return backends.Choice(backends.KVTIDE)
    call = cuda.of(pages).call(query, pages, block_table, lengths, q_starts, q_tokens, scale, window)
    return backends.choose(call, backends.requested(backend))
