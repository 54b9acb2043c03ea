"""Attention over pages as torch operators, for CPU and CUDA tensors, with meta kernels for torch.compile: `torch.ops.kvtide.*`.

Queries are ragged: sequence s of the batch has the rows `q_starts[s] .. q_starts[s + 1]` of `query` [tokens, heads, head_dim],
which are its last tokens; `lengths[s]` counts all of them. `pages` is [frames, 2, kv_heads, page_tokens, head_dim], and
`block_table` [seqs, blocks] says in which frame a page of a sequence is, negative where in none. A query sees the tokens up to
its own, the last `window` of them if that is not 0.

A result does not depend on which pages were readable first: a page's partial is computed from scratch, and partials are folded
in index order. `attend` (everything is readable) and `attend_pages` ... `attend_merge` (pages come in passes) agree bit for bit.

On a GPU the operators launch on torch's current stream and return at once; indices are int32 there, and what they say is not
looked at by the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvtide import _native

from . import cuda
from .memory import DTYPES

#: Numbers of a row of a page's partial that are no values: the largest score, and the sum of weights.
_EXTRA = 2


def _check(query: Tensor, pages: Tensor, lengths: Tensor, q_starts: Tensor, window: int) -> None:
    """Shapes and types, as far as they can be told without reading the tensors. Says what differs."""
    if query.dim() != 3 or pages.dim() != 5 or pages.shape[1] != 2:
        raise ValueError(
            f"query {tuple(query.shape)} must be [tokens, heads, head_dim] and pages {tuple(pages.shape)} "
            "[frames, 2, kv_heads, page_tokens, head_dim]"
        )
    if query.dtype != pages.dtype or query.dtype not in DTYPES:
        raise ValueError(f"query is {query.dtype} and pages are {pages.dtype}: both must be float16, or both bfloat16")
    if query.shape[2] != pages.shape[4]:
        raise ValueError(f"query has head_dim {query.shape[2]}, pages have {pages.shape[4]}")
    if query.shape[1] % pages.shape[2] != 0:
        raise ValueError(f"query has {query.shape[1]} heads, no multiple of the pages' {pages.shape[2]} KV heads")
    if window < 0:
        raise ValueError(f"window {window}: must be 0 (none) or tokens")
    _check_batch(pages, lengths, q_starts, query)


def _check_batch(pages: Tensor, lengths: Tensor, q_starts: Tensor, rows: Tensor) -> None:
    if lengths.dim() != 1 or q_starts.shape != (lengths.shape[0] + 1,):
        raise ValueError(f"lengths {tuple(lengths.shape)} and q_starts {tuple(q_starts.shape)} must be [seqs] and [seqs + 1]")
    devices = {str(tensor.device) for tensor in (rows, pages, lengths, q_starts)}
    if len(devices) > 1:
        raise ValueError(f"tokens, pages, lengths and q_starts lie on different devices: {sorted(devices)}")
    _, _, kv_heads, page_tokens, head_dim = pages.stride()
    dense = (pages.shape[2] * pages.shape[3] * pages.shape[4], pages.shape[3] * pages.shape[4], pages.shape[4], 1)
    if (pages.stride(1), kv_heads, page_tokens, head_dim) != dense:
        raise ValueError(f"pages with strides {pages.stride()}: a frame must be dense")


def _check_table(block_table: Tensor, lengths: Tensor) -> None:
    if block_table.dim() != 2 or block_table.shape[0] != lengths.shape[0]:
        raise ValueError(f"block table {tuple(block_table.shape)} must be [seqs, blocks], for {lengths.shape[0]} sequences")


def _check_new(pages: Tensor, key: Tensor, value: Tensor, block_table: Tensor, lengths: Tensor, q_starts: Tensor) -> None:
    if pages.dim() != 5 or pages.shape[1] != 2:
        raise ValueError(f"pages {tuple(pages.shape)} must be [frames, 2, kv_heads, page_tokens, head_dim]")
    expected = (pages.shape[2], pages.shape[4])
    if key.dim() != 3 or key.shape != value.shape or key.shape[1:] != expected:
        raise ValueError(
            f"key {tuple(key.shape)} and value {tuple(value.shape)} must be [tokens, {expected[0]}, {expected[1]}] for these pages"
        )
    if key.dtype != pages.dtype or value.dtype != pages.dtype:
        raise ValueError(f"key is {key.dtype} and value {value.dtype}, pages are {pages.dtype}")
    _check_batch(pages, lengths, q_starts, key)
    _check_table(block_table, lengths)


def _given(
    query: Tensor, pages: Tensor, lengths: Tensor, q_starts: Tensor, scale: float, window: int, workspace: Tensor | None
) -> dict[str, object]:
    """The call as the native half takes it on the CPU. `query` and `workspace` are dense."""
    _check(query, pages, lengths, q_starts, window)
    blocks = 0
    if workspace is not None:
        expected = (query.shape[0], query.shape[1], workspace.shape[2], query.shape[2] + _EXTRA)
        if workspace.dtype != torch.float64 or workspace.shape != expected or not workspace.is_contiguous():
            raise ValueError(
                f"workspace {tuple(workspace.shape)} {workspace.dtype} is not that of `workspace(query, blocks)`: {expected}"
            )
        blocks = workspace.shape[2]
    return {
        "query": query.data_ptr(),
        "tokens": query.shape[0],
        "pages": pages.data_ptr(),
        "frames": pages.shape[0],
        "frame_bytes": pages.stride(0) * pages.element_size(),
        "heads": query.shape[1],
        "kv_heads": pages.shape[2],
        "page_tokens": pages.shape[3],
        "head_dim": pages.shape[4],
        "bf16": pages.dtype == torch.bfloat16,
        "lengths": lengths.tolist(),
        "starts": q_starts.tolist(),
        "scale": scale,
        "window": window,
        "partials": 0 if workspace is None else workspace.data_ptr(),
        "blocks": blocks,
    }


@torch.library.custom_op("kvtide::append", mutates_args=("pages",), device_types="cpu")
def append(pages: Tensor, key: Tensor, value: Tensor, block_table: Tensor, lengths: Tensor, q_starts: Tensor) -> None:
    """Writes the keys and values [tokens, kv_heads, head_dim] of each sequence's last tokens into their pages."""
    _check_new(pages, key, value, block_table, lengths, q_starts)
    counts = q_starts.diff().to(torch.int64)
    if int(q_starts[-1]) != key.shape[0] or int(q_starts[0]) != 0 or bool((counts < 0).any()):
        raise ValueError(f"q_starts {q_starts.tolist()}: must rise from 0 to the {key.shape[0]} new tokens")
    rows = torch.arange(len(counts)).repeat_interleave(counts)
    positions = torch.arange(key.shape[0]) - q_starts[rows] + (lengths - counts)[rows]
    block, token = positions // pages.shape[3], positions % pages.shape[3]
    if bool((positions < 0).any()) or bool((block >= block_table.shape[1]).any()):
        raise ValueError(f"new tokens outside of their sequences' {lengths.tolist()} tokens, or of {block_table.shape[1]} blocks")
    frame = block_table[rows, block].to(torch.int64)
    if bool((frame < 0).any()) or bool((frame >= pages.shape[0]).any()):
        raise ValueError(f"a page of the new tokens is in no frame of the {pages.shape[0]} that there are")
    pages[frame, 0, :, token] = key
    pages[frame, 1, :, token] = value


