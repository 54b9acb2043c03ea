"""Scheduler half: finds cached prefixes, and sends changes of requests to the worker."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from ... import Lease, Session, attach, identity
from ...errors import Error
from ..hashes import HASH_BYTES, Keys, named_epoch, new_epoch
from ..lora import LoraDigests
from ..reconnect import Connection
from ..stats import Counts
from ..trace import Traces
from .config import EXACT, PagedConfig
from .geometry import Geometry, geometry
from .metadata import Begun, Filled, Omitted, OmittedReport, PagedStep

logger = logging.getLogger(f"vllm.{__name__}")

#: Maximum leases of the session: one for each request between its lookup and its first step.
LEASES_MAX = 1024
#: Duration of a lease in seconds. If a request begins later, the worker may find less, and the rest is computed.
LEASE_S = 30.0


@dataclass
class Tracked:
    """A request of vLLM's scheduler."""

    request: Any
    #: None: it is not cached, because its adapter cannot be read, or the cache was reset.
    hashing: Keys | None
    #: Hashes of its complete blocks, as far as they were needed.
    keys: bytearray = field(default_factory=bytearray)
    #: Tokens of the cached prefix in the answer to vLLM, and the lease on them.
    matched: int = 0
    lease: Lease | None = None
    #: Blocks that are attached, or in a request to the worker to publish them.
    published: int = 0
    #: Tokens that were computed before the step that was planned last.
    settled: int = 0
    #: The worker has a sequence for it, and its first tokens are computed from all pages.
    begun: bool = False
    exact_tokens: int = 0
    #: Its omissions, as far as they are reported.
    omitted: Omitted = field(default_factory=Omitted)

    def hashes(self, blocks: int, every: int = 1) -> bytes:
        """Return the hashes of the first `blocks` complete blocks, or of fewer if their tokens are not known yet."""
        if self.hashing is None:
            return b""
        self.hashing.extend(self.keys, self.request.block_hashes, every)
        return bytes(self.keys[: blocks * HASH_BYTES])


