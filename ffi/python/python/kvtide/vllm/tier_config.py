"""Options of a `secondary_tiers` entry of type KvtideTier, and the fingerprint of its blocks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..adapter_config import AdapterConfig

#: Version of a block's format. Raise it when the same parts below mean other bytes.
FORMAT = 1


@dataclass(frozen=True)
class TierConfig(AdapterConfig):
    """The tier's options. Times are in seconds, and may be given as strings with a unit.

    `weights_id` must cover what vLLM does not report to a tier (see docs/reference/vllm.md).
    """

    WHERE = "an entry of secondary_tiers"

    #: Limit of one job (lookup, load or store). Then its remaining chunks fail.
    timeout_s: float = 10.0
    #: Maximum part of vLLM's region that waits to be stored, in 1/1000. Jobs beyond it are dropped, so that a slow disk does not
    #: stop vLLM from evicting.
    store_permille: int = 250
    #: Name of the version of the weights, for weights that are updated in place. Engines with the same name share chunks. Without
    #: it, a reset of vLLM's connector cache (part of such an update) makes this engine find nothing that was stored before.
    epoch: str | None = None
    #: Use the tier although vLLM's block hashes are seeded at random. No other process, and no restart, finds the chunks.
    private: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.store_permille > 1000:
            raise ValueError(f"kvtide: store_permille is {self.store_permille}; it must be from 1 to 1000")


def parts(config: Any, row_bytes: int, weights: str) -> dict[str, str]:
    """Return all parts of the fingerprint from vLLM's `OffloadingConfig`, by name, in readable form.

    `row_bytes` is the size of a chunk of all ranks in vLLM's region.
    """
    import vllm  # noqa: PLC0415 (so that the options can be read without vLLM)

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
