"""vLLM plugin: registers kvtide's classes by name, so that configurations need not name their module.

The wheel's metadata lists `register` in the group `vllm.general_plugins`, which vLLM loads in all its processes. vLLM, torch and
CUDA are not imported before `register` is called.
"""

from __future__ import annotations

import importlib
import logging

logger = logging.getLogger(f"vllm.{__name__}")

#: vLLM's registries: module, class and method; and kvtide's class.
_REGISTRIES = (
    ("vllm.distributed.kv_transfer.kv_connector.factory", "KVConnectorFactory", "register_connector", "KvtideConnector"),
    ("vllm.distributed.kv_transfer.kv_connector.factory", "KVConnectorFactory", "register_connector", "KvtidePaged"),
    ("vllm.v1.kv_offload.tiering.factory", "SecondaryTierFactory", "register_tier", "KvtideTier"),
)


def register() -> None:
    """Register `KvtideConnector`, `KvtidePaged` and `KvtideTier` with vLLM, which imports them at their first use.

    vLLM may call it several times. It never raises: an engine that does not use kvtide must start even if this fails.
    """
    for module, registry, method, name in _REGISTRIES:
        try:
            add = getattr(getattr(importlib.import_module(module), registry), method)
        except (ImportError, AttributeError) as error:
            logger.info("kvtide: cannot register %s (%s). Name its module, kvtide.vllm, in the configuration", name, error)
            continue
        try:
            add(name, "kvtide.vllm", name)
        except ValueError as error:
            logger.debug("kvtide: %s", error)  # already registered
    try:
        _register_backend()
    except (ImportError, AttributeError) as error:
        logger.info("kvtide: cannot register the attention backend of KvtidePaged: %s", error)


def _register_backend() -> None:
    """Name the classes that choose the attention backend: on the CPU kvtide's with `KvtidePaged`, otherwise vLLM's own; on a GPU
    kvtide's, under the name that vLLM reserves for others, unless another plugin has taken it."""
    registry = importlib.import_module("vllm.v1.attention.backends.registry")
    backends = registry.AttentionBackendEnum
    registry.register_backend(backends.CPU_ATTN, "kvtide.vllm.paged.choice.Backend")
    if not backends.CUSTOM.is_overridden():
        registry.register_backend(backends.CUSTOM, "kvtide.vllm.paged.choice.DeviceBackend")
