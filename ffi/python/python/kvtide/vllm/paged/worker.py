"""Worker: a sequence of kvtide for each request, and attention over its pages.

A request whose pages are lost (the daemon died, a cached prefix was evicted between lookup and attach, no page became free in time) is
*lost*. Its row takes no part in steps over pages, and its vLLM blocks are reported, so that vLLM computes it again from its first
token. A request that is lost in its very first step has all of its keys at hand: its row attends to them directly, so its output is
right, and it is reported with the next step.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ... import Digests, Session, attach
from ...errors import DaemonGone, Error, NoSpace, ProtocolBroken, TooBig
from ...torch.paging import PagedSequence, Paging
from ..hashes import HASH_BYTES
from ..stats import Counts
from .config import EXACT, PagedConfig, on_gpu
from .geometry import Geometry, geometry
from .metadata import Omitted, OmittedReport, PagedStep

logger = logging.getLogger(f"vllm.{__name__}")

#: Frames of a session with and without memory, the daemon's default limit (`limits.tier0_frames_max`).
FRAMES_MAX = 1 << 20
#: Frames through which pages outside tier 0 stream, the daemon's default (`edges.host_to_tier0.scan_frames`). New tokens cannot use them.
STREAM_FRAMES = 8
#: Pause between attempts to attach or to reserve pages within a step, in seconds.
PAUSE_S = 0.005


class Rows(Protocol):
    """Rows of a step, as the backend's metadata has them."""

    lengths: list[int]
    new: list[int]
    blocks: Tensor


@dataclass(eq=False)
class Row:
    """A running request."""

    request: str
    #: Its first block id of vLLM.
    block: int
    #: Tokens that are computed from all pages.
    exact_tokens: int
    #: None: its pages are lost.
    sequence: PagedSequence | None = None
    #: The sequence is read under the configured contract, which is not `exact`.
    approximate: bool = False


@dataclass
class Step:
    """The step that is being computed."""

    rows: Rows
    #: For each row of the batch its request.
    requests: list[Row]
    #: Rows that read pages; the others attend to their new tokens alone.
    paged: list[int]
    plane: int = 0


