"""The kernels on a GPU, for tensors: shapes are turned into addresses here, and launches go to torch's current stream.

Nothing of it is touched where tensors are the CPU's. Attention's workspaces are kept, one for each stream, shape of pages and
kind of batch, and replaced by larger ones when a batch outgrows them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvtide import _native

from .memory import LATENT_VALUE_DIM

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


def up(number: int) -> int:
    """The next power of two."""
    return 1 << max(0, number - 1).bit_length()


class Device:
    """The kernels of one device."""

    #: What the workspace of one attention may take. That of passes holds a partial for each page and query, tokens of a
    #: prefill's chunk times pages of its context.
    workspace_bytes_max = 2 << 30

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self._kernels = _native.Kernels(ordinal)
        self._attentions: dict[tuple[object, ...], tuple[tuple[int, int, int], _native.Attention]] = {}
        self._indices: Tensor | None = None

    def stream(self) -> int:
        """torch's current stream."""
        return int(torch.cuda.current_stream(self.ordinal).cuda_stream)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A dense tensor."""
        return torch.empty(shape, dtype=dtype, device=f"cuda:{self.ordinal}")

    def put(self, tensor: Tensor) -> Tensor:
        """Numbers of the host, without waiting for the stream."""
        return tensor.pin_memory().to(f"cuda:{self.ordinal}", non_blocking=True)

    def int64(self, tensor: Tensor) -> Tensor:
        """Lists as kernels read them."""
        return tensor.to(torch.int64).contiguous()

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
            self._indices = self.int32(torch.arange(up(max(count, 1024)), device=like.device))
        return self._indices

    def counter(self, like: Tensor) -> Tensor:
        """A count that kernels add to: int32 [1]."""
        return self.int32(torch.zeros(1, device=like.device))

    def append(
        self,
        pages: Tensor,
        key: Tensor,
        value: Tensor | None,
        block_table: Tensor,
        lengths: Tensor,
        q_starts: Tensor,
        faults: Tensor | None = None,
    ) -> None:
        """`ops.append`. `faults` counts the tokens that were not written because their page is in no frame."""
        if key.shape[0] == 0:
            return
        # The block table is a table of one plane, whose blocks are numbered row by row.
        seqs, columns = block_table.shape
        entries = self.int32(block_table + 1)
        count = seqs * columns
        table = Table(entries, self._first(count, block_table)[:count].view(seqs, columns), blocks=count)
        self.append_through(table, pages, key, value, self.int32(lengths), self.int32(q_starts), faults)

    def append_through(
        self,
        table: Table,
        pages: Tensor,
        key: Tensor,
        value: Tensor | None,
        lengths: Tensor,
        q_starts: Tensor,
        faults: Tensor | None,
    ) -> None:
        """The same with a lane's table; lengths and starts are int32 and dense."""
        key = self.rows(key)
        value = None if value is None else self.rows(value)
        if value is not None and key.stride() != value.stride():
            key, value = self.rows(key.contiguous()), self.rows(value.contiguous())
        size = pages.element_size()
        kv_heads, page_tokens, head_dim = (1, *pages.shape[1:]) if pages.dim() == 3 else pages.shape[2:]
        self._kernels.append(
            self.stream(),
            {
                "key": key.data_ptr(),
                "value": 0 if value is None else value.data_ptr(),
                "token_stride": key.stride(0) * size,
                "head_stride": key.stride(1) * size,
                "table": table.entries.data_ptr(),
                "block_ids": table.block_ids.data_ptr(),
                "blocks": table.blocks,
                "planes": table.planes,
                "plane": table.plane,
                "first_frame": table.first_frame,
                "status": table.status,
                "lengths": lengths.data_ptr(),
                "starts": q_starts.data_ptr(),
                "faults": 0 if faults is None else faults.data_ptr(),
                "pages": pages.data_ptr(),
                "stride": pages.stride(0) * size,
                "frames": pages.shape[0],
                "rows": key.shape[0],
                "seqs": lengths.shape[0],
                "columns": table.block_ids.shape[1],
                "kv_heads": kv_heads,
                "page_tokens": page_tokens,
                "head_bytes": head_dim * size,
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
        status: int = 0,
    ) -> Tensor:
        """`ops.attend`. `status`: address of a word that, while it is set, has nothing emitted."""
        seqs, columns = block_table.shape
        batch = _Batch(self, query, pages, lengths, q_starts, status)
        attention = self._attention(batch, (seqs, q_tokens, columns), scale, window)
        if query.shape[0]:
            attention.whole(self.stream(), batch.given(block_table))
        return batch.out

    def attend_mass(
        self,
        query: Tensor,
        pages: Tensor,
        block_table: Tensor,
        lengths: Tensor,
        q_starts: Tensor,
        q_tokens: int,
        scale: float,
        window: int,
        top: int,
    ) -> tuple[Tensor, Tensor]:
        """`ops.attend_mass`: what queries see, and the kernel's words of scores."""
        seqs, columns = block_table.shape
        batch = _Batch(self, query, pages, lengths, q_starts)
        batch.lse = self.empty(tuple(query.shape[:2]), torch.float32)
        words = self.empty((seqs, _native.SCORE_WORDS), torch.int64)
        attention = self._attention(batch, (seqs, q_tokens, columns), scale, window, mass=True)
        given = batch.given(block_table)
        attention.whole(self.stream(), given)
        attention.mass(self.stream(), given, top, words.data_ptr())
        return batch.out, words

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
        status: int = 0,
    ) -> Passes:
        """Attention in passes. `status` as for `attend`."""
        batch = _Batch(self, query, pages, lengths, q_starts, status)
        bounds = (lengths.shape[0], q_tokens, columns)
        return Passes(self, batch, self._attention(batch, bounds, scale, window, passes=True))

    def _attention(
        self,
        batch: _Batch,
        bounds: tuple[int, int, int],
        scale: float,
        window: int,
        *,
        passes: bool = False,
        mass: bool = False,
    ) -> _native.Attention:
        """The attention of this stream and shape, if its workspace is large enough, or a new one.

        Decode and the forwards of a prefill have kernels of their own, by the most queries that a sequence may have: they are
        told apart, so that the workspace of the one is not kept at the size of the other.
        """
        seqs, columns = bounds[0], max(1, bounds[2])
        q_tokens = up(bounds[1])
        pages, heads = batch.pages, batch.query.shape[1]
        kind = (self.stream(), pages.dtype, tuple(pages.shape[1:]), heads, scale, window, passes, mass, q_tokens)
        with _lock:
            kept = self._attentions.get(kind)
            if kept is not None and seqs <= kept[0][0] and columns <= kept[0][2]:
                return kept[1]
            # Room to grow, if there is room for that.
            wanted = (seqs, q_tokens, columns)
            for room in ((up(seqs), q_tokens, max(up(columns), _BLOCKS_MIN)), wanted):
                config = self._config(batch, room, scale, window, passes, mass)
                workspace = _native.attention_bytes(config)
                if workspace <= self.workspace_bytes_max:
                    break
            else:
                raise ValueError(
                    f"attention of {bounds[1]} queries of {seqs} sequences over {columns} pages needs {workspace >> 20} MiB of workspace, "
                    f"beyond the {self.workspace_bytes_max >> 20} MiB that it may have: fewer queries at once (prefill_chunk_size of "
                    "generate), or fewer sequences"
                )
            # The one that was kept goes first: freeing its memory waits until the device is done with it.
            self._attentions.pop(kind, None)
            kept = None
            attention = self._kernels.attention(config)
            self._attentions[kind] = (room, attention)
            return attention

    def _config(
        self, batch: _Batch, room: tuple[int, int, int], scale: float, window: int, passes: bool, mass: bool
    ) -> dict[str, object]:
        """As the native half takes it."""
        pages, heads = batch.pages, batch.query.shape[1]
        kv_heads, page_tokens, head_dim = (1, *pages.shape[1:]) if pages.dim() == 3 else pages.shape[2:]
        seqs, q_tokens, blocks = room
        return {
            "bf16": pages.dtype == torch.bfloat16,
            "head_dim": head_dim,
            "value_dim": batch.out.shape[2],
            "kv_heads": kv_heads,
            "group": heads // kv_heads,
            "page_tokens": page_tokens,
            "window": window,
            "scale": scale,
            "seqs": seqs,
            "q_tokens": q_tokens,
            "blocks": blocks,
            "passes": passes,
            "mass": mass,
        }


