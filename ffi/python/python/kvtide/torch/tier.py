"""Parts of `Paging` that depend on the location of tier 0: CPU or GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

import kvtide
from kvtide.errors import Again, WrongState

from . import backends, cuda
from .memory import KvShape, pages

#: Rows and columns of the smallest batch on a device. Replacing a batch that is too small waits for the device.
_SEQS_MIN, _BLOCKS_MIN = 8, 64


@dataclass(frozen=True)
class Part:
    """One sequence's part in a step."""

    seq: int
    #: Tokens that attention covers, and the number of new ones.
    tokens: int
    new: int
    #: Block ids of these tokens.
    blocks: Sequence[int]


@dataclass(frozen=True)
class Omission:
    """Omitted pages of a sequence in a step."""

    seq: int
    #: Pages needed over all planes, and those of them that were not read.
    needed: int
    omitted: int
    #: Mean share of attention that they would have had, as estimated.
    share: float


@dataclass(frozen=True)
class Shared:
    """Arguments that all planes of a step share, in the form that the device's kernels take."""

    lengths: Tensor
    starts: Tensor
    #: Maximum queries and maximum blocks of a sequence.
    q_tokens: int
    columns: int


class Tier(Protocol):
    """Attention over the pages of a session's tier 0, in steps of one lane."""

    #: The backend of the last plane.
    backend: str

    def begin(self, parts: Sequence[Part], fits: bool) -> None:
        """Begin a step. `fits`: all pages of all sequences fit into tier 0."""

    def layer(
        self, plane: int, query: Tensor, key: Tensor, value: Tensor, scale: float, out: Tensor | None
    ) -> tuple[Tensor, int | None]:
        """Write the new tokens' keys and values, and attend, into `out` if given. Return the output and the number of passes; 0: all
        pages were readable at once; `None`: the device waits for them."""

    def end(self) -> list[Omission]:
        """End the step. Return the omissions of sequences under "approx". Raise an error if part of the step
        failed."""

    def abandon(self) -> None:
        """End the step, whatever its state."""


class HostTier:
    """Tier 0 in host memory: a layer is one native call."""

    backend = backends.KVTIDE

    def __init__(self, session: kvtide.Session, lane: kvtide.Lane, shape: KvShape, windows: Sequence[int]) -> None:
        self._dtype, self._rest = shape.dtype, (shape.kv_heads, shape.head_dim)
        shown = (shape.kv_heads, shape.head_dim, shape.dtype == torch.bfloat16)
        self._attention = kvtide.PagedAttention(lane, shown, windows)
        self._tokens = 0

    def begin(self, parts: Sequence[Part], fits: bool) -> None:
        self._attention.begin([(part.seq, part.tokens, part.new) for part in parts])
        self._tokens = sum(part.new for part in parts)

    def layer(
        self, plane: int, query: Tensor, key: Tensor, value: Tensor, scale: float, out: Tensor | None
    ) -> tuple[Tensor, int | None]:
        kv_heads, head_dim = self._rest
        for what, tensor, heads in (("query", query, query.shape[1]), ("key", key, kv_heads), ("value", value, kv_heads)):
            if (tensor.dtype, tensor.shape, tensor.device.type) != (self._dtype, (self._tokens, heads, head_dim), "cpu"):
                raise ValueError(
                    f"{what} is {tuple(tensor.shape)} {tensor.dtype} on {tensor.device}; this step's is"
                    f" {(self._tokens, heads, head_dim)} {self._dtype} on the CPU"
                )
        query, key, value = (tensor if _has_dense_heads(tensor) else tensor.contiguous() for tensor in (query, key, value))
        out = torch.empty_like(query, memory_format=torch.contiguous_format) if out is None else out
        overlaps = out.shape[0] > 1 and out.stride(0) < out.shape[-2] * out.shape[-1] if out.dim() == 3 else True
        if (out.dtype, out.shape, out.device) != (query.dtype, query.shape, query.device) or overlaps or not _has_dense_heads(out):
            raise ValueError(f"out is {tuple(out.shape)} {out.dtype}; it must be like the query, with the heads of a token dense")
        at = [(tensor.data_ptr(), tensor.stride(0)) for tensor in (query, key, value, out)]
        return out, self._attention.layer(plane, self._tokens, query.shape[1], scale, at[0], at[1], at[2], at[3])

    def end(self) -> list[Omission]:
        return [Omission(*found) for found in self._attention.end()]

    def abandon(self) -> None:
        self._attention.end()


