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

from . import cuda, ops

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
class Shared:
    """Arguments that all planes of a step share, in the form that this tier's kernels take."""

    lengths: Tensor
    starts: Tensor
    #: Maximum queries and maximum blocks of a sequence.
    q_tokens: int
    columns: int


class Passes(Protocol):
    """Attention over a plane with pages that arrive in passes."""

    def part(self, block_table: Tensor, work: Tensor) -> None:
        """Compute the partial results of pages `work` [n, 2]."""

    def merge(self, block_table: Tensor) -> Tensor:
        """Merge the partial results and return the attention output."""


class Tier:
    """Tier 0 on the CPU."""

    def bind(self, session: kvtide.Session, lane: kvtide.Lane) -> None:
        """Set the session and the lane that runs the steps."""
        self._lane = lane
        self._planes = session.layout.planes
        self._page_tokens = session.layout.page_tokens
        self._table = self._show(lane)

    def tensor(self, memory: kvtide.Memory) -> Tensor:
        """Return memory of this tier as a tensor."""
        return from_dlpack(memory)

    def _show(self, lane: kvtide.Lane) -> Tensor:
        """Return the table that this tier's kernels read, int32 [blocks, planes]."""
        return self.tensor(lane.table())

    def begin(self, fits: bool) -> None:
        """Prepare for a step, before it begins on the lane. `fits`: all pages of all sequences fit into tier 0."""

    def step(self, parts: Sequence[Part]) -> None:
        """Set the step's sequences, after it began on the lane."""
        columns = max(len(part.blocks) for part in parts)
        self._ids = torch.full((len(parts), columns), -1)
        for row, part in zip(self._ids, parts):
            row[: len(part.blocks)] = torch.tensor(part.blocks)
        starts = torch.tensor([0, *(part.new for part in parts)]).cumsum(0)
        self._shared = Shared(
            torch.tensor([part.tokens for part in parts]), starts, max(part.new for part in parts), columns
        )

    def boundary(self, plane: int) -> kvtide.Pass | None:
        """Run a boundary of the plane. `None`: kernels enqueued from now on find all its pages readable."""
        return self._lane.boundary(plane)

    def block_table(self, plane: int) -> Tensor:
        """Return [seqs, blocks]: frames of the plane's size class as of the last boundary; negative if a page is not readable."""
        first = self._planes[plane].first_frame
        tables, _ = ops.block_tables(
            self._table, self._ids, self._shared.lengths, self._page_tokens, plane, first_frame=first
        )
        found: Tensor = tables[0]
        return found

    def work(self) -> Tensor:
        """Return the pages that the last boundary made ready, [n, 2]: sequence of the step, block index."""
        return from_dlpack(self._lane.ready_memory())[:, :2]

    def append(self, plane: int, pages: Tensor, key: Tensor, value: Tensor) -> None:
        """Write new keys and values into their pages, which are in the table since the step began."""
        ops.append(pages, key, value, self.block_table(plane), self._shared.lengths, self._shared.starts)

    def attend(self, query: Tensor, pages: Tensor, block_table: Tensor, scale: float, window: int) -> Tensor:
        """Run `ops.attend`."""
        shared = self._shared
        given = (block_table, shared.lengths, shared.starts, shared.q_tokens, scale, window)
        out: Tensor = ops.attend(query, pages, *given)
        return out

    def passes(self, query: Tensor, pages: Tensor, scale: float, window: int) -> Passes:
        """Start attention in passes."""
        return _CpuPasses(query, pages, self._shared, scale, window)

    def settle(self) -> None:
        """Raise an error if part of the step failed. Called before the end of a step."""


class _CpuPasses:
    """Passes on the CPU, with a torch workspace."""

    def __init__(self, query: Tensor, pages: Tensor, shared: Shared, scale: float, window: int) -> None:
        self._query, self._pages = query, pages
        room = ops.workspace(query, shared.columns, pages)
        self._given = (shared.lengths, shared.starts, scale, window, room)

    def part(self, block_table: Tensor, work: Tensor) -> None:
        ops.attend_pages(self._query, self._pages, block_table, work, *self._given)

    def merge(self, block_table: Tensor) -> Tensor:
        out: Tensor = ops.attend_merge(self._query, self._pages, *self._given)
        return out


