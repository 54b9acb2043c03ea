"""The kernels on a GPU, for tensors: shapes are turned into addresses here, and launches go to torch's current stream.

Nothing of it is touched where tensors are the CPU's. Attention's workspaces are kept, one for each stream, shape of pages and
kind of batch, and replaced by larger ones when a batch outgrows them.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from kvtide import _native

#: Blocks of a sequence that the smallest workspace is for: a workspace that grows is replaced, which waits for the device.
_BLOCKS_MIN = 64

_devices: dict[int, Device] = {}
_lock = threading.Lock()


def of(tensor: Tensor) -> Device:
    """The kernels of the tensor's device."""
    return device(tensor.device.index if tensor.device.index is not None else torch.cuda.current_device())


def device(ordinal: int) -> Device:
    """The kernels of the device with this number. They are loaded once."""
    with _lock:
        found = _devices.get(ordinal)
        if found is None:
            found = _devices[ordinal] = Device(ordinal)
        return found


def _up(number: int) -> int:
    """The next power of two."""
    return 1 << max(0, number - 1).bit_length()


class Device:
    """The kernels of one device."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self._kernels = _native.Kernels(ordinal)
        self._attentions: dict[tuple[object, ...], tuple[tuple[int, int, int], _native.Attention]] = {}
        self._indices: Tensor | None = None

    def stream(self) -> int:
        """torch's current stream."""
        return int(torch.cuda.current_stream(self.ordinal).cuda_stream)

    def empty_like(self, tensor: Tensor) -> Tensor:
        """A dense tensor of the same shape."""
        return torch.empty_like(tensor, memory_format=torch.contiguous_format)

    def int32(self, tensor: Tensor) -> Tensor:
        """Indices as kernels read them."""
        return tensor.to(torch.int32).contiguous()

    def rows(self, tensor: Tensor) -> Tensor:
        """Rows [tokens, heads, dim] that kernels can read in vectors of 16 bytes."""
        size = tensor.element_size()
        aligned = all(stride * size % 16 == 0 for stride in tensor.stride()[:2]) and tensor.data_ptr() % 16 == 0
        return tensor if aligned and tensor.stride(2) == 1 else tensor.clone(memory_format=torch.contiguous_format)

    def _first(self, count: int, like: Tensor) -> Tensor:
        """0, 1, 2, ..."""
        if self._indices is None or len(self._indices) < count:
            self._indices = self.int32(torch.arange(_up(max(count, 1024)), device=like.device))
        return self._indices

    def counter(self, like: Tensor) -> Tensor:
        """A count that kernels add to: int32 [1]."""
        return self.int32(torch.zeros(1, device=like.device))

    def append(
        self,
        pages: Tensor,
        key: Tensor,
        value: Tensor,
        block_table: Tensor,
        lengths: Tensor,
        q_starts: Tensor,
        faults: Tensor | None = None,
    ) -> None:
        """`ops.append`. `faults` counts the tokens that were not written because their page is in no frame."""
        if key.shape[0] == 0:
            return
        key, value = self.rows(key), self.rows(value)
        if key.stride() != value.stride():
            key, value = self.rows(key.contiguous()), self.rows(value.contiguous())
        seqs, columns = block_table.shape
        entries = self.int32(block_table + 1)
        lengths, q_starts = self.int32(lengths), self.int32(q_starts)
        indices = self._first(seqs * columns, block_table)
        size = pages.element_size()
        self._kernels.append(
            self.stream(),
            {
                "key": key.data_ptr(),
                "value": value.data_ptr(),
                "token_stride": key.stride(0) * size,
                "head_stride": key.stride(1) * size,
                "entries": entries.data_ptr(),
                "indices": indices.data_ptr(),
                "lengths": lengths.data_ptr(),
                "starts": q_starts.data_ptr(),
                "faults": 0 if faults is None else faults.data_ptr(),
                "pages": pages.data_ptr(),
                "stride": pages.stride(0) * size,
                "frames": pages.shape[0],
                "rows": key.shape[0],
                "seqs": seqs,
                "columns": columns,
                "kv_heads": pages.shape[2],
                "page_tokens": pages.shape[3],
                "head_bytes": pages.shape[4] * size,
            },
        )

    def attend(
        self,
        query: Tensor,
        pages: Tensor,
        block_table: Tensor,
        lengths: Tensor,
        q_starts: Tensor,
        q_tokens: int,
        scale: float,
        window: int,
    ) -> Tensor:
        """`ops.attend`."""
        seqs, columns = block_table.shape
        batch = _Batch(self, query, pages, lengths, q_starts)
        attention = self._attention(batch, (seqs, q_tokens, columns), scale, window, passes=False)
        if query.shape[0]:
            attention.whole(self.stream(), batch.given(block_table))
        return batch.out

    def passes(
        self,
        query: Tensor,
        pages: Tensor,
        lengths: Tensor,
        q_starts: Tensor,
        q_tokens: int,
        columns: int,
        scale: float,
        window: int,
    ) -> Passes:
        """Attention in passes."""
        batch = _Batch(self, query, pages, lengths, q_starts)
        bounds = (lengths.shape[0], q_tokens, columns)
        return Passes(self, batch, self._attention(batch, bounds, scale, window, passes=True))

    def _attention(
        self, batch: _Batch, bounds: tuple[int, int, int], scale: float, window: int, *, passes: bool
    ) -> _native.Attention:
        """The attention of this stream and shape, if its workspace is large enough, or a new one.

        Decode and the forwards of a prefill have kernels of their own, by the most queries that a sequence may have: they are
        told apart, so that the workspace of the one is not kept at the size of the other.
        """
        seqs, q_tokens, columns = bounds
        q_tokens = _up(q_tokens)
        pages = batch.pages
        kind = (self.stream(), pages.dtype, tuple(pages.shape[2:]), batch.query.shape[1], scale, window, passes, q_tokens)
        with _lock:
            kept = self._attentions.get(kind)
            if kept is not None and seqs <= kept[0][0] and columns <= kept[0][2]:
                return kept[1]
            room = (_up(seqs), q_tokens, max(_up(columns), _BLOCKS_MIN))
            # The one that was kept goes first: freeing its memory waits until the device is done with it.
            self._attentions.pop(kind, None)
            kept = None
            attention = self._kernels.attention(
                {
                    "bf16": pages.dtype == torch.bfloat16,
                    "head_dim": pages.shape[4],
                    "kv_heads": pages.shape[2],
                    "group": batch.query.shape[1] // pages.shape[2],
                    "page_tokens": pages.shape[3],
                    "window": window,
                    "scale": scale,
                    "seqs": room[0],
                    "q_tokens": room[1],
                    "blocks": room[2],
                    "passes": passes,
                }
            )
            self._attentions[kind] = (room, attention)
            return attention


