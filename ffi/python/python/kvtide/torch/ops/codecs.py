"""Page codecs, fused with the copies of `blocks` from and to any layout. Keys have one scale per channel, values one per token.

An image holds one layer of a block: K codes [heads][tokens][dim], V codes likewise, scales. A codec refuses blocks that it cannot
represent (numbers that are not finite, or a range beyond the scale's). Such blocks must be stored unquantised.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvtide import _native

from .. import launch
from .blocks import Rows, check_index, rows_of

#: Codecs and their numbers in the kernels.
CODECS = {"fp8_e4m3": 0, "int8": 1, "int4": 2}


def code_of(codec: str) -> int:
    """Return the number of a codec. Raise ValueError if it is unknown."""
    if codec not in CODECS:
        raise ValueError(f"codec {codec!r} is unknown; known: {', '.join(CODECS)}")
    return CODECS[codec]


def _bytes(rows: Rows, codec: str) -> int:
    return _native.image_bytes(rows.shape, code_of(codec))


def image_bytes(keys: Sequence[Tensor], values: Sequence[Tensor], codec: str) -> int:
    """Return the bytes of one layer's image of such blocks."""
    return _bytes(rows_of("blocks", keys, values), codec)


def _check(keys: Sequence[Tensor], values: Sequence[Tensor], blocks: Tensor, tokens: Tensor) -> Rows:
    rows = rows_of("blocks", keys, values)
    check_index("blocks", blocks, rows.first)
    check_index("tokens of blocks", tokens, rows.first, blocks.shape[0])
    return rows


def _items(blocks: Tensor, tokens: Tensor) -> list[list[int]]:
    items = torch.stack((blocks.to(torch.int64), tokens.to(torch.int64)), 1)
    if bool((items < 0).any()):
        raise ValueError(f"block or tokens {items.min().item()}: must not be negative")
    found: list[list[int]] = items.tolist()
    return found


def _made(rows: Rows, blocks: Tensor, codec: str) -> tuple[Tensor, Tensor]:
    count, like = blocks.shape[0], rows.first
    images = torch.empty(count, rows.shape["layers"], _bytes(rows, codec), dtype=torch.uint8, device=like.device)
    return images, torch.empty(count, dtype=torch.int32, device=like.device)


@torch.library.custom_op("kvtide::quantize", mutates_args=(), device_types="cpu")
def quantize(
    keys: Sequence[Tensor], values: Sequence[Tensor], blocks: Tensor, tokens: Tensor, codec: str
) -> tuple[Tensor, Tensor]:
    """Quantise the first `tokens[i]` tokens of each block. Return images [n, layers, bytes], and int32 [n]: 1 for refused
    blocks."""
    rows = _check(keys, values, blocks, tokens)
    images, refused = _made(rows, blocks, codec)
    bf16 = rows.first.dtype == torch.bfloat16
    items = _items(blocks, tokens)
    _native.quantize(rows.given, rows.shape, code_of(codec), bf16, items, images.data_ptr(), refused.data_ptr())
    return images, refused


@quantize.register_kernel("cuda")
def _(
    keys: Sequence[Tensor], values: Sequence[Tensor], blocks: Tensor, tokens: Tensor, codec: str
) -> tuple[Tensor, Tensor]:
    rows = _check(keys, values, blocks, tokens)
    images, refused = _made(rows, blocks, codec)
    launch.of(rows.first).quantize(rows, blocks, tokens, code_of(codec), images, refused)
    return images, refused


@quantize.register_fake
def _(
    keys: Sequence[Tensor], values: Sequence[Tensor], blocks: Tensor, tokens: Tensor, codec: str
) -> tuple[Tensor, Tensor]:
    return _made(_check(keys, values, blocks, tokens), blocks, codec)


def _check_images(
    images: Tensor, tokens: Tensor, codec: str, keys: Sequence[Tensor], values: Sequence[Tensor], blocks: Tensor
) -> Rows:
    rows = _check(keys, values, blocks, tokens)
    expected = (blocks.shape[0], rows.shape["layers"], _bytes(rows, codec))
    if images.dtype != torch.uint8 or images.shape != expected or not images.is_contiguous():
        raise ValueError(f"images {tuple(images.shape)} {images.dtype} must be uint8 {expected}, dense, for these blocks")
    if images.device != rows.first.device:
        raise ValueError(f"images on {images.device}, blocks on {rows.first.device}")
    return rows


@torch.library.custom_op("kvtide::dequantize", mutates_args=("keys", "values"), device_types="cpu")
def dequantize(
    images: Tensor, tokens: Tensor, codec: str, keys: Sequence[Tensor], values: Sequence[Tensor], blocks: Tensor
) -> None:
    """Dequantise the first `tokens[i]` tokens of each block. The other tokens are not written."""
    rows = _check_images(images, tokens, codec, keys, values, blocks)
    bf16 = rows.first.dtype == torch.bfloat16
    _native.dequantize(images.data_ptr(), rows.given, rows.shape, code_of(codec), bf16, _items(blocks, tokens))


@dequantize.register_kernel("cuda")
def _(
    images: Tensor, tokens: Tensor, codec: str, keys: Sequence[Tensor], values: Sequence[Tensor], blocks: Tensor
) -> None:
    rows = _check_images(images, tokens, codec, keys, values, blocks)
    launch.of(rows.first).dequantize(images, tokens, code_of(codec), rows, blocks)


@dequantize.register_fake
def _(
    images: Tensor, tokens: Tensor, codec: str, keys: Sequence[Tensor], values: Sequence[Tensor], blocks: Tensor
) -> None:
    _check_images(images, tokens, codec, keys, values, blocks)
