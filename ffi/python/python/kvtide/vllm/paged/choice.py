"""The attention backends that vLLM's registry names: for the CPU kvtide's if the configuration selects `KvtidePaged`, else vLLM's own;
for GPUs kvtide's, which users select as CUSTOM.

vLLM resolves the class by its qualified name when it builds the first attention layer, with its configuration at hand. So the name is
resolved by the module's `__getattr__`.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name not in ("Backend", "DeviceBackend"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm.config import get_current_vllm_config_or_none  # noqa: PLC0415

    from .config import PagedConfig, is_selected, prepare  # noqa: PLC0415

    vllm_config = get_current_vllm_config_or_none()
    if vllm_config is None or not is_selected(vllm_config):
        if name == "DeviceBackend":
            raise ImportError("kvtide: --attention-backend CUSTOM is KvtidePaged's; select it with --kv-transfer-config, or another backend")
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend  # noqa: PLC0415

        return CPUAttentionBackend
    from . import backend  # noqa: PLC0415

    prepare(vllm_config, PagedConfig.parse(vllm_config.kv_transfer_config.kv_connector_extra_config))
    return getattr(backend, name)