def _has_dense_heads(tensor: Tensor) -> bool:
    return tensor.stride()[1:] == (tensor.shape[2], 1)


class CudaTier:
    """Tier 0 on a GPU. A step's work is enqueued on the stream that is torch's current one when the step begins. Waits for pages
    are enqueued too if all sequences fit into tier 0 and the step uses kvtide's kernels.
    """

    def __init__(
        self,
        session: kvtide.Session,
        lane: kvtide.Lane,
        shape: KvShape,
        windows: Sequence[int],
        kernels: cuda.Device,
        *,
        wait_in_stream: bool = True,
        backend: str | None = None,
    ) -> None:
        self.backend = backends.KVTIDE
        #: Requested backend, and that of the open step.
        self._wanted, self._step_wanted = backends.requested(backend), backends.KVTIDE
        self._kernels, self._lane, self._windows, self._wait_in_stream = kernels, lane, windows, wait_in_stream
        self._planes = session.layout.planes
        self._pages = [pages(session, plane, shape, self.tensor) for plane in range(len(self._planes))]
        memory, status = lane.device_table(), lane.status_word()
        if memory is None or status is None:
            raise WrongState("a table on a GPU: this session's tier 0 is in host memory")
        self._status, self._table = status, self.tensor(memory)
        self._bound: int | None = None
        self._batch: kvtide.Batch | None = None
        self._block_tables: Tensor | None = None
        #: True if the stream waits at this step's boundaries. Only if everything fits: otherwise the daemon may stream a plane
        #: through few frames, and a wait for the whole plane would not end.
        self._waits = False
        #: For each plane read in passes since the step began: whether all output was written.
        self._emitted: list[Tensor] = []
        #: Counter of new tokens that were not written, and its last value read.
        self._faults: Tensor | None = None
        self._faults_seen = 0

    def tensor(self, memory: kvtide.Memory) -> Tensor:
        """Return memory of this device as a tensor."""
        return from_dlpack(memory)

    def begin(self, parts: Sequence[Part], fits: bool) -> None:
        stream = self._kernels.stream()
        if stream != self._bound:
            self._lane.bind(stream)
            self._bound = stream
        size = (len(parts), max(part.new for part in parts), max(len(part.blocks) for part in parts))
        # While the stream waits, nothing may wait for the device, as the first use of a library's kernel does.
        self._step_wanted = self._wanted if backends.may_use_library(self._wanted, size[1]) else backends.KVTIDE
        may_wait = fits and self._wait_in_stream and self._step_wanted == backends.KVTIDE
        # Workspaces first, for the same reason.
        self._waits = may_wait and self._kernels.make_room(*size)
        self._emitted.clear()
        self._lane.begin([(part.seq, part.tokens) for part in parts])
        try:
            self._step(parts)
        except BaseException:
            self._lane.end()
            raise

    def _step(self, parts: Sequence[Part]) -> None:
        columns = max(len(part.blocks) for part in parts)
        batch = self._room(len(parts), columns)
        batch.set_sequences([(part.seq, part.tokens) for part in parts])
        starts = torch.tensor([0, *(part.new for part in parts)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        lengths = self.tensor(batch.lengths())[: len(parts)]
        self._on_host = [part.tokens for part in parts], [part.new for part in parts]
        self._ids = self.tensor(batch.block_ids())[: len(parts)]
        self._shared = Shared(lengths, self._kernels.put(starts), max(part.new for part in parts), columns)

    def _room(self, seqs: int, blocks: int) -> kvtide.Batch:
        """Return the lane's batch if it is large enough, else a new one."""
        batch = self._batch
        if batch is None or seqs > batch.seqs or blocks > batch.max_blocks:
            had = (_SEQS_MIN, _BLOCKS_MIN) if batch is None else (batch.seqs, batch.max_blocks)
            room = (max(had[0], cuda.up(seqs)), max(had[1], cuda.up(blocks)))
            batch = self._batch = self._lane.batch(*room)
            self._block_tables = self.tensor(batch.block_tables())[0]
        return batch

    def _boundary(self, plane: int) -> kvtide.Pass | None:
        """Run a boundary of the plane. `None`: kernels enqueued from now on find all its pages readable."""
        if self._waits:
            try:
                self._lane.boundary_async(plane)
                return None
            except (WrongState, Again):
                # Another lane uses a stream, the device cannot wait, or the stream's wait queue is full. For the rest of the step
                # the host waits, and learns which pages have arrived.
                self._waits = False
        return self._lane.boundary(plane)

    def _block_table(self, plane: int) -> Tensor:
        """Return [seqs, blocks]: frames of the plane's size class as of the last boundary; negative if a page is not readable."""
        if self._batch is None or self._block_tables is None:
            raise WrongState("a block table: no step has begun")
        self._batch.tables(plane)
        return self._block_tables[: self._ids.shape[0], : self._shared.columns]

    def _append(self, plane: int, key: Tensor, value: Tensor) -> None:
        pages, at = self._pages[plane], self._planes[plane]
        if self._faults is None:
            self._faults = self._kernels.counter(pages)
        blocks, planes = self._table.shape
        table = cuda.Table(self._table, self._ids, blocks, planes, plane, at.first_frame, self._status)
        shared = self._shared
        self._kernels.append_through(table, pages, key, value, shared.lengths, shared.starts, self._faults)

    def layer(
        self, plane: int, query: Tensor, key: Tensor, value: Tensor, scale: float, out: Tensor | None
    ) -> tuple[Tensor, int | None]:
        found, passes = self._attend(plane, query, key, value, scale)
        return found if out is None else out.copy_(found), passes

    def _attend(
        self, plane: int, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> tuple[Tensor, int | None]:
        self._append(plane, key, value)
        shared, pages, window = self._shared, self._pages[plane], self._windows[plane]
        found = self._boundary(plane)
        if found is None or found.whole:
            given = (self._block_table(plane), shared.lengths, shared.starts, shared.q_tokens, scale, window)
            self.backend, out = self._kernels.attend_by(
                self._step_wanted, query, pages, *given, status=self._status, on_host=self._on_host
            )
            return out, None if found is None else 0
        if self._step_wanted not in (backends.KVTIDE, backends.AUTO):
            raise ValueError(
                f"attention by {self._step_wanted}: plane {plane} does not fit into tier 0, and only kvtide's kernels read it in passes. "
                f"Use backend={backends.AUTO!r}, or give tier 0 more frames"
            )
        self.backend = backends.KVTIDE
        room = (shared.q_tokens, shared.columns, scale, window, self._status)
        passes, count = self._kernels.passes(query, pages, shared.lengths, shared.starts, *room), 0
        while True:
            count += 1
            block_table, work = self._block_table(plane), from_dlpack(self._lane.ready_memory())[:, :2]
            passes.part(block_table, self._kernels.put(work.to(torch.int32).contiguous()))
            if found.last:
                out = passes.merge(block_table)
                # Keep the flags of this attention before the next one overwrites them.
                self._emitted.append(self.tensor(passes.emitted()).amin())
                return out, count
            found = self._lane.boundary(plane)

    def end(self) -> list[Omission]:
        try:
            self._settle()
        finally:
            self._lane.end()
        return []

    def abandon(self) -> None:
        self._lane.end()

    def _settle(self) -> None:
        # One check per step: the host waits for the step's end anyway before a token can be chosen.
        flags = [flag.view(1) for flag in self._emitted] + ([] if self._faults is None else [self._faults])
        self._emitted.clear()
        if not flags:
            return
        *emitted, faults = torch.cat(flags).tolist()
        lost, self._faults_seen = faults - self._faults_seen, faults
        self._lane.check()
        if lost:
            raise WrongState(f"{lost} new tokens were not written: their pages are in no frame")
        if 0 in emitted:
            raise WrongState("attention in passes: a page was missing after the lane reported the plane complete")


def of(
    session: kvtide.Session,
    lane: kvtide.Lane,
    shape: KvShape,
    windows: Sequence[int],
    *,
    wait_in_stream: bool = True,
    backend: str | None = None,
) -> Tier:
    """Return the tier of a session, for the steps of a lane. Raise ValueError if `shape` or `windows` do not match the planes, or if
    the backend is unknown or reads GPU memory alone."""
    kind, ordinal = session.frames(0).__dlpack_device__()
    if kind == 1:
        backends.check_host(backend, "tier 0 is")
        return HostTier(session, lane, shape, windows)
    return CudaTier(session, lane, shape, windows, cuda.device(ordinal), wait_in_stream=wait_in_stream, backend=backend)
