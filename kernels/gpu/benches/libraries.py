"""Other attention libraries on kvtide's pages, unmodified: FlashAttention-3, FlashMLA and FlashInfer, beside kvtide's own kernels.

A library that cannot be imported is not measured. Tables are made before. FlashInfer's plan and FlashMLA's metadata are made in each
call, as `Paging` makes them for each plane. Each output is compared with that of kvtide's kernels, so this is also the first proof of the layouts on a GPU. On a CPU the
libraries are stand-ins, and nothing is measured.
"""

import argparse

import torch

import kernels_on_cpu
import paged_batch
from common import figure, seconds, tell
from kvtide.torch import layouts, ops

HEADS = 32
#: Pages of 64 tokens: 8 KV heads of 128; latent vectors of 512 + 64, read by 128 heads.
PAGE, LATENT_PAGE, LATENT_HEADS = (2, 8, 64, 128), (64, 576), 128
# Tokens and queries of each sequence: a chunk of prefill with its context, and decode of sequences that together are larger than the
# last-level cache of any GPU (64 × 4k × 1,152 bytes: 288 MiB).
PREFILL, DECODE = ([16 << 10] * 2, [2 << 10] * 2), ([4 << 10] * 64, [1] * 64)
TINY_PREFILL, TINY_DECODE = ([150, 100], [40, 30]), ([100, 70], [1, 1])
REPEATS = 20
WORKSPACE_BYTES = 128 << 20
#: Allowed relative difference in bf16.
ERROR_MAX = 1e-2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    device = torch.device(parser.parse_args().device)
    real = device.type == "cuda"
    if not real:
        kernels_on_cpu.install()
    cases = (
        ("prefill", PREFILL if real else TINY_PREFILL, HEADS, PAGE, (flash_attention_3, flashinfer)),
        ("mla", DECODE if real else TINY_DECODE, LATENT_HEADS, LATENT_PAGE, (flash_mla, flashinfer_latent)),
    )
    for name, shape, heads, page, libraries in cases:
        batch = paged_batch.make(device, *shape, heads, page)
        expected = ops.attend(*batch.arguments, backend="kvtide")
        ours = seconds(device, lambda: ops.attend(*batch.arguments, backend="kvtide"), REPEATS if real else 1)
        tell(device, [figure(f"{name}_us", f"{name}: kvtide's kernels", ours * 1e6, "us")])
        for library in libraries:
            try:
                attend = library(device, batch, shape)
            except ImportError:
                continue
            key = f"{name}_{library.__name__.removesuffix('_latent')}"
            error = relative(attend(), expected)
            took = seconds(device, attend, REPEATS if real else 1)
            figures = [
                figure(f"{key}_us", f"{name}: {library.__name__} on kvtide's pages", took * 1e6, "us"),
                figure(f"{key}_error", f"{name}: {library.__name__}, relative difference from kvtide's", error, at_most=ERROR_MAX),
                figure(key, f"{name}: time of {library.__name__} on kvtide's pages ÷ ours", took / ours, "x"),
            ]
            # After each one, because compiling the kernels of the next may exceed the time limit.
            tell(device, figures)


def relative(found, expected):
    return float((found.reshape(expected.shape).double() - expected.double()).norm() / expected.double().norm())


def flash_attention_3(device, batch, shape):
    """Return a function that computes the batch."""
    from flash_attn_interface import flash_attn_with_kvcache

    arguments = layouts.flash_attention_3(*batch.arguments)
    return lambda: flash_attn_with_kvcache(**arguments)


def flash_mla(device, batch, shape):
    """Return a function that computes the batch."""
    from flash_mla import flash_mla_with_kvcache, get_mla_metadata

    arguments = layouts.flash_mla(*batch.arguments)

    def attend():
        metadata, splits = get_mla_metadata(arguments["cache_seqlens"], batch.q_tokens * LATENT_HEADS, 1)
        return flash_mla_with_kvcache(**arguments, tile_scheduler_metadata=metadata, num_splits=splits)[0]

    return attend


def tables(batch, shape):
    return layouts.flashinfer_tables(batch.block_table, batch.pages, batch.lengths, batch.q_starts, on_host=shape)


def flashinfer(device, batch, shape):
    """Return a function that computes the batch."""
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    found, (_, kv_heads, page_tokens, dim) = tables(batch, shape), PAGE
    wrapper = BatchPrefillWithPagedKVCacheWrapper(torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device), "HND")
    given = (found.q_indptr, found.indptr, found.indices, found.last_page_len, HEADS, kv_heads, dim, page_tokens)
    more = {"causal": True, "sm_scale": batch.scale, "window_left": -1}

    def attend():
        wrapper.plan(*given, **more, q_data_type=batch.query.dtype, kv_data_type=batch.pages.dtype)
        return wrapper.run(batch.query, batch.pages)

    return attend


def flashinfer_latent(device, batch, shape):
    """Return a function that computes the batch."""
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    found, dtype = tables(batch, shape), batch.query.dtype
    wrapper = BatchMLAPagedAttentionWrapper(torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device))
    given = (found.q_indptr, found.indptr, found.indices, found.lengths, LATENT_HEADS, 512, 64, LATENT_PAGE[0])
    query, pages = layouts.flashinfer_latent(batch.query), layouts.flashinfer_latent(batch.pages)

    def attend():
        wrapper.plan(*given, True, batch.scale, dtype, dtype)
        return wrapper.run(*query, *pages)

    return attend


if __name__ == "__main__":
    main()
