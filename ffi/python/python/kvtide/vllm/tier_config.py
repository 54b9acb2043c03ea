"""Options of a `secondary_tiers` entry of type KvtideTier, and the fingerprint of its blocks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vllm

from ..adapter_config import LEVELS, SOCKET, check_choice, check_numbers, read

#: Version of a block's format. Raise it when the same parts below mean other bytes.
FORMAT = 1


@dataclass(frozen=True)
class TierConfig:
    """The tier's options. Times are in seconds, and may be given as strings with a unit."""

    #: Socket of the daemon.
    socket: str = SOCKET
    #: File with the token of this engine's domain, for engines that the daemon cannot identify by uid.
    token_file: str | None = None
    #: Name of the space in the daemon's status and metrics. Only the fingerprint decides which spaces are shared.
    space: str | None = None
    #: When a store is complete: "published" (other engines find the chunk), "stored" (it also survives `kill -9` of the daemon) or
    #: "durable" (it also survives power loss). vLLM's own copy is pinned until then.
    level: str = "published"
    #: Limit of one job (lookup, load or store). Then its remaining chunks fail.
    timeout_s: float = 10.0
    #: Limit of one attempt to attach.
    attach_timeout_s: float = 5.0
    #: Maximum part of vLLM's region that waits to be stored, in 1/1000. Jobs beyond it are dropped, so that a slow disk does not
    #: stop vLLM from evicting.
    store_permille: int = 250
    #: Replaces the hash of the weight files, and must cover what vLLM does not report to a tier (see docs/reference/vllm.md).
    weights_id: str | None = None
    #: Name of the version of the weights, for weights that are updated in place. Engines with the same name share chunks. Without
    #: it, a reset of vLLM's connector cache (part of such an update) makes this engine find nothing that was stored before.
    epoch: str | None = None
    #: Use the tier although vLLM's block hashes are seeded at random. No other process, and no restart, finds the chunks.
    private: bool = False

    def __post_init__(self) -> None:
        check_choice(self, "level", LEVELS)
        check_numbers(self)
        if self.store_permille > 1000:
            raise ValueError(f"kvtide: store_permille is {self.store_permille}; it must be from 1 to 1000")


def parse(given: Mapping[str, Any]) -> TierConfig:
    """Return the options of an entry of `secondary_tiers`, without vLLM's own keys. Raise ValueError as `options.read` does."""
    return read(TierConfig, given, "an entry of secondary_tiers")


def parts(config: Any, row_bytes: int, weights: str) -> dict[str, str]:
    """Return all parts of the fingerprint from vLLM's `OffloadingConfig`, by name, in readable form.

    `row_bytes` is the size of a chunk of all ranks in vLLM's region.
    """
    parallel = config.parallel
    sizes = ("tp", "pp", "pcp", "dcp")
    # If a chunk's bytes do not depend on the parallelism, engines with different parallelism may share chunks.
    agnostic = bool(parallel.is_parallelism_agnostic and config.canonical_layout)
    return {
        "format": str(FORMAT),
        "model": config.model.name,
        "weights": weights,
        "model configuration": _configuration(config.model.name),
        "vllm": str(vllm.__version__),
        "dtype": str(config.model.dtype),
        "tokens per hash": str(config.cache.tokens_per_hash),
        "blocks per chunk": str(config.cache.blocks_per_chunk),
        "groups": "; ".join(f"{g.group_id}: {g.tokens_per_block} {','.join(g.layer_names)}" for g in config.groups),
        "layout": str(config.kv_cache_layout),
        "canonical": str(config.canonical_layout),
        "replicated": str(config.replicated_layout),
        "parallelism": "any" if agnostic else " ".join(f"{size} {getattr(parallel, f'{size}_size')}" for size in sizes),
        "row bytes": str(row_bytes),
    }


def _configuration(model: str) -> str:
    """Return the digest of the model's config.json. vLLM does not report overrides to a tier."""
    path = Path(model) / "config.json"
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() if path.is_file() else "none"


def digest(found: Mapping[str, str]) -> bytes:
    """Return the fingerprint: 32 bytes."""
    text = json.dumps(dict(found), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=32, person=b"kvtide-tier").digest()
