"""Tier 0 and page tables as tensors. A tensor keeps its memory alive, also after the session has ended.

A lane defines when pages may be accessed: between its `begin` and `end`, the pages in its table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

import kvtide

#: Element types that pages may have.
DTYPES = (torch.float16, torch.bfloat16)
#: Dimension of a latent vector (MLA in DeepSeek-V2, V3 and R1), and of the part that is its value.
LATENT_DIM, LATENT_VALUE_DIM = 576, 512


@dataclass(frozen=True)
class KvShape:
    """Contents of a page of an attention plane: `K[kv_heads][page_tokens][head_dim]`, then V in the same order."""

    kv_heads: int
    page_tokens: int
    head_dim: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"pages must be float16 or bfloat16, not {self.dtype}")
        if min(self.kv_heads, self.page_tokens, self.head_dim) < 1:
            raise ValueError(f"{self} holds nothing: all sizes must be at least 1")

    @property
    def page_bytes(self) -> int:
        """Return the bytes of a page."""
        return 2 * self.kv_heads * self.page_tokens * self.head_dim * self.dtype.itemsize

    def plane(self, window_tokens: int = 0) -> kvtide.Plane:
        """Return a plane of such pages, for full attention or for a window of `window_tokens` tokens."""
        return kvtide.Plane(self.page_bytes, "window" if window_tokens else "full", window_tokens)


def frames(session: kvtide.Session, plane: int) -> Tensor:
    """Return the frames of the plane's size class as bytes, [frames, stride]."""
    return from_dlpack(session.frames(plane))


def pages(
    session: kvtide.Session, plane: int, shape: KvShape, tensor: Callable[[kvtide.Memory], Tensor] = from_dlpack
) -> Tensor:
    """Return the frames as [frames, 2 (K, V), kv_heads, page_tokens, head_dim]. `tensor` converts memory to a tensor.

    Raise ValueError if the shape does not match the plane's pages.
    """
    layout = session.layout
    at = layout.planes[plane] if 0 <= plane < len(layout.planes) else None
    if at is not None and (at.page_bytes, layout.page_tokens) != (shape.page_bytes, shape.page_tokens):
        raise ValueError(
            f"plane {plane} has pages of {at.page_bytes} bytes and {layout.page_tokens} tokens; {shape} has pages of "
            f"{shape.page_bytes} bytes and {shape.page_tokens} tokens"
        )
    rows = tensor(session.frames(plane))[:, : shape.page_bytes].view(shape.dtype)
    return rows.view(-1, 2, shape.kv_heads, shape.page_tokens, shape.head_dim)


def table(lane: kvtide.Lane) -> Tensor:
    """Return a lane's page table, int32 [blocks, planes]: 0 is absent, else frame + 1. Do not write to it."""
    return from_dlpack(lane.table())
