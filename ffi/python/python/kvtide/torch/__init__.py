"""kvtide for PyTorch: tier 0 as tensors, kernels as operators, and a cache for `transformers`.

- `pages(session, plane, shape)`: a plane's frames as a tensor, without a copy
- `table(lane)`: a lane's page table as a tensor
- `ops`: attention over pages, whole or in passes: `torch.ops.kvtide.*`
- `backends`: kvtide's attention kernels or an installed library; `layouts`: pages and tables for engines that call one themselves
- `Paging`: a batch of sequences, step by step, for custom engines
- `KvtideCache`: `past_key_values` for transformers (`kvtide.torch.transformers`)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import backends, layouts, ops, threads
from .memory import KvShape, frames, pages, table
from .paging import Paging

if TYPE_CHECKING:
    from .transformers import KvtideCache

threads.share()

__all__ = ["KvShape", "KvtideCache", "Paging", "backends", "frames", "layouts", "ops", "pages", "table"]


def __getattr__(name: str) -> Any:
    # Import transformers only when its cache is used.
    if name == "KvtideCache":
        from .transformers import KvtideCache

        return KvtideCache
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
