"""Options of `KvtideStorage`, in `--hicache-storage-backend-extra-config`."""

from __future__ import annotations

from dataclasses import dataclass

from ..adapter_config import AdapterConfig

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
class StorageConfig(AdapterConfig):
    """The backend's options. Times are in seconds, and may be given as strings with a unit."""

    WHERE = "the storage backend's extra configuration"
    ENGINE_KEYS = SGLANG_KEYS
    ZERO_ALLOWED = ("nodes", "remote_timeout_s")

    #: Limit of one call for a batch of pages (lookup, load or store). Then the remaining pages fail.
    timeout_s: float = 10.0
    #: Time that a lookup waits for pages of other machines, if the daemon names a relay. 0: no relay is asked.
    remote_timeout_s: float = 2.0
    #: Machines that the ranks run on. A daemon knows only the ranks of its own machine. With several machines each rank's pages are
    #: stored by themselves, not as parts of one block. 0: SGLang's `--nnodes`.
    nodes: int = 0
