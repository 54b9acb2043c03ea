"""Options in `--hicache-storage-backend-extra-config`. Unknown keys are errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..adapter_config import LEVELS, SOCKET, check_choice, check_numbers, read

#: Keys that SGLang itself reads. It removes some of them before it creates the backend, depending on the caller.
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

    #: Socket of the daemon.
    socket: str = SOCKET
    #: File with the token of this server's domain, for servers that the daemon cannot identify by uid.
    token_file: str | None = None
    #: Name of the spaces in the daemon's status and metrics. Only the fingerprint decides which spaces are shared.
    space: str | None = None
    #: When a store is complete: "published" (other servers find the page), "stored" (it also survives `kill -9` of the daemon) or
    #: "durable" (it also survives power loss). SGLang's own copy stays locked until then.
    level: str = "published"
    #: Limit of one call for a batch of pages (lookup, load or store). Then the remaining pages fail.
    timeout_s: float = 10.0
    #: Limit of one attempt to attach.
    attach_timeout_s: float = 5.0
    #: Machines that the ranks run on. A daemon knows only the ranks of its own machine. With several machines each rank's pages are
    #: stored by themselves, not as parts of one block. 0: SGLang's `--nnodes`.
    nodes: int = 0
    #: Replaces the hash of the weight files, for files that cannot be read here.
    weights_id: str | None = None

    def __post_init__(self) -> None:
        check_choice(self, "level", LEVELS)
        check_numbers(self, zero=("nodes",))


def parse(given: Mapping[str, Any] | None) -> Config:
    """Return the options in the extra configuration. Raise ValueError as `options.read` does."""
    return read(Config, given, "the storage backend's extra configuration", SGLANG_KEYS)
