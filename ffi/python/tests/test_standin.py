"""The CUDA half over the stand-in driver: the session's device tier, the lane on a stream, and the very kernels, without a GPU.

torch has no CUDA tensors here. The stand-in's device memory is memory, so its addresses are shown to torch as CPU tensors, and
only where torch itself would have a stream (temporaries, reading back) the test steps in. Skipped where there is a real GPU:
there the other tests run on it.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import space
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

import kvtide
from kvtide import _native, errors
from kvtide.daemon import PrivateDaemon
from kvtide.torch import KvShape, KvtideCache, Paging, cuda, tier

LIBRARY = os.environ.get("KVTIDE_LIBCUDA")
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="KVTIDE_LIBCUDA names no stand-in driver")
#: Bound of every wait for the stand-in's streams. Seconds.
SETTLED_S = 60.0


class StandIn:
    """The stand-in's driver API, as far as an engine that brings its own memory and stream uses it."""

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
    """torch's part of it: its stream, its temporaries, its order between launches and reads."""

    def __init__(self, standin: StandIn) -> None:
        super().__init__(0)
        self.standin = standin

    def stream(self) -> int:
        return self.standin.stream

    def empty_like(self, tensor: Tensor) -> Tensor:
        return self.standin.empty(list(tensor.shape), tensor.dtype).view(torch.int16).fill_(-1).view(tensor.dtype)

    def int32(self, tensor: Tensor) -> Tensor:
        return self.standin.copy(tensor.to(torch.int32))

    def rows(self, tensor: Tensor) -> Tensor:
        return self.standin.copy(tensor.contiguous())

    def attend(self, *arguments: Any) -> Tensor:
        out = super().attend(*arguments)
        self.standin.settle()
        return out


