"""Limits of what is loaded and stored, with the meaning that they have for vLLM's `OffloadingConnector`."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(f"vllm.{__name__}")

#: Keys with a wrong value that were logged. One warning each: any client could fill the log.
_warned: set[str] = set()


@dataclass(frozen=True)
class RequestLimits:
    """Limits in a request's `kv_transfer_params`, in tokens; None: no limit. And whether its prefix is to be shared with other machines, or is
    being shared by one."""

    load_tokens: int | None = None
    store_tokens: int | None = None
    share: bool = False
    shared: bool = False

    @classmethod
    def of(cls, params: Any) -> RequestLimits:
        """Return the limits in `params`. Wrong values are ignored, with one warning per key: they must not fail the engine."""
        if params is None:
            return cls()
        if not isinstance(params, Mapping):
            _warn("kv_transfer_params", params, "a mapping")
            return cls()
        tokens = _tokens(params, "max_load_tokens"), _tokens(params, "max_offload_tokens")
        return cls(*tokens, _flag(params, "share"), _flag(params, "shared"))


def _flag(params: Mapping[str, Any], key: str) -> bool:
    value = params.get(key, False)
    if type(value) is bool:
        return value
    _warn(key, value, "true or false")
    return False


def _tokens(params: Mapping[str, Any], key: str) -> int | None:
    value = params.get(key)
    if value is None or (type(value) is int and value >= 0):
        return value
    _warn(key, value, "an integer of at least 0")
    return None


def _warn(key: str, value: Any, accepted: str) -> None:
    if key not in _warned:
        _warned.add(key)
        logger.warning(
            "kvtide: a request has %s of %.100r; it must be %s. It is ignored, also in later requests, without a warning",
            key,
            value,
            accepted,
        )


class Offers:
    """Counts how many requests offered each block for storing. Blocks below the threshold are not stored yet."""

    def __init__(self, threshold: int, blocks_max: int) -> None:
        self._threshold = threshold
        self._blocks_max = blocks_max
        self._counts: OrderedDict[bytes, int] = OrderedDict()

    def offer(self, keys: Sequence[bytes]) -> int:
        """Count one offer of consecutive blocks. Return how many of them may be stored, from the first on.

        A block behind one that is not stored would lack its parent, so the first block below the threshold ends the prefix.
        """
        keys = keys[: self._blocks_max]
        # From the last block to the first, so that a parent is forgotten after its children.
        new = [key for key in reversed(keys) if key not in self._counts]
        for key in reversed(keys):
            if key in self._counts:
                self._counts[key] += 1
                self._counts.move_to_end(key)
        for key in new:
            self._counts[key] = 1
        while len(self._counts) > self._blocks_max:
            self._counts.popitem(last=False)
        return next((at for at, key in enumerate(keys) if self._counts[key] < self._threshold), len(keys))
