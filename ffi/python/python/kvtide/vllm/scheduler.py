"""Scheduler half of the connector: plans lookups, loads and stores."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass, field
from typing import Any

from .. import Channel, Lease, Session, attach, identity
from ..errors import Again, Error, LimitReached, NotFound, TimedOut
from . import layout, roles
from .admission import Offers, RequestLimits
from .chunks import enlarge, skip_computed
from .config import ConnectorConfig
from .events import Announced, plain, wanted
from .hashes import HASH_BYTES, Keys, named_epoch, new_epoch
from .lora import LoraDigests
from .metadata import Ended, Geometry, LoadJob, StepMetadata, StoreJob, WorkerMetadata
from .reconnect import Connection
from .remote import Recall, Remote
from .stats import Counts
from .trace import Traces
from .worker import space

logger = logging.getLogger(f"vllm.{__name__}")

#: Maximum leases of the scheduler's session: one per request that waits for its load.
LEASES_MAX = 1024
#: Duration of a lease in seconds. A request that is not scheduled in time is looked up again.
LEASE_S = 30.0
#: Pause of lookups after a request got no answer within `lookup_max_s`, in seconds. It doubles up to the maximum.
REST_MIN_S, REST_MAX_S = 0.5, 30.0
#: Upper bound of the assumed load rate, in bytes per second: the copy rate of one core of a typical server.
COPY_BYTES_S = 5e9
#: Stores younger than this, in seconds, are expected to end soon.
STORE_SOON_S = 1.0
#: Stores hold at most one in HELD_SHARE of vLLM's blocks.
HELD_SHARE = 8


class _Late(Exception):
    """The daemon has not answered yet, and the request may wait. The next step asks again."""


@dataclass
class Held:
    """A lease, and the time until which it is used for a load."""

    lease: Lease
    until: float

    def drop(self) -> bool:
        """Release the lease. Return False if the channel is full; the lease's number then stays in use."""
        try:
            self.lease.release()
        except Again:
            return False
        except Error as error:
            logger.debug("kvtide: lease ended with its session: %s", error)
        return True


@dataclass
class Tracked:
    """State of one vLLM request."""

    request: Any
    keys: Keys | None
    #: Hashes of its full blocks so far.
    hashes: bytearray = field(default_factory=bytearray)
    #: Index of the next block to store.
    next_store: int = 0
    #: No more of it can be stored.
    over: bool = False
    limits: RequestLimits = field(default_factory=RequestLimits)
    #: Ends of its blocks that were offered to `Offers`, and of those that may be stored.
    offered: int = 0
    admitted: int = 0
    #: Prefix promised to vLLM: blocks, those of them and the tokens that vLLM has itself, whether all are in host memory, and the
    #: lease.
    hit: int = 0
    local: int = 0
    computed: int = 0
    in_host: bool = True
    held: Held | None = None
    #: Number of running load jobs.
    loading: int = 0
    #: Time until which the request waits for an answer; 0: no lookup is pending.
    wait_until: float = 0.0
    #: Question to the relay that it waits for, and whether the relay was asked.
    recall: Recall | None = None
    recalled: bool = False
    #: Number of running store jobs, and whether the request has ended.
    storing: int = 0
    ended: bool = False
    #: One of its loads failed. It is computed and not looked up again; otherwise the same failure could repeat without end.
    failed: bool = False
    #: Its header `traceparent`, if it is traced.
    trace: str | None = None

    def key(self, index: int) -> bytes:
        """Return the hash of block `index`."""
        return bytes(self.hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES])

    def give_up(self) -> Held | None:
        """Withdraw the promise. Return its lease, which the caller must drop."""
        self.hit = 0
        held, self.held = self.held, None
        return held


@dataclass
class UnderWay:
    """A job that not all workers have reported yet."""

    workers: Ended = field(default_factory=Ended)
    #: Of a load: the request, the first block, and the lease.
    request: str | None = None
    first: int = 0
    held: Held | None = None
    #: Start time, `time.monotonic` seconds.
    since: float = field(default_factory=time.monotonic)
    #: Of a store: vLLM's blocks that it holds, its bytes, and the blocks' hashes.
    blocks: list[Any] = field(default_factory=list)
    size: int = 0
    hashes: list[bytes] = field(default_factory=list)
    tracked: Tracked | None = None


