"""What a `secondary_tiers` entry of type KvtideTier may hold, and what its blocks' fingerprint is made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vllm

from ..options import LEVELS, SOCKET, check_choice, check_numbers, read

#: Version of what a block holds: raised when the same facts below come to mean other bytes.
FORMAT = 1


@dataclass(frozen=True)
class TierConfig:
    """The tier's options. Times are in seconds, and may be given as strings with a unit."""

    #: Where the daemon listens.
    socket: str = SOCKET
    #: A file with the token of this engine's domain, where its uid says nothing.
    token_file: str | None = None
    #: What the space is called in the daemon's status and metrics; what is shared is decided by the fingerprint alone.
    space: str | None = None
    #: When a block counts as stored: "published" (others find it), "stored" (it also survives the daemon's kill -9) or
    #: "durable" (also a power loss). Until then vLLM's own copy stays pinned.
    level: str = "published"
    #: How long finding, loading or storing what one job names may take; then what is left of it fails.
    timeout_s: float = 10.0
    #: How long an attempt to attach may take.
    attach_timeout_s: float = 5.0
    #: Most of vLLM's own host memory that waits to be stored here, in thousandths of it: jobs beyond it are dropped, so that a slow
    #: disk never keeps vLLM from evicting.
    store_permille: int = 250
    #: Stands for the weights' content (and for what else changes KV and vLLM does not tell a tier: see docs/reference/vllm.md).
    weights_id: str | None = None
    #: A name for the weights' version, for engines whose weights are updated in place: engines of one name share chunks. Without one a
    #: reset of vLLM's connector cache, which is what goes with an update, makes this engine find nothing of what was stored before.
    epoch: str | None = None
    #: Serves although vLLM's block hashes are seeded at random: nothing is found by another process, nor after a restart.
    private: bool = False

    def __post_init__(self) -> None:
        check_choice(self, "level", LEVELS)
        check_numbers(self)
        if self.store_permille > 1000:
            raise ValueError(f"kvtide: store_permille is {self.store_permille}; it must be from 1 to 1000")


def parse(given: Mapping[str, Any]) -> TierConfig:
    """The options of an entry of `secondary_tiers`, without those that vLLM itself takes. ValueError: see `options.read`."""
    return read(TierConfig, given, "an entry of secondary_tiers")


def parts(config: Any, row_bytes: int, weights: str) -> dict[str, str]:
    """Everything that counts of vLLM's `OffloadingConfig`, by name, readable. `row_bytes`: a chunk of all ranks in vLLM's region."""
    parallel = config.parallel
    sizes = ("tp", "pp", "pcp", "dcp")
    # Where a chunk's bytes are the same under every split, engines that are split otherwise may share them.
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
    """The digest of the model's config.json; vLLM tells a tier nothing of what replaces parts of it."""
    path = Path(model) / "config.json"
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() if path.is_file() else "none"


def digest(found: Mapping[str, str]) -> bytes:
    """The 32 bytes of a fingerprint."""
    text = json.dumps(dict(found), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=32, person=b"kvtide-tier").digest()
