"""Pages and fingerprint of an engine, computed alike by both halves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec

from ... import Space, identity
from ...torch.memory import KvShape
from .. import fingerprint
from .config import PagedConfig


@dataclass(frozen=True)
class Geometry:
    """The space, and vLLM's layers by plane."""

    space: Space
    shape: KvShape
    #: Names of the layers in the order in which a step visits them; each is a plane.
    layers: tuple[str, ...]
    #: For each layer the maximum tokens that a query sees; 0: all.
    windows: tuple[int, ...]


def geometry(vllm_config: Any, kv_cache_config: Any, config: PagedConfig, rank: int = 0) -> Geometry:
    """Return the geometry of a rank. Raise ValueError if layers have pages of different shapes, or the weights cannot be hashed."""
    if len(kv_cache_config.kv_cache_groups) != 1:
        raise ValueError(
            f"kvtide: KvtidePaged supports one group of layers; this model has {len(kv_cache_config.kv_cache_groups)}:"
            " set --disable-hybrid-kv-cache-manager, or use KvtideConnector"
        )
    (group,) = kv_cache_config.kv_cache_groups
    spec = group.kv_cache_spec
    specs = [getattr(spec, "kv_cache_specs", {}).get(name, spec) for name in group.layer_names]
    if wrong := sorted({type(one).__name__ for one in specs if not isinstance(one, FullAttentionSpec)}):
        # vLLM frees blocks behind a window, and gives them to other requests: a first block id would not name its request.
        raise ValueError(
            f"kvtide: KvtidePaged does not support {', '.join(wrong)}, e.g. of a model in which all layers have a sliding window;"
            " use KvtideConnector"
        )
    shapes = {KvShape(one.num_kv_heads, one.block_size, one.head_size, one.dtype) for one in specs}
    if len(shapes) != 1 or any(one.head_size_v != one.head_size for one in specs):
        raise ValueError(f"kvtide: KvtidePaged supports layers with equal pages; this model has {sorted(map(str, shapes))}")
    (shape,) = shapes
    windows = tuple(int(getattr(one, "sliding_window", None) or 0) for one in specs)
    layout = f"pages {shape.kv_heads} x {shape.page_tokens} x {shape.head_dim}, windows {sorted(set(windows))}"
    parts = fingerprint.parts(vllm_config, config, f"{layout}, {len(specs)} layers")
    space = Space(
        config.space or f"vllm {vllm_config.model_config.model}",
        fingerprint.digest(parts),
        shape.page_tokens,
        [shape.plane()] * len(specs),
        shards=vllm_config.parallel_config.tensor_parallel_size,
        shard=rank,
        identity=identity.text(parts),
    )
    return Geometry(space, shape, tuple(group.layer_names), windows)