@append.register_kernel("cuda")
def _(pages: Tensor, key: Tensor, value: Tensor, block_table: Tensor, lengths: Tensor, q_starts: Tensor) -> None:
    _check_new(pages, key, value, block_table, lengths, q_starts)
    cuda.of(pages).append(pages, key, value, block_table, lengths, q_starts)


@append.register_fake
def _(pages: Tensor, key: Tensor, value: Tensor, block_table: Tensor, lengths: Tensor, q_starts: Tensor) -> None:
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
    """Attention where every page is readable. `q_tokens`: at least the queries of any sequence."""
    query = query.contiguous()
    given = _given(query, pages, lengths, q_starts, scale, window, None)
    _check_table(block_table, lengths)
    out = torch.empty_like(query)
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
    return torch.empty_like(query, memory_format=torch.contiguous_format)


def workspace(query: Tensor, blocks: int) -> Tensor:
    """Room on the CPU for the partials of `blocks` pages a sequence. Poisoned: a page that is never emitted is noticed."""
    shape = (query.shape[0], query.shape[1], blocks, query.shape[2] + _EXTRA)
    return torch.full(shape, torch.nan, dtype=torch.float64, device=query.device)


@torch.library.custom_op("kvtide::attend_pages", mutates_args=("workspace",), device_types="cpu")
def attend_pages(
    query: Tensor,
    pages: Tensor,
    block_table: Tensor,
    work: Tensor,
    lengths: Tensor,
    q_starts: Tensor,
    scale: float,
    window: int,
    workspace: Tensor,
) -> None:
    """Partials of the pages `work` [n, 2] (sequence of the batch, block index) into the workspace. A GPU's: `Passes`."""
    _check_work(work)
    query = query.contiguous()
    given = _given(query, pages, lengths, q_starts, scale, window, workspace)
    _check_table(block_table, lengths)
    sequence, block = work[:, 0].to(torch.int64), work[:, 1].to(torch.int64)
    inside = (work >= 0).all() and (sequence < block_table.shape[0]).all() and (block < block_table.shape[1]).all()
    if not bool(inside) or bool((block_table[sequence, block] < 0).any()):
        raise ValueError(f"work names a page that is not in the block table {tuple(block_table.shape)}, or in no frame")
    frame = block_table[sequence, block].to(torch.int64)
    _native.attend_pages(given, torch.stack((sequence, block, frame), 1).tolist())


def _check_work(work: Tensor) -> None:
    if work.dim() != 2 or work.shape[1] != 2:
        raise ValueError(f"work {tuple(work.shape)} must be [pages, 2]: sequence, block")


@attend_pages.register_fake
def _(
    query: Tensor,
    pages: Tensor,
    block_table: Tensor,
    work: Tensor,
    lengths: Tensor,
    q_starts: Tensor,
    scale: float,
    window: int,
    workspace: Tensor,
) -> None:
    _check(query, pages, lengths, q_starts, window)
    _check_work(work)


@torch.library.custom_op("kvtide::attend_merge", mutates_args=(), device_types="cpu")
def attend_merge(
    query: Tensor, pages: Tensor, lengths: Tensor, q_starts: Tensor, scale: float, window: int, workspace: Tensor
) -> Tensor:
    """Folds the partials. A page that a query sees and that was not emitted is an error (`kvtide.errors.WrongState`)."""
    query = query.contiguous()
    out = torch.empty_like(query)
    _native.attend_merge(_given(query, pages, lengths, q_starts, scale, window, workspace), out.data_ptr())
    return out


@attend_merge.register_fake
def _(
    query: Tensor, pages: Tensor, lengths: Tensor, q_starts: Tensor, scale: float, window: int, workspace: Tensor
) -> Tensor:
    _check(query, pages, lengths, q_starts, window)
    return torch.empty_like(query, memory_format=torch.contiguous_format)
