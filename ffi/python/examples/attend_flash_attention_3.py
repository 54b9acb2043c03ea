#!/usr/bin/env python3
"""FlashAttention-3 on kvtide's pages: a chunk of prefill, a decode and a short prompt in one call.

    python examples/attend_flash_attention_3.py                # a Hopper GPU, with flash_attn_interface installed
    python examples/attend_flash_attention_3.py --cpu-check    # tables and strides on the CPU, without the library
"""

from __future__ import annotations

import sys

from kvtide.torch import layouts
from paged_batch import compare, device_of, make

#: 8 KV heads, pages of 64 tokens, heads of 128.
PAGE = (2, 8, 64, 128)


def main() -> int:
    device = device_of(__doc__)
    from flash_attn_interface import flash_attn_with_kvcache

    batch = make(device, tokens=[700, 333, 40], queries=[100, 1, 40], heads=32, page=PAGE)
    # K and V become views [frames, page_tokens, kv_heads, head_dim]: no copy.
    out = flash_attn_with_kvcache(**layouts.flash_attention_3(*batch.arguments))
    return compare("FlashAttention-3", out, batch)


if __name__ == "__main__":
    sys.exit(main())