class Tier(tier.CudaTier):
    """The same for a paging."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.standin = device.standin

    def tensor(self, memory: kvtide.Memory) -> Tensor:
        self.standin.settle()
        assert memory.__dlpack_device__() == (2, 0)
        return self.standin.show(memory.address, memory.shape, getattr(torch, memory.dtype))

    def entries(self, table: Tensor, ids: Tensor, plane: int) -> Tensor:
        self.standin.settle()
        return super().entries(table, ids.to(torch.int64), plane)

    def indices(self, numbers: Tensor) -> Tensor:
        return numbers

    def settle(self) -> None:
        self.standin.settle()
        super().settle()


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    yield Device(StandIn())


SHAPE = KvShape(kv_heads=2, page_tokens=16, head_dim=32, dtype=torch.float16)


def test_the_report_names_what_works() -> None:
    report = _native.gpu_report()
    assert '"vmm":{"works":true' in report and "stand-in" in report


def test_device_memory_is_said_to_be_a_devices(daemon: PrivateDaemon, device: Device) -> None:
    with kvtide.attach(daemon.socket, space("device"), [16], device="cuda:0") as session:
        assert session.frames(0).__dlpack_device__() == (2, 0)
        channel, lane = session.channel(), session.lane()
        table = lane.device_table()
        assert table is not None and table.__dlpack_device__() == (2, 0) and table.dtype == "int32"
        seq = channel.seq_create()
        channel.reserve(seq, 16)
        with pytest.raises(errors.WrongState, match="begin"):
            lane.begin([(seq, 16)])  # bound to no stream
        lane.bind(device.stream())
        lane.begin([(seq, 16)])
        assert lane.page(seq, 0, 0) is None
        with pytest.raises(errors.WrongState, match="tier 0 is a device's"):
            lane.page_write(seq, 0, 0, b"x")
    with pytest.raises(errors.DeviceFailed, match="no CUDA device 7|there is no"):
        kvtide.attach(daemon.socket, space("device"), [16], device="cuda:7")


@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("frames", [20, 200])
def test_paging_on_the_device_equals_paging_on_the_cpu(
    daemon: PrivateDaemon, device: Device, frames: int, window: int
) -> None:
    """The same steps over both tiers: prefill in chunks, decode, ragged batches; whole and in passes."""
    generator = torch.Generator().manual_seed(frames + window)

    def normal(tokens: int, heads: int) -> Tensor:
        return torch.randn(tokens, heads, SHAPE.head_dim, generator=generator).to(torch.float16)

    plane = SHAPE.plane(window + 31 if window else 0)
    steps = [(32, 20), (32, 0), (16, 9), *[(1, 1)] * 2, (0, 32), (1, 16), (5, 3), *[(1, 1)] * 2]
    spaces = [space(f"paging-{frames}-{window}-{on}", planes=[plane] * 2) for on in ("cpu", "cuda")]
    with (
        kvtide.attach(daemon.socket, spaces[0], [frames]) as on_cpu,
        kvtide.attach(daemon.socket, spaces[1], [frames], device="cuda:0") as on_cuda,
        Paging(on_cpu, SHAPE, [window] * 2) as expected,
        Paging(on_cuda, SHAPE, [window] * 2, tier0=Tier(device)) as found,
    ):
        for paging in (expected, found):
            paging.resize(2)
        for new in steps:
            for paging in (expected, found):
                paging.begin(new)
            for layer in range(2):
                key, value, query = normal(sum(new), 2), normal(sum(new), 2), normal(sum(new), 6)
                results = []
                for paging in (expected, found):
                    paging.append(layer, key, value)
                    results.append(paging.attend(layer, query, 0.18).double())
                error = (results[0] - results[1]).norm() / results[0].norm()
                assert float(error) < 2e-3, (new, layer, float(error))
            for paging in (expected, found):
                paging.end()
        if frames == 20 and not window:
            assert found.totals.planes_in_passes > 0
        elif frames == 200:
            assert found.totals.planes_in_passes == 0


def test_new_tokens_without_a_frame_are_told(daemon: PrivateDaemon, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    with kvtide.attach(daemon.socket, space("faults", planes=[SHAPE.plane()]), [16], device="cuda:0") as session:
        paging = Paging(session, SHAPE, [0], tier0=Tier(device))
        paging.resize(1)
        paging.begin([3])
        rows = torch.ones(3, 2, SHAPE.head_dim, dtype=torch.float16)
        monkeypatch.setattr(Paging, "_block_table", lambda self, plane, step: torch.full_like(step.ids, -1))
        paging.append(0, rows, rows)
        monkeypatch.undo()
        paging.attend(0, rows, 0.2)
        with pytest.raises(errors.WrongState, match="3 new tokens were not written"):
            paging.end()
        assert paging.tokens(0) == 0
        paging.close()


def test_transformers_over_the_device_tier(
    daemon: PrivateDaemon, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model's logits with attention by the kernels, most of the KV in the daemon's memory."""
    torch.manual_seed(5)
    shape = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "initializer_range": 0.3}
    config = LlamaConfig(**shape, num_attention_heads=4, num_key_value_heads=2, head_dim=32)
    config._attn_implementation = "kvtide"
    ours = LlamaForCausalLM(config).to(torch.float16).eval()
    theirs = LlamaForCausalLM(LlamaConfig(**config.to_dict(), attn_implementation="eager")).to(torch.float16).eval()
    theirs.load_state_dict(ours.state_dict())
    monkeypatch.setattr(tier, "of", lambda session: Tier(device))
    ids = torch.randint(2, 97, (1, 90))
    with kvtide.attach(daemon.socket, KvtideCache.space(ours), [10], device="cuda:0") as session:
        cache, plain = KvtideCache(ours, session), DynamicCache(config=theirs.config)
        for piece in ids.split([16, 16, 16, 16, 16, 1, 5, 1, 1, 1, 1], 1):
            with torch.no_grad():
                found = ours(piece, past_key_values=cache).logits.float()
                wanted = theirs(piece, past_key_values=plain).logits.float()
            assert float((found - wanted).norm() / wanted.norm()) < 0.02
        assert cache.totals.planes_in_passes > 0
        cache.close()
