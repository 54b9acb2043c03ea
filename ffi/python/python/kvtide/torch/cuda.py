"""GPU kernels on tensors: converts shapes to addresses, and launches on torch's current stream.

Not used for CPU tensors. Attention workspaces are kept, one for each stream, page shape and kind of batch. They are replaced by
larger ones when a batch needs more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kvtide import _native

from . import backends
from .memory import LATENT_VALUE_DIM

#: Blocks of a sequence in the smallest workspace. Replacing a workspace that is too small waits for the device.
_BLOCKS_MIN = 64

_devices: dict[int, Device] = {}
_lock = threading.Lock()


def of(tensor: Tensor) -> Device:
    """Return the kernels of the tensor's device."""
    return device(tensor.device.index if tensor.device.index is not None else torch.cuda.current_device())


def device(ordinal: int) -> Device:
    """Return the kernels of device `ordinal`. They are loaded once."""
    with _lock:
        found = _devices.get(ordinal)
        if found is None:
            found = _devices[ordinal] = Device(ordinal)
        return found


def up(number: int) -> int:
    """Return the smallest power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()


class _Kind(NamedTuple):
    """Key of a kept attention: everything but its size."""

    stream: int
    dtype: torch.dtype
    page_shape: tuple[int, ...]
    heads: int
    scale: float
    window: int
    passes: bool
    q_tokens: int


class _Kept(NamedTuple):
    """A kept attention, its size (sequences, columns), and its configuration."""

    seqs: int
    columns: int
    attention: _native.Attention
    config: dict[str, object]


class Device:
    """The kernels of one device."""

    #: Maximum workspace bytes of one attention. Attention in passes needs a partial result per page and query: tokens of a prefill
    #: chunk times pages of its context.
    workspace_bytes_max = 2 << 30

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self._kernels = _native.Kernels(ordinal)
        self._attentions: dict[_Kind, _Kept] = {}
        self._indices: Tensor | None = None

    def stream(self) -> int:
        """Return torch's current stream."""
        return int(torch.cuda.current_stream(self.ordinal).cuda_stream)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocate a dense tensor on the device."""
        return torch.empty(shape, dtype=dtype, device=f"cuda:{self.ordinal}")

    def put(self, tensor: Tensor) -> Tensor:
        """Copy a host tensor to the device without waiting for the stream."""
        return tensor.pin_memory().to(f"cuda:{self.ordinal}", non_blocking=True)

    def pinned(self, tensor: Tensor) -> Tensor:
        """Return a host tensor in memory from which a copy to the device does not wait for the stream."""
        return tensor.pin_memory()

    def mark(self) -> Callable[[], None]:
        """Mark the present end of torch's current stream. Return a function that waits until the stream has reached it."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.ordinal))
        return event.synchronize

    def capability(self) -> tuple[int, int]:
        """Return the device's compute capability."""
        return torch.cuda.get_device_capability(self.ordinal)

    def capturing(self) -> bool:
        """Return whether a graph of torch's current stream is captured."""
        return torch.cuda.is_current_stream_capturing()

    def int32(self, tensor: Tensor) -> Tensor:
        """Convert indices to the form that kernels read: int32, dense."""
        return tensor.to(torch.int32).contiguous()

    def rows(self, tensor: Tensor) -> Tensor:
        """Return rows [tokens, heads, dim] that kernels can read in vectors of 16 bytes; copy them if necessary."""
        size = tensor.element_size()
        aligned = all(stride * size % 16 == 0 for stride in tensor.stride()[:2]) and tensor.data_ptr() % 16 == 0
        return tensor if aligned and tensor.stride(2) == 1 else tensor.clone(memory_format=torch.contiguous_format)

    def _first(self, count: int, like: Tensor) -> Tensor:
        """Return 0, 1, 2, ... as int32: at least `count` numbers."""
        if self._indices is None or len(self._indices) < count:
            self._indices = self.int32(torch.arange(up(max(count, 1024)), device=like.device))
        return self._indices

    def counter(self, like: Tensor) -> Tensor:
        """Return a zeroed counter for kernels: int32 [1]."""
        return self.int32(torch.zeros(1, device=like.device))

    def append(
        self,
        pages: Tensor,
        key: Tensor,
        value: Tensor | None,
        block_table: Tensor,
        lengths: Tensor,
        q_starts: Tensor,
    ) -> None:
        """Run `ops.append`."""
        if key.shape[0] == 0:
            return
        # Treat the block table as a page table of one plane, with blocks numbered row by row.
        seqs, columns = block_table.shape
        entries = self.int32(block_table + 1)
        count = seqs * columns
        table = Table(entries, self._first(count, block_table)[:count].view(seqs, columns), blocks=count)
        self.append_through(table, pages, key, value, self.int32(lengths), self.int32(q_starts), None)

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
        """Run `ops.append` with a lane's page table. `lengths` and `q_starts` are int32 and dense. `faults` counts the tokens that were
        not written because their page is in no frame."""
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
        """Run `ops.attend`. `status` is the address of a word; while it is not 0, no output is written."""
        seqs, columns = block_table.shape
        batch = _Batch(self, query, pages, lengths, q_starts, status)
        attention = self._attention(batch, (seqs, q_tokens, columns), scale, window)
        if query.shape[0]:
            attention.whole(self.stream(), batch.given(block_table))
        return batch.out

    def call(
        self,
        query: Tensor,
        pages: Tensor,
        block_table: Tensor,
        lengths: Tensor,
        q_starts: Tensor,
        q_tokens: int,
        scale: float,
        window: int,
        on_host: tuple[list[int], list[int]] | None = None,
    ) -> backends.Call:
        """Return a call of `ops.attend` for the choice of a backend. `on_host`: tokens and number of queries of each sequence."""
        state = (self.capability(), self.capturing(), on_host)
        return backends.Call(query, pages, block_table, lengths, q_starts, q_tokens, scale, window, *state)

    def attend_by(
        self,
        wanted: str,
        query: Tensor,
        pages: Tensor,
        block_table: Tensor,
        lengths: Tensor,
        q_starts: Tensor,
        q_tokens: int,
        scale: float,
        window: int,
        status: int = 0,
        on_host: tuple[list[int], list[int]] | None = None,
    ) -> tuple[str, Tensor]:
        """Run `ops.attend` by the backend `wanted` ("auto": the one chosen for this call). Return the backend's name and the output.
        Libraries ignore `status` and write their output in any case."""
        if wanted != backends.KVTIDE and query.shape[0]:
            call = self.call(query, pages, block_table, lengths, q_starts, q_tokens, scale, window, on_host)
            choice = backends.choose(call, wanted)
            if choice.name != backends.KVTIDE:
                return choice.name, backends.LIBRARIES[choice.name].run(call, self)
        return backends.KVTIDE, self.attend(query, pages, block_table, lengths, q_starts, q_tokens, scale, window, status)

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
        """Start attention in passes. `status` as for `attend`."""
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
    ) -> _native.Attention:
        """Return the kept attention of this stream and shape if its workspace is large enough, else a new one.

        The maximum number of queries per sequence is part of the key, because decode and prefill use different kernels. The
        workspace of one does not grow to the size of the other.

        Raise ValueError if the batch needs more than `workspace_bytes_max`.
        """
        seqs, columns = bounds[0], max(1, bounds[2])
        q_tokens = up(bounds[1])
        pages, heads = batch.pages, batch.query.shape[1]
        kind = _Kind(self.stream(), pages.dtype, tuple(pages.shape[1:]), heads, scale, window, passes, q_tokens)
        with _lock:
            kept = self._attentions.get(kind)
            if kept is not None and seqs <= kept.seqs and columns <= kept.columns:
                return kept.attention
            # Try a larger workspace first, to leave room for growth.
            wanted = (seqs, q_tokens, columns)
            for room in ((up(seqs), q_tokens, max(up(columns), _BLOCKS_MIN)), wanted):
                config = self._config(batch, room, scale, window, passes)
                workspace = _native.attention_bytes(config)
                if workspace <= self.workspace_bytes_max:
                    break
            else:
                raise ValueError(
                    f"attention of {bounds[1]} queries of {seqs} sequences over {columns} pages needs {workspace >> 20} MiB"
                    f" of workspace; the limit is {self.workspace_bytes_max >> 20} MiB. Use fewer queries at once"
                    " (prefill_chunk_size of generate), or fewer sequences"
                )
            kept = None
            return self._keep(kind, room[0], room[2], config)

    def _keep(self, kind: _Kind, seqs: int, columns: int, config: dict[str, object]) -> _native.Attention:
        """Replace the kept attention of a kind. Hold the lock."""
        # Free the old workspace first. That waits until the device no longer uses it.
        self._attentions.pop(kind, None)
        attention = self._kernels.attention(config)
        self._attentions[kind] = _Kept(seqs, columns, attention, config)
        return attention

    def make_room(self, seqs: int, q_tokens: int, columns: int) -> bool:
        """Make the workspaces of the current stream large enough for a step, and return whether the step needs no other.

        Call it before the stream waits for pages: replacing a workspace waits for the device, and so for that stream. False if
        nothing ran on this stream yet, so that the kinds of attention are not known, or if a workspace would become too large.
        """
        stream, q_tokens = self.stream(), up(q_tokens)
        with _lock:
            known = [(kind, kept.config) for kind, kept in self._attentions.items() if kind.stream == stream]
            wanted = {kind._replace(q_tokens=q_tokens): config for kind, config in known if not kind.passes}
            for kind, example in wanted.items():
                kept = self._attentions.get(kind)
                if kept is not None and seqs <= kept.seqs and columns <= kept.columns:
                    continue
                room = (up(seqs), max(up(columns), _BLOCKS_MIN))
                config = {**example, "seqs": room[0], "q_tokens": q_tokens, "blocks": room[1]}
                if _native.attention_bytes(config) > self.workspace_bytes_max:
                    return False
                kept = None
                self._keep(kind, *room, config)
            return bool(wanted)

    def _config(
        self, batch: _Batch, room: tuple[int, int, int], scale: float, window: int, passes: bool
    ) -> dict[str, object]:
        """Return the configuration for the native module."""
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
        }


