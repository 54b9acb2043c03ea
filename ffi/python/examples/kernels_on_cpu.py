"""FlashAttention-3, FlashMLA and FlashInfer on CPU tensors: the documented arguments, checks and results, without speed.

The examples use them with --cpu-check, and the tests instead of the libraries. Keys and values are read by address and strides, as
the kernels do. Like the kernels, they take each entry of a table up to the sequence's end, and multiply masked values by zero.
"""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

#: Number of calls of each function, by name.
CALLS: dict[str, int] = {}


def _need(condition: bool, text: str) -> None:
    if not condition:
        raise RuntimeError(text)


def _tables(*tables: Tensor) -> None:
    """Check tables as the libraries do: int32, dense in the last dimension."""
    for table in tables:
        _need(table.dtype == torch.int32 and table.stride(-1) == 1, f"a table is {table.dtype} with strides {table.stride()}")


def _read(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """Read the first `length` tokens of a sequence from a cache [pages, tokens, heads, dim] by address: [length, heads, dim]."""
    page_tokens, heads, dim = cache.shape[1:]
    _need(cache.stride(3) == 1 and cache.element_size() == 2, f"the last dimension has strides {cache.stride()}")
    _need(cache.data_ptr() % 16 == 0 and all(step % 8 == 0 for step in cache.stride()[:3]), "the cache is not aligned to 16 bytes")
    tokens = torch.arange(length)
    pages = table.to(torch.int64)[tokens // page_tokens]
    _need(bool(((pages >= 0) & (pages < cache.shape[0])).all()), f"an illegal memory access: pages {pages.unique().tolist()}")
    at = pages * cache.stride(0) + tokens % page_tokens * cache.stride(1)
    offsets = at[:, None, None] + (torch.arange(heads) * cache.stride(2))[None, :, None] + torch.arange(dim)
    size = sum((count - 1) * step for count, step in zip(cache.shape, cache.stride())) + 1
    flat = torch.frombuffer((ctypes.c_uint16 * size).from_address(cache.data_ptr()), dtype=cache.dtype)
    return flat[offsets]


def _attention(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, left: int) -> Tensor:
    """Compute attention of the last queries [n, heads, dim] of a sequence, in f64; `left`: tokens before its own that a query sees, -1:
    all."""
    count, length, group = len(query), len(key), query.shape[1] // max(1, key.shape[1])
    key, value = (rows.double().repeat_interleave(group, 1) for rows in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.double(), key) * scale
    at, token = torch.arange(length - count, length)[:, None], torch.arange(length)[None, :]
    hidden = (token > at) & causal | (token < at - left) & (left >= 0)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value).to(query.dtype)


def _called(name: str) -> None:
    CALLS[name] = CALLS.get(name, 0) + 1


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    cache_seqlens: Tensor,
    page_table: Tensor,
    cu_seqlens_q: Tensor,
    max_seqlen_q: int,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
) -> Tensor:
    """Compute what FlashAttention-3 documents. Queries are [tokens, heads, dim], caches [pages, page_tokens, kv_heads, dim]."""
    _called("flash_attention_3")
    _tables(cache_seqlens, page_table, cu_seqlens_q)
    _need(page_table.shape[0] == len(cache_seqlens) == len(cu_seqlens_q) - 1, "batch sizes differ")
    _need(q.stride(-1) == 1 and k_cache.shape == v_cache.shape and q.shape[2] % 8 == 0, "shapes of q, k and v")
    starts = cu_seqlens_q.tolist()
    _need(max(b - a for a, b in zip(starts, starts[1:])) <= max_seqlen_q, "max_seqlen_q is too small")
    rows = []
    for seq, length in enumerate(cache_seqlens.tolist()):
        key, value = (_read(cache, page_table[seq], length) for cache in (k_cache, v_cache))
        rows.append(_attention(q[starts[seq] : starts[seq + 1]], key, value, softmax_scale, causal, window_size[0]))
    return torch.cat(rows)


def get_mla_metadata(cache_seqlens: Tensor, rows_per_kv_head: int, kv_heads: int) -> tuple[object, None]:
    """Return FlashMLA's plan for sequences of these lengths."""
    return SimpleNamespace(lengths=cache_seqlens.tolist(), rows=rows_per_kv_head * kv_heads), None


def flash_mla_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    block_table: Tensor,
    cache_seqlens: Tensor,
    head_dim_v: int,
    tile_scheduler_metadata: Any,
    num_splits: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> tuple[Tensor, None]:
    """Compute what FlashMLA documents. Queries are [seqs, queries, heads, 576], the cache [pages, 64, 1, 576]."""
    _called("flash_mla")
    _tables(cache_seqlens, block_table)
    _need(k_cache.shape[1:] == (64, 1, 576) and q.shape[3] == 576 and head_dim_v == 512, f"q {q.shape}, k_cache {k_cache.shape}")
    _need(tile_scheduler_metadata.lengths == cache_seqlens.tolist(), "the metadata is of other lengths")
    _need(tile_scheduler_metadata.rows == q.shape[1] * q.shape[2], "the metadata is of other queries")
    rows = []
    for seq, length in enumerate(cache_seqlens.tolist()):
        key = _read(k_cache, block_table[seq], length)
        rows.append(_attention(q[seq], key, key[..., :head_dim_v], softmax_scale or 576**-0.5, causal, -1))
    return torch.stack(rows), None


