"""Copies between vLLM's blocks and the cache through staging blocks in host memory.

For tensors on a device, and for `staging` "always". Not tested on a GPU.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch.utils.dlpack import from_dlpack

from .. import Channel, Lease, Level, Session
from .layout import Tensors
from .transfer import Lanes, rest

#: torch.cuda has no type annotations.
_cuda: Any = torch.cuda

logger = logging.getLogger(f"vllm.{__name__}")


class _Lane:
    """One thread's staging blocks and its device stream."""

    def __init__(self, first: int, count: int, device: torch.device) -> None:
        self.first = first
        self.count = count
        self.stream: Any = _cuda.Stream(device) if device.type == "cuda" else None

    def wait(self, event: Any) -> None:
        """Make later copies wait for the event."""
        if self.stream is not None and event is not None:
            self.stream.wait_event(event)

    def done(self) -> None:
        """Wait for all copies."""
        if self.stream is not None:
            self.stream.synchronize()


class StagedTransfer:
    """Transfer for device tensors: the session's blocks are its own memory, divided among the lanes."""

    fingerprint: ClassVar[str] = "StagedMover"

    def __init__(self, tensors: Tensors, members: int, lanes: int, staging_bytes: int) -> None:
        self._tensors = tensors
        self._members = members
        self._device = tensors.parts[0].tensor.device
        each = max(1, staging_bytes // (sum(tensors.page_bytes) * lanes))
        self._lanes = [_Lane(lane * each, each, self._device) for lane in range(lanes)]
        self._planes: list[torch.Tensor] = []
        self._users = Lanes(lanes)

    def bind(self, session: Session) -> None:
        with self._users.changing(session):
            memory = session.allocate_blocks(sum(lane.count for lane in self._lanes))
            self._planes = [from_dlpack(plane) for plane in memory]
            if self._device.type == "cuda":
                self._pin()

    def _pin(self) -> None:
        """Page-lock the staging blocks, so that copies are asynchronous. Without it copies are slower but correct."""
        for plane in self._planes:
            status = _cuda.cudart().cudaHostRegister(plane.data_ptr(), plane.numel(), 0)
            if int(status) != 0:
                logger.warning("kvtide: cannot page-lock %d bytes of staging (error %s); copies are slower", plane.numel(), status)
                return
            # Unregister before the memory is freed; its addresses may be reused.
            weakref.finalize(plane, _cuda.cudart().cudaHostUnregister, plane.data_ptr())

    def _copy(self, lane: _Lane, ids: Sequence[int], *, out: bool) -> None:
        """Copy between vLLM's blocks and the lane's first staging blocks. `out`: from vLLM's blocks.

        The parts of a plane are collected on the device, so that one contiguous copy moves them. A copy of one part would be strided
        in host memory, and torch would make it through a buffer that is not page-locked.
        """
        count = len(ids) // self._members
        if count == 0:
            return
        table = torch.tensor(ids, dtype=torch.int64).view(count, self._members).to(self._device)
        for plane, staging in enumerate(self._planes):
            staged = staging[lane.first : lane.first + count]
            pages = torch.empty_like(staged, device=self._device) if out else staged.to(self._device, non_blocking=True)
            for part in self._tensors.parts:
                if part.plane != plane:
                    continue
                index, column = table[:, part.member], pages[:, part.offset : part.offset + part.nbytes]
                if out:
                    chosen = part.tensor.index_select(0, index).contiguous()
                    column.copy_(chosen.view(count, -1).view(torch.uint8))
                else:
                    came = column.contiguous().view(part.tensor.dtype)
                    part.tensor.index_copy_(0, index, came.view(count, *part.tensor.shape[1:]))
            if out:
                staged.copy_(pages, non_blocking=True)

    def _run(self, lane: _Lane, ids: Sequence[int], *, out: bool) -> None:
        if lane.stream is None:
            self._copy(lane, ids, out=out)
            return
        with _cuda.stream(lane.stream):
            self._copy(lane, ids, out=out)
        lane.done()

    def load(
        self, on: tuple[Session, Channel], lane: int, lease: Lease | int, first: int, ids: Sequence[int], after: Any, until: float
    ) -> int | None:
        with self._users.using(lane, on[0]):
            return self._load(on[1], self._lanes[lane], lease, first, ids, after, until)

    def _load(
        self, channel: Channel, mine: _Lane, lease: Lease | int, first: int, ids: Sequence[int], after: Any, until: float
    ) -> int | None:
        each = self._members
        mine.wait(after)
        for at in range(0, len(ids) // each, mine.count):
            some = ids[at * each : (at + mine.count) * each]
            staged = range(mine.first, mine.first + len(some) // each)
            copied = channel.load(lease, first + at, staged, timeout=rest(until))
            if copied.failed or copied.status != "ok":
                good = min(copied.failed, default=0)
                self._run(mine, some[: good * each], out=False)
                return at + good
            self._run(mine, some, out=False)
        return None

    def store(
        self, on: tuple[Session, Channel], lane: int, first: int, parent: bytes | None, hashes: bytes, ids: Sequence[int],
        after: Any, level: Level, until: float,
    ) -> int | None:  # fmt: skip
        with self._users.using(lane, on[0]):
            return self._store(on[1], self._lanes[lane], first, parent, hashes, ids, after, level, until)

    def _store(
        self, channel: Channel, mine: _Lane, first: int, parent: bytes | None, hashes: bytes, ids: Sequence[int],
        after: Any, level: Level, until: float,
    ) -> int | None:  # fmt: skip
        each = self._members
        mine.wait(after)
        for at in range(0, len(ids) // each, mine.count):
            some = ids[at * each : (at + mine.count) * each]
            self._run(mine, some, out=True)
            staged = range(mine.first, mine.first + len(some) // each)
            part = hashes[at * 16 : (at + mine.count) * 16]
            copied = channel.store(first + at, parent, part, staged, level=level, timeout=rest(until))
            if copied.failed or copied.status != "ok":
                return at + min(copied.failed, default=0)
            parent = part[-16:]
        return None

    def mark(self) -> Any:
        if self._device.type != "cuda":
            return None
        event = _cuda.Event()
        event.record(_cuda.current_stream(self._device))
        return event
