"""Build int32 block tables and miss bits from a lane's table, for unmodified paged kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from kvtide import _native

from .. import launch
from .blocks import check_index


def _check(
    table: Tensor,
    block_ids: Tensor,
    lengths: Tensor,
    page_tokens: int,
    plane: int,
    planes: int,
    first_frame: int,
    absent: int,
    starts: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Check the arguments and allocate the results."""
    if table.dim() != 2 or table.dtype != torch.int32 or not table.is_contiguous():
        raise ValueError(f"table {tuple(table.shape)} {table.dtype} must be a lane's table: int32 [blocks, planes], dense")
    if block_ids.dim() != 2 or block_ids.device != table.device:
        raise ValueError(f"block ids {tuple(block_ids.shape)} on {block_ids.device} must be [seqs, blocks] on {table.device}")
    seqs, columns = block_ids.shape
    check_index("lengths", lengths, table, seqs)
    if starts is not None:
        check_index("starts", starts, table, seqs)
    if planes < 1 or plane < 0 or plane + planes > table.shape[1] or page_tokens < 1 or first_frame < 0:
        raise ValueError(
            f"planes {plane} to {plane + planes} of {table.shape[1]}, pages of {page_tokens} tokens, first frame {first_frame}: "
            "out of range"
        )
    new = table.new_empty
    return new((planes, seqs, columns)), new((planes, seqs, -(-columns // 32)))


@torch.library.custom_op("kvtide::block_tables", mutates_args=(), device_types="cpu")
def block_tables(
    table: Tensor,
    block_ids: Tensor,
    lengths: Tensor,
    page_tokens: int,
    plane: int = 0,
    planes: int = 1,
    first_frame: int = 0,
    absent: int = -1,
    starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return int32 [planes, seqs, blocks]: the frame of each page of tokens `starts .. lengths`, minus the first frame of the
    planes' size class; `absent` if the page is in no frame. Also return int32 [planes, seqs, blocks / 32 rounded up]: bit i of word
    w is set if page 32 w + i is needed and in no frame. Call it after a boundary of these planes."""
    tables, misses = _check(table, block_ids, lengths, page_tokens, plane, planes, first_frame, absent, starts)
    ids = block_ids.to(torch.int32).contiguous()
    _native.block_tables(
        {
            "table": table.data_ptr(),
            "blocks": table.shape[0],
            "planes": table.shape[1],
            "plane": plane,
            "plane_count": planes,
            "first_frame": first_frame,
            "absent": absent,
            "block_ids": ids.data_ptr(),
            "columns": ids.shape[1],
            "lengths": lengths.tolist(),
            "starts": [] if starts is None else starts.tolist(),
            "page_tokens": page_tokens,
            "block_tables": tables.data_ptr(),
            "misses": misses.data_ptr(),
        }
    )
    return tables, misses


@block_tables.register_kernel("cuda")
def _(
    table: Tensor,
    block_ids: Tensor,
    lengths: Tensor,
    page_tokens: int,
    plane: int = 0,
    planes: int = 1,
    first_frame: int = 0,
    absent: int = -1,
    starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    results = _check(table, block_ids, lengths, page_tokens, plane, planes, first_frame, absent, starts)
    found = launch.of(table)
    found.block_tables(table, block_ids, lengths, page_tokens, plane, first_frame, absent, starts, *results)
    return results


@block_tables.register_fake
def _(
    table: Tensor,
    block_ids: Tensor,
    lengths: Tensor,
    page_tokens: int,
    plane: int = 0,
    planes: int = 1,
    first_frame: int = 0,
    absent: int = -1,
    starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    return _check(table, block_ids, lengths, page_tokens, plane, planes, first_frame, absent, starts)
