"""Speed of kvtide's attention on the CPU beside vLLM's own kernel and torch's, on the same numbers, in alternation."""

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
ROUNDS = 11
#: Time before each call, in which the threads of the one before stop to spin.
PAUSE_S = 0.3
#: Largest difference of the outputs: bf16 has 8 bits.
NEAR = 2e-3


def kernel(world: World) -> Result:
    """Print for each shape the time of each kernel, and that of vLLM's over that of kvtide's. Check that the outputs are near.

    The least time varies least on a machine that others use. The pauses favour kvtide for short calls: vLLM's threads sleep meanwhile."""
    result = Result("kernel")
    for name, (sequences, tokens, queries) in SHAPES.items():
        calls = dict(zip(("kvtide", "vllm", "sdpa"), _calls(sequences, tokens, queries)))
        expected = calls["vllm"]().float()
        check(float((calls["kvtide"]().float() - expected).abs().max()) < NEAR, f"{name}: the outputs differ")
        seconds: dict[str, list[float]] = {who: [] for who in calls}
        for _ in range(ROUNDS):
            for who, call in calls.items():
                time.sleep(PAUSE_S)
                began = time.perf_counter()
                call()
                seconds[who].append(time.perf_counter() - began)
        least = {who: min(times) for who, times in seconds.items()}
        result.more[name] = {
            **{f"{who}_ms": f"{least[who] * 1e3:.2f} (median {statistics.median(times) * 1e3:.2f})" for who, times in seconds.items()},
            "vllm_over_kvtide": round(least["vllm"] / least["kvtide"], 2),
            "vllm_over_kvtide_median": round(statistics.median(seconds["vllm"]) / statistics.median(seconds["kvtide"]), 2),
        }
    return result


def _calls(sequences: int, tokens: int, queries: int) -> tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]:
    """Return one call of each kernel on the same keys, values and queries: kvtide's, vLLM's, and torch's over dense tensors."""
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

    dense_query = query.view(sequences, queries, HEADS, DIM).transpose(1, 2)
    key, value = (part.view(sequences, tokens, KV_HEADS, DIM).transpose(1, 2).contiguous() for part in rows)
    # With a mask SDPA aligns queries to the end, as here; `is_causal` aligns them to the start.
    mask = torch.ones(queries, tokens, dtype=torch.bool).tril(tokens - queries) if queries > 1 else None

    def torchs() -> Any:
        out = torch.nn.functional.scaled_dot_product_attention(dense_query, key, value, attn_mask=mask, scale=scale, enable_gqa=True)
        return out.transpose(1, 2).reshape_as(query)

    return ours, theirs, torchs
