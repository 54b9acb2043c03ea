"""Attention over pages as torch operators: `torch.ops.kvtide.*`, for tensors of the CPU, with meta kernels for torch.compile.

Queries are ragged: sequence s of the batch has the rows `q_starts[s] .. q_starts[s + 1]` of `query` [tokens, heads, head_dim],
which are its last tokens; `lengths[s]` counts all of them. `pages` is [frames, 2, kv_heads, page_tokens, head_dim]. A query
sees the tokens up to its own, the last `window` of them if that is not 0.

A result does not depend on which pages were readable first: a page's partial is computed from scratch, and partials are folded
in index order. `attend` (everything is readable) and `attend_pages` ... `attend_merge` (pages come in passes) agree bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvtide import _native

from .memory import DTYPES

#: Numbers of a row of a page's partial that are no values: the largest score, and the sum of weights.
_EXTRA = 2


def _check(query: Tensor, pages: Tensor, lengths: Tensor, q_starts: Tensor) -> None:
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
    if lengths.dim() != 1 or q_starts.shape != (lengths.shape[0] + 1,):
        raise ValueError(f"lengths {tuple(lengths.shape)} and q_starts {tuple(q_starts.shape)} must be [seqs] and [seqs + 1]")
    devices = {str(tensor.device) for tensor in (query, pages, lengths, q_starts)}
    if len(devices) > 1:
        raise ValueError(f"query, pages, lengths and q_starts lie on different devices: {sorted(devices)}")


def _given(
    query: Tensor, pages: Tensor, lengths: Tensor, q_starts: Tensor, scale: float, window: int, workspace: Tensor | None
) -> dict[str, object]:
    """The call as the native half takes it. `query` and `workspace` are dense."""
    _check(query, pages, lengths, q_starts)
    if pages.shape[0] and not pages[0].is_contiguous():
        raise ValueError(f"pages with strides {pages.stride()}: a frame must be dense")
    if window < 0:
        raise ValueError(f"window {window}: must be 0 (none) or tokens")
    blocks = 0
    if workspace is not None:
        expected = (query.shape[0], query.shape[1], workspace.shape[2], query.shape[2] + _EXTRA)
        if workspace.dtype != torch.float32 or workspace.shape != expected or not workspace.is_contiguous():
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


def workspace(query: Tensor, blocks: int) -> Tensor:
    """Room for the partials of `blocks` pages a sequence. Poisoned: a page that is never emitted is noticed at the merge."""
    shape = (query.shape[0], query.shape[1], blocks, query.shape[2] + _EXTRA)
    return torch.full(shape, torch.nan, dtype=torch.float32, device=query.device)


@torch.library.custom_op("kvtide::append", mutates_args=("pages",), device_types="cpu")
def append(pages: Tensor, key: Tensor, value: Tensor, slots: Tensor) -> None:
    """Writes the keys and values [tokens, kv_heads, head_dim] of new tokens: token i into slot `slots[i]`, which is
    frame * page_tokens + position in the page; a negative slot is left out."""
    _check_append(pages, key, value, slots)
    page_tokens = pages.shape[3]
    if slots.numel() and int(slots.max()) >= pages.shape[0] * page_tokens:
        raise ValueError(f"slot {int(slots.max())} is beyond the {pages.shape[0]} frames of {page_tokens} tokens")
    kept = slots >= 0
    if not bool(kept.all()):
        key, value, slots = key[kept], value[kept], slots[kept]
    frame, token = slots // page_tokens, slots % page_tokens
    pages[frame, 0, :, token] = key
    pages[frame, 1, :, token] = value


def _check_append(pages: Tensor, key: Tensor, value: Tensor, slots: Tensor) -> None:
    expected = (slots.shape[0], pages.shape[2], pages.shape[4])
    if key.shape != expected or value.shape != expected:
        raise ValueError(f"key {tuple(key.shape)} and value {tuple(value.shape)} must be {expected} for these slots and pages")
    if key.dtype != pages.dtype or value.dtype != pages.dtype:
        raise ValueError(f"key is {key.dtype} and value {value.dtype}, pages are {pages.dtype}")


@append.register_fake
def _(pages: Tensor, key: Tensor, value: Tensor, slots: Tensor) -> None:
    _check_append(pages, key, value, slots)


@torch.library.custom_op("kvtide::attend", mutates_args=(), device_types="cpu")
def attend(
    query: Tensor,
    pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    q_starts: Tensor,
    scale: float,
    window: int = 0,
) -> Tensor:
    """Attention where every page is readable: `block_table` [seqs, blocks] holds frames, negative where there is none."""
    query = query.contiguous()
    out = torch.empty_like(query)
    _native.attend(_given(query, pages, lengths, q_starts, scale, window, None), block_table.tolist(), out.data_ptr())
    return out


@attend.register_fake
def _(
    query: Tensor,
    pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    q_starts: Tensor,
    scale: float,
    window: int = 0,
) -> Tensor:
    _check(query, pages, lengths, q_starts)
    return torch.empty_like(query, memory_format=torch.contiguous_format)


@torch.library.custom_op("kvtide::attend_pages", mutates_args=("workspace",), device_types="cpu")
def attend_pages(
    query: Tensor,
    pages: Tensor,
    work: Tensor,
    lengths: Tensor,
    q_starts: Tensor,
    scale: float,
    window: int,
    workspace: Tensor,
) -> None:
    """Partials of the pages `work` [n, 3] (sequence of the batch, block index, frame) into the workspace."""
    if work.dim() != 2 or work.shape[1] != 3:
        raise ValueError(f"work {tuple(work.shape)} must be [pages, 3]: sequence, block, frame")
    query = query.contiguous()
    _native.attend_pages(_given(query, pages, lengths, q_starts, scale, window, workspace), work.tolist())


@attend_pages.register_fake
def _(
    query: Tensor,
    pages: Tensor,
    work: Tensor,
    lengths: Tensor,
    q_starts: Tensor,
    scale: float,
    window: int,
    workspace: Tensor,
) -> None:
    _check(query, pages, lengths, q_starts)


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
    _check(query, pages, lengths, q_starts)
    return torch.empty_like(query, memory_format=torch.contiguous_format)
