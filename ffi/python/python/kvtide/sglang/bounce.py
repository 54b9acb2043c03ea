"""Pages as tensors: through blocks of our own, in the order in which the pool's own pages lie in memory."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import torch

from kvtide.keyed import BlockMemory, KeyedBlocks, Target

#: Pages that are copied at once, and the most memory they may take: one page at least.
PAGES = 32
BYTES_MAX = 64 << 20


class Bounce:
    """A session with the space of `target` that stores and loads by way of its own memory."""

    def __init__(self, target: Target, *, timeout: float, level: str) -> None:
        self._page_bytes = target.memory.block_bytes
        count = max(1, min(PAGES, BYTES_MAX // self._page_bytes))
        self._pages = torch.empty((count, self._page_bytes), dtype=torch.uint8)
        pieces = ((self._pages.data_ptr(), self._page_bytes, self._page_bytes),)
        memory = BlockMemory(count, pieces, keep=self._pages)
        name = f"tensors of {target.space.name!r}"
        self._blocks = KeyedBlocks(dataclasses.replace(target, memory=memory), name, timeout=timeout, level=level)
        self._lock = threading.Lock()

    def load(self, keys: Sequence[bytes], targets: Sequence[Any]) -> list[torch.Tensor | None]:
        """Each key's page in its target, or in a tensor of its own where the target is None; None for what is not there."""
        found: list[torch.Tensor | None] = []
        for start in range(0, len(keys), len(self._pages)):
            part = keys[start : start + len(self._pages)]
            with self._lock:
                went = self._blocks.load(part, range(len(part)))
                for index, there in enumerate(went):
                    found.append(self._filled(targets[start + index], self._pages[index]) if there else None)
        return found

    def store(self, keys: Sequence[bytes], values: Sequence[Any]) -> list[bool]:
        """Of each key whether its value, a tensor of a page's bytes, is kept."""
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
            raise ValueError(f"kvtide: a tensor of {flat.numel()} bytes for a page of {self._page_bytes}")
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
        """Ends the session."""
        self._blocks.close()
