"""Options of `KvtideConnector`, in `kv_connector_extra_config`."""

from __future__ import annotations

from dataclasses import dataclass

from ..adapter_config import AdapterConfig


@dataclass(frozen=True)
class ConnectorConfig(AdapterConfig):
    """The connector's options. Times are in seconds and sizes in bytes; both may be given as strings with a unit."""

    WHERE = "kv_connector_extra_config"
    CHOICES = {"staging": ("auto", "always")}
    ZERO_ALLOWED = ("min_hit_tokens",)

    #: Shorter cached prefixes, beyond vLLM's own hit, are computed and not loaded. Tokens; 0: load every full block.
    min_hit_tokens: int = 0
    #: Loads that are estimated to take longer are not started; their tokens are computed.
    max_load_s: float = 5.0
    #: Time that one scheduler step waits for an answer of the daemon. A later step asks again.
    lookup_timeout_s: float = 0.02
    #: Time that a request waits for an answer, over all steps. Then it is a miss.
    lookup_max_s: float = 0.5
    #: Limit of a load. Then its blocks are computed.
    load_timeout_s: float = 10.0
    #: Limit of a store. Then its blocks are not cached.
    store_timeout_s: float = 30.0
    #: Longest pause between attempts to attach.
    retry_max_s: float = 30.0
    #: Maximum bytes of one rank in queued and running stores. Blocks beyond it wait; they are not cached if their request ends
    #: first.
    store_bytes: int = 256 << 20
    #: "auto": copy device memory through staging blocks in host memory; "always": host memory too.
    staging: str = "auto"
    #: Bytes of staging blocks of one rank.
    staging_bytes: int = 64 << 20
    #: Name of the version of the weights, for weights that are updated in place. Engines with the same name share blocks.
    epoch: str | None = None
    #: Start although vLLM's block hashes are seeded at random. No other process, and no restart, finds the blocks.
    private: bool = False
