"""vLLM's plugin: registers kvtide's classes by name; no configuration has to name their module.

The wheel's metadata names `register` in the group `vllm.general_plugins`, which vLLM loads in all its processes. Nothing of vLLM, torch or
CUDA is imported before `register` is called.
"""

from __future__ import annotations

import importlib
import logging

logger = logging.getLogger(f"vllm.{__name__}")

#: vLLM's registries: module, class and method, and the class of kvtide.
_REGISTRIES = (
    ("vllm.distributed.kv_transfer.kv_connector.factory", "KVConnectorFactory", "register_connector", "KvtideConnector"),
    ("vllm.v1.kv_offload.tiering.factory", "SecondaryTierFactory", "register_tier", "KvtideTier"),
)


def register() -> None:
    """Enters `KvtideConnector` and `KvtideTier` into vLLM's registries, which import them at their first use.

    vLLM may call it several times. It never raises: an engine that does not use kvtide starts whatever is wrong here.
    """
    for module, registry, method, name in _REGISTRIES:
        try:
            add = getattr(getattr(importlib.import_module(module), registry), method)
        except (ImportError, AttributeError) as error:
            logger.info("kvtide: this vLLM cannot register %s (%s): name its module, kvtide.vllm, in the configuration", name, error)
            continue
        try:
            add(name, "kvtide.vllm", name)
        except ValueError as error:
            logger.debug("kvtide: %s", error)  # it is registered already