class _Batch:
    """The tensors of one attention, kept until it is launched."""

    def __init__(self, device: Device, query: Tensor, pages: Tensor, lengths: Tensor, q_starts: Tensor) -> None:
        self._device = device
        self.query = device.rows(query.contiguous())
        self.pages = pages
        self.out = device.empty_like(self.query)
        self.lengths = device.int32(lengths)
        self.starts = device.int32(q_starts)

    def given(self, block_table: Tensor) -> dict[str, Any]:
        """As the native half takes it."""
        self.block_table = self._device.int32(block_table)
        return {
            "query": self.query.data_ptr(),
            "out": self.out.data_ptr(),
            "pages": self.pages.data_ptr(),
            "stride": self.pages.stride(0) * self.pages.element_size(),
            "block_table": self.block_table.data_ptr(),
            "columns": block_table.shape[1],
            "lengths": self.lengths.data_ptr(),
            "starts": self.starts.data_ptr(),
            "seqs": block_table.shape[0],
            "status": 0,
        }


class Passes:
    """Attention whose pages come in passes: `part` for each, then `merge`. The next attention of its kind begins after that."""

    def __init__(self, device: Device, batch: _Batch, attention: _native.Attention) -> None:
        self._device, self._batch, self._attention = device, batch, attention
        attention.begin(device.stream())

    def part(self, block_table: Tensor, work: Tensor) -> None:
        """Partials of the pages `work` [n, 2]: sequence of the batch, block index."""
        work = self._device.int32(work)
        given = self._batch.given(block_table)
        self._attention.part(self._device.stream(), given, work.data_ptr(), work.shape[0])

    def merge(self, block_table: Tensor) -> Tensor:
        """What the queries see, with the bits that `attend` would give."""
        self._attention.merge(self._device.stream(), self._batch.given(block_table))
        return self._batch.out

    def emitted(self) -> _native.Memory:
        """1 where rows were written, 0 where a page was missing: int32 on the device, until the next launch."""
        return self._attention.emitted(self._batch.lengths.shape[0])
