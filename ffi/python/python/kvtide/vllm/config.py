"""What `kv_connector_extra_config` may hold. Unknown keys are errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..options import SOCKET, read


@dataclass(frozen=True)
class Config:
    """The connector's options. Times are in seconds, sizes in bytes."""

    #: Where the daemon listens.
    socket: str = SOCKET
    #: A file with the token of this engine's domain, where its uid says nothing.
    token_file: str | None = None
    #: What the space is called in the daemon's status and metrics; what is shared is decided by the fingerprint alone.
    space: str | None = None
    #: When a block counts as stored: "published" (others find it) or "stored" (it also survives the daemon's kill -9).
    level: str = "published"
    #: Prefixes that are shorter than this beyond vLLM's own hit are computed. Tokens; 0: whatever fills a block.
    min_hit_tokens: int = 0
    #: Loads that are estimated to take longer are not begun: the tokens are computed.
    max_load_s: float = 5.0
    #: How long the scheduler waits for an answer of the daemon; then it is a miss.
    lookup_timeout_s: float = 0.02
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
        for name, allowed in (("level", ("published", "stored")), ("staging", ("auto", "always"))):
            if (given := getattr(self, name)) not in allowed:
                raise ValueError(f"kvtide: {name} is {given!r}; it must be one of {', '.join(map(repr, allowed))}")
        for field in dataclasses.fields(self):
            given, zero = getattr(self, field.name), field.name == "min_hit_tokens"
            if isinstance(field.default, bool) or not isinstance(field.default, (int, float)):
                continue
            if given < 0 or (given == 0 and not zero):
                raise ValueError(f"kvtide: {field.name} is {given}; it must be {'at least' if zero else 'more than'} 0")


def parse(given: Mapping[str, Any] | None) -> Config:
    """The options in `kv_connector_extra_config`. ValueError: see `options.read`."""
    return read(Config, given, "kv_connector_extra_config")
