#!/usr/bin/env python3
"""FlashMLA on kvtide's latent pages: decode of DeepSeek-V3's shape, 128 heads.

    python examples/attend_flash_mla.py                # a Hopper GPU, with flash_mla installed
    python examples/attend_flash_mla.py --cpu-check    # tables and strides on the CPU, without the library
"""

from __future__ import annotations

import sys

from kvtide.torch import layouts
from paged_batch import compare, device_of, make

#: Pages of 64 latent vectors: FlashMLA takes no other size.
PAGE = (64, 576)
HEADS = 128


def main() -> int:
    device = device_of(__doc__)
    from flash_mla import flash_mla_with_kvcache, get_mla_metadata

    batch = make(device, tokens=[500, 64, 129], queries=[1, 1, 1], heads=HEADS, page=PAGE)
    arguments = layouts.flash_mla(*batch.arguments)
    # All layers of a step have the same lengths, and so may share the metadata.
    metadata, splits = get_mla_metadata(arguments["cache_seqlens"], batch.q_tokens * HEADS, 1)
    out, _ = flash_mla_with_kvcache(**arguments, tile_scheduler_metadata=metadata, num_splits=splits)
    return compare("FlashMLA", out.flatten(0, 1), batch)


if __name__ == "__main__":
    sys.exit(main())
