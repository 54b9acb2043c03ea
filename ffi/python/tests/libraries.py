"""The CPU stand-ins of other attention libraries (examples/kernels_on_cpu.py), and a device that has no kernels of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kvtide.torch import backends, cuda, ops

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import kernels_on_cpu


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Install the stand-ins. Yield the number of calls of each library."""
    for name, module in kernels_on_cpu.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(backends, "_FLASHINFER_WORKSPACE_BYTES", 1024)
    monkeypatch.setitem(backends.LIBRARIES, "flashinfer", backends.FlashInfer())
    backends._imported.cache_clear()
    kernels_on_cpu.CALLS.clear()
    yield kernels_on_cpu.CALLS
    backends._imported.cache_clear()


class Hopper(cuda.Device):
    """A device of compute capability 9.0 whose tensors are on the CPU."""

    def __init__(self) -> None:
        self.ordinal = 0
        self.is_capturing, self.waits = False, 0

    def stream(self) -> int:
        return 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype)

    def pinned(self, tensor: Tensor) -> Tensor:
        return tensor

    def mark(self) -> Callable[[], None]:
        def wait() -> None:
            self.waits += 1

        return wait

    def capability(self) -> tuple[int, int]:
        return 9, 0

    def capturing(self) -> bool:
        return self.is_capturing

    def attend(self, *arguments: Any) -> Tensor:
        assert arguments[-1] == 0, "a status word"
        return ops.attend(*arguments[:-1])