@dataclass(frozen=True)
class Table:
    """A page table (frame + 1 per entry) and the block ids of a batch in it. Both are int32 and dense."""

    entries: Tensor
    block_ids: Tensor
    blocks: int
    planes: int = 1
    plane: int = 0
    first_frame: int = 0
    status: int = 0


class _Batch:
    """Tensors of one attention, kept alive until it is launched."""

    def __init__(
        self, device: Device, query: Tensor, pages: Tensor, lengths: Tensor, q_starts: Tensor, status: int = 0
    ) -> None:
        self._device = device
        self.query = device.rows(query.contiguous())
        self.pages = pages
        value_dim = LATENT_VALUE_DIM if pages.dim() == 3 else pages.shape[4]
        self.out = device.empty((*query.shape[:2], value_dim), query.dtype)
        self.status = status
        self.lengths = device.int32(lengths)
        self.starts = device.int32(q_starts)

    def given(self, block_table: Tensor) -> dict[str, Any]:
        """Return the batch for the native module."""
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
        }


class Passes:
    """Attention over pages that arrive in passes: call `part` for each pass, then `merge`. Only then start another of the same
    kind."""

    def __init__(self, device: Device, batch: _Batch, attention: _native.Attention) -> None:
        self._device, self._batch, self._attention = device, batch, attention
        attention.begin(device.stream())

    def part(self, block_table: Tensor, work: Tensor) -> None:
        """Compute the partial results of pages `work` [n, 2]: (sequence of the batch, block index)."""
        work = self._device.int32(work)
        given = self._batch.given(block_table)
        self._attention.part(self._device.stream(), given, work.data_ptr(), work.shape[0])

    def merge(self, block_table: Tensor) -> Tensor:
        """Return the attention output, bit-identical to that of `attend`."""
        self._attention.merge(self._device.stream(), self._batch.given(block_table))
        return self._batch.out

    def emitted(self) -> _native.Memory:
        """Return, for each sequence, 1 if output was written and 0 if a page was missing: int32 on the device, valid until the next
        launch.
        """
        return self._attention.emitted(self._batch.lengths.shape[0])