class Scheduler:
    """The half in vLLM's scheduler."""

    def __init__(self, config: PagedConfig, vllm_config: Any, kv_cache_config: Any) -> None:
        """Compute the geometry and attach, or retry in the background. Raise ValueError if the model is not supported."""
        self._config = config
        self.stats = Counts.of(vllm_config, "scheduler")
        self._traces = Traces(self.stats)
        self._geometry: Geometry = geometry(vllm_config, kv_cache_config, config)
        self._tokens = self._geometry.shape.page_tokens
        self._ranks = int(vllm_config.parallel_config.world_size)
        self._epoch = named_epoch(config.epoch)
        self._lora = LoraDigests()
        self._tracked: dict[str, Tracked] = {}
        self._step = PagedStep()
        #: Leases of requests that began with the last step: the worker has attached their prefixes when the next one is planned.
        self._used: list[Lease] = []
        logger.info("kvtide: fingerprint %s of %r", self._geometry.space.fingerprint.hex()[:16], self._geometry.space.name)
        self._connection = Connection("the scheduler", self._attach, config.retry_max_s, self.stats)
        self._connection.start()

    def _attach(self) -> Session:
        session = attach(
            self._config.socket,
            self._geometry.space,
            seqs_max=LEASES_MAX,
            timeout=self._config.attach_timeout_s,
            token_file=self._config.token_file,
        )
        identity.log_differences(logger, session, self._geometry.space)
        return session

    def matched(self, request: Any) -> tuple[int | None, bool]:
        """Return the tokens of the request's cached prefix, and that they need no load between steps. None: ask again."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            adapter = self._lora.digest(request.lora_request, request.request_id)
            if adapter is None:
                return None, False
            keys = None if isinstance(adapter, Exception) else Keys(self._epoch, adapter)
            tracked = self._tracked[request.request_id] = Tracked(request, keys)
        self._release(tracked)
        tracked.matched = self._lookup(tracked) * self._tokens
        return tracked.matched, False

    def _lookup(self, tracked: Tracked) -> int:
        """Return the blocks of the cached prefix, on which a lease is taken. At least one token is left to compute."""
        hashes = tracked.hashes((tracked.request.num_tokens - 1) // self._tokens)
        channel = self._connection.channel(0)
        if not hashes or channel is None:
            return 0
        self.stats.add("lookups")
        try:
            self._traces.follow(channel, tracked.request)
            blocks = channel.lookup(hashes, timeout=self._config.lookup_timeout_s).blocks
            identity.log_lookup(logger, f"request {tracked.request.request_id}", bytes(hashes), blocks)
            if blocks:
                last = hashes[(blocks - 1) * HASH_BYTES : blocks * HASH_BYTES]
                tracked.lease = channel.lease(last, blocks, LEASE_S, timeout=self._config.lookup_timeout_s)
        except Error as error:
            self.stats.add("lookup_errors")
            logger.debug("kvtide: lookup failed: %s", error)
            self._connection.failed(channel, error)
            return 0
        return blocks

    def _release(self, tracked: Tracked) -> None:
        if tracked.lease is not None:
            self._used.append(tracked.lease)
            tracked.lease = None

    def allocated(self, request: Any, external_tokens: int) -> None:
        """Record how much of the prefix vLLM uses. It may use less, if its own limits cut it."""
        tracked = self._tracked[request.request_id]
        tracked.matched = external_tokens
        if external_tokens and tracked.lease is not None:
            hit = "hit_tokens_nvme" if tracked.lease.on_nvme or tracked.lease.elsewhere else "hit_tokens_host"
            self.stats.add(hit, external_tokens)

    def in_host(self, request: Any) -> bool:
        """Return whether all of the request's prefix is in host memory."""
        tracked = self._tracked.get(request.request_id)
        return tracked is None or tracked.lease is None or tracked.lease.on_nvme == 0

    def finished(self, request: Any) -> dict[str, Any] | None:
        """Publish the request's last complete blocks, and end its sequence. Return its omissions under `approx`, without
        those of its last step."""
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is None:
            return None
        self._release(tracked)
        if tracked.begun:
            self._fill(request.request_id, tracked, request.num_computed_tokens)
            self._step.gone.append(request.request_id)
        omitted = tracked.omitted
        if not omitted.steps:
            return None
        found = {"pages_needed": omitted.needed, "pages_omitted": omitted.omitted, "attention_omitted": omitted.share / omitted.steps}
        return {"kvtide": {"contract": self._config.contract, **found}}

    def reported(self, report: OmittedReport) -> None:
        """Record omissions."""
        for name, omitted in report.requests.items():
            self.stats.add("approx_steps", omitted.steps)
            self.stats.add("approx_pages_needed", omitted.needed)
            self.stats.add("approx_pages_omitted", omitted.omitted)
            self.stats.add("approx_attention_omitted", omitted.share)
            if (tracked := self._tracked.get(name)) is not None:
                tracked.omitted.add(omitted)

    def _fill(self, request: str, tracked: Tracked, computed: int) -> None:
        """Request the worker to publish the complete blocks below `computed` tokens that are not published yet."""
        if self._config.contract != EXACT:
            # Later blocks are not what an engine under `exact` would compute.
            computed = min(computed, tracked.exact_tokens)
        # vLLM goes back if the pages were lost: with the daemon that had them published, perhaps.
        tracked.published = min(tracked.published, computed // self._tokens)
        first, blocks = tracked.published, computed // self._tokens
        if blocks == first:
            return  # in most steps; the hashes are not copied then
        hashes = tracked.hashes(blocks)
        blocks = len(hashes) // HASH_BYTES
        if blocks > first:
            parent = hashes[(first - 1) * HASH_BYTES : first * HASH_BYTES] if first else None
            self._step.filled.append(Filled(request, first, parent, hashes[first * HASH_BYTES :]))
            tracked.published = blocks

    def build(self, output: Any) -> PagedStep:
        """Return the changes of requests for the worker."""
        for lease in self._used:
            try:
                lease.release()
            except Error as error:
                logger.debug("kvtide: lease ended: %s", error)
        self._used = []
        for name in output.preempted_req_ids or ():
            tracked = self._tracked[name]
            # Its blocks were computed, although vLLM has already set its computed tokens back. The worker has no more than these. With
            # several ranks not those of the last step: one may have lost the request in it, and the others then have wrong keys.
            self._fill(name, tracked, tracked.request.num_tokens if self._ranks == 1 else tracked.settled)
            self._step.gone.append(name)
            tracked.begun, tracked.published = False, 0
        cached = output.scheduled_cached_reqs
        resumed = {
            name: (blocks[0][0], computed)
            for name, blocks, computed in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens)
            if name in cached.resumed_req_ids
        }
        for name, computed in zip(cached.req_ids, cached.num_computed_tokens):
            if name not in resumed:
                self._tracked[name].settled = computed
                self._fill(name, self._tracked[name], computed)
        fresh = {new.req_id: (new.block_ids[0][0], new.num_computed_tokens) for new in output.scheduled_new_reqs}
        for name, (block, computed) in (resumed | fresh).items():
            tracked = self._tracked[name]
            prefix = tracked.hashes(computed // self._tokens)
            tracked.begun, tracked.published = True, len(prefix) // HASH_BYTES
            tracked.settled, tracked.exact_tokens = computed, tracked.request.num_tokens
            self._step.begun.append(Begun(name, block, prefix, tracked.exact_tokens))
            self._release(tracked)
        step, self._step = self._step, PagedStep()
        # The worker must have attached prefixes before the step computes.
        output.has_sync_kv_loads = True
        return step

    def reset(self) -> bool:
        """Make all published blocks unfindable for this engine: its weights may have changed. The blocks of running requests are not
        published any more, since part of them may be of the old weights."""
        self._epoch = new_epoch()
        self._step.filled.clear()
        for tracked in self._tracked.values():
            self._release(tracked)
            tracked.hashing, tracked.keys = None, bytearray()
        logger.info("kvtide: cache reset; the new epoch is %s", self._epoch.hex())
        return True

    def pending(self) -> bool:
        """Return whether requests ended since the last step: an idle engine makes one more step, so that their pages are freed."""
        return bool(self._step.gone)

    def shutdown(self) -> None:
        """Detach."""
        self._lora.close()
        self._connection.close()
        self.stats.close()
