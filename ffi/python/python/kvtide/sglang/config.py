"""What `--hicache-storage-backend-extra-config` may hold. Unknown keys are errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..options import LEVELS, SOCKET, check_choice, check_numbers, read

#: Keys that SGLang itself reads there. It takes some of them out before it makes the backend, depending on who attaches it.
SGLANG_KEYS = (
    "backend_name",
    "module_path",
    "class_name",
    "interface_v1",
    "allocator",
    "prefetch_threshold",
    "prefetch_timeout_base",
    "prefetch_timeout_per_ki_token",
    "hicache_storage_pass_prefix_keys",
)


@dataclass(frozen=True)
class Config:
    """The backend's options. Times are in seconds, and may be given as strings with a unit."""

    #: Where the daemon listens.
    socket: str = SOCKET
    #: A file with the token of this server's domain, where its uid says nothing.
    token_file: str | None = None
    #: What the spaces are called in the daemon's status and metrics; what is shared is decided by the fingerprint alone.
    space: str | None = None
    #: When a page counts as stored: "published" (others find it), "stored" (it also survives the daemon's kill -9) or "durable"
    #: (also a power loss). Until then SGLang's own copy stays locked.
    level: str = "published"
    #: How long one batch of pages may take to be found, loaded or stored; then what is left of it fails.
    timeout_s: float = 10.0
    #: How long an attempt to attach may take.
    attach_timeout_s: float = 5.0
    #: Machines that the ranks are spread over. A daemon sees the ranks of its own machine alone: on several each rank's pages are
    #: kept by themselves, and not as parts of one block. 0: what SGLang was started with.
    nodes: int = 0
    #: Stands for the weights' content, where their files cannot be read here.
    weights_id: str | None = None

    def __post_init__(self) -> None:
        check_choice(self, "level", LEVELS)
        check_numbers(self, zero=("nodes",))


def parse(given: Mapping[str, Any] | None) -> Config:
    """The options among the extra configuration. ValueError: see `options.read`."""
    return read(Config, given, "the storage backend's extra configuration", SGLANG_KEYS)
