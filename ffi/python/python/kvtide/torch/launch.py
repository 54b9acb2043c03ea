"""CUDA implementations of the operators other than attention. `ops` has checked the shapes; this module converts them to addresses
and launches on torch's current stream.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvtide import _native

from . import cuda

if TYPE_CHECKING:
    from .ops.blocks import Rows

_pages: dict[int, Pages] = {}
_lock = threading.Lock()


def of(tensor: Tensor) -> Pages:
    """Return the kernels of the tensor's device. They are loaded once."""
    device = cuda.of(tensor)
    with _lock:
        found = _pages.get(device.ordinal)
        if found is None:
            found = _pages[device.ordinal] = Pages(device)
        return found


def _within(index: Tensor, count: int) -> None:
    """Assert on the device that all values are in 0..count, excluding count, as torch's own indexing does."""
    torch._assert_async(((index >= 0) & (index < count)).all(), f"kvtide: a block is not within 0 and {count}")


class Pages:
    """Page kernels on one device."""

    def __init__(self, device: cuda.Device) -> None:
        self._device = device
        self._kernels = _native.PageKernels(device.ordinal)

    def _layout(self, rows: Rows) -> tuple[dict[str, int], list[Tensor]]:
        """Return the layout of the rows, and the tensors that must live until the launch.

        Raise ValueError if an address is not a multiple of 16.
        """
        addresses = [tensor.data_ptr() for tensor in rows.tensors]
        if any(address % 16 for address in addresses):
            raise ValueError(f"blocks at {[hex(address) for address in addresses]} must be at multiples of 16 bytes on a GPU")
        bases = self._device.put(torch.tensor(addresses, dtype=torch.int64))
        size = rows.first.element_size()
        _, token, head, _ = rows.first.stride()
        return {"bases": bases.data_ptr(), "head_stride": head * size, "token_stride": token * size}, [bases]

    def _offsets(self, rows: Rows, blocks: Tensor) -> Tensor:
        """Return the byte offsets of blocks."""
        first = rows.first
        _within(blocks, first.shape[0])
        return blocks.to(torch.int64) * (first.stride(0) * first.element_size())

    def _items(self, *columns: Tensor) -> Tensor:
        return self._device.int64(torch.stack(columns, 1))

    def copy_blocks(self, source: Rows, from_blocks: Tensor, target: Rows, to_blocks: Tensor) -> None:
        """Run `ops.copy_blocks`."""
        items = self._items(self._offsets(source, from_blocks), self._offsets(target, to_blocks))
        (one, kept), (other, also) = self._layout(source), self._layout(target)
        self._kernels.copy_blocks(self._device.stream(), one, other, source.shape, items.data_ptr(), items.shape[0])
        del kept, also

    def block_tables(
        self,
        table: Tensor,
        block_ids: Tensor,
        lengths: Tensor,
        page_tokens: int,
        plane: int,
        first_frame: int,
        absent: int,
        starts: Tensor | None,
        tables: Tensor,
        misses: Tensor,
    ) -> None:
        """Run `ops.block_tables`, writing the last two arguments."""
        device = self._device
        ids, lengths = device.int32(block_ids), device.int32(lengths)
        starts = None if starts is None else device.int32(starts)
        self._kernels.block_tables(
            device.stream(),
            {
                "table": table.data_ptr(),
                "blocks": table.shape[0],
                "planes": table.shape[1],
                "plane": plane,
                "plane_count": tables.shape[0],
                "first_frame": first_frame,
                "absent": absent,
                "block_ids": ids.data_ptr(),
                "lengths": lengths.data_ptr(),
                "starts": 0 if starts is None else starts.data_ptr(),
                "block_tables": tables.data_ptr(),
                "misses": misses.data_ptr(),
                "seqs": ids.shape[0],
                "columns": ids.shape[1],
                "page_tokens": page_tokens,
            },
        )
