"""`KvtideStorage`: HiCache's third level in kvtide, in host memory and on NVMe.

SGLang's host pools are the blocks: with `interface_v1` in the extra configuration, pages are copied directly between a pool and the
daemon's memory. Without it SGLang passes tensors, which takes one more copy. Each pool has its own space and session, so its pages
are found, evicted and lost independently of other pools. Pages are stored under their keys alone, without parents: SGLang reports
parents only on request, and a parent may never have been stored.

SGLang calls from several threads. A missing daemon never raises. Each call is bounded by `timeout_s`, plus the time to wait for the
copies of a call that timed out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)

from kvtide import numa
from kvtide.keyed_store import LOCAL, KeyedStore, Target
from kvtide.keyed_store.store import CHANNELS, DEPTH

from . import pools
from .config import StorageConfig
from .fingerprint import Identity, cleared
from .staging import StagedPages

logger = logging.getLogger(__name__)

KV = "kv"
#: Keys looked up at once. Keys after the first missing one are not needed.
LOOKUPS = 128
#: Maximum number of bandwidth samples kept between two calls of `get_stats`.
SAMPLES_MAX = 1024


def _has_gpu() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


class _Pool:
    """A registered host pool."""

    def __init__(self, pool: Any, name: str, identity: Identity, config: StorageConfig) -> None:
        self.pool, self.name = pool, name
        self.memory = pools.memory(pool)
        space, parts = identity.space(pool, name, self.memory)
        self.target = Target(
            config.socket,
            space,
            self.memory,
            config.token_file,
            channels=CHANNELS,
            depth=DEPTH,
            timeout=config.attach_timeout_s,
            # A rank's scheduler process has chosen its GPU before it makes the pools.
            numa_node=numa.of_engine("cuda", torch.cuda.current_device()) if _has_gpu() else None,
        )
        what = f"pool {space.name!r}"
        self.blocks = KeyedStore(
            self.target, what, timeout=config.timeout_s, level=config.level, remote_timeout=config.remote_timeout_s
        )
        self.config = config
        logger.info(
            "kvtide: pool %r: %d pages of %d bytes in %d pieces, shard %d of %d; fingerprint of %s",
            name,
            self.memory.count,
            self.memory.block_bytes,
            len(self.memory.pieces),
            space.shard,
            space.shards,
            parts,
        )

    def close(self) -> None:
        self.blocks.close()


class KvtideStorage(HiCacheStorage):
    """A dynamic storage backend of HiCache. SGLang makes one in each rank's scheduler process."""

    def __init__(self, storage_config: HiCacheStorageConfig, given: Any = None) -> None:
        """Parse the options. `given` is the factory's other argument, unused. Raise ValueError as `StorageConfig.parse` and `Identity`
        do."""
        self._config = StorageConfig.parse(storage_config.extra_config)
        self._identity = Identity(storage_config, self._config)
        self._metrics = bool(storage_config.enable_storage_metrics)
        self._pools: dict[str, _Pool] = {}
        self._staged: StagedPages | None = None
        self._lock = threading.Lock()
        self._cleared = 0
        self._prefix = b""
        #: (pages, GB/s) of loads and of stores since the last `get_stats`.
        self._samples: tuple[list[tuple[int, float]], list[tuple[int, float]]] = ([], [])

    # Pools.

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Register the KV pool and attach. Raise Unsupported if its pages cannot be read in place, or kvtide's error if the daemon
        rejects it.
        """
        super().register_mem_pool_host(mem_pool_host)
        self._register(mem_pool_host, KV)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Register a pool by name, like `register_mem_pool_host`."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._register(host_pool, str(host_pool_name))

    def _register(self, pool: Any, name: str) -> None:
        with self._lock:
            known = self._pools.get(name)
            if known is not None and known.pool is pool:
                return
            staged, self._staged = (self._staged, None) if name == KV else (None, self._staged)
        for old in (staged, known):
            if old is not None:
                old.close()
        fresh = _Pool(pool, name, self._identity, self._config)
        with self._lock:
            self._pools[name] = fresh

    def _pool(self, name: object) -> _Pool:
        found = self._pools.get(str(name))
        if found is None:
            raise ValueError(f"kvtide: no host pool {str(name)!r} is registered; registered: {', '.join(self._pools) or 'none'}")
        return found

    # Pages in place.

    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        """Return how many of the keys, from the first on, have a cached KV page. It waits `remote_timeout_s` for those of other machines."""
        return self._leading(self._pool(KV), keys)

    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Load KV pages into their slots. Return, for each, whether all bytes arrived."""
        return self._move(self._pool(KV), keys, host_indices, load=True)

    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Store KV pages from their slots. Return, for each, whether it is cached."""
        return self._move(self._pool(KV), keys, host_indices, load=False)

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        """Return the longest prefix of `keys` with pages in every pool, as its hit policy requires, and each pool's own hits."""
        pages = self._leading(self._pool(KV), keys)
        hits: dict[str, int] = {PoolName.KV: pages} if pages else {}
        usable = list(range(1, pages + 1))
        for transfer in pool_transfers or []:
            if not usable:
                break
            fits = self._fitting(transfer, keys[:pages])
            if fits:
                hits[transfer.name] = max(fits)
            usable = [length for length in usable if length in fits]
        return PoolTransferResult(usable[-1] if usable else 0, hits, usable)

    def _fitting(self, transfer: PoolTransfer, keys: Sequence[str]) -> set[int]:
        """Return the prefix lengths for which a pool has the pages that it needs."""
        pool = self._pool(transfer.name)
        if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
            return set(range(1, self._leading(pool, keys) + 1))
        if transfer.hit_policy != PoolHitPolicy.TRAILING_PAGES:
            raise ValueError(f"kvtide: hit policy {transfer.hit_policy} of pool {transfer.name} is not supported")
        needed, run, fits = max(1, len(transfer.keys or ())), 0, set()
        there = pool.blocks.exists(self._keys(keys))
        last = keys[-needed:]
        # Other machines are asked for the longest prefix only.
        if not all(there[-needed:]) and pool.blocks.recall(self._keys(last)) == len(last):
            there[-needed:] = [True] * len(last)
        for length, found in enumerate(there, start=1):
            run = run + 1 if found else 0
            if run >= min(needed, length):
                fits.add(length)
        return fits

    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        """Load pages of several pools. Return, for each, whether all bytes arrived."""
        return {t.name: self._move(self._pool(t.name), t.keys or [], t.host_indices, load=True) for t in transfers}

    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        """Store pages of several pools. Return, for each, whether it is cached."""
        return {t.name: self._move(self._pool(t.name), t.keys or [], t.host_indices, load=False) for t in transfers}

    def _keys(self, keys: Sequence[str]) -> list[bytes]:
        prefix = self._prefix
        return [prefix + key.encode() for key in keys]

    def _leading(self, pool: _Pool, keys: Sequence[str]) -> int:
        """Return how many of the keys, from the first on, have a cached page. Pages that are missing here are brought in from other
        machines."""
        for start in range(0, len(keys), LOOKUPS):
            there = pool.blocks.exists(self._keys(keys[start : start + LOOKUPS]))
            if not all(there):
                found = start + there.index(False)
                return found + pool.blocks.recall(self._keys(keys[found:]))
        return len(keys)

    def _move(self, pool: _Pool, keys: Sequence[str], host_indices: Any, *, load: bool) -> list[bool]:
        blocks = pools.blocks_of(pool.pool, len(keys), host_indices)
        if blocks is None:
            raise ValueError(
                f"kvtide: {len(keys)} keys of pool {pool.name!r} came with"
                f" {0 if host_indices is None else int(host_indices.numel())} slots; they must be whole pages of"
                f" {pools.slots_a_page(pool.pool)} slots, one page per key"
            )
        began = time.monotonic()
        went = (pool.blocks.load if load else pool.blocks.store)(self._keys(keys), blocks)
        self._sample(sum(went), pool.memory.block_bytes, time.monotonic() - began, load=load)
        return went

    # Pages as tensors.

    def get(self, key: str, target_location: Any | None = None, target_sizes: Any | None = None) -> torch.Tensor | None:
        """Load a page into `target_location` (any shape with a page's bytes), or into a new byte tensor. Return None if it is not
        cached.
        """
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: list[str], target_locations: Any | None = None, target_sizes: Any | None = None
    ) -> list[torch.Tensor | None]:
        """Load several pages, like `get`."""
        targets = [None] * len(keys) if target_locations is None else list(target_locations)
        return self._tensors().load(self._keys(keys), targets)

    def set(
        self, key: str, value: Any | None = None, target_location: Any | None = None, target_sizes: Any | None = None
    ) -> bool:
        """Store a page from a tensor with its bytes. Return whether it is cached."""
        return self.batch_set([key], [value if value is not None else target_location])

    def batch_set(
        self,
        keys: list[str],
        values: Any | None = None,
        target_locations: Any | None = None,
        target_sizes: Any | None = None,
    ) -> bool:
        """Store several pages. Return whether all are cached."""
        return all(self._tensors().store(self._keys(keys), list(values if values is not None else target_locations or [])))

    def exists(self, key: str) -> bool:
        """Return whether the KV page is cached."""
        return self._pool(KV).blocks.exists(self._keys([key]))[0]

    def _tensors(self) -> StagedPages:
        pool = self._pool(KV)
        with self._lock:
            if self._staged is None:
                self._staged = StagedPages(pool.target, timeout=self._config.timeout_s, level=self._config.level)
            return self._staged

    # Administration.

    def clear(self) -> None:
        """Hide all pages stored until now from all ranks of this server. Their memory is freed by eviction."""
        with self._lock:
            self._cleared += 1
            self._prefix = LOCAL + cleared(self._cleared)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return each pool's counts: see `KeyedStore.counts`."""
        return {name: pool.blocks.counts() for name, pool in list(self._pools.items())}

    def get_stats(self) -> Any:
        """Return SGLang's StorageMetrics since the last call; None if metrics are off."""
        if not self._metrics:
            return None
        from sglang.srt.observability.metrics_collector import StorageMetrics  # noqa: PLC0415

        with self._lock:
            (loads, stores), self._samples = self._samples, ([], [])
        return StorageMetrics(
            prefetch_pgs=[pages for pages, _ in loads],
            backup_pgs=[pages for pages, _ in stores],
            prefetch_bandwidth=[speed for _, speed in loads],
            backup_bandwidth=[speed for _, speed in stores],
        )

    def _sample(self, pages: int, page_bytes: int, seconds: float, *, load: bool) -> None:
        if self._metrics and pages:
            with self._lock:
                samples = self._samples[0 if load else 1]
                if len(samples) < SAMPLES_MAX:
                    samples.append((pages, pages * page_bytes / max(seconds, 1e-9) / 1e9))

    def close(self) -> None:
        """End the sessions. After return nothing accesses the pools' memory."""
        with self._lock:
            ends: list[Callable[[], None]] = [pool.close for pool in self._pools.values()]
            if self._staged is not None:
                ends.append(self._staged.close)
            self._pools, self._staged = {}, None
        for end in ends:
            end()
