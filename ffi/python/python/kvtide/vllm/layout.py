"""Map vLLM's cache groups to planes, and vLLM's blocks to kvtide's."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Attention kinds with equal pages for all requests with the same prefix. By name, because vLLM versions have different
#: classes.
_FULL = frozenset({"FullAttentionSpec", "MLAAttentionSpec", "ChunkedLocalAttentionSpec", "SinkFullAttentionSpec"})
_WINDOW = frozenset({"SlidingWindowSpec", "SlidingWindowMLASpec"})
_CHUNKED = frozenset({"ChunkedLocalAttentionSpec"})
#: Maximum number of vLLM's blocks in one block of kvtide.
MEMBERS_MAX = 64


@dataclass(frozen=True)
class Group:
    """A cache group: layers that share block ids."""

    layers: tuple[str, ...]
    #: Tokens of one block, over all ranks that share a sequence.
    block_tokens: int
    kind: str
    window_tokens: int
    #: One line for the fingerprint.
    text: str
    #: vLLM frees blocks that attention no longer reads, and puts the null block in their place.
    leaves: bool = False


@dataclass(frozen=True)
class Groups:
    """All cache groups of an engine."""

    groups: tuple[Group, ...]
    #: Tokens of a block of kvtide: the smallest multiple of all groups' block sizes.
    page_tokens: int
    #: vLLM's block ids per block of kvtide, for each group.
    members: tuple[int, ...]
    #: Tokens of one of vLLM's block hashes.
    hash_tokens: int
    #: A drafter reads one token ahead, so the last block of a prefix depends on the token after it.
    drafts: bool

    @property
    def ids(self) -> int:
        """Return the number of vLLM's block ids per block of kvtide."""
        return sum(self.members)

    @property
    def plain(self) -> bool:
        """Return whether each vLLM block id is one block of one request, at its tokens' position. Only then can failed ids be
        reported."""
        return len(self.groups) == 1 and not self.groups[0].leaves

    def describe(self) -> str:
        """Return one line for the fingerprint."""
        return "; ".join(group.text for group in self.groups)

    def flatten(self, ids: Sequence[Sequence[Any]], first: int, count: int) -> list[Any]:
        """Return the ids of `count` blocks of kvtide, starting at `first`, block by block. `ids` has each group's blocks in token
        order.

        Raise IndexError if a group has too few blocks.
        """
        if len(ids) == 1 and self.members[0] == 1:
            if first + count > len(ids[0]):
                raise IndexError(f"blocks {first} to {first + count - 1} of {len(ids[0])}")
            return list(ids[0][first : first + count])
        return [
            group[index * members + at]
            for index in range(first, first + count)
            for group, members in zip(ids, self.members, strict=True)
            for at in range(members)
        ]


def _specs(spec: Any) -> list[Any]:
    """Return the specs of a group's layers: one common spec, or one per layer."""
    return list(getattr(spec, "kv_cache_specs", {}).values()) or [spec]


def _group(index: int, group: Any, dcp: int) -> Group:
    specs = _specs(group.kv_cache_spec)
    names = {type(spec).__name__ for spec in specs}
    transferred = getattr(group, "enable_kv_transfer", True) and not getattr(group, "host_resident", False)
    if not names <= _FULL | _WINDOW or not transferred:
        raise ValueError(
            f"kvtide: cache group {index} ({', '.join(sorted(names))}; {len(group.layer_names)} layers, the first"
            f" {group.layer_names[0] if group.layer_names else '-'}) is not supported; supported:"
            f" {', '.join(sorted(_FULL | _WINDOW))}"
        )
    spec = specs[0]
    windowed = names <= _WINDOW
    window = spec.sliding_window + getattr(spec, "extra_retained_tokens", 0) if windowed else 0
    tokens = spec.block_size * (dcp if getattr(spec, "dcp_sharded", True) else 1)
    shape = ("num_kv_heads", "head_size", "head_size_v", "dtype", "kv_quant_mode", "tokens_per_state", "cache_dtype_str")
    text = f"{'+'.join(sorted(names))} x{len(group.layer_names)} of {tokens} tokens"
    text += "".join(f", {name} {value}" for name in shape if (value := getattr(spec, name, None)) is not None)
    text += f", window {window}" * windowed
    kind, leaves = "window" if windowed else "full", bool(names & (_WINDOW | _CHUNKED))
    return Group(tuple(group.layer_names), tokens, kind, window, text, leaves)


