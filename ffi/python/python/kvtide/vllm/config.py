"""Options of `KvtideConnector`, in `kv_connector_extra_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..adapter_config import AdapterConfig

_DAEMON_HOST = "tiers.host.capacity in the daemon's configuration file sets the size of host memory"
_DAEMON_NVME = "tiers.nvme in the daemon's configuration file sets directories and size"
_NOTHING = "remove it: {}"
_SPEC = _NOTHING.format("kvtide's storage is the daemon")
_EVICTION = "eviction.policy in the daemon's configuration file sets it"
#: Keys of vLLM 0.32's OffloadingConnector and SimpleCPUOffloadConnector that the daemon decides or kvtide lacks, with what to do
#: instead.
OFFLOADING_KEYS: dict[str, str] = {
    "cpu_bytes_to_use": _DAEMON_HOST,
    "cpu_bytes_to_use_per_rank": _DAEMON_HOST,
    "spec_name": _SPEC,
    "spec_module_path": _SPEC,
    "kv_offload_backend": _SPEC,
    "block_size": "blocks_per_chunk sets the size of a stored block, in blocks of vLLM",
    "eviction_policy": _EVICTION,
    "cache_policy_module_path": _EVICTION,
    "secondary_tiers": _DAEMON_NVME,
    "backpressure": "store_bytes limits what waits to be stored",
    "lazy_offload": _NOTHING.format("each step stores the blocks that it fills"),
    "disk_path": _DAEMON_NVME,
    "disk_capacity_bytes": _DAEMON_NVME,
    "disk_buffer_slots": "staging_bytes sets the size of staging blocks",
    "use_page_cache": _NOTHING.format("the daemon decides how it reads and writes NVMe"),
    "canonical_layout": _NOTHING.format("engines with other parallelism do not share blocks"),
    "self_describing_kv_events": _NOTHING.format("kvtide's KV events always have tokens, parent and adapter"),
}


@dataclass(frozen=True)
class ConnectorConfig(AdapterConfig):
    """The connector's options. Times are in seconds and sizes in bytes; both may be given as strings with a unit."""

    WHERE = "kv_connector_extra_config"
    CHOICES = {"staging": ("auto", "always")}
    ZERO_ALLOWED = ("min_hit_tokens", "store_threshold", "remote_timeout_s")
    REPLACED: ClassVar[Mapping[str, str]] = OFFLOADING_KEYS

    #: Shorter cached prefixes, beyond vLLM's own hit, are computed and not loaded. Tokens; 0: load every full block.
    min_hit_tokens: int = 0
    #: Loads that are estimated to take longer are not started; their tokens are computed.
    max_load_s: float = 5.0
    #: Time that one scheduler step waits for an answer of the daemon. A later step asks again.
    lookup_timeout_s: float = 0.02
    #: Time that a request waits for an answer, over all steps. Then it is a miss.
    lookup_max_s: float = 0.5
    #: Time that a request waits for a prefix of another machine, if the daemon names a relay. 0: no relay is asked.
    remote_timeout_s: float = 2.0
    #: Limit of a load. Then its blocks are computed.
    load_timeout_s: float = 10.0
    #: Limit of a store. Then its blocks are not cached.
    store_timeout_s: float = 30.0
    #: Longest pause between attempts to attach.
    retry_max_s: float = 30.0
    #: Maximum bytes of one rank in queued and running stores. Blocks beyond it wait; they are not cached if their request ends
    #: first.
    store_bytes: int = 256 << 20
    #: Store only blocks of prompts. False, unlike vLLM's default: an answer is part of the next turn's prompt.
    offload_prompt_only: bool = False
    #: A block is stored once this many requests have offered it. 0 and 1: at once.
    store_threshold: int = 0
    #: Blocks for which offers are counted. Those offered least recently are forgotten.
    max_tracker_size: int = 64_000
    #: vLLM's blocks per stored block, of the group with the largest blocks.
    blocks_per_chunk: int = 1
    #: "auto": copy device memory through staging blocks in host memory; "always": host memory too.
    staging: str = "auto"
    #: Bytes of staging blocks of one rank.
    staging_bytes: int = 64 << 20
    #: Name of the version of the weights, for weights that are updated in place. Engines with the same name share blocks.
    epoch: str | None = None
    #: Start although vLLM's block hashes are seeded at random. No other process, and no restart, finds the blocks.
    private: bool = False
