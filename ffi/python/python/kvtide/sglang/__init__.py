"""kvtide for SGLang: `KvtideStorage`, a storage backend of HiCache. Its pages outlive the server and are shared between servers.

    --enable-hierarchical-cache --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
    '{"backend_name": "kvtide", "module_path": "kvtide.sglang", "class_name": "KvtideStorage", "interface_v1": 1}'

docs/reference/sglang.md has all options. This package can be imported without SGLang. Names that need it are imported at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .storage import KvtideStorage

__all__ = ["KvtideStorage"]


def __getattr__(name: str) -> Any:
    if name != "KvtideStorage":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.storage").KvtideStorage
