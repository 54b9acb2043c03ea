"""Checks of vLLM's own connector settings: the allowed transfer directions, and settings that do not work with kvtide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Role:
    """Transfer directions that `kv_role` allows."""

    name: str

    @property
    def loads(self) -> bool:
        """Return whether the connector loads prefixes."""
        return self.name != "kv_producer"

    @property
    def stores(self) -> bool:
        """Return whether the connector stores computed blocks."""
        return self.name != "kv_consumer"

    def __str__(self) -> str:
        does = {(True, True): "loads and stores", (True, False): "loads, never stores", (False, True): "stores, never loads"}
        return f"{self.name}: {does[self.loads, self.stores]}"


def of(transfer: Any) -> Role:
    """Return the role in a `KVTransferConfig`. Raise ValueError if it is unknown."""
    if transfer.kv_role not in ("kv_both", "kv_consumer", "kv_producer"):
        raise ValueError(f"kvtide: kv_role is {transfer.kv_role!r}; it must be 'kv_both', 'kv_consumer' or 'kv_producer'")
    return Role(transfer.kv_role)


def check_prefix_caching(cache_config: Any) -> None:
    """Raise ValueError if vLLM's prefix caching is off."""
    if not cache_config.enable_prefix_caching:
        raise ValueError(
            "kvtide: vLLM's prefix caching is off, and kvtide needs it: start vLLM with"
            " --enable-prefix-caching (enable_prefix_caching=True), or without kvtide in --kv-transfer-config. If you did not"
            " disable it, vLLM did so for this model or platform; its log has the reason"
        )


def recompute_failed_loads(transfer: Any) -> None:
    """Set vLLM's policy to compute blocks that fail to load. Call it in the scheduler half, before vLLM reads the policy.

    A cache may lose a block at any time; vLLM's default fails the request then.
    """
    transfer.kv_load_failure_policy = "recompute"
