"""Copies of blocks of keys and values between an engine's own tensors and pages.

Views describe the layout. `keys` and `values` have one tensor [blocks, tokens, heads, dim] per layer, each a view of the engine's
memory. Strides express the order of layers, pages, K and V, heads and tokens. `values` is empty for layers with keys alone, or for
latent vectors. All tensors of one side have the same shape and strides.
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
    """One side of a copy: tensors of equal shape and strides, and their number per layer."""

    tensors: list[Tensor]
    parts: int

    @property
    def first(self) -> Tensor:
        """Return one of the tensors; all have the same layout."""
        return self.tensors[0]

    @property
    def shape(self) -> dict[str, int]:
        """Return the shape of a block for the native module."""
        _, tokens, heads, channels = self.first.shape
        layers = len(self.tensors) // self.parts
        return {"layers": layers, "parts": self.parts, "heads": heads, "tokens": tokens, "channels": channels}

    @property
    def given(self) -> dict[str, object]:
        """Return addresses and strides for the native module on the CPU."""
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
    """Return one side of a copy. Raise ValueError with the difference if the tensors do not form one."""
    if not keys or len(values) not in (0, len(keys)):
        raise ValueError(f"{what}: {len(keys)} layers of keys and {len(values)} of values: give as many, or keys alone")
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
    """Check a list of numbers, one per block. Raise ValueError if it is wrong."""
    if index.dim() != 1 or index.dtype not in (torch.int32, torch.int64) or index.device != like.device:
        raise ValueError(f"{what}: {tuple(index.shape)} {index.dtype} on {index.device} must be int32 or int64 [n] on {like.device}")
    if count is not None and index.shape[0] != count:
        raise ValueError(f"{what}: {index.shape[0]} numbers for {count} blocks")


def layers_of(pages: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return pages as `keys` and `values`. Accepts [frames, 2, kv_heads, page_tokens, head_dim], the same with a layer dimension
    after the frames, and latent vectors [frames, page_tokens, dim]."""
    if pages.dim() == 3:
        return [pages[:, :, None]], []
    if pages.dim() == 5:
        pages = pages[:, None]
    if pages.dim() != 6 or pages.shape[2] != 2:
        raise ValueError(
            f"pages {tuple(pages.shape)} must be [frames, 2, kv_heads, page_tokens, head_dim], optionally with layers after the"
            " frames, or latent vectors [frames, page_tokens, dim]"
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
    source, target = rows_of("source", from_keys, from_values), rows_of("target", to_keys, to_values)
    one, other = source.first, target.first
    if source.shape != target.shape or (one.dtype, one.device) != (other.dtype, other.device):
        raise ValueError(
            f"blocks of {source.shape} {one.dtype} on {one.device} cannot be copied to {target.shape} {other.dtype} on {other.device}"
        )
    check_index("source blocks", from_blocks, one)
    check_index("target blocks", to_blocks, one, from_blocks.shape[0])
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
    """Copy block `from_blocks[i]` of one layout to block `to_blocks[i]` of another. A written block must appear only once."""
    source, target = _sides(from_keys, from_values, from_blocks, to_keys, to_values, to_blocks)
    items = torch.stack((from_blocks.to(torch.int64), to_blocks.to(torch.int64)), 1)
    if bool((items < 0).any()):
        raise ValueError(f"blocks {items.min().item()}: must not be negative")
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
    """Copy an engine's blocks into frames of `pages` (`layers_of`)."""
    copy_blocks(keys, values, blocks, *layers_of(pages), frames)


def scatter(pages: Tensor, frames: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], blocks: Tensor) -> None:
    """Copy frames of `pages` to an engine's blocks."""
    copy_blocks(*layers_of(pages), frames, keys, values, blocks)