class SchedulerHalf:
    """One per engine. All calls come from the scheduler's thread."""

    def __init__(self, config: ConnectorConfig, vllm_config: Any, kv_cache_config: Any) -> None:
        self._config = config
        self._role = roles.of(vllm_config.kv_transfer_config)
        self._vllm_config = vllm_config
        groups = layout.groups(kv_cache_config, vllm_config)
        self._groups = enlarge(groups, config.blocks_per_chunk)
        self._page_tokens = self._groups.page_tokens
        #: vLLM's own prefix ends at a multiple of this.
        self._unit_tokens = groups.page_tokens
        self._hashes_a_block = self._page_tokens // self._groups.hash_tokens
        self._world = int(vllm_config.parallel_config.world_size)
        self.stats = Counts.of(vllm_config, "scheduler")
        self._traces = Traces(self.stats)
        self._connection: Connection | None = None
        self._remote: Remote | None = None
        self._announced = Announced(self._page_tokens, self._hashes_a_block) if wanted(vllm_config) else None
        #: The last step computed nothing.
        self._idle = True
        self._geometry: Geometry | None = None
        self._manager: Any = None
        self._pool: Any = None
        self._epoch = named_epoch(config.epoch)
        #: The epoch is random, so that no other engine has, or can use, blocks of it.
        self._alone = False
        self._lora = LoraDigests()
        self._tracked: dict[str, Tracked] = {}
        self._step = StepMetadata()
        self._jobs = 0
        self._under_way: dict[int, UnderWay] = {}
        self._offers = Offers(config.store_threshold, config.max_tracker_size) if config.store_threshold > 1 else None
        self._storing: set[bytes] = set()
        self._stored_bytes = 0
        self._held_blocks = 0
        #: Leases that ended and could not be released yet.
        self._undropped: list[Held] = []
        #: vLLM kept blocks from before a reset, so newly computed blocks may depend on old weights.
        self._stale = False
        self._rest_until = 0.0
        self._limit_said = ""
        self._rest_s = REST_MIN_S

    def bind(self, manager: Any) -> None:
        """Set vLLM's cache manager, which knows the blocks of requests and their pool."""
        self._manager = manager
        self._pool = manager.block_pool

    def meet(self, ranks: list[Geometry]) -> None:
        """Receive the workers' geometry and attach. Raise ValueError if the ranks' pages or fingerprints differ."""
        first = min(ranks, key=lambda rank: rank.shard)
        for rank in ranks:
            if lines := identity.differences(dict(first.parts), dict(rank.parts)):
                raise ValueError(f"kvtide: ranks {first.shard} and {rank.shard} differ: {'; '.join(lines)}")
            if (rank.planes, rank.page_tokens) != (first.planes, first.page_tokens):
                raise ValueError(
                    f"kvtide: ranks must have pages of the same sizes; rank {first.shard} has {first.planes}, rank"
                    f" {rank.shard} {rank.planes}: with pipeline parallelism the stages need equally many layers of each kind"
                )
        if self._connection is not None:
            if first == self._geometry:
                return  # vLLM sends it again after sleep
            self._connection.close()
        self._geometry = first
        name = self._config.space or f"vllm {self._vllm_config.model_config.model}"
        readable = "; ".join(f"{part}: {text}" for part, text in first.parts)
        logger.info("kvtide: fingerprint %s of %r", first.fingerprint.hex()[:16], name)
        logger.debug("kvtide: its parts: %s", readable)
        self._connection = Connection("the scheduler", self._attach, self._config.retry_max_s, self.stats)
        self._remote = Remote(self._connection, self._config.remote_timeout_s, self.stats, self._traces)
        self._connection.start()

    def _attach(self) -> Session:
        assert self._geometry is not None
        mine = space(self._config, self._vllm_config.model_config.model, self._geometry)
        session = attach(
            self._config.socket,
            mine,
            None,
            channels=1,
            seqs_max=LEASES_MAX,
            timeout=self._config.attach_timeout_s,
            token_file=self._config.token_file,
        )
        identity.log_differences(logger, session, mine)
        return session

    # ---- found

    def matched(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """Return the tokens beyond `computed` that can be loaded, and whether the load runs between steps. None: ask again
        later."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            adapter = self._lora.digest(request.lora_request, request.request_id)
            if adapter is None:
                return None, False
            keys = None if self._stale or isinstance(adapter, Exception) else Keys(self._epoch, adapter, local=self._alone)
            limits = RequestLimits.of(getattr(request, "kv_transfer_params", None))
            tracked = self._tracked[request.request_id] = Tracked(request, keys, over=keys is None, limits=limits)
        if tracked.keys is None or tracked.failed:
            return 0, False
        tracked.request = request
        try:
            answer = self._matched(tracked, request, computed)
        except _Late:
            return None, False  # vLLM continues with other requests and asks again
        tracked.wait_until = 0.0
        return answer

    def _matched(self, tracked: Tracked, request: Any, computed: int) -> tuple[int, bool]:
        """Do the same for a request that may be looked up. Raise _Late if there is no answer yet."""
        assert tracked.keys is not None
        if tracked.recall is not None:
            assert self._remote is not None
            if self._remote.waits(tracked.recall, self._idle):
                raise _Late
            tracked.recall = None
        elif tracked.held is not None and (tracked.computed, tracked.held.until > time.monotonic()) == (computed, True):
            return self._promise(tracked)
        before = tracked.give_up()
        try:
            return self._looked_up(tracked, request, computed)
        finally:
            self._let_go(before)

    def _looked_up(self, tracked: Tracked, request: Any, computed: int) -> tuple[int, bool]:
        assert tracked.keys is not None
        tracked.keys.extend(tracked.hashes, request.block_hashes, self._hashes_a_block)
        tracked.local, tracked.computed = computed // self._page_tokens, computed
        found = self._look_up(tracked)
        tracked.next_store, tracked.over = found, False
        if not self._role.loads or request.skip_reading_prefix_cache or computed % self._unit_tokens:
            return 0, False
        # The last token is always computed, because its output is needed.
        most = (request.num_tokens - 1) // self._page_tokens
        if tracked.limits.load_tokens is not None:
            most = min(most, (computed + tracked.limits.load_tokens) // self._page_tokens)
        if self._recall(tracked, found, min(most + self._groups.drafts, len(tracked.hashes) // HASH_BYTES)):
            raise _Late
        hit = min(found - self._groups.drafts, most)
        tokens = hit * self._page_tokens - computed
        if tokens <= 0:
            return 0, False
        if tokens < self._config.min_hit_tokens:
            self.stats.add("hits_too_short")
            return 0, False
        return self._promise(tracked) if self._lease(tracked, hit) else (0, False)

    def _recall(self, tracked: Tracked, found: int, most: int) -> bool:
        """Ask the relay for the blocks behind the first `found`, if up to `most` could be loaded. Return whether the request waits.

        The blocks that were found stay leased meanwhile.
        """
        more = (most - max(found, tracked.local)) * self._page_tokens
        if self._remote is None or self._alone or tracked.recalled or more < max(1, self._config.min_hit_tokens):
            return False
        tracked.recalled = True
        # All blocks with a hash: the store has blocks in runs, and a run is found by the hash of its last block.
        tracked.recall = self._remote.recall(tracked.request, tracked.hashes, found, shared=tracked.limits.shared)
        if tracked.recall is None:
            return False
        if found > tracked.local:
            with contextlib.suppress(_Late):  # they may be evicted then
                self._lease(tracked, found)
            tracked.hit = 0  # not promised
        tracked.wait_until = 0.0  # the next lookup has a time of its own
        return True

    def _promise(self, tracked: Tracked) -> tuple[int, bool]:
        # Between steps: otherwise, if an earlier load failed, vLLM's own cache would have later blocks under their hashes for a
        # while.
        return tracked.hit * self._page_tokens - tracked.computed, True

    def _channel(self) -> Channel | None:
        if self._connection is None or time.monotonic() < self._rest_until:
            return None
        return self._connection.channel(0)

    def _look_up(self, tracked: Tracked) -> int:
        """Return the number of cached blocks of the request's prefix."""
        channel = self._channel()
        if channel is None or not tracked.hashes:
            return 0
        if tracked.wait_until == 0:
            tracked.wait_until = time.monotonic() + self._config.lookup_max_s
            self.stats.add("lookups")
        try:
            tracked.trace = self._traces.follow(channel, tracked.request)
            found = channel.lookup(bytes(tracked.hashes), timeout=self._config.lookup_timeout_s)
        except Error as error:
            self._missed(tracked, channel, error)
            return 0
        self._rest_s = REST_MIN_S
        identity.log_lookup(logger, f"request {tracked.request.request_id}", bytes(tracked.hashes), found.blocks)
        if self._announced is not None:
            self._announced.there(tracked.request, 0, found.blocks)
            self._announced.gone(tracked.request, found.blocks)
        return int(found.blocks)

    def _lease(self, tracked: Tracked, hit: int) -> bool:
        """Lease the first `hit` blocks, if loading them is worthwhile. Return whether it was done."""
        channel = self._channel()
        if channel is None:
            return False
        try:
            self._traces.follow(channel, tracked.request)
            lease = channel.lease(tracked.key(hit - 1), hit, LEASE_S, timeout=self._config.lookup_timeout_s)
        except NotFound:
            return False  # evicted since the lookup
        except Error as error:
            self._missed(tracked, channel, error)
            return False
        tracked.held = Held(lease, time.monotonic() + LEASE_S / 2)
        tracked.hit = hit
        tracked.in_host = lease.on_nvme == 0 and lease.elsewhere == 0
        # The daemon's estimate covers the whole prefix, and is 0 without a measurement.
        assert self._geometry is not None
        size = (hit - tracked.local) * self._geometry.block_bytes
        seconds = max(lease.load_seconds * (hit - tracked.local) / hit, size / COPY_BYTES_S)
        if seconds > self._config.max_load_s:
            self.stats.add("hits_too_slow")
            self._let_go(tracked.give_up())
            return False
        return True

    def _let_go(self, held: Held | None) -> None:
        """Release a lease now, or in a later step if the channel is full."""
        if held is not None and not held.drop():
            self._undropped.append(held)

    def _missed(self, tracked: Tracked, channel: Channel, error: Error) -> None:
        """Process a failed lookup or lease: count a miss, and pause lookups if the daemon did not answer. Raise _Late to wait
        longer.

        Answers are late when vLLM's own threads use all cores. Computing a long prefix costs more than asking again.
        """
        assert self._connection is not None
        if isinstance(error, TimedOut):
            if time.monotonic() < tracked.wait_until:
                self.stats.add("lookups_late")
                raise _Late
            self.stats.add("lookup_misses_by_timeout")
            self._rest_until = time.monotonic() + self._rest_s
            logger.warning(
                "kvtide: no answer from the daemon within lookup_max_s (%g s); continuing without cache for %g s",
                self._config.lookup_max_s,
                self._rest_s,
            )
            self._rest_s = min(self._rest_s * 2, REST_MAX_S)
        else:
            self.stats.add("lookup_errors")
            # Every request may reach the same limit: warn once.
            said = not isinstance(error, LimitReached) or str(error) == self._limit_said
            if not said:
                self._limit_said = str(error)
            logger.log(logging.DEBUG if said else logging.WARNING, "kvtide: lookup failed: %s", error)
        self._connection.failed(channel, error)

    # ---- loaded

    def allocated(self, request: Any, blocks: Any, tokens: int) -> None:
        """Create the load job for the request's new blocks, if the promised `tokens` are to be loaded."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            return
        if tokens == 0:
            self._let_go(tracked.give_up())  # vLLM did not use the promise
            return
        end = (tracked.computed + tokens) // self._page_tokens
        ids = self._groups.flatten(blocks.get_block_ids(), tracked.local, end - tracked.local)
        if inside := tracked.computed % self._page_tokens:
            ids = skip_computed(self._groups, ids, inside)
        job = self._new_job(UnderWay(request=request.request_id, first=tracked.local, held=tracked.held, tracked=tracked))
        self._step.loads.append(LoadJob(job, request.request_id, tracked.key(end - 1), end, tracked.local, ids, tracked.trace))
        tracked.loading += 1
        tracked.held, tracked.hit = None, 0
        self.stats.add("loads")
        self.stats.add("hit_tokens_host" if tracked.in_host else "hit_tokens_nvme", tokens)

    def in_host(self, request: Any) -> bool:
        """Return whether the prefix promised to the request was entirely in host memory."""
        tracked = self._tracked.get(request.request_id)
        return tracked is None or tracked.in_host

    def _new_job(self, under_way: UnderWay) -> int:
        self._jobs += 1
        self._under_way[self._jobs] = under_way
        return self._jobs

    # ---- stored

    def step(self, scheduled: dict[str, int]) -> StepMetadata:
        """Return the jobs of the step that computes the `scheduled` numbers of tokens."""
        for name, tokens in scheduled.items():
            tracked = self._tracked.get(name)
            if tracked is not None and not tracked.over:
                self._store(tracked, tracked.request.num_computed_tokens + tokens)
        if self._undropped:
            self._undropped = [held for held in self._undropped if not held.drop()]
        if self._remote is not None:
            self._remote.step()
        step, self._step = self._step, StepMetadata()
        step.idle = self._idle = not scheduled
        return step

    def _store(self, tracked: Tracked, tokens: int) -> int:
        """Create a store job for the new full blocks of the first `tokens` tokens. Return the number of blocks that must wait."""
        # A block has a hash once all its tokens are final. A drafter's guesses have none.
        known = len(tracked.request.block_hashes) // self._hashes_a_block
        end = min(self._storable(tracked, tokens) // self._page_tokens, known)
        if not self._role.stores or tracked.next_store >= end or tracked.over or self._geometry is None or tracked.keys is None:
            return 0
        if self._connection is None or self._connection.channel(0) is None:
            return 0
        tracked.keys.extend(tracked.hashes, tracked.request.block_hashes, self._hashes_a_block)
        end = self._admit(tracked, end)
        while tracked.next_store < end and tracked.key(tracked.next_store) in self._storing:
            tracked.next_store += 1  # another request is storing the same block
        count = min(end - tracked.next_store, self._room())
        if count <= 0:
            return max(0, end - tracked.next_store)
        held = self._groups.flatten(self._manager.get_blocks(tracked.request.request_id).blocks, tracked.next_store, count)
        each = self._groups.ids
        gone = next((at for at, block in enumerate(held) if block.is_null), None)
        if gone is not None:
            # The block left the sliding window and is gone. Blocks after it would lack their parent, so the prefix ends here.
            tracked.over = True
            self.stats.add("blocks_store_windowed", end - tracked.next_store - gone // each)
            count = gone // each
            held = held[: count * each]
        if count:
            self._hold(tracked, count, held)
        return end - tracked.next_store

    def _storable(self, tracked: Tracked, tokens: int) -> int:
        """Return how many of the first `tokens` tokens the options and the request's limits allow to store."""
        if tracked.limits.store_tokens is not None:
            tokens = min(tokens, tracked.limits.store_tokens)
        if self._config.offload_prompt_only:
            tokens = min(tokens, tracked.request.num_prompt_tokens)
        return tokens

    def _admit(self, tracked: Tracked, end: int) -> int:
        """Offer the request's new blocks below `end`, each once. Return the end of those that `store_threshold` admits."""
        if self._offers is None:
            return end
        first = max(tracked.offered, tracked.next_store)
        if first < end:
            admitted = self._offers.offer([tracked.key(at) for at in range(first, end)])
            if first > tracked.offered or tracked.admitted == tracked.offered:  # the blocks before `first` are stored, or will be
                tracked.admitted = first + admitted
            tracked.offered = end
            self.stats.add("blocks_store_below_threshold", end - max(first, tracked.admitted))
        return min(end, tracked.admitted)

    def _hold(self, tracked: Tracked, count: int, held: list[Any]) -> None:
        assert self._geometry is not None
        self._pool.touch(held)
        first = tracked.next_store
        hashes = bytes(tracked.hashes[first * HASH_BYTES : (first + count) * HASH_BYTES])
        each = [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
        size = count * self._geometry.block_bytes
        job = self._new_job(UnderWay(blocks=held, size=size, hashes=each, tracked=tracked, first=first))
        parent = tracked.key(first - 1) if first else None
        ids = [block.block_id for block in held]
        self._step.stores.append(StoreJob(job, first, parent, hashes, ids, tracked.trace))
        tracked.storing += 1
        self._note(tracked, first, count, hashes)
        self._stored_bytes += size
        self._held_blocks += len(held)
        self._storing.update(each)
        tracked.next_store += count

    def _note(self, tracked: Tracked, first: int, count: int, hashes: bytes) -> None:
        """Send the relay the tokens of `count` blocks, if it publishes KV events."""
        if self._remote is None or self._alone or not plain(tracked.request) or not self._remote.wants_notes():
            return
        tokens = tracked.request.all_token_ids[first * self._page_tokens : (first + count) * self._page_tokens]
        adapter = tracked.request.lora_request
        self._remote.note(hashes, list(tokens), "" if adapter is None else adapter.lora_name)

    def _share(self, tracked: Tracked) -> None:
        """Share the prefix of a request that asked for it, once all of it is stored."""
        if tracked.limits.share and tracked.ended and tracked.storing == 0 and tracked.next_store and self._remote is not None:
            if not self._alone and tracked.keys is not None:
                self._remote.share(tracked.request, bytes(tracked.hashes[: tracked.next_store * HASH_BYTES]))

    def _room(self) -> int:
        """Return the number of blocks that stores may still hold."""
        assert self._geometry is not None
        bytes_ = (self._config.store_bytes - self._stored_bytes) // self._geometry.block_bytes
        blocks = (max(self._pool.num_gpu_blocks // HELD_SHARE, self._groups.ids) - self._held_blocks) // self._groups.ids
        return int(min(bytes_, blocks))

    # ---- ended

    def ended(self, reports: WorkerMetadata) -> None:
        """Process the reports of jobs that ended on some workers."""
        for job, report in reports.ended.items():
            under_way = self._under_way.get(job)
            if under_way is None:
                continue
            under_way.workers.add(report)
            if under_way.workers.workers < self._world:
                continue
            del self._under_way[job]
            if under_way.request is not None:
                self._load_ended(under_way)
            else:
                self._store_ended(under_way)

    def _load_ended(self, load: UnderWay) -> None:
        self._let_go(load.held)
        assert load.tracked is not None
        load.tracked.loading -= 1
        if load.workers.failed is not None:
            # The failed blocks are computed, and may be stored then.
            load.tracked.failed = True
            load.tracked.next_store = min(load.tracked.next_store, load.first + load.workers.failed)

    def _store_ended(self, store: UnderWay) -> None:
        self._pool.free_blocks(reversed(store.blocks))
        self._held_blocks -= len(store.blocks)
        self._stored_bytes -= store.size
        self._storing.difference_update(store.hashes)
        assert store.tracked is not None
        store.tracked.storing -= 1
        if store.workers.failed is not None:
            store.tracked.over = True  # later blocks would lack their parent
            store.tracked.next_store = min(store.tracked.next_store, store.first + store.workers.failed)
        elif self._announced is not None and store.tracked.keys is not None:
            self._announced.there(store.tracked.request, store.first, store.first + len(store.hashes))
        self._share(store.tracked)

    def finished(self, request: Any) -> None:
        """Store the last blocks of a finished request. vLLM still has its blocks."""
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is None:
            return
        self._let_go(tracked.give_up())
        if tracked.recall is not None and self._remote is not None:
            self._remote.forget(tracked.recall)
        # After a failed or unfinished load the contents of its blocks are unknown, so nothing is stored.
        if tracked.loading == 0 and not tracked.over and not tracked.failed and (left := self._store(tracked, request.num_computed_tokens)):
            self.stats.add("blocks_store_skipped", left)
        tracked.ended = True
        self._share(tracked)

    def take_events(self) -> list[Any]:
        """Return KV events about the daemon's blocks since the last call."""
        return [] if self._announced is None else self._announced.take()

    def pending(self) -> bool:
        """Return whether stores hold blocks. The engine must then keep stepping until they are freed."""
        return self._held_blocks > 0

    def holds_alone(self) -> bool:
        """Return whether stores that started within `STORE_SOON_S` hold blocks that no request uses. These are freed soon."""
        young = time.monotonic() - STORE_SOON_S
        return any(block.ref_cnt == 1 for job in self._under_way.values() if job.since > young for block in job.blocks)

    def reset(self) -> bool:
        """Make all blocks that were stored until now unfindable for this engine.

        Return False if vLLM's blocks are in use, because vLLM's own cache was then not reset just before. Nothing is found or
        stored until a reset succeeds: new blocks could depend on blocks from before the reset.
        """
        self._epoch, self._alone = new_epoch(), True
        if self._announced is not None:
            self._announced.clear()
        for tracked in self._tracked.values():
            self._let_go(tracked.give_up())
            tracked.over = True  # at least part of its KV belongs to the old epoch
            tracked.keys = None
        logger.info("kvtide: cache reset; the new epoch is %s", self._epoch.hex())
        used = self._pool.num_gpu_blocks - self._pool.get_num_free_blocks() - 1  # the null block does not count
        self._stale = used != 0
        if self._stale:
            logger.warning(
                "kvtide: vLLM's own cache was not reset: %d of its blocks are in use, %d of them by running stores."
                " Nothing is found or stored until the reset is repeated and succeeds",
                used,
                self._held_blocks,
            )
        return not self._stale

    def shutdown(self) -> None:
        """Detach and end the threads."""
        self._lora.close()
        if self._connection is not None:
            self._connection.close()
        self.stats.close()
