"""kvtide's pages as the arguments of other attention libraries: views and tables, without a copy of keys or values.

For engines that call FlashAttention-3, FlashMLA or FlashInfer themselves; `backends` calls them for `ops.attend`. The arguments
`query`, `pages`, `block_table`, `lengths`, `q_starts`, `q_tokens`, `scale` and `window` are those of `ops.attend`. Nothing here
imports a library or waits for a GPU.

- **Missing pages.** These libraries take every entry of a table as an address. On CPU tensors a missing page raises `WrongState`.
  On a GPU the caller ensures that all pages are readable; `missing` checks it. Entries that no query needs, which kvtide marks with
  negative numbers, become frame 0; with a window, the first page in it.
- **Masked numbers.** Some kernels multiply masked values by zero instead of skipping them, so these must be finite. They are the rest
  of a sequence's last page, for FlashAttention-3 with pages as large as its tile (128 tokens for heads of 64 and 128; 64 or 80 for
  heads of 256), and with a window the page that stands for those before it. Values of earlier sequences are finite. Frames that were
  never written hold what the memory held before: clear memory that an engine brings.

The arguments are those of FlashAttention 0251105a (`hopper`), FlashMLA 9241ae3 and FlashInfer fb28d724, all of 2026.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvtide.errors import WrongState

from .memory import LATENT_VALUE_DIM
from .shapes import check, check_pages, check_table, kv

__all__ = [
    "FlashInferTables",
    "flash_attention_3",
    "flash_mla",
    "flashinfer_latent",
    "flashinfer_tables",
    "missing",
    "page_table",
    "unsuited_to_flash_attention_3",
    "unsuited_to_flash_mla",
    "unsuited_to_flashinfer",
]

#: FlashAttention-3: the largest head dimension, and what it must be a multiple of.
_FA3_HEAD_DIM_MAX, _FA3_HEAD_DIM_STEP = 256, 8
#: FlashMLA: its only page size, in tokens.
_FLASH_MLA_PAGE_TOKENS = 64
#: FlashInfer: head dimensions for which its kernels are compiled.
_FLASHINFER_HEAD_DIMS = (64, 128, 256)
#: Alignment of addresses and strides for loads of 16 bytes and for the tensor memory accelerator.
_ALIGNMENT = 16


def _page_counts(lengths: Tensor, page_tokens: int) -> Tensor:
    """Return the number of pages of each sequence, int32 [seqs]."""
    return ((lengths + (page_tokens - 1)) // page_tokens).to(torch.int32)


def _first_pages(lengths: Tensor, q_starts: Tensor, page_tokens: int, window: int) -> Tensor:
    """Return the first page that the first query of each sequence sees, int64 [seqs]."""
    if not window:
        return torch.zeros_like(lengths, dtype=torch.int64)
    first_query = lengths.to(torch.int64) - q_starts.diff()
    return (first_query - (window - 1)).clamp(min=0) // page_tokens


def _needed(block_table: Tensor, pages: Tensor, lengths: Tensor, q_starts: Tensor, window: int) -> Tensor:
    """Return bool [seqs, columns]: pages that a query sees. Columns are at least those of the table."""
    page_tokens = kv(pages)[1]
    index = torch.arange(block_table.shape[1], device=block_table.device)
    seen = (index >= _first_pages(lengths, q_starts, page_tokens, window)[:, None]) & (
        index < _page_counts(lengths, page_tokens)[:, None]
    )
    return seen & (q_starts.diff() > 0)[:, None]


def missing(block_table: Tensor, pages: Tensor, lengths: Tensor, q_starts: Tensor, window: int = 0) -> Tensor:
    """Return bool [seqs], on the tensors' device: sequences with a query that sees a page which is in no frame.

    Raise ValueError if the shapes do not match.
    """
    check_pages(pages)
    check_table(block_table, lengths)
    absent = (block_table < 0) | (block_table >= pages.shape[0])
    beyond = (_page_counts(lengths, kv(pages)[1]) > block_table.shape[1]) & (q_starts.diff() > 0)
    return (_needed(block_table, pages, lengths, q_starts, window) & absent).any(1) | beyond


def page_table(block_table: Tensor, pages: Tensor, lengths: Tensor, q_starts: Tensor, window: int = 0) -> Tensor:
    """Return the block table for libraries that take a page table: int32 [seqs, blocks], dense, without negative entries.

    Raise ValueError if the shapes do not match, and on CPU tensors `WrongState` if a page that a query sees is missing.
    """
    check_pages(pages)
    check_table(block_table, lengths)
    if block_table.device.type == "cpu":
        _raise_if_missing(block_table, pages, lengths, q_starts, window)
    table = block_table.to(torch.int32)
    if not window or not table.shape[1]:
        return table.clamp(min=0)
    # Kernels read whole tiles, so also pages before the window. The first page in the window holds numbers of this sequence.
    first = _first_pages(lengths, q_starts, kv(pages)[1], window).clamp(max=table.shape[1] - 1)
    return torch.where(table < 0, table.gather(1, first[:, None]).clamp(min=0), table)


def _raise_if_missing(block_table: Tensor, pages: Tensor, lengths: Tensor, q_starts: Tensor, window: int) -> None:
    """Raise `WrongState` for the first sequence with a missing page. Reads the tensors."""
    found = missing(block_table, pages, lengths, q_starts, window).nonzero()
    if not len(found):
        return
    seq = int(found[0])
    entries = block_table[seq]
    absent = ((entries < 0) | (entries >= pages.shape[0])) & _needed(block_table, pages, lengths, q_starts, window)[seq]
    page = int(absent.nonzero()[0]) if bool(absent.any()) else len(entries)
    raise WrongState(
        f"page table: page {page} of sequence {seq} is in none of the {pages.shape[0]} frames. Wait for the plane's pages "
        "(Lane.boundary), or read them in passes with kvtide's kernels"
    )


def _unaligned(pages: Tensor) -> str | None:
    size = pages.element_size()
    at, stride = pages.data_ptr(), pages.stride(0) * size
    if at % _ALIGNMENT or stride % _ALIGNMENT:
        return f"pages at {at:#x} with {stride} bytes from frame to frame; both must be multiples of {_ALIGNMENT}"
    return None


def unsuited_to_flash_attention_3(pages: Tensor) -> str | None:
    """Return why FlashAttention-3 cannot read these pages, or None."""
    if pages.dim() == 3:
        return "it reads pages of keys and values, and these hold latent vectors (MLA); FlashMLA and FlashInfer read them"
    head_dim = pages.shape[4]
    if head_dim > _FA3_HEAD_DIM_MAX or head_dim % _FA3_HEAD_DIM_STEP:
        return f"head_dim {head_dim}; it takes multiples of {_FA3_HEAD_DIM_STEP} up to {_FA3_HEAD_DIM_MAX}"
    return _unaligned(pages)


def flash_attention_3(
    query: Tensor,
    pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    q_starts: Tensor,
    q_tokens: int,
    scale: float,
    window: int = 0,
) -> dict[str, Any]:
    """Return the arguments of `flash_attn_interface.flash_attn_with_kvcache`. Its result is [tokens, heads, head_dim].

    K and V are views [frames, page_tokens, kv_heads, head_dim] by strides; any page size fits. Raise ValueError with the reason if
    the pages do not fit, and errors of `page_table`.
    """
    check(query, pages, lengths, q_starts, window)
    _raise_if_unsuited("FlashAttention-3", unsuited_to_flash_attention_3(pages))
    return {
        "q": query,
        "k_cache": pages[:, 0].transpose(1, 2),
        "v_cache": pages[:, 1].transpose(1, 2),
        "cache_seqlens": lengths.to(torch.int32).contiguous(),
        "page_table": page_table(block_table, pages, lengths, q_starts, window),
        "cu_seqlens_q": q_starts.to(torch.int32).contiguous(),
        "max_seqlen_q": q_tokens,
        "softmax_scale": scale,
        "causal": True,
        # Tokens before the query's own, which is in the window too; -1: all.
        "window_size": (window - 1, 0) if window else (-1, -1),
    }


def unsuited_to_flash_mla(query: Tensor, pages: Tensor, seqs: int, q_tokens: int, window: int = 0) -> str | None:
    """Return why FlashMLA cannot read these pages or take these queries of `seqs` sequences, or None."""
    if pages.dim() != 3:
        return "it reads latent vectors (MLA), and these pages hold keys and values"
    if pages.shape[1] != _FLASH_MLA_PAGE_TOKENS:
        return f"pages of {pages.shape[1]} tokens; it takes {_FLASH_MLA_PAGE_TOKENS}: attach with page_tokens={_FLASH_MLA_PAGE_TOKENS}"
    if window:
        return f"a window of {window} tokens; it has none"
    # `q_tokens` is at least each sequence's number of queries, so an equal product means equal numbers.
    if query.shape[0] != seqs * q_tokens:
        return (
            f"{query.shape[0]} queries of {seqs} sequences, at most {q_tokens} each; it takes the same number for every sequence: "
            "call it for groups of equal sequences"
        )
    return _unaligned(pages)


def flash_mla(
    query: Tensor,
    pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    q_starts: Tensor,
    q_tokens: int,
    scale: float,
) -> dict[str, Any]:
    """Return the arguments of `flash_mla.flash_mla_with_kvcache`, except `tile_scheduler_metadata` and `num_splits`.

    Those two are `flash_mla.get_mla_metadata(cache_seqlens, q_tokens * heads, 1)`, valid for one set of lengths. The result is a
    tuple; its first item is the output [seqs, q_tokens, heads, 512]. Raise ValueError with the reason if the pages or queries do not
    fit, and errors of `page_table`.
    """
    check(query, pages, lengths, q_starts, 0)
    _raise_if_unsuited("FlashMLA", unsuited_to_flash_mla(query, pages, lengths.shape[0], q_tokens))
    return {
        "q": query.reshape(lengths.shape[0], q_tokens, *query.shape[1:]),
        "k_cache": pages[:, :, None],
        "block_table": page_table(block_table, pages, lengths, q_starts),
        "cache_seqlens": lengths.to(torch.int32).contiguous(),
        "head_dim_v": LATENT_VALUE_DIM,
        "softmax_scale": scale,
        "causal": q_tokens > 1,
    }


@dataclass(frozen=True)
class FlashInferTables:
    """The tables of FlashInfer's `plan`, all int32 and dense. Its pages are kvtide's as they are, with `kv_layout="HND"`."""

    #: First entry of each sequence in `indices`, [seqs + 1].
    indptr: Tensor
    #: Pages of all sequences, one after the other: [indptr[-1]], or [seqs * blocks] if that number is not known on the host.
    indices: Tensor
    #: Tokens in the last page of each sequence, [seqs]; 0 for a sequence without tokens.
    last_page_len: Tensor
    #: Tokens of each sequence, [seqs].
    lengths: Tensor
    #: First query of each sequence, [seqs + 1].
    q_indptr: Tensor


def flashinfer_tables(
    block_table: Tensor,
    pages: Tensor,
    lengths: Tensor,
    q_starts: Tensor,
    window: int = 0,
    *,
    on_host: tuple[Sequence[int], Sequence[int]] | None = None,
) -> FlashInferTables:
    """Return FlashInfer's tables.

    `plan` reads all tables but `indices` on the host, and copies them from the GPU first, which waits. With `on_host`, the tokens and
    the number of queries of each sequence, these tables are CPU tensors, and `plan` does not wait. Raise errors of `page_table`.
    """
    table, page_tokens = page_table(block_table, pages, lengths, q_starts, window), kv(pages)[1]
    starts = _starts(_page_counts(lengths, page_tokens))
    # Without waiting for the numbers: entries that are no page of a sequence go to one more place behind the last.
    room = table.numel()
    at = starts[:-1, None] + torch.arange(table.shape[1], dtype=torch.int32, device=table.device)
    at = torch.where(at < starts[1:, None], at, room).clamp(max=room)
    indices = table.new_zeros(room + 1).scatter_(0, at.view(-1).to(torch.int64), table.view(-1))[:room]
    if on_host is None:
        return _flashinfer(indices, starts, lengths.to(torch.int32), q_starts.to(torch.int32), page_tokens)
    tokens, queries = (torch.tensor(list(numbers), dtype=torch.int32) for numbers in on_host)
    starts = _starts(_page_counts(tokens, page_tokens))
    return _flashinfer(indices[: int(starts[-1])], starts, tokens, _starts(queries), page_tokens)


def _starts(counts: Tensor) -> Tensor:
    """Return where each of several lists begins, and where the last one ends: int32 [n + 1]."""
    return torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))


def _flashinfer(indices: Tensor, starts: Tensor, lengths: Tensor, q_starts: Tensor, page_tokens: int) -> FlashInferTables:
    last = torch.where(lengths > 0, (lengths - 1) % page_tokens + 1, 0).to(torch.int32)
    return FlashInferTables(starts, indices, last, lengths, q_starts)


def unsuited_to_flashinfer(pages: Tensor, window: int = 0) -> str | None:
    """Return why FlashInfer cannot read these pages, or None."""
    if pages.dim() == 3:
        return f"a window of {window} tokens; its MLA kernels have none" if window else _unaligned(pages)
    if pages.shape[4] not in _FLASHINFER_HEAD_DIMS:
        return f"head_dim {pages.shape[4]}; it takes {', '.join(map(str, _FLASHINFER_HEAD_DIMS))}"
    return _unaligned(pages)


def flashinfer_latent(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Split latent vectors [..., 576], pages or queries, as FlashInfer's MLA takes them: [..., 512] and [..., 64], as views."""
    return vectors[..., :LATENT_VALUE_DIM], vectors[..., LATENT_VALUE_DIM:]


def _raise_if_unsuited(library: str, reason: str | None) -> None:
    if reason is not None:
        raise ValueError(f"{library} on these pages: {reason}")
