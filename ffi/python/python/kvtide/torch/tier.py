"""Where a `Paging`'s tier 0 is, the CPU or a GPU: the few things that it does differently."""

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

#: Rows and columns of the smallest batch on a device: one that grows is replaced, which waits for the device.
_SEQS_MIN, _BLOCKS_MIN = 8, 64


@dataclass(frozen=True)
class Part:
    """A sequence's part in a step."""

    seq: int
    #: Tokens that attention covers, and how many of them are new.
    tokens: int
    new: int
    #: The blocks that these tokens are in.
    blocks: Sequence[int]


@dataclass(frozen=True)
class Shared:
    """What all planes of a step share, as this tier's kernels take it."""

    lengths: Tensor
    starts: Tensor
    #: Most queries of a sequence, and most blocks.
    q_tokens: int
    columns: int


class Passes(Protocol):
    """Attention over a plane whose pages come in passes."""

    def part(self, block_table: Tensor, work: Tensor) -> None:
        """Partials of the pages `work` [n, 2]."""

    def merge(self, block_table: Tensor) -> Tensor:
        """Folds them."""


class Tier:
    """Tier 0 on the CPU."""

    def open(self, session: kvtide.Session, lane: kvtide.Lane) -> None:
        """Takes the lane whose steps these are."""
        self._lane = lane
        self._planes = session.layout.planes
        self._page_tokens = session.layout.page_tokens
        self._table = self._show(lane)

    def tensor(self, memory: kvtide.Memory) -> Tensor:
        """Memory of this tier as a tensor."""
        return from_dlpack(memory)

    def _show(self, lane: kvtide.Lane) -> Tensor:
        """The table that this tier's kernels read, int32 [blocks, planes]."""
        return self.tensor(lane.table())

    def begin(self, fits: bool) -> None:
        """Before a step begins on the lane. `fits`: with every page of every sequence, not only of the step's."""

    def step(self, parts: Sequence[Part]) -> None:
        """After it has begun."""
        columns = max(len(part.blocks) for part in parts)
        self._ids = torch.full((len(parts), columns), -1)
        for row, part in zip(self._ids, parts):
            row[: len(part.blocks)] = torch.tensor(part.blocks)
        starts = torch.tensor([0, *(part.new for part in parts)]).cumsum(0)
        self._shared = Shared(
            torch.tensor([part.tokens for part in parts]), starts, max(part.new for part in parts), columns
        )

    def boundary(self, plane: int) -> kvtide.Pass | None:
        """A boundary of the plane; `None`: kernels that are enqueued now find all of it readable."""
        return self._lane.boundary(plane)

    def block_table(self, plane: int) -> Tensor:
        """[seqs, blocks]: frames of the plane's size class, negative where a page is not readable, as of the last boundary."""
        first = self._planes[plane].first_frame
        tables, _ = ops.block_tables(
            self._table, self._ids, self._shared.lengths, self._page_tokens, plane, first_frame=first
        )
        found: Tensor = tables[0]
        return found

    def work(self) -> Tensor:
        """The pages that the last boundary handed out, [n, 2]: sequence of the step, block index."""
        return from_dlpack(self._lane.ready_memory())[:, :2]

    def append(self, plane: int, pages: Tensor, key: Tensor, value: Tensor) -> None:
        """New keys and values into their pages, which are in the table since the step began."""
        ops.append(pages, key, value, self.block_table(plane), self._shared.lengths, self._shared.starts)

    def attend(self, query: Tensor, pages: Tensor, block_table: Tensor, scale: float, window: int) -> Tensor:
        """`ops.attend`."""
        shared = self._shared
        given = (block_table, shared.lengths, shared.starts, shared.q_tokens, scale, window)
        out: Tensor = ops.attend(query, pages, *given)
        return out

    def passes(self, query: Tensor, pages: Tensor, scale: float, window: int) -> Passes:
        """Begins attention in passes."""
        return _CpuPasses(query, pages, self._shared, scale, window)

    def settle(self) -> None:
        """Before the end of a step: an error if something of it went wrong."""


class _CpuPasses:
    """Over a workspace of torch's."""

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
    """Tier 0 on a GPU. Everything of a step is enqueued on the stream that is torch's current one when it begins, also its waits
    for pages, where everything fits into tier 0."""

    def __init__(self, kernels: cuda.Device) -> None:
        self._kernels = kernels
        self._bound: int | None = None
        self._batch: kvtide.Batch | None = None
        self._block_tables: Tensor | None = None
        #: Whether boundaries of this step are the stream's to wait for. The daemon may stream what it cannot keep through few frames,
        #: which a lane that wants a plane whole would wait for in vain.
        self._waits = False
        #: Of each plane that was read in passes since the step began: whether everything was emitted.
        self._emitted: list[Tensor] = []
        #: New tokens that were not written, as they are counted and as they were last seen.
        self._faults: Tensor | None = None
        self._faults_seen = 0

    def _show(self, lane: kvtide.Lane) -> Tensor:
        memory, status = lane.device_table(), lane.status_word()
        if memory is None or status is None:
            raise WrongState("a table on a GPU: tier 0 of this session is plain memory")
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
        batch.set([(part.seq, part.tokens) for part in parts])
        starts = torch.tensor([0, *(part.new for part in parts)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        lengths = self.tensor(batch.lengths())[: len(parts)]
        self._ids = self.tensor(batch.block_ids())[: len(parts)]
        self._shared = Shared(lengths, self._kernels.put(starts), max(part.new for part in parts), columns)

    def _room(self, seqs: int, blocks: int) -> kvtide.Batch:
        """The batch of the lane, if it is large enough, or a new one."""
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
                # Another lane is on a stream, the device cannot, or the stream waits for as much as it can: from here on the host
                # waits, and learns which pages have come.
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
        """The flags of an attention, which the next one overwrites."""
        self._emitted.append(emitted.amin())

    def settle(self) -> None:
        # One look a step: the stream has to come to an end of it anyway before a token can be chosen.
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
            raise WrongState("attention in passes lacked a page that the lane called complete")


class _CudaPasses:
    """Over the workspace of the device's attention."""

    def __init__(self, tier: CudaTier, passes: cuda.Passes) -> None:
        self._tier, self._passes = tier, passes

    def part(self, block_table: Tensor, work: Tensor) -> None:
        self._passes.part(block_table, work)

    def merge(self, block_table: Tensor) -> Tensor:
        out = self._passes.merge(block_table)
        self._tier.note(self._tier.tensor(self._passes.emitted()))
        return out


def of(session: kvtide.Session) -> Tier:
    """The tier of a session."""
    kind, ordinal = session.frames(0).__dlpack_device__()
    return Tier() if kind == 1 else CudaTier(cuda.device(ordinal))