class CudaTier(Tier):
    """Tier 0 on a GPU. A step's work is enqueued on the stream that is torch's current one when the step begins. Waits for pages
    are enqueued too if all sequences fit into tier 0.
    """

    def __init__(self, kernels: cuda.Device) -> None:
        self._kernels = kernels
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

    def _show(self, lane: kvtide.Lane) -> Tensor:
        memory, status = lane.device_table(), lane.status_word()
        if memory is None or status is None:
            raise WrongState("a table on a GPU: this session's tier 0 is in host memory")
        self._status = status
        return self.tensor(memory)

    def begin(self, fits: bool) -> None:
        stream = self._kernels.stream()
        if stream != self._bound:
            self._lane.bind(stream)
            self._bound = stream
        self._waits = fits
        self._emitted.clear()

    def step(self, parts: Sequence[Part]) -> None:
        columns = max(len(part.blocks) for part in parts)
        batch = self._room(len(parts), columns)
        batch.set_sequences([(part.seq, part.tokens) for part in parts])
        starts = torch.tensor([0, *(part.new for part in parts)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        lengths = self.tensor(batch.lengths())[: len(parts)]
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

    def boundary(self, plane: int) -> kvtide.Pass | None:
        if self._waits:
            try:
                self._lane.boundary_async(plane)
                return None
            except (WrongState, Again):
                # Another lane uses a stream, the device cannot wait, or the stream's wait queue is full. For the rest of the step
                # the host waits, and learns which pages have arrived.
                self._waits = False
        return self._lane.boundary(plane)

    def block_table(self, plane: int) -> Tensor:
        if self._batch is None or self._block_tables is None:
            raise WrongState("a block table: no step has begun")
        self._batch.tables(plane)
        return self._block_tables[: self._ids.shape[0], : self._shared.columns]

    def work(self) -> Tensor:
        return self._kernels.put(super().work().to(torch.int32).contiguous())

    def append(self, plane: int, pages: Tensor, key: Tensor, value: Tensor) -> None:
        if self._faults is None:
            self._faults = self._kernels.counter(pages)
        at, (blocks, planes) = self._planes[plane], self._table.shape
        table = cuda.Table(self._table, self._ids, blocks, planes, plane, at.first_frame, self._status)
        shared = self._shared
        self._kernels.append_through(table, pages, key, value, shared.lengths, shared.starts, self._faults)

    def attend(self, query: Tensor, pages: Tensor, block_table: Tensor, scale: float, window: int) -> Tensor:
        shared = self._shared
        given = (block_table, shared.lengths, shared.starts, shared.q_tokens, scale, window, self._status)
        return self._kernels.attend(query, pages, *given)

    def passes(self, query: Tensor, pages: Tensor, scale: float, window: int) -> Passes:
        shared = self._shared
        given = (shared.lengths, shared.starts, shared.q_tokens, shared.columns, scale, window, self._status)
        return _CudaPasses(self, self._kernels.passes(query, pages, *given))

    def note(self, emitted: Tensor) -> None:
        """Save the flags of an attention before the next one overwrites them."""
        self._emitted.append(emitted.amin())

    def settle(self) -> None:
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


class _CudaPasses:
    """Passes on a GPU, with the workspace of the device's attention."""

    def __init__(self, tier: CudaTier, passes: cuda.Passes) -> None:
        self._tier, self._passes = tier, passes

    def part(self, block_table: Tensor, work: Tensor) -> None:
        self._passes.part(block_table, work)

    def merge(self, block_table: Tensor) -> Tensor:
        out = self._passes.merge(block_table)
        self._tier.note(self._tier.tensor(self._passes.emitted()))
        return out


def of(session: kvtide.Session) -> Tier:
    """Return the tier of a session."""
    kind, ordinal = session.frames(0).__dlpack_device__()
    return Tier() if kind == 1 else CudaTier(cuda.device(ordinal))
