"""Where a `Paging`'s tier 0 is, the CPU or a GPU: the few things that it does differently."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

import kvtide
from kvtide.errors import WrongState

from . import cuda, ops


class Passes(Protocol):
    """Attention over a plane whose pages come in passes."""

    def part(self, block_table: Tensor, work: Tensor) -> None:
        """Partials of the pages `work` [n, 2]."""

    def merge(self, block_table: Tensor) -> Tensor:
        """Folds them."""


class Tier:
    """Tier 0 on the CPU."""

    def begin(self, lane: kvtide.Lane) -> None:
        """Before a step begins on the lane."""

    def tensor(self, memory: kvtide.Memory) -> Tensor:
        """Memory of this tier as a tensor."""
        return from_dlpack(memory)

    def table(self, lane: kvtide.Lane) -> Tensor:
        """The table that this tier's kernels read, int32 [blocks, planes]."""
        return self.tensor(lane.table())

    def entries(self, table: Tensor, ids: Tensor, plane: int) -> Tensor:
        """A plane's entries of the blocks `ids`, as of what was enqueued before."""
        return table[ids, plane]

    def indices(self, numbers: Tensor) -> Tensor:
        """Numbers of the host as the operators take them."""
        return numbers

    def append(
        self, pages: Tensor, key: Tensor, value: Tensor, block_table: Tensor, lengths: Tensor, starts: Tensor
    ) -> None:
        """`ops.append`."""
        ops.append(pages, key, value, block_table, lengths, starts)

    def attend(
        self,
        query: Tensor,
        pages: Tensor,
        block_table: Tensor,
        lengths: Tensor,
        starts: Tensor,
        q_tokens: int,
        scale: float,
        window: int,
    ) -> Tensor:
        """`ops.attend`."""
        out: Tensor = ops.attend(query, pages, block_table, lengths, starts, q_tokens, scale, window)
        return out

    def passes(
        self,
        query: Tensor,
        pages: Tensor,
        lengths: Tensor,
        starts: Tensor,
        q_tokens: int,
        columns: int,
        scale: float,
        window: int,
    ) -> Passes:
        """Begins attention in passes."""
        return _CpuPasses(query, pages, lengths, starts, columns, scale, window)

    def settle(self) -> None:
        """At the end of a step: an error if attention lacked a page."""


class _CpuPasses:
    """Over a workspace of torch's."""

    def __init__(
        self, query: Tensor, pages: Tensor, lengths: Tensor, starts: Tensor, columns: int, scale: float, window: int
    ) -> None:
        self._query, self._pages = query, pages
        self._given = (lengths, starts, scale, window, ops.workspace(query, columns))

    def part(self, block_table: Tensor, work: Tensor) -> None:
        ops.attend_pages(self._query, self._pages, block_table, work, *self._given)

    def merge(self, block_table: Tensor) -> Tensor:
        out: Tensor = ops.attend_merge(self._query, self._pages, *self._given)
        return out


class CudaTier(Tier):
    """Tier 0 on a GPU. Everything of a step is enqueued on the stream that is torch's current one when it begins."""

    def __init__(self, kernels: cuda.Device) -> None:
        self._kernels = kernels
        self._bound: int | None = None
        #: Of each plane that was read in passes since the step began: whether everything was emitted.
        self._emitted: list[Tensor] = []
        #: New tokens that were not written, as they are counted and as they were last seen.
        self._faults: Tensor | None = None
        self._faults_seen = 0

    def begin(self, lane: kvtide.Lane) -> None:
        stream = self._kernels.stream()
        if stream != self._bound:
            lane.bind(stream)
            self._bound = stream
        self._emitted.clear()

    def table(self, lane: kvtide.Lane) -> Tensor:
        memory = lane.device_table()
        if memory is None:
            raise WrongState("a table on a GPU: tier 0 of this session is plain memory")
        return self.tensor(memory)

    def indices(self, numbers: Tensor) -> Tensor:
        return numbers.to(torch.int32).to(f"cuda:{self._kernels.ordinal}")

    def append(
        self, pages: Tensor, key: Tensor, value: Tensor, block_table: Tensor, lengths: Tensor, starts: Tensor
    ) -> None:
        if self._faults is None:
            self._faults = self._kernels.counter(block_table)
        self._kernels.append(pages, key, value, block_table, lengths, starts, self._faults)

    def attend(
        self,
        query: Tensor,
        pages: Tensor,
        block_table: Tensor,
        lengths: Tensor,
        starts: Tensor,
        q_tokens: int,
        scale: float,
        window: int,
    ) -> Tensor:
        return self._kernels.attend(query, pages, block_table, lengths, starts, q_tokens, scale, window)

    def passes(
        self,
        query: Tensor,
        pages: Tensor,
        lengths: Tensor,
        starts: Tensor,
        q_tokens: int,
        columns: int,
        scale: float,
        window: int,
    ) -> Passes:
        passes = self._kernels.passes(query, pages, lengths, starts, q_tokens, columns, scale, window)
        return _CudaPasses(self, passes)

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