@dataclass(frozen=True)
class Table:
    """A table of frame + 1, and the block ids of a batch in it: int32, dense."""

    entries: Tensor
    block_ids: Tensor
    blocks: int
    planes: int = 1
    plane: int = 0
    first_frame: int = 0
    status: int = 0


class _Batch:
    """The tensors of one attention, kept until it is launched."""

    def __init__(
        self, device: Device, query: Tensor, pages: Tensor, lengths: Tensor, q_starts: Tensor, status: int = 0
    ) -> None:
        self._device = device
        self.query = device.rows(query.contiguous())
        self.pages = pages
        value_dim = LATENT_VALUE_DIM if pages.dim() == 3 else pages.shape[4]
        self.out = device.empty((*query.shape[:2], value_dim), query.dtype)
        self.lse: Tensor | None = None
        self.status = status
        self.lengths = device.int32(lengths)
        self.starts = device.int32(q_starts)

    def given(self, block_table: Tensor) -> dict[str, Any]:
        """As the native half takes it."""
        dense = block_table.stride(1) == 1 and block_table.stride(0) >= block_table.shape[1]
        dense = dense and block_table.dtype == torch.int32
        self.block_table = block_table if dense else self._device.int32(block_table)
        return {
            "query": self.query.data_ptr(),
            "out": self.out.data_ptr(),
            "pages": self.pages.data_ptr(),
            "stride": self.pages.stride(0) * self.pages.element_size(),
            "block_table": self.block_table.data_ptr(),
            "table_stride": self.block_table.stride(0),
            "columns": block_table.shape[1],
            "lengths": self.lengths.data_ptr(),
            "starts": self.starts.data_ptr(),
            "seqs": block_table.shape[0],
            "status": self.status,
            "lse": 0 if self.lse is None else self.lse.data_ptr(),
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
