"""The CUDA implementation on the stand-in driver: a session's device tier, a lane on a stream, and the real kernels, without a GPU.

Skipped on a machine with a real GPU: there the other tests use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import space
from standin import Device, StandIn, Tier, needed
from torch import Tensor
from torch.utils.dlpack import from_dlpack
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

import kvtide
from kvtide import _native, errors
from kvtide.daemon import PrivateDaemon
from kvtide.torch import KvShape, KvtideCache, Paging, tier

pytestmark = needed


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    device = Device(StandIn())
    of = tier.of

    def on_stand_in(session: kvtide.Session, *given: Any, **options: Any) -> tier.Tier:
        on_cpu = session.frames(0).__dlpack_device__()[0] == 1
        return of(session, *given, **options) if on_cpu else Tier(session, *given, device=device, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tier, "of", on_stand_in)
        yield device


SHAPE = KvShape(kv_heads=2, page_tokens=16, head_dim=32, dtype=torch.float16)


def test_a_gpus_numa_node_is_that_of_its_pci_device() -> None:
    listed = Path("/sys/bus/pci/devices/0000:01:00.0/numa_node")
    expected = int(listed.read_text()) if listed.exists() else -1
    assert kvtide.gpu_numa_node(0) == (expected if expected >= 0 else None)
    with pytest.raises(errors.DeviceFailed, match="no CUDA device 7"):
        kvtide.gpu_numa_node(7)


def test_device_memory_is_said_to_be_a_devices(daemon: PrivateDaemon, device: Device) -> None:
    with kvtide.attach(daemon.socket, space("device"), [16], device="cuda:0") as session:
        assert session.frames(0).__dlpack_device__() == (2, 0)
        channel, lane = session.channel(), session.lane()
        table = lane.device_table()
        assert table is not None and table.__dlpack_device__() == (2, 0) and table.dtype == "int32"
        seq = channel.create_seq()
        channel.reserve(seq, 16)
        with pytest.raises(errors.WrongState, match="begin"):
            lane.begin([(seq, 16)])  # not bound to a stream
        lane.bind(device.stream())
        lane.begin([(seq, 16)])
        assert lane.page(seq, 0, 0) is None
        with pytest.raises(errors.WrongState, match="tier 0 is on a device"):
            lane.write_page(seq, 0, 0, b"x")
    with pytest.raises(errors.DeviceFailed, match="no CUDA device 7|there is no"):
        kvtide.attach(daemon.socket, space("device"), [16], device="cuda:7")


@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("frames", [20, 200])
def test_paging_on_the_device_equals_paging_on_the_cpu(
    daemon: PrivateDaemon, device: Device, frames: int, window: int
) -> None:
    """The same steps on both tiers: prefill in chunks, decode, ragged batches; whole and in passes."""
    generator = torch.Generator().manual_seed(frames + window)

    def normal(tokens: int, heads: int) -> Tensor:
        return torch.randn(tokens, heads, SHAPE.head_dim, generator=generator).to(torch.float16)

    plane = SHAPE.plane(window + 31 if window else 0)
    # The third-last step is a prefill chunk with a context larger than tier 0: attention of many queries, in passes.
    steps = [(32, 20), (32, 0), (16, 9), *[(1, 1)] * 2, (0, 32), (1, 16), (5, 3), (32, 0), *[(1, 1)] * 2]
    spaces = [space(f"paging-{frames}-{window}-{on}", planes=[plane] * 2) for on in ("cpu", "cuda")]
    with (
        kvtide.attach(daemon.socket, spaces[0], [frames]) as on_cpu,
        kvtide.attach(daemon.socket, spaces[1], [frames], device="cuda:0") as on_cuda,
        Paging(on_cpu, SHAPE, [window] * 2) as expected,
        Paging(on_cuda, SHAPE, [window] * 2) as found,
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
                    results.append(paging.layer(layer, query, key, value, 0.18).double())
                error = (results[0] - results[1]).norm() / results[0].norm()
                assert float(error) < 2e-3, (new, layer, float(error))
            for paging in (expected, found):
                paging.end()
        if frames == 20 and not window:
            assert found.totals.planes_in_passes > 0
            # In the first steps everything fits into tier 0. Later the host waits for pages.
            assert 0 < found.totals.planes_waited_in_stream < found.totals.planes_whole + found.totals.planes_in_passes
        elif frames == 200:
            assert found.totals.planes_in_passes == 0
            assert found.totals.planes_waited_in_stream == found.totals.planes_whole == 2 * len(steps)
        assert expected.totals.planes_waited_in_stream == 0


def rows(tokens: int, heads: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tokens, heads, SHAPE.head_dim, generator=generator).to(torch.float16)


def step(paging: Paging, new: list[int], seed: int) -> list[Tensor]:
    paging.begin(new)
    found = []
    for plane in range(2):
        query, key, value = (rows(sum(new), heads, seed + plane + more) for heads, more in ((6, 20), (2, 0), (2, 10)))
        found.append(paging.layer(plane, query, key, value, 0.18))
    paging.end()
    return found


def test_block_tables_and_misses_are_those_of_the_lane(daemon: PrivateDaemon, device: Device) -> None:
    planes = [SHAPE.plane()] * 2
    with (
        kvtide.attach(daemon.socket, space("batch", planes=planes), [20], device="cuda:0") as session,
        Paging(session, SHAPE, [0, 0]) as paging,
    ):
        paging.resize(2)
        for chunk in range(5):
            step(paging, [32, 0], chunk)
        step(paging, [0, 20], 9)
        paging.begin([1, 1])
        tier0 = paging._tier
        assert isinstance(tier0, Tier)
        batch, table = tier0._batch, from_dlpack(paging._lane.table())
        assert batch is not None and (batch.seqs, batch.max_blocks) == (8, 64)
        absent = 0
        for plane in range(2):
            batch.tables(plane, 1, -3)
            found, missing = tier0.tensor(batch.block_tables())[0], tier0.tensor(batch.misses())[0]
            ids, lengths = tier0.tensor(batch.block_ids()), tier0.tensor(batch.lengths())
            assert lengths.tolist() == [161, 21] + [0] * 6 and int((ids >= 0).sum()) == 11 + 2
            needed = torch.arange(64) * SHAPE.page_tokens < lengths[:, None]
            frames = table[ids.clamp(min=0).long(), plane] - 1
            readable = needed & (frames >= 0)
            assert torch.equal(found, torch.where(readable, frames, -3))
            bits = missing[:, :, None] >> torch.arange(32, dtype=torch.int32) & 1
            assert torch.equal(bits.flatten(1).bool(), needed & ~readable)
            absent += int(bits.sum())
        assert absent > 0, "26 pages in 20 frames"
        paging.abandon()


def _without_new_workspaces(device: Device, run: Callable[[], list[Tensor]]) -> list[Tensor]:
    """Run a step; fail if it makes a workspace while the stream may wait."""
    keep, make_room, inside = device._keep, device.make_room, False

    def in_begin(*size: int) -> bool:
        nonlocal inside
        inside = True
        try:
            return make_room(*size)
        finally:
            inside = False

    def checked(*given: Any) -> _native.Attention:
        assert inside, "a workspace is made after the step's begin"
        return keep(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "make_room", in_begin)
        patch.setattr(device, "_keep", checked)
        return run()


@pytest.mark.parametrize("fate", ["runs", "is killed", "hangs"])
def test_waits_are_the_streams_where_everything_fits(device: Device, fate: str) -> None:
    """Evicted pages come back while the stream waits. If the daemon is gone or does not answer, the step fails, and nothing
    else."""
    planes = [SHAPE.plane()] * 2
    with (
        PrivateDaemon(64 << 20) as daemon,
        kvtide.attach(daemon.socket, space("cpu", planes=planes), [200]) as on_cpu,
        kvtide.attach(daemon.socket, space("cuda", planes=planes), [20], device="cuda:0", timeout=5.0) as on_cuda,
    ):
        expected, found = Paging(on_cpu, SHAPE, [0, 0]), Paging(on_cuda, SHAPE, [0, 0])
        for paging in (expected, found):
            paging.resize(2)
            for new in ([30, 0], [30, 0], [0, 32], [0, 32], [0, 32], [0, 32]):
                step(paging, new, sum(new))
            paging.resize(1)
        waited, loaded = found.totals.planes_waited_in_stream, on_cuda.stats()["jobs_host_to_tier0"]
        if fate != "runs":
            if fate == "is killed":
                daemon.kill()
            else:
                daemon.freeze()
            with pytest.raises(errors.DaemonGone if fate == "is killed" else errors.TimedOut):
                step(found, [1], 5)
            found.abandon()
            assert found.tokens(0) == 60
            daemon.kill()
            return
        for one, other in zip(step(expected, [1], 5), _without_new_workspaces(device, lambda: step(found, [1], 5))):
            assert float((one.double() - other.double()).norm() / one.double().norm()) < 2e-3
        assert found.totals.planes_waited_in_stream == waited + 2
        assert on_cuda.stats()["jobs_host_to_tier0"] > loaded, "nothing had to be waited for"
        for paging in (expected, found):
            paging.close()


def test_new_tokens_without_a_frame_are_told(
    daemon: PrivateDaemon, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kvtide.attach(daemon.socket, space("faults", planes=[SHAPE.plane()]), [16], device="cuda:0") as session:
        paging = Paging(session, SHAPE, [0])
        paging.resize(1)
        paging.begin([3])
        rows = torch.ones(3, 2, SHAPE.head_dim, dtype=torch.float16)
        assert isinstance(paging._tier, Tier)
        tier0, append = paging._tier, paging._tier._append

        def append_nowhere(*given: Any) -> None:
            ids = tier0._ids
            tier0._ids = device.put(torch.full_like(ids, -1))
            append(*given)
            tier0._ids = ids

        monkeypatch.setattr(tier0, "_append", append_nowhere)
        paging.layer(0, rows, rows, rows, 0.2)
        with pytest.raises(errors.WrongState, match="3 new tokens were not written"):
            paging.end()
        assert paging.tokens(0) == 0
        paging.close()


def test_transformers_over_the_device_tier(daemon: PrivateDaemon, device: Device) -> None:
    """A model's logits with kvtide's attention kernels, with most of the KV in the daemon's memory."""
    torch.manual_seed(5)
    shape = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "initializer_range": 0.3}
    config = LlamaConfig(**shape, num_attention_heads=4, num_key_value_heads=2, head_dim=32)
    config._attn_implementation = "kvtide"
    ours = LlamaForCausalLM(config).to(torch.float16).eval()
    theirs = LlamaForCausalLM(LlamaConfig(**config.to_dict(), attn_implementation="eager")).to(torch.float16).eval()
    theirs.load_state_dict(ours.state_dict())
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