def groups(kv_cache_config: Any, vllm_config: Any) -> Groups:
    """Return the cache groups of an engine.

    Raise ValueError if a group cannot be cached by prefix (recurrent state, cross attention), or the block sizes do not fit
    together.
    """
    from vllm.v1.core import kv_cache_utils  # noqa: PLC0415

    dcp = getattr(vllm_config.parallel_config, "decode_context_parallel_size", 1)
    given = [_group(i, group, dcp) for i, group in enumerate(kv_cache_config.kv_cache_groups)]
    if not given:
        raise ValueError("kvtide: this model has no KV cache")
    page_tokens = math.lcm(*(group.block_tokens for group in given))
    members = tuple(page_tokens // group.block_tokens for group in given)
    if sum(members) > MEMBERS_MAX:
        sizes = ", ".join(str(group.block_tokens) for group in given)
        raise ValueError(
            f"kvtide: blocks of {sizes} tokens have {page_tokens} in common, {sum(members)} of them; at most {MEMBERS_MAX}"
            " are supported: choose a --block-size that divides the others"
        )
    _, hash_tokens = kv_cache_utils.resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    if page_tokens % hash_tokens:
        raise ValueError(f"kvtide: a block of {page_tokens} tokens is not a whole number of hashes of {hash_tokens} tokens each")
    speculative = vllm_config.speculative_config
    drafts = speculative is not None and bool(getattr(speculative, "use_eagle", lambda: False)())
    return Groups(tuple(given), page_tokens, members, hash_tokens, drafts)


@dataclass(frozen=True)
class Part:
    """One layer's part of a plane's page: `nbytes` bytes at `offset`."""

    plane: int
    member: int
    #: Shape [vLLM's blocks, …]. The part is one index of the first dimension, in its element order.
    tensor: Any
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Tensors:
    """Location of this rank's pages."""

    parts: tuple[Part, ...]
    #: Page bytes of each plane.
    page_bytes: tuple[int, ...]
    #: Number of vLLM's blocks; ids are below it.
    blocks: int
    #: For each plane, its layers: (position in the rank's model part, dtype).
    layers: tuple[tuple[tuple[int, str], ...], ...]

    def describe(self) -> str:
        """Return one line for the fingerprint: the order of a block's bytes."""
        shapes = {f"{list(part.tensor.shape[1:])} by {list(part.tensor.stride()[1:])}": None for part in self.parts}
        types = {dtype: None for plane in self.layers for _, dtype in plane}
        order = hashlib.blake2b(repr(self.layers).encode(), digest_size=8).hexdigest()
        pages = f"pages of {', '.join(map(str, self.page_bytes))} bytes, blocks of {', '.join(shapes)}"
        return f"{pages}, {', '.join(types)}, layers {order}"


def _by_number(layer: str) -> list[tuple[int, str]]:
    """Return a sort key for layer names that orders by number: "layers.10" after "layers.9"."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", layer)]


def _blocks_first(tensor: Any, blocks: int, layer: str) -> Any:
    """Return the tensor with vLLM's blocks as its first dimension. Kernels may divide each block into equal smaller ones.

    Raise ValueError if the first dimension is not a multiple of `blocks`.
    """
    if tensor.shape[0] == blocks:
        return tensor
    if tensor.shape[0] % blocks == 0:
        return tensor.unflatten(0, (blocks, tensor.shape[0] // blocks))
    raise ValueError(f"kvtide: layer {layer} has {list(tensor.shape)}; its first dimension is not a multiple of {blocks} blocks")


def tensors(groups: Groups, kv_caches: Mapping[str, Any], blocks: int) -> Tensors:
    """Return the parts of every plane: by member, then by layer. Layers that share a tensor count once.

    Raise ValueError for a layer without a tensor, or with a tensor that does not consist of blocks.
    """
    parts: list[Part] = []
    page_bytes: list[int] = []
    # Counted from the rank's first layer, so that all pipeline stages have equal fingerprints.
    place = {layer: at for at, layer in enumerate(sorted((l for g in groups.groups for l in g.layers), key=_by_number))}
    layers: list[tuple[tuple[int, str], ...]] = []
    for plane, (group, members) in enumerate(zip(groups.groups, groups.members, strict=True)):
        views: dict[int, Any] = {}
        for layer in group.layers:
            if layer not in kv_caches:
                raise ValueError(f"kvtide: layer {layer} has no KV cache; there are {', '.join(kv_caches)}")
            cache = kv_caches[layer]
            if not hasattr(cache, "data_ptr"):
                raise ValueError(f"kvtide: the KV cache of layer {layer} is a {type(cache).__name__}, not a tensor")
            views.setdefault(cache.data_ptr(), _blocks_first(cache, blocks, layer))
        offset = 0
        for member in range(members):
            for view in views.values():
                size = math.prod(view.shape[1:]) * view.element_size()
                parts.append(Part(plane, member + sum(groups.members[:plane]), view, offset, size))
                offset += size
        page_bytes.append(offset)
        layers.append(tuple((place[layer], str(kv_caches[layer].dtype)) for layer in group.layers))
    return Tensors(tuple(parts), tuple(page_bytes), blocks, tuple(layers))
