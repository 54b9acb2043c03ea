"""vLLM's cache groups as planes and members, with vLLM's own specs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine import DIM, HEADS, full, window
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, MambaSpec

from kvtide.vllm import layout
from kvtide.vllm.layout import Part, Tensors
from kvtide.vllm.staging import StagedTransfer


def cache_config(*groups: tuple[list[str], Any]) -> KVCacheConfig:
    return KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(*group) for group in groups])


def engine(block: int = 16) -> Any:
    """Return the parts of vLLM's configuration that decide on layouts."""
    return SimpleNamespace(
        cache_config=SimpleNamespace(block_size=block, enable_prefix_caching=True, prefix_match_unit=None),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        kv_transfer_config=object(),
        speculative_config=None,
    )


def caches(*layers: str, blocks: int = 8, tokens: int = 16) -> dict[str, torch.Tensor]:
    return {layer: torch.zeros(blocks, HEADS, tokens, 2 * DIM, dtype=torch.float16) for layer in layers}


def test_one_group_is_one_plane_whose_blocks_are_vllms() -> None:
    groups = layout.groups(cache_config((["a", "b"], full())), engine())
    assert (groups.page_tokens, groups.members, groups.hash_tokens, groups.drafts) == (16, (1,), 16, False)
    tensors = layout.tensors(groups, caches("a", "b"), 8)
    page = HEADS * 16 * 2 * DIM * 2
    assert tensors.page_bytes == (2 * page,)
    assert [(part.plane, part.member, part.offset, part.nbytes) for part in tensors.parts] == [(0, 0, 0, page), (0, 0, page, page)]
    assert groups.flatten([[5, 6, 7]], 1, 2) == [6, 7]
    with pytest.raises(IndexError, match="blocks 1 to 3 of 3"):
        groups.flatten([[5, 6, 7]], 1, 3)


def test_groups_number_their_blocks_apart() -> None:
    groups = layout.groups(cache_config((["a"], full()), (["b"], window())), engine())
    assert [(group.kind, group.window_tokens) for group in groups.groups] == [("full", 0), ("window", 32)]
    assert (groups.members, groups.ids) == ((1, 1), 2)
    tensors = layout.tensors(groups, caches("a", "b"), 8)
    assert [(part.plane, part.member) for part in tensors.parts] == [(0, 0), (1, 1)]
    assert groups.flatten([[1, 2, 3], [4, 5, 6]], 1, 2) == [2, 5, 3, 6]


def test_groups_whose_blocks_differ_in_tokens_have_several_members() -> None:
    groups = layout.groups(cache_config((["a"], full(32)), (["b"], window(16))), engine())
    assert (groups.page_tokens, groups.members, groups.hash_tokens) == (32, (1, 2), 16)
    tensors = layout.tensors(groups, caches("a", tokens=32) | caches("b"), 8)
    assert [(part.plane, part.member) for part in tensors.parts] == [(0, 0), (1, 1), (1, 2)]
    assert tensors.page_bytes[0] == tensors.page_bytes[1], "as many tokens of as many numbers"
    assert groups.flatten([[1, 2], [3, 4, 5, 6]], 1, 1) == [2, 5, 6]
    with pytest.raises(IndexError):
        groups.flatten([[1, 2], [3, 4, 5]], 1, 1)


def test_blocks_that_kernels_see_cut_are_whole_again() -> None:
    groups = layout.groups(cache_config((["a"], full())), engine())
    cut = layout.tensors(groups, caches("a", blocks=32, tokens=4), 8)
    whole = layout.tensors(groups, caches("a"), 8)
    assert cut.page_bytes == whole.page_bytes
    assert cut.parts[0].tensor.shape[0] == 8
    with pytest.raises(ValueError, match="not a multiple of 8 blocks"):
        layout.tensors(groups, caches("a", blocks=12), 8)


def test_layers_that_show_anothers_memory_count_once() -> None:
    groups = layout.groups(cache_config((["a", "b"], full())), engine())
    given = caches("a")
    given["b"] = given["a"]
    assert len(layout.tensors(groups, given, 8).parts) == 1
    with pytest.raises(ValueError, match="layer b has no KV cache; there are a"):
        layout.tensors(groups, caches("a"), 8)


def test_recurrent_state_is_refused_by_name() -> None:
    state = MambaSpec(block_size=16, shapes=((4,),), dtypes=(torch.float16,))
    with pytest.raises(ValueError, match=r"group 1 \(MambaSpec; 1 layers, the first m\).*FullAttentionSpec"):
        layout.groups(cache_config((["a"], full()), (["m"], state)), engine())


def test_blocks_that_have_too_little_in_common_are_refused() -> None:
    with pytest.raises(ValueError, match="blocks of 16, 2048 tokens have 2048 in common, 129 of them; at most 64"):
        layout.groups(cache_config((["a"], full(16)), (["b"], window(2048))), engine())


def test_what_is_described_tells_layouts_apart() -> None:
    texts = {
        layout.groups(cache_config(*groups), engine()).describe()
        for groups in (
            [(["a"], full())],
            [(["a", "b"], full())],
            [(["a"], full(32))],
            [(["a"], window())],
            [(["a"], window(tokens=48))],
            [(["a"], full()), (["b"], window())],
        )
    }
    assert len(texts) == 6


def test_which_layer_stands_where_and_of_what_type_is_described() -> None:
    def described(*groups: tuple[list[str], Any], eighths: str = "") -> str:
        layers = [layer for names, _ in groups for layer in names]
        given = caches(*layers)
        if eighths:
            given[eighths] = given[eighths].to(torch.uint8)
        return layout.tensors(layout.groups(cache_config(*groups), engine()), given, 8).describe()

    first = described((["l.0.attn", "l.10.attn"], full()), (["l.9.attn", "l.11.attn"], window()))
    assert first != described((["l.0.attn", "l.9.attn"], full()), (["l.10.attn", "l.11.attn"], window()))
    assert first == described((["l.20.attn", "l.22.attn"], full()), (["l.21.attn", "l.23.attn"], window())), "another stage"
    names = ["l.0", "l.1", "l.2"]
    assert len({described((names, full()), eighths=layer) for layer in ("", *names)}) == 4


class _Copies(TorchDispatchMode):
    """Records the targets of copies."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.targets.append(args[0])
        return func(*args, **(kwargs or {}))


def test_a_plane_of_several_parts_leaves_by_one_contiguous_copy() -> None:
    blocks = [torch.arange(48, dtype=torch.float32).view(8, 2, 3) + at for at in (0, 100)]
    parts = tuple(Part(0, 0, tensor, at * 24, 24) for at, tensor in enumerate(blocks))
    transfer = StagedTransfer(Tensors(parts, (48,), 8, (((0, "float32"), (1, "float32")),)), 1, 1, 48 * 4)
    plane = torch.zeros(4, 48, dtype=torch.uint8)
    transfer._planes = [plane]
    lane, ids = transfer._lanes[0], [5, 2, 7]
    with _Copies() as copies:
        transfer._copy(lane, ids, out=True)
    to_host = [target for target in copies.targets if target.data_ptr() == plane.data_ptr()]
    assert [(target.is_contiguous(), target.numel()) for target in to_host] == [(True, 3 * 48)]
    expected = [tensor[ids].clone() for tensor in blocks]
    for tensor in blocks:
        tensor.zero_()
    transfer._copy(lane, ids, out=False)
    assert all(torch.equal(tensor[ids], was) for tensor, was in zip(blocks, expected, strict=True))
    assert all(float(tensor.sum()) == float(was.sum()) for tensor, was in zip(blocks, expected, strict=True)), "no other block"
