"""Store and load pages given as tensors, through staging blocks with the same byte order as the pool's pages."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import torch

import kvtide
from kvtide.keyed_store import BlockMemory, KeyedStore, Target

#: Maximum number of pages copied at once, and maximum bytes of their staging memory (at least one page).
PAGES = 32
BYTES_MAX = 64 << 20


class StagedPages:
    """A session on the space of `target` that stores and loads through its own memory."""

    def __init__(self, target: Target, *, timeout: float, level: kvtide.Level) -> None:
        self._page_bytes = target.memory.block_bytes
        count = max(1, min(PAGES, BYTES_MAX // self._page_bytes))
        self._pages = torch.empty((count, self._page_bytes), dtype=torch.uint8)
        pieces = ((self._pages.data_ptr(), self._page_bytes, self._page_bytes),)
        memory = BlockMemory(count, pieces, keep=self._pages)
        name = f"tensors of {target.space.name!r}"
        self._blocks = KeyedStore(dataclasses.replace(target, memory=memory), name, timeout=timeout, level=level)
        self._lock = threading.Lock()

    def load(self, keys: Sequence[bytes], targets: Sequence[Any]) -> list[torch.Tensor | None]:
        """Load each key's page into its target, or into a new tensor if the target is None. Return None for pages that are not
        cached."""
        found: list[torch.Tensor | None] = []
        for start in range(0, len(keys), len(self._pages)):
            part = keys[start : start + len(self._pages)]
            with self._lock:
                went = self._blocks.load(part, range(len(part)))
                for index, there in enumerate(went):
                    found.append(self._filled(targets[start + index], self._pages[index]) if there else None)
        return found

    def store(self, keys: Sequence[bytes], values: Sequence[Any]) -> list[bool]:
        """Store each value (a tensor with a page's bytes) under its key. Return, for each key, whether it is cached.

        Raise ValueError if `keys` and `values` differ in length, or a tensor has not the size of a page.
        """
        if len(keys) != len(values):
            raise ValueError(f"kvtide: {len(keys)} keys and {len(values)} values")
        kept: list[bool] = []
        for start in range(0, len(keys), len(self._pages)):
            part = keys[start : start + len(self._pages)]
            with self._lock:
                for page, value in zip(self._pages, values[start : start + len(part)]):
                    page.copy_(self._bytes(value.detach().contiguous()))
                kept += self._blocks.store(part, range(len(part)))
        return kept

    def _bytes(self, tensor: torch.Tensor) -> torch.Tensor:
        flat = tensor.reshape(-1).view(torch.uint8)
        if flat.numel() != self._page_bytes:
            raise ValueError(f"kvtide: a tensor of {flat.numel()} bytes for a page of {self._page_bytes} bytes")
        return flat

    def _filled(self, target: torch.Tensor | None, page: torch.Tensor) -> torch.Tensor:
        if target is None:
            return page.clone()
        if target.is_contiguous():
            self._bytes(target).copy_(page)
        else:
            target.copy_(page.view(target.dtype).reshape(target.shape))
        return target

    def close(self) -> None:
        """End the session."""
        self._blocks.close()
