"""Options in `kv_connector_extra_config`. Unknown keys are errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..adapter_config import LEVELS, SOCKET, check_choice, check_numbers, read


@dataclass(frozen=True)
class Config:
    """The connector's options. Times are in seconds and sizes in bytes; both may be given as strings with a unit."""

    #: Socket of the daemon.
    socket: str = SOCKET
    #: File with the token of this engine's domain, for engines that the daemon cannot identify by uid.
    token_file: str | None = None
    #: Name of the space in the daemon's status and metrics. Only the fingerprint decides which spaces are shared.
    space: str | None = None
    #: When a store is complete: "published" (other engines find the block), "stored" (it also survives `kill -9` of the daemon) or
    #: "durable" (it also survives power loss). vLLM's own block is held until then.
    level: str = "published"
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
    #: Limit of one attempt to attach, and the longest pause between attempts.
    attach_timeout_s: float = 5.0
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
    #: Replaces the hash of the weight files, for files that cannot be read here.
    weights_id: str | None = None
    #: Start although vLLM's block hashes are seeded at random. No other process, and no restart, finds the blocks.
    private: bool = False

    def __post_init__(self) -> None:
        check_choice(self, "level", LEVELS)
        check_choice(self, "staging", ("auto", "always"))
        check_numbers(self, zero=("min_hit_tokens",))


def parse(given: Mapping[str, Any] | None) -> Config:
    """Return the options in `kv_connector_extra_config`. Raise ValueError as `options.read` does."""
    return read(Config, given, "kv_connector_extra_config")
