"""A batch of sequences over one lane and one channel, step by step: the operations of a cache, without a model.

A step is `begin(new tokens of each sequence)`, then `layer` for each plane in order, then `end`. A plane that does not fit into tier
0 is read in passes, as its pages become readable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from torch import Tensor

import kvtide
from kvtide.errors import NoSpace, TooBig, WrongState

from . import tier
from .memory import KvShape


@dataclass(eq=False)
class PagedSequence:
    """Local state of one sequence of a `Paging`."""

    #: Number of the sequence in its session, and its committed tokens.
    seq: int
    tokens: int = 0
    #: Number of reserved tokens, and their block ids.
    reserved: int = 0
    blocks: list[int] = field(default_factory=list)


@dataclass
class _Step:
    """State of the open step."""

    rows: list[PagedSequence]
    new: list[int]
    plane: int = 0


@dataclass
class Totals:
    """Counts of plane reads."""

    #: Planes read whole; those of them where the GPU's stream waited for pages; planes read in passes; passes.
    planes_whole: int = 0
    planes_waited_in_stream: int = 0
    planes_in_passes: int = 0
    passes: int = 0
    #: Planes by the backend that computed their attention (`backends`).
    planes_by_backend: dict[str, int] = field(default_factory=dict)


class Paging:
    """Sequences of one session, used by one thread. All planes have pages of the same shape."""

    def __init__(
        self,
        session: kvtide.Session,
        shape: KvShape,
        windows: Sequence[int],
        *,
        channel: int = 0,
        lane: int = 0,
        wait_in_stream: bool = True,
        backend: str | None = None,
    ) -> None:
        """Take a channel and a lane of the session.

        `windows`: for each plane the maximum tokens that a query sees, 0 for all. On a GPU a step's work is enqueued on torch's
        current stream. With `wait_in_stream`, waits for pages are enqueued too, as long as all sequences fit into tier 0. Disable
        it if others use the session's tier 0 as well. `backend`: the attention kernels on a GPU (`backends`); a library computes whole
        planes, and results then differ in rounding from planes in passes. Raise ValueError if `windows` does not match the planes or
        the backend is unknown.
        """
        planes = len(session.layout.planes)
        if len(windows) != planes:
            raise ValueError(f"{len(windows)} windows for the {planes} planes of the space")
        self.session = session
        self.shape = shape
        self.windows = list(windows)
        self.totals = Totals()
        self._channel = session.channel(channel)
        self._lane = session.lane(lane)
        self._tier = tier.of(session, self._lane, shape, windows, wait_in_stream=wait_in_stream, backend=backend)
        self._rows: list[PagedSequence] = []
        self._step: _Step | None = None

    @property
    def sequences(self) -> int:
        """Return the number of sequences in the batch."""
        return len(self._rows)

    def tokens(self, row: int) -> int:
        """Return the number of tokens of a sequence."""
        return self._rows[row].tokens

    def resize(self, sequences: int) -> None:
        """Change the number of sequences. New ones are empty; excess ones are dropped."""
        self._no_step("resize the batch")
        while len(self._rows) > sequences:
            self._channel.drop_seq(self._rows.pop().seq)
        while len(self._rows) < sequences:
            self._rows.append(self.create())

    def select(self, rows: Sequence[int]) -> None:
        """Replace sequence i of the batch by the former sequence `rows[i]`: for beams, repeated requests and removed requests.

        The first use of a sequence keeps it. Every other use is a fork that shares its sealed pages. Raise IndexError for an
        unknown row.
        """
        self._no_step("select sequences")
        wrong = [row for row in rows if not 0 <= row < len(self._rows)]
        if wrong:
            raise IndexError(f"sequences {wrong} of a batch of {len(self._rows)}")
        taken: set[int] = set()
        chosen: list[PagedSequence] = []
        try:
            for row in rows:
                chosen.append(self._fork(self._rows[row]) if row in taken else self._rows[row])
                taken.add(row)
        except BaseException:
            # On an error the batch stays unchanged.
            kept = {row.seq for row in self._rows}
            for row_new in chosen:
                if row_new.seq not in kept:
                    self._channel.drop_seq(row_new.seq)
            raise
        for index, left in enumerate(self._rows):
            if index not in taken:
                self._channel.drop_seq(left.seq)
        self._rows = chosen

    def _fork(self, parent: PagedSequence) -> PagedSequence:
        return PagedSequence(self._channel.fork(parent.seq), tokens=parent.tokens)

    def truncate(self, tokens: Sequence[int]) -> None:
        """Truncate each sequence to `tokens[i]` tokens."""
        self._no_step("truncate sequences")
        if len(tokens) != len(self._rows):
            raise ValueError(f"{len(tokens)} lengths for a batch of {len(self._rows)}")
        for row, keep in zip(self._rows, tokens):
            if keep != row.tokens:
                self.truncate_sequence(row, keep)

    def create(self) -> PagedSequence:
        """Create an empty sequence outside the batch, for `begin_step`."""
        return PagedSequence(self._channel.create_seq())

    def drop(self, sequence: PagedSequence) -> None:
        """Drop a sequence outside the batch."""
        self._no_step("drop a sequence")
        self._channel.drop_seq(sequence.seq)

    def attach_prefix(self, sequence: PagedSequence, hashes: bytes, *, looked_up: bool = False) -> int:
        """Attach the longest cached prefix of `hashes` to an empty sequence, without a copy. Return its tokens.

        `looked_up`: a lookup has found it, so statistics do not count it a second time.
        """
        blocks = self._channel.attach_prefix(sequence.seq, hashes, looked_up=looked_up)
        sequence.tokens = sequence.reserved = blocks * self.shape.page_tokens
        sequence.blocks = self.session.seq_blocks(sequence.seq)
        return sequence.tokens

    def truncate_sequence(self, sequence: PagedSequence, tokens: int) -> None:
        """Truncate a sequence to `tokens`."""
        self._no_step("truncate a sequence")
        self._channel.truncate(sequence.seq, tokens)
        sequence.tokens, sequence.reserved, sequence.blocks = tokens, 0, []

    def set_contract(self, sequence: PagedSequence, contract: str) -> None:
        """Set the reading contract of a sequence for its next steps: "exact" or "approx:SHARE"."""
        self._channel.set_contract(sequence.seq, contract)

    def publish(self, sequence: PagedSequence, first: int, parent: bytes | None, hashes: bytes, level: kvtide.Level) -> None:
        """Publish complete blocks of a sequence, from block index `first` on. `parent` is the hash of the block before them."""
        self._channel.publish(sequence.seq, first, parent, hashes, level=level)

    def begin(self, new: Sequence[int]) -> None:
        """Begin a step in which sequence i gets `new[i]` tokens (0: it does not take part, and has no queries).

        Raise `TooBig` or `NoSpace` if the new tokens' pages do not fit, ValueError if `new` does not match the batch.
        """
        self._no_step("begin a step")
        if len(new) != len(self._rows) or sum(new) == 0 or min(new) < 0:
            raise ValueError(f"new tokens {list(new)} for a batch of {len(self._rows)}: give one number each, not all of them 0")
        self.begin_step([(row, count) for row, count in zip(self._rows, new) if count], self._rows)

    def begin_step(
        self, active: Sequence[tuple[PagedSequence, int]], beside: Sequence[PagedSequence] | None = None
    ) -> None:
        """Begin a step over these sequences with a number of new tokens each, at least 1. `beside`: all sequences that have pages in
        tier 0; by default those of the step.

        Raise `TooBig` or `NoSpace` if the new tokens' pages do not fit.
        """
        self._no_step("begin a step")
        for row, count in active:
            self.reserve(row, count)
        rows = [row for row, _ in active] if beside is None else beside
        self._tier.begin([self._part(row, count) for row, count in active], self._fits(rows))
        self._step = _Step([row for row, _ in active], [count for _, count in active])

    def reserve(self, row: PagedSequence, new: int) -> None:
        """Reserve space for `new` tokens of a sequence, which `begin_step` does too. Raise `TooBig` or `NoSpace`."""
        tokens = row.tokens + new
        if tokens <= row.reserved:
            return
        page_tokens = self.shape.page_tokens
        try:
            self._channel.reserve(row.seq, tokens)
        except (TooBig, NoSpace) as error:
            blocks = -(-tokens // page_tokens) - row.tokens // page_tokens
            raise type(error)(
                f"{error}: {tokens - row.tokens} new tokens at once need {blocks} blocks of {len(self.windows)} pages in tier 0 until "
                "they are committed. Prefill in smaller chunks (prefill_chunk_size of generate), or give tier 0 more frames"
            ) from error
        row.reserved = -(-tokens // page_tokens) * page_tokens
        row.blocks = self.session.seq_blocks(row.seq)

    def _fits(self, rows: Sequence[PagedSequence]) -> bool:
        """Return whether all pages of these sequences fit into tier 0 at once."""
        blocks = sum(max(len(row.blocks), -(-row.tokens // self.shape.page_tokens)) for row in rows)
        planes: dict[int, int] = {}
        for at in self.session.layout.planes:
            planes[at.size_class] = planes.get(at.size_class, 0) + 1
        return all(blocks * count <= self._channel.tier0_frames(size) for size, count in planes.items())

    def _part(self, row: PagedSequence, new: int) -> tier.Part:
        tokens = row.tokens + new
        return tier.Part(row.seq, tokens, new, row.blocks[: -(-tokens // self.shape.page_tokens)])

    def layer(self, plane: int, query: Tensor, key: Tensor, value: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
        """Write the new tokens' keys and values [tokens, kv_heads, head_dim], sequence after sequence, and return the attention output
        of their queries [tokens, heads, head_dim]. It is written to `out` if given, a tensor of that shape with dense heads."""
        step = self._step
        if step is None or step.plane != plane:
            at = "no step is open" if step is None else f"the step is at plane {step.plane}"
            raise WrongState(f"read plane {plane}: {at}")
        found, passes = self._tier.layer(plane, query, key, value, scale, out)
        self.totals.planes_whole += not passes
        self.totals.planes_waited_in_stream += passes is None
        self.totals.planes_in_passes += bool(passes)
        self.totals.passes += passes or 0
        by_backend, backend = self.totals.planes_by_backend, self._tier.backend
        by_backend[backend] = by_backend.get(backend, 0) + 1
        step.plane = plane + 1
        return found

    def end(self) -> list[tier.Omission]:
        """End the step and commit its tokens. Return the omissions of sequences under "approx". Raise `WrongState` if no step is open, or a plane was not read."""
        step = self._step
        if step is None or step.plane != len(self.windows):
            at = "no step is open" if step is None else f"plane {step.plane} of {len(self.windows)} was not read"
            raise WrongState(f"end a step: {at}")
        self._step = None
        omissions = self._tier.end()
        for row, count in zip(step.rows, step.new):
            self._channel.commit(row.seq, row.tokens + count)
            row.tokens += count
        return omissions

    def abandon(self) -> None:
        """End the open step, if any, without committing its tokens."""
        if self._step is not None:
            self._step = None
            self._tier.abandon()

    def close(self) -> None:
        """Drop the sequences and close channel and lane. The session stays open."""
        try:
            self.abandon()
            if self.session.alive:
                self.resize(0)
        finally:
            self._rows.clear()
            self._lane.close()
            self._channel.close()

    def _no_step(self, doing: str) -> None:
        if self._step is not None:
            raise WrongState(f"{doing}: a step is open, at plane {self._step.plane}")

    def __enter__(self) -> Paging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