class Worker:
    """The sequences of one engine. vLLM's worker thread alone uses it."""

    def __init__(self, config: PagedConfig, vllm_config: Any, kv_cache_config: Any) -> None:
        """Compute the geometry. Raise ValueError if the model is not supported, or tier 0 is too small for a step."""
        self._config = config
        # Ranks split the KV heads.
        self._rank = int(vllm_config.parallel_config.rank)
        self.stats = Counts.of(vllm_config, f"rank {self._rank}")
        self._geometry: Geometry = geometry(vllm_config, kv_cache_config, config, self._rank)
        self._plane_of = {name: plane for plane, name in enumerate(self._geometry.layers)}
        self._blocks = int(kv_cache_config.num_blocks)
        guaranteed = config.guaranteed_tokens or config.capacity_tokens or int(vllm_config.model_config.max_model_len)
        self._guaranteed = min(-(-guaranteed // self._geometry.shape.page_tokens), self._blocks)
        scheduler = vllm_config.scheduler_config
        self._seqs_max = 2 * int(scheduler.max_num_seqs)
        self._frames = self._tier0_frames(int(scheduler.max_num_batched_tokens), int(scheduler.max_num_seqs))
        pages, shape = self._blocks * len(self._geometry.layers), self._geometry.shape
        # All pages outside tier 0 are read in the daemon's memory, without a copy. Under `approx` they are omitted instead, and on a
        # GPU they are copied to tier 0.
        self._mapped = min(pages, FRAMES_MAX - self._frames) if config.contract == EXACT and not on_gpu() else 0
        # A digest takes 5 % of a page, and all of them at most a quarter of tier 0.
        digests = Digests(shape.kv_heads, shape.head_dim, shape.dtype == torch.bfloat16, min(pages, self._frames * 20 // 4))
        self._digests = digests if config.contract != EXACT and config.digests else None
        self._device = "cpu"
        self._session: Session | None = None
        self._paging: Paging | None = None
        self._requests: dict[str, Row] = {}
        self._by_block: dict[int, Row] = {}
        self._step: Step | None = None
        self._lost: set[int] = set()
        self._omitted = OmittedReport()

    def _tier0_frames(self, batched_tokens: int, sequences: int) -> int:
        """Return the frames of tier 0. A step needs those of its new tokens in all layers, one more for each sequence, and those through
        which other pages stream."""
        import vllm.envs as envs  # noqa: PLC0415

        shape, layers = self._geometry.shape, len(self._geometry.layers)
        given = self._config.tier0_bytes or (envs.VLLM_CPU_KVCACHE_SPACE or 4) << 30
        least = layers * (-(-batched_tokens // shape.page_tokens) + sequences) + STREAM_FRAMES
        if given < least * shape.page_bytes:
            raise ValueError(
                f"kvtide: tier0_bytes is {given}; a step of {batched_tokens} tokens and {sequences} requests needs"
                f" {least * shape.page_bytes}: set tier0_bytes to that or more, or --max-num-batched-tokens or --max-num-seqs lower"
            )
        # No more than all that vLLM may keep.
        return min(given // shape.page_bytes, layers * self._blocks + STREAM_FRAMES, FRAMES_MAX)

    # ---- session

    def start(self, device: str) -> None:
        """Attach, with tier 0 on a device of torch. Raise kvtide's error if that fails: without a daemon nothing can be computed."""
        self._device = device
        self._attach()

    def _attach(self) -> None:
        geometry = self._geometry
        try:
            session = self._session_of(geometry)
        except NoSpace as error:
            tokens = geometry.shape.page_tokens
            raise NoSpace(
                f"kvtide: {error}. A block is {tokens} tokens of one request: set guaranteed_tokens or capacity_tokens lower, or"
                " --max-model-len if they are not set"
            ) from error
        if session.layout.blocks_max < self._blocks:
            blocks, tokens = session.layout.blocks_max, geometry.shape.page_tokens
            session.detach()
            raise ValueError(
                f"kvtide: the daemon has room for {blocks * tokens} tokens of this model, and vLLM may keep {self._blocks * tokens}:"
                f" set capacity_tokens to {(blocks - 1) * tokens} or less, or --max-model-len or --max-num-seqs lower, or give the"
                " daemon more host memory (tiers.host.capacity)"
            )
        self._session, self._paging = session, Paging(session, geometry.shape, geometry.windows)
        self.stats.attached()

    def _session_of(self, geometry: Geometry) -> Session:
        return attach(
            self._config.socket,
            geometry.space,
            [self._frames],
            device=self._device,
            mapped_frames=self._mapped,
            guaranteed_blocks=self._guaranteed,
            digests=self._digests,
            max_stall=self._config.max_stall_s,
            seqs_max=self._seqs_max,
            timeout=self._config.attach_timeout_s,
            token_file=self._config.token_file,
        )

    def _over(self, error: Error) -> None:
        """Give up the session, and all pages with it."""
        session, self._session, self._paging = self._session, None, None
        for row in self._requests.values():
            row.sequence = None
        if session is not None:
            self.stats.detached(str(error))
            logger.warning("kvtide: the worker lost its session: %s; running requests are computed again", error)
            session.detach()

    def _ready(self) -> Paging | None:
        """Return the sequences of a living session. Attach again if the daemon died, within `wait_s`."""
        if self._session is not None and not self._session.alive:
            self._over(DaemonGone("connection to the daemon lost"))
        deadline = time.monotonic() + self._config.wait_s
        while self._paging is None:
            try:
                self._attach()
                logger.info("kvtide: the worker attached again")
            except (Error, ValueError) as error:  # ValueError: the daemon came back with less room
                self.stats.add("attach_failures")
                self.stats.detached(f"{error} ({type(error).__name__})")
                if time.monotonic() > deadline:
                    logger.warning("kvtide: the worker cannot attach: %s; requests wait for it", error)
                    return None
                time.sleep(PAUSE_S)
        return self._paging

    def _failed(self, error: Error, row: Row | None = None) -> None:
        """Lose the session if it ended, else the row."""
        if isinstance(error, (DaemonGone, ProtocolBroken)):
            self._over(error)
        elif row is not None:
            logger.warning("kvtide: request %s is computed again: %s", row.request, error)
            self._lose(row)

    def _lose(self, row: Row) -> None:
        sequence, row.sequence = row.sequence, None
        if sequence is not None and self._paging is not None:
            try:
                self._paging.drop(sequence)
            except Error as error:
                self._failed(error)

    # ---- between steps

    def change(self, step: PagedStep) -> None:
        """Publish, end and begin sequences."""
        paging = self._ready()
        size = self._geometry.shape.page_tokens
        for filled in step.filled:
            row = self._requests.get(filled.request)
            if row is None or row.sequence is None or self._paging is None:
                continue
            # After a preemption vLLM reports blocks that were planned and not computed.
            blocks = min(len(filled.hashes) // HASH_BYTES, row.sequence.tokens // size - filled.first)
            if blocks <= 0:
                continue
            try:
                hashes = filled.hashes[: blocks * HASH_BYTES]
                self._paging.publish(row.sequence, filled.first, filled.parent, hashes, self._config.level)
                self._count("blocks_stored", blocks)
            except Error as error:
                self._count("blocks_store_failed", blocks)
                logger.debug("kvtide: blocks of request %s are not published: %s", filled.request, error)
                self._failed(error)
        for name in step.gone:
            if (row := self._requests.pop(name, None)) is not None:
                self._lose(row)
                if self._by_block.get(row.block) is row:
                    del self._by_block[row.block]
        for begun in step.begun:
            row = Row(begun.request, begun.block, begun.exact_tokens)
            self._requests[begun.request] = self._by_block[begun.block] = row
            if paging is not None and self._paging is paging:
                self._begin(paging, row, begun.prefix)

    def _count(self, name: str, blocks: int) -> None:
        """Count blocks once, not on each rank."""
        if self._rank == 0:
            self.stats.add(name, blocks)

    def _begin(self, paging: Paging, row: Row, prefix: bytes) -> None:
        try:
            row.sequence, row.approximate = paging.create(), False
            if prefix:
                # If less is found, the row has fewer tokens than vLLM says, and is lost when the step begins.
                paging.attach_prefix(row.sequence, prefix, looked_up=True)
        except Error as error:
            self._failed(error, row)

    def take_lost(self) -> set[int]:
        """Return vLLM's blocks of requests that are lost, reported once."""
        lost, self._lost = self._lost, set()
        return lost

    def take_omitted(self) -> OmittedReport | None:
        """Return the omissions since the last call; None: there are none."""
        omitted, self._omitted = self._omitted, OmittedReport()
        # The ranks' shares are those of their heads; the first rank's stand for all.
        return omitted if omitted.requests and self._rank == 0 else None

    # ---- in a step

    def attend(self, layer: str, rows: Rows, query: Tensor, key: Tensor, value: Tensor, scale: float, out: Tensor) -> None:
        """Write the attention output [tokens, heads, head_dim] of a layer to `out`, after its keys and values are in their pages."""
        plane = self._plane_of[layer]
        if plane == 0:
            self._open(rows)
        step = self._step
        assert step is not None and step.plane == plane, (layer, step)
        if len(step.paged) == len(step.requests):
            self._paged(step, plane, query, key, value, scale, out)
        elif step.paged:
            at = torch.cat([torch.arange(*span) for span in self._spans(rows, step.paged)])
            found = torch.empty_like(query[at])
            if self._paged(step, plane, query[at], key[at], value[at], scale, found):
                out[at] = found
        window = self._geometry.windows[plane]
        for begin, end in self._spans(rows, [row for row in range(len(rows.new)) if row not in step.paged]):
            out[begin:end] = _direct(query[begin:end], key[begin:end], value[begin:end], scale, window)
        step.plane += 1
        if step.plane == len(self._plane_of):
            self._close(step)

    @staticmethod
    def _spans(rows: Rows, chosen: list[int]) -> list[tuple[int, int]]:
        """Return the chosen rows' ranges of new tokens."""
        starts = [0]
        for count in rows.new:
            starts.append(starts[-1] + count)
        return [(starts[row], starts[row + 1]) for row in chosen]

    def _open(self, rows: Rows) -> None:
        """Begin a step over the rows that have all of their pages."""
        requests = [self._by_block[block] for block in rows.blocks[:, 0].tolist()]  # on a GPU it waits for the device
        paged = []
        for index, (row, length, new) in enumerate(zip(requests, rows.lengths, rows.new)):
            if self._prepare(row, length - new, new):
                paged.append(index)
        # A session that ended meanwhile has taken all of them along.
        paged = [index for index in paged if requests[index].sequence is not None]
        self._step = Step(rows, requests, paged)
        if paged and self._paging is not None:
            active = [(sequence, rows.new[i]) for i in paged if (sequence := requests[i].sequence) is not None]
            try:
                self._paging.begin_step(active)
            except Error as error:
                self._fail_step(self._step, error)

    def _prepare(self, row: Row, computed: int, new: int) -> bool:
        """Bring a row's sequence to the tokens that vLLM counts as computed, and reserve its new ones. Return False if it is lost."""
        paging = self._paging
        if paging is None:
            return False
        try:
            if row.sequence is None and computed == 0:
                row.sequence, row.approximate = paging.create(), False
            sequence = row.sequence
            if sequence is None or sequence.tokens < computed:
                self._lose(row)
                return False
            if sequence.tokens > computed:  # vLLM goes back after it computed a request that was lost, or cut a prefix
                paging.truncate_sequence(sequence, computed)
            approximate = self._config.contract != EXACT and computed >= row.exact_tokens
            if approximate != row.approximate:
                paging.set_contract(sequence, self._config.contract if approximate else EXACT)
                row.approximate = approximate
            self._reserve(paging, sequence, new)
        except Error as error:
            self._failed(error, row)
            return False
        return True

    def _reserve(self, paging: Paging, sequence: PagedSequence, new: int) -> None:
        """Reserve pages for new tokens. Pages of other sequences may have to leave first."""
        deadline = time.monotonic() + self._config.wait_s
        while True:
            try:
                return paging.reserve(sequence, new)
            except TooBig:
                raise
            except NoSpace:
                if time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_S)

    def _paged(self, step: Step, plane: int, query: Tensor, key: Tensor, value: Tensor, scale: float, out: Tensor) -> bool:
        """Write and attend through pages. False: the step's rows are lost."""
        assert self._paging is not None
        try:
            self._paging.layer(plane, query, key, value, scale, out)
        except Error as error:
            self._fail_step(step, error)
            return False
        return True

    def _close(self, step: Step) -> None:
        """Commit the step's tokens, and report the blocks of rows that were lost with computed tokens."""
        self._step = None
        if step.paged and self._paging is not None:
            try:
                omissions = self._paging.end()
                names = {row.sequence.seq: row.request for row in step.requests if row.sequence is not None} if omissions else {}
                for found in omissions:
                    omitted = Omitted(1, found.needed, found.omitted, found.share)
                    self._omitted.requests.setdefault(names[found.seq], Omitted()).add(omitted)
            except Error as error:
                self._fail_step(step, error)
        size = self._geometry.shape.page_tokens
        for row, (length, new) in enumerate(zip(step.rows.lengths, step.rows.new)):
            if row not in step.paged and length > new:
                self._lost.update(step.rows.blocks[row, : -(-(length - new) // size)].tolist())

    def _fail_step(self, step: Step, error: Error) -> None:
        """Lose the rows of a step that failed. Their outputs from here on are right only if the step has all of their tokens."""
        failed, step.paged = step.paged, []
        if self._paging is not None:
            try:
                self._paging.abandon()
            except Error as more:
                logger.debug("kvtide: a step that failed cannot be ended: %s", more)
        self._failed(error)
        for row in failed:
            self._lose(step.requests[row])

    def shutdown(self) -> None:
        """Detach."""
        session, self._session, self._paging = self._session, None, None
        if session is not None:
            session.detach()
        self.stats.close()


def _direct(query: Tensor, key: Tensor, value: Tensor, scale: float, window: int) -> Tensor:
    """Return causal attention of one row's new tokens over themselves [tokens, heads, head_dim]."""
    tokens = torch.arange(query.shape[0], device=query.device)
    distance = tokens[:, None] - tokens[None, :]
    seen = (distance >= 0) & (distance < window) if window else distance >= 0
    q, k, v = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
    found = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=True)
    return found[0].transpose(0, 1)
