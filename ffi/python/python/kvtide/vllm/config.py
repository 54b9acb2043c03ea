"""What `kv_connector_extra_config` may hold. Unknown keys are errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..options import LEVELS, SOCKET, check_choice, check_numbers, read


@dataclass(frozen=True)
class Config:
    """The connector's options. Times are in seconds and sizes in bytes; both may be given as strings with a unit."""

    #: Where the daemon listens.
    socket: str = SOCKET
    #: A file with the token of this engine's domain, where its uid says nothing.
    token_file: str | None = None
    #: What the space is called in the daemon's status and metrics; what is shared is decided by the fingerprint alone.
    space: str | None = None
    #: When a block counts as stored: "published" (others find it), "stored" (it also survives the daemon's kill -9) or "durable"
    #: (also a power loss). Until then vLLM's own block is held.
    level: str = "published"
    #: Prefixes that are shorter than this beyond vLLM's own hit are computed. Tokens; 0: whatever fills a block.
    min_hit_tokens: int = 0
    #: Loads that are estimated to take longer are not begun: the tokens are computed.
    max_load_s: float = 5.0
    #: How long a step of the scheduler waits for an answer of the daemon; the next step asks again.
    lookup_timeout_s: float = 0.02
    #: How long a request waits for an answer, over several steps; then it is a miss.
    lookup_max_s: float = 0.5
    #: How long a load may take; then its blocks are computed.
    load_timeout_s: float = 10.0
    #: How long a store may take; then its blocks are not cached.
    store_timeout_s: float = 30.0
    #: How long an attempt to attach may take, and the longest pause between attempts.
    attach_timeout_s: float = 5.0
    retry_max_s: float = 30.0
    #: Most bytes (of one rank) that wait to be stored or are being stored: what comes beyond is not cached.
    store_bytes: int = 256 << 20
    #: "auto": memory of a device goes through staging blocks in host memory; "always": the host's own too.
    staging: str = "auto"
    #: Bytes of staging blocks of one rank.
    staging_bytes: int = 64 << 20
    #: A name for the weights' version, for engines whose weights are updated in place: engines of one name share blocks.
    epoch: str | None = None
    #: Stands for the weights' content, where their files cannot be read here.
    weights_id: str | None = None
    #: Serves although vLLM's block hashes are seeded at random: nothing is found by another process, nor after a restart.
    private: bool = False

    def __post_init__(self) -> None:
        check_choice(self, "level", LEVELS)
        check_choice(self, "staging", ("auto", "always"))
        check_numbers(self, zero=("min_hit_tokens",))


def parse(given: Mapping[str, Any] | None) -> Config:
    """The options in `kv_connector_extra_config`. ValueError: see `options.read`."""
    return read(Config, given, "kv_connector_extra_config")
