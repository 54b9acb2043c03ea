"""torch's role on a CUDA device, on the stand-in driver.

torch has no CUDA tensors here. The stand-in's device memory is host memory, so torch gets its addresses as CPU tensors. These
classes replace torch only where it would use a stream: temporaries, and reading back.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kvtide
from kvtide.torch import backends, cuda, tier

LIBRARY = os.environ.get("KVTIDE_LIBCUDA")
needed = pytest.mark.skipif(LIBRARY is None, reason="KVTIDE_LIBCUDA names no stand-in driver")
#: Limit of every wait for the stand-in's streams, in seconds.
SETTLED_S = 60.0


class StandIn:
    """The stand-in's driver API, as far as an engine with its own memory and stream uses it."""

    def __init__(self) -> None:
        self.api = ctypes.CDLL(LIBRARY)
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)
        stream = ctypes.c_void_p()
        self.call("cuStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
        self.stream = int(stream.value or 0)

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.api, name)(*arguments)
        assert code == 0, f"{name}: {code}"

    def show(self, address: int, shape: list[int], dtype: torch.dtype) -> Tensor:
        count = torch.Size(shape).numel() * dtype.itemsize
        return torch.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype=dtype).view(shape)

    def empty(self, shape: list[int], dtype: torch.dtype) -> Tensor:
        address, count = ctypes.c_uint64(), max(1, torch.Size(shape).numel() * dtype.itemsize)
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(count))
        return self.show(address.value, shape, dtype)

    def copy(self, tensor: Tensor) -> Tensor:
        return self.empty(list(tensor.shape), tensor.dtype).copy_(tensor)

    def settle(self) -> None:
        deadline = time.monotonic() + SETTLED_S
        while (code := self.api.cuStreamQuery(ctypes.c_void_p(self.stream))) == 600:
            assert time.monotonic() < deadline, "the stream does not end"
        assert code == 0, f"cuStreamQuery: {code}"


class Device(cuda.Device):
    """torch's role on the stand-in device: stream, temporaries, order between launches and reads."""

    def __init__(self, standin: StandIn) -> None:
        super().__init__(0)
        self.standin = standin

    def stream(self) -> int:
        return self.standin.stream

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self.standin.empty(list(shape), dtype).view(torch.uint8).fill_(0xFF).view(dtype)

    def put(self, tensor: Tensor) -> Tensor:
        return self.standin.copy(tensor)

    def int32(self, tensor: Tensor) -> Tensor:
        return self.standin.copy(tensor.to(torch.int32))

    def rows(self, tensor: Tensor) -> Tensor:
        return self.standin.copy(tensor.contiguous())

    def pinned(self, tensor: Tensor) -> Tensor:
        return tensor

    def mark(self) -> Callable[[], None]:
        return self.standin.settle

    def capability(self) -> tuple[int, int]:
        return 9, 0

    def capturing(self) -> bool:
        return False

    def attend_by(self, wanted: str, *arguments: Any, **options: Any) -> tuple[str, Tensor]:
        if wanted != backends.KVTIDE:
            self.standin.settle()  # a library's kernel would follow in the stream
        return super().attend_by(wanted, *arguments, **options)

    def attend(self, *arguments: Any) -> Tensor:
        out = super().attend(*arguments)
        self.standin.settle()
        return out


class Tier(tier.CudaTier):
    """The same for a `Paging`."""

    def __init__(self, *given: Any, device: Device, **options: Any) -> None:
        self.standin = device.standin
        super().__init__(*given, device, **options)

    def tensor(self, memory: kvtide.Memory) -> Tensor:
        self.standin.settle()
        assert memory.__dlpack_device__() == (2, 0)
        return self.standin.show(memory.address, memory.shape, getattr(torch, memory.dtype))

    def _attend(self, *given: Any) -> tuple[Tensor, int | None]:
        found = super()._attend(*given)
        self.standin.settle()  # torch would copy it on the stream
        return found

    def end(self) -> list[tier.Omission]:
        self.standin.settle()
        return super().end()
