"""Speed of kvtide's attention on the CPU beside vLLM's own kernel, on the same numbers, in alternation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from .world import Result, World, check

#: Model-like sizes: query heads, KV heads, channels; tokens of a page.
HEADS, KV_HEADS, DIM, TOKENS = 32, 8, 128, 32
#: Sequences, tokens of each, and queries of each.
SHAPES = {"decode_8x2048": (8, 2048, 1), "decode_1x4096": (1, 4096, 1), "decode_8x4096": (8, 4096, 1), "prefill_256_at_2048": (1, 2048, 256)}
ROUNDS = 9
#: Largest difference of the outputs: bf16 has 8 bits.
NEAR = 2e-3


def kernel(world: World) -> Result:
    """Print for each shape the time of vLLM's kernel over that of kvtide's, and check that the outputs are near."""
    result = Result("kernel")
    for name, (sequences, tokens, queries) in SHAPES.items():
        ours, theirs = _calls(sequences, tokens, queries)
        check(float((ours().float() - theirs().float()).abs().max()) < NEAR, f"{name}: the outputs differ")
        seconds: dict[Callable[[], Any], list[float]] = {ours: [], theirs: []}
        for _ in range(ROUNDS):
            for call, times in seconds.items():
                began = time.perf_counter()
                call()
                times.append(time.perf_counter() - began)
        mine, other = (statistics.median(seconds[call]) for call in (ours, theirs))
        result.more[name] = {"ms": round(mine * 1e3, 2), "vllm_ms": round(other * 1e3, 2), "vllm_over_kvtide": round(other / mine, 2)}
    return result


def _calls(sequences: int, tokens: int, queries: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return one call of each kernel on the same keys, values and queries."""
    import torch
    from kvtide.torch import ops
    from vllm import _custom_ops as vllm_ops
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    torch.manual_seed(0)
    blocks, dtype, scale = tokens // TOKENS, torch.bfloat16, DIM**-0.5
    pages = torch.randn(sequences * blocks, 2, KV_HEADS, TOKENS, DIM).to(dtype)
    table = torch.arange(sequences * blocks).view(sequences, blocks)
    query = torch.randn(sequences * queries, HEADS, DIM).to(dtype)
    lengths, starts = torch.full((sequences,), tokens), torch.arange(sequences + 1) * queries
    isa, common = _get_attn_isa(dtype, TOKENS, DIM, "auto"), {"k_scale": 1.0, "v_scale": 1.0, "kv_cache_dtype": "auto"}
    keys, values = torch.empty(sequences * blocks, KV_HEADS, 2 * TOKENS, DIM, dtype=dtype).chunk(2, dim=2)
    rows = [pages[:, i].transpose(1, 2).reshape(-1, KV_HEADS, DIM).contiguous() for i in (0, 1)]
    vllm_ops.cpu_attn_reshape_and_cache(*rows, keys, values, torch.arange(sequences * tokens), isa, **common)
    plan = {"query_start_loc": starts.int(), "seq_lens": lengths.int(), "causal": True, "dynamic_causal": None}
    metadata = vllm_ops.cpu_attn_get_scheduler_metadata(
        num_reqs=sequences, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, dtype=dtype, sliding_window_size=-1, isa=isa,
        enable_kv_split=True, kv_cache_dtype="auto", **plan,
    )  # fmt: skip
    out = torch.empty_like(query)

    def ours() -> Any:
        return ops.attend(query, pages, table, lengths, starts, queries, scale, 0)

    def theirs() -> Any:
        vllm_ops.cpu_attention_with_kv_cache(
            query=query, key_cache=keys, value_cache=values, output=out, scale=scale, alibi_slopes=None, sliding_window=-1,
            block_table=table.int(), softcap=0, scheduler_metadata=metadata, s_aux=None, **plan, **common,
        )  # fmt: skip
        return out

    return ours, theirs
