"""Blocks of keys and values between an engine's own tensors and pages.

A layout is told by views: `keys` and `values` hold a tensor [blocks, tokens, heads, dim] for each layer, views of whatever the
engine allocated; layers or pages first, K and V apart or together, heads or tokens first are all strides. `values` is empty where a
layer has keys alone, or latent vectors. All tensors of a side have one shape and the same strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvtide import _native

from .. import launch
from ..memory import DTYPES


@dataclass(frozen=True)
class Rows:
    """One side of a copy: tensors of equal shape and strides, and how many of them a layer has."""

    tensors: list[Tensor]
    parts: int

    @property
    def first(self) -> Tensor:
        """Any of them."""
        return self.tensors[0]

    @property
    def shape(self) -> dict[str, int]:
        """What a block holds, as the native half takes it."""
        _, tokens, heads, channels = self.first.shape
        layers = len(self.tensors) // self.parts
        return {"layers": layers, "parts": self.parts, "heads": heads, "tokens": tokens, "channels": channels}

    @property
    def given(self) -> dict[str, object]:
        """Where they are, as the native half takes it on the CPU."""
        size = self.first.element_size()
        block, token, head, _ = self.first.stride()
        return {
            "bases": [tensor.data_ptr() for tensor in self.tensors],
            "block_stride": block * size,
            "head_stride": head * size,
            "token_stride": token * size,
            "blocks": self.first.shape[0],
        }


def rows_of(what: str, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Rows:
    """One side of a copy, if it is one; else says what differs."""
    if not keys or len(values) not in (0, len(keys)):
        raise ValueError(f"{what}: {len(keys)} layers of keys and {len(values)} of values: as many, or keys alone")
    tensors = [tensor for layer in zip(keys, values) for tensor in layer] if values else list(keys)
    first = tensors[0]
    if first.dim() != 4 or first.dtype not in DTYPES or first.stride(3) != 1:
        raise ValueError(
            f"{what}: {tuple(first.shape)} {first.dtype} with strides {first.stride()} must be [blocks, tokens, heads, dim] of float16 "
            "or bfloat16, each row dense"
        )
    for other in tensors:
        same = (other.shape, other.stride(), other.dtype, other.device)
        if same != (first.shape, first.stride(), first.dtype, first.device):
            raise ValueError(
                f"{what}: {tuple(other.shape)} {other.dtype} with strides {other.stride()} on {other.device} beside {tuple(first.shape)} "
                f"{first.dtype} with strides {first.stride()} on {first.device}: all must be alike"
            )
    return Rows(tensors, 2 if values else 1)


def check_index(what: str, index: Tensor, like: Tensor, count: int | None = None) -> None:
    """A list of numbers, one a block."""
    if index.dim() != 1 or index.dtype not in (torch.int32, torch.int64) or index.device != like.device:
        raise ValueError(f"{what}: {tuple(index.shape)} {index.dtype} on {index.device} must be int32 or int64 [n] on {like.device}")
    if count is not None and index.shape[0] != count:
        raise ValueError(f"{what}: {index.shape[0]} numbers for {count} blocks")


def layers_of(pages: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Pages as `keys` and `values`: [frames, 2, kv_heads, page_tokens, head_dim], the same with layers after the frames, or latent
    vectors [frames, page_tokens, dim]."""
    if pages.dim() == 3:
        return [pages[:, :, None]], []
    if pages.dim() == 5:
        pages = pages[:, None]
    if pages.dim() != 6 or pages.shape[2] != 2:
        raise ValueError(
            f"pages {tuple(pages.shape)} must be [frames, 2, kv_heads, page_tokens, head_dim], with layers after the frames or without, "
            "or latent vectors [frames, page_tokens, dim]"
        )
    part = [[pages[:, layer, part].transpose(1, 2) for layer in range(pages.shape[1])] for part in (0, 1)]
    return part[0], part[1]


def _sides(
    from_keys: Sequence[Tensor],
    from_values: Sequence[Tensor],
    from_blocks: Tensor,
    to_keys: Sequence[Tensor],
    to_values: Sequence[Tensor],
    to_blocks: Tensor,
) -> tuple[Rows, Rows]:
    source, target = rows_of("what is copied", from_keys, from_values), rows_of("where to", to_keys, to_values)
    one, other = source.first, target.first
    if source.shape != target.shape or (one.dtype, one.device) != (other.dtype, other.device):
        raise ValueError(
            f"blocks of {source.shape} {one.dtype} on {one.device} cannot be copied to {target.shape} {other.dtype} on {other.device}"
        )
    check_index("blocks that are copied", from_blocks, one)
    check_index("blocks where to", to_blocks, one, from_blocks.shape[0])
    return source, target


@torch.library.custom_op("kvtide::copy_blocks", mutates_args=("to_keys", "to_values"), device_types="cpu")
def copy_blocks(
    from_keys: Sequence[Tensor],
    from_values: Sequence[Tensor],
    from_blocks: Tensor,
    to_keys: Sequence[Tensor],
    to_values: Sequence[Tensor],
    to_blocks: Tensor,
) -> None:
    """Copies block `from_blocks[i]` of one layout to block `to_blocks[i]` of another. No block is written twice, or also read."""
    source, target = _sides(from_keys, from_values, from_blocks, to_keys, to_values, to_blocks)
    items = torch.stack((from_blocks.to(torch.int64), to_blocks.to(torch.int64)), 1)
    if bool((items < 0).any()):
        raise ValueError(f"blocks {items.min().item()}: none is negative")
    _native.copy_blocks(source.given, target.given, source.shape, items.tolist())


@copy_blocks.register_kernel("cuda")
def _(
    from_keys: Sequence[Tensor],
    from_values: Sequence[Tensor],
    from_blocks: Tensor,
    to_keys: Sequence[Tensor],
    to_values: Sequence[Tensor],
    to_blocks: Tensor,
) -> None:
    source, target = _sides(from_keys, from_values, from_blocks, to_keys, to_values, to_blocks)
    launch.of(source.first).copy_blocks(source, from_blocks, target, to_blocks)


@copy_blocks.register_fake
def _(
    from_keys: Sequence[Tensor],
    from_values: Sequence[Tensor],
    from_blocks: Tensor,
    to_keys: Sequence[Tensor],
    to_values: Sequence[Tensor],
    to_blocks: Tensor,
) -> None:
    _sides(from_keys, from_values, from_blocks, to_keys, to_values, to_blocks)


def gather(keys: Sequence[Tensor], values: Sequence[Tensor], blocks: Tensor, pages: Tensor, frames: Tensor) -> None:
    """Copies an engine's blocks into frames of `pages` (`layers_of`)."""
    copy_blocks(keys, values, blocks, *layers_of(pages), frames)


def scatter(pages: Tensor, frames: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], blocks: Tensor) -> None:
    """Copies frames of `pages` to an engine's blocks."""
    copy_blocks(*layers_of(pages), frames, keys, values, blocks)