def _page_row(indptr: list[int], indices: Tensor, seq: int, length: int, page_tokens: int) -> Tensor:
    row = indices[indptr[seq] : indptr[seq + 1]]
    _need(len(row) == -(-length // page_tokens), f"{len(row)} pages for {length} tokens of sequence {seq}")
    return row


class BatchPrefillWithPagedKVCacheWrapper:
    """FlashInfer's attention over pages [pages, 2, kv_heads, page_tokens, dim] (HND)."""

    def __init__(self, workspace: Tensor, kv_layout: str = "NHD") -> None:
        _need(workspace.dtype == torch.uint8 and kv_layout == "HND", f"workspace {workspace.dtype}, layout {kv_layout}")

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool,
        sm_scale: float,
        window_left: int,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        """Take the tables of a batch."""
        _tables(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        self._starts, self._indptr, self._indices = qo_indptr.tolist(), paged_kv_indptr.tolist(), paged_kv_indices
        pages = paged_kv_indptr.diff()
        self._lengths = ((pages - 1).clamp(min=0) * page_size + paged_kv_last_page_len).tolist()
        self._shape, self._heads = (num_kv_heads, page_size, head_dim_qk), num_qo_heads
        self._mask, self._dtypes = (sm_scale, causal, window_left), (q_data_type, kv_data_type)

    def run(self, q: Tensor, paged_kv_cache: Tensor) -> Tensor:
        """Compute what the plan says."""
        _called("flashinfer")
        _need(paged_kv_cache.shape[1:] == (2, *self._shape) and q.shape[1:] == (self._heads, self._shape[2]), "not the plan's shapes")
        _need((q.dtype, paged_kv_cache.dtype) == self._dtypes and len(q) == self._starts[-1], "not the plan's types or queries")
        key_cache, value_cache = (part.transpose(1, 2) for part in paged_kv_cache.unbind(1))
        rows = []
        for seq, length in enumerate(self._lengths):
            row = _page_row(self._indptr, self._indices, seq, length, self._shape[1])
            key, value = _read(key_cache, row, length), _read(value_cache, row, length)
            rows.append(_attention(q[self._starts[seq] : self._starts[seq + 1]], key, value, *self._mask))
        return torch.cat(rows)


class BatchMLAPagedAttentionWrapper:
    """FlashInfer's attention over latent pages, given as [pages, page_tokens, 512] and [pages, page_tokens, 64]."""

    def __init__(self, workspace: Tensor) -> None:
        _need(workspace.dtype == torch.uint8, f"workspace {workspace.dtype}")

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        kv_len_arr: Tensor,
        num_heads: int,
        head_dim_ckv: int,
        head_dim_kpe: int,
        page_size: int,
        causal: bool,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        """Take the tables of a batch."""
        _tables(qo_indptr, kv_indptr, kv_indices, kv_len_arr)
        _need((head_dim_ckv, head_dim_kpe) == (512, 64), f"head dims {head_dim_ckv} and {head_dim_kpe}")
        self._starts, self._indptr, self._indices = qo_indptr.tolist(), kv_indptr.tolist(), kv_indices
        self._lengths, self._heads, self._page_tokens = kv_len_arr.tolist(), num_heads, page_size
        self._mask, self._dtypes = (sm_scale, causal, -1), (q_data_type, kv_data_type)

    def run(self, q_nope: Tensor, q_pe: Tensor, ckv_cache: Tensor, kpe_cache: Tensor) -> Tensor:
        """Compute what the plan says."""
        _called("flashinfer")
        _need(q_nope.shape[1:] == (self._heads, 512) and ckv_cache.shape[1] == self._page_tokens, "not the plan's shapes")
        _need((q_nope.dtype, ckv_cache.dtype) == self._dtypes and len(q_nope) == self._starts[-1], "not the plan's types or queries")
        query, rows = torch.cat((q_nope, q_pe), -1), []
        for seq, length in enumerate(self._lengths):
            row = _page_row(self._indptr, self._indices, seq, length, self._page_tokens)
            value = _read(ckv_cache[:, :, None], row, length)
            key = torch.cat((value, _read(kpe_cache[:, :, None], row, length)), -1)
            rows.append(_attention(query[self._starts[seq] : self._starts[seq + 1]], key, value, *self._mask))
        return torch.cat(rows)


def modules() -> dict[str, ModuleType]:
    """Return the libraries' modules by name, for `sys.modules`."""
    contents: dict[str, tuple[Any, ...]] = {
        "flash_attn_interface": (flash_attn_with_kvcache,),
        "flash_mla": (get_mla_metadata, flash_mla_with_kvcache),
        "flashinfer": (BatchPrefillWithPagedKVCacheWrapper,),
        "flashinfer.mla": (BatchMLAPagedAttentionWrapper,),
    }
    made = {name: ModuleType(name) for name in contents}
    for name, parts in contents.items():
        for part in parts:
            setattr(made[name], part.__name__, part)
    made["flashinfer"].mla = made["flashinfer.mla"]  # type: ignore[attr-defined]
    return made


def install() -> None:
    """Make the libraries' names mean these functions in this process."""
    sys.modules.update(modules())
