"""vLLM's own configuration of the connector: the directions in which it moves blocks, and the settings that it refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Role:
    """The directions that `kv_role` allows."""

    name: str

    @property
    def loads(self) -> bool:
        """The connector loads prefixes."""
        return self.name != "kv_producer"

    @property
    def stores(self) -> bool:
        """The connector stores computed blocks."""
        return self.name != "kv_consumer"

    def __str__(self) -> str:
        does = {(True, True): "loads and stores", (True, False): "loads, never stores", (False, True): "stores, never loads"}
        return f"{self.name}: {does[self.loads, self.stores]}"


def of(transfer: Any) -> Role:
    """The role in a `KVTransferConfig`. ValueError: it is unknown."""
    if transfer.kv_role not in ("kv_both", "kv_consumer", "kv_producer"):
        raise ValueError(f"kvtide: kv_role is {transfer.kv_role!r}; it must be 'kv_both', 'kv_consumer' or 'kv_producer'")
    return Role(transfer.kv_role)


def check_prefix_caching(cache_config: Any) -> None:
    """ValueError: vLLM's prefix caching is off."""
    if not cache_config.enable_prefix_caching:
        raise ValueError(
            "kvtide: vLLM's prefix caching is off, without which nothing can be cached by prefix: start vLLM with"
            " --enable-prefix-caching (enable_prefix_caching=True), or without kvtide in --kv-transfer-config. If you did not"
            " switch it off, vLLM did so for this model or platform, and its log says why"
        )


def recompute_failed_loads(transfer: Any) -> None:
    """Has vLLM compute what a load did not bring. Call it in the scheduler's half, before vLLM reads the policy.

    A cache may lose a block at any time, and vLLM's default is to fail the request.
    """
    transfer.kv_load_failure_policy = "recompute"
