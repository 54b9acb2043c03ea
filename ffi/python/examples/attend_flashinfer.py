#!/usr/bin/env python3
"""FlashInfer on kvtide's pages: prefill over pages of heads (layout HND), and decode over latent pages (MLA).

    python examples/attend_flashinfer.py                # a GPU, with flashinfer installed
    python examples/attend_flashinfer.py --cpu-check    # tables and strides on the CPU, without the library
"""

from __future__ import annotations

import sys

import torch

from kvtide.torch import layouts
from paged_batch import compare, device_of, make

#: 8 KV heads, pages of 64 tokens, heads of 128; pages of 64 latent vectors of 512 + 64 elements.
PAGE, LATENT_PAGE = (2, 8, 64, 128), (64, 576)
HEADS, LATENT_HEADS = 32, 128


def heads(device: torch.device, workspace: torch.Tensor) -> int:
    """Attend over pages of heads. FlashInfer takes kvtide's pages as they are."""
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    tokens, queries = [700, 333, 40], [100, 1, 40]
    batch = make(device, tokens, queries, HEADS, PAGE)
    # The engine knows the lengths: with tables on the host, `plan` does not wait for the GPU.
    found = layouts.flashinfer_tables(batch.block_table, batch.pages, batch.lengths, batch.q_starts, on_host=(tokens, queries))
    wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, "HND")
    _, kv_heads, page_tokens, dim = PAGE
    types = {"q_data_type": batch.query.dtype, "kv_data_type": batch.pages.dtype}
    tables = (found.q_indptr, found.indptr, found.indices, found.last_page_len)
    wrapper.plan(
        *tables, HEADS, kv_heads, dim, page_tokens, causal=True, sm_scale=batch.scale, window_left=-1, **types
    )
    return compare("FlashInfer", wrapper.run(batch.query, batch.pages), batch)


def latent(device: torch.device, workspace: torch.Tensor) -> int:
    """Attend over latent pages, which FlashInfer takes as two views."""
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    tokens, queries = [500, 64, 129], [1, 1, 1]
    batch = make(device, tokens, queries, LATENT_HEADS, LATENT_PAGE)
    found = layouts.flashinfer_tables(batch.block_table, batch.pages, batch.lengths, batch.q_starts, on_host=(tokens, queries))
    wrapper = BatchMLAPagedAttentionWrapper(workspace)
    tables = (found.q_indptr, found.indptr, found.indices, found.lengths)
    dtype = batch.query.dtype
    wrapper.plan(*tables, LATENT_HEADS, 512, 64, LATENT_PAGE[0], True, batch.scale, dtype, dtype)
    out = wrapper.run(*layouts.flashinfer_latent(batch.query), *layouts.flashinfer_latent(batch.pages))
    return compare("FlashInfer, MLA", out, batch)


def main() -> int:
    device = device_of(__doc__)
    # FlashInfer's documents recommend 128 MiB.
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device=device)
    return heads(device, workspace) + latent(device, workspace)


if __name__ == "__main__":
    sys.exit(main())
