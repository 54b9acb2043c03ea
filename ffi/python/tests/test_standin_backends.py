"""`Paging` with other attention libraries on the stand-in driver: which planes they compute, and what stays with kvtide's kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import space
from libraries import libraries
from standin import Device, needed
from test_standin import SHAPE, device, rows, step
from torch import Tensor

import kvtide
from kvtide.daemon import PrivateDaemon
from kvtide.torch import Paging, backends
from kvtide.torch.tier import CudaTier

__all__ = ["device", "libraries"]
pytestmark = needed

#: New tokens of two sequences: prefill, decode, a small step, prefill of one beside a decode of the other.
STEPS = ([32, 20], [1, 1], [3, 1], [32, 1], [1, 1])


def close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert float((one.double() - other.double()).norm() / other.double().norm()) < 2e-3


@pytest.mark.parametrize("window", [0, 24])
@pytest.mark.parametrize("frames", [200, 20])
def test_prefill_by_a_library_equals_that_on_the_cpu(
    daemon: PrivateDaemon, device: Device, libraries: dict[str, int], window: int, frames: int
) -> None:
    device._attentions.clear()  # workspaces of other tests
    planes = [SHAPE.plane(window + 31 if window else 0)] * 2
    name = f"backends-{window}-{frames}"
    with (
        kvtide.attach(daemon.socket, space(name + "-cpu", planes=planes), [200]) as on_cpu,
        kvtide.attach(daemon.socket, space(name, planes=planes), [frames], device="cuda:0") as on_cuda,
        Paging(on_cpu, SHAPE, [window] * 2) as expected,
        Paging(on_cuda, SHAPE, [window] * 2, backend="auto") as found,
    ):
        for paging in (expected, found):
            paging.resize(2)
        steps = STEPS if frames == 200 else (*STEPS, *[[32, 0]] * 4)
        for seed, new in enumerate(steps):
            before, waited = dict(libraries), found.totals.planes_waited_in_stream
            close(step(found, new, seed), step(expected, new, seed))
            used = libraries.get("flash_attention_3", 0) - before.get("flash_attention_3", 0)
            if max(new) < 32:
                assert used == 0
            elif frames == 200:
                # The stream does not wait while a library may load its kernels.
                assert used == 2 and found.totals.planes_waited_in_stream == waited
        by_backend = found.totals.planes_by_backend
        assert sum(by_backend.values()) == 2 * len(steps) == sum(expected.totals.planes_by_backend.values())
        if frames == 200:
            assert by_backend == {"flash_attention_3": 4, "kvtide": 6}
            # Steps with few queries use kvtide's kernels, and the stream waits from the second one on: the first makes the workspaces.
            assert found.totals.planes_waited_in_stream == 4
        elif not window:
            # Planes that do not fit are read in passes, by kvtide's kernels.
            assert found.totals.planes_in_passes > 0 and by_backend["kvtide"] >= 6 + found.totals.planes_in_passes
        assert expected.totals.planes_by_backend == {"kvtide": 2 * len(steps)}


def test_kvtide_computes_all_planes_by_default(
    daemon: PrivateDaemon, device: Device, libraries: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with kvtide.attach(daemon.socket, space("default", planes=[SHAPE.plane()] * 2), [200], device="cuda:0") as session:
        with Paging(session, SHAPE, [0, 0]) as paging:
            paging.resize(2)
            step(paging, [32, 20], 1)
            assert paging.totals.planes_by_backend == {"kvtide": 2} and libraries == {}
        monkeypatch.setenv(backends.VARIABLE, "auto")
        with Paging(session, SHAPE, [0, 0]) as paging:
            paging.resize(2)
            step(paging, [32, 20], 1)
            assert paging.totals.planes_by_backend == {"flash_attention_3": 2}


def test_a_named_library_computes_decode_too_and_no_passes(
    daemon: PrivateDaemon, device: Device, libraries: dict[str, int]
) -> None:
    with (
        kvtide.attach(daemon.socket, space("named", planes=[SHAPE.plane()] * 2), [20], device="cuda:0") as session,
        Paging(session, SHAPE, [0, 0], backend="flash_attention_3") as paging,
    ):
        paging.resize(1)
        step(paging, [32], 1)
        step(paging, [1], 2)
        assert paging.totals.planes_by_backend == {"flash_attention_3": 4} and paging.totals.planes_waited_in_stream == 0
        with pytest.raises(ValueError, match="plane 0 does not fit into tier 0, and only kvtide's kernels read it in passes"):
            for seed in range(20):
                step(paging, [32], seed)
        tokens = paging.tokens(0)
        paging.abandon()
        assert paging.tokens(0) == tokens and paging.totals.planes_in_passes == 0


def test_a_library_that_does_not_take_the_pages_is_an_error(
    daemon: PrivateDaemon, device: Device, libraries: dict[str, int]
) -> None:
    with kvtide.attach(daemon.socket, space("refused", planes=[SHAPE.plane()]), [20], device="cuda:0") as session:
        with Paging(session, SHAPE, [0], backend="flashinfer") as paging:
            paging.resize(1)
            paging.begin([2])
            query, key = rows(2, 6, 1), rows(2, 2, 2)
            with pytest.raises(ValueError, match="attention by flashinfer: head_dim 32; it takes 64, 128, 256"):
                paging.layer(0, query, key, key, 0.18)
            paging.abandon()
        with pytest.raises(ValueError, match="backend='fa3' is unknown"):
            Paging(session, SHAPE, [0], backend="fa3")
    with (
        kvtide.attach(daemon.socket, space("host", planes=[SHAPE.plane()]), [20]) as session,
        pytest.raises(ValueError, match="attention by flashinfer: tier 0 is in host memory"),
    ):
        Paging(session, SHAPE, [0], backend="flashinfer")


def test_a_library_sees_the_lengths_of_the_host(
    daemon: PrivateDaemon, device: Device, libraries: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With them, FlashInfer plans without waiting for the device."""
    calls: list[backends.Call] = []
    choose = backends.choose

    def seen(call: backends.Call, wanted: str) -> backends.Choice:
        calls.append(call)
        return choose(call, wanted)

    monkeypatch.setattr(backends, "choose", seen)
    with (
        kvtide.attach(daemon.socket, space("lengths", planes=[SHAPE.plane()] * 2), [40], device="cuda:0") as session,
        Paging(session, SHAPE, [0, 0], backend="auto") as paging,
    ):
        paging.resize(2)
        step(paging, [30, 20], 1)
        step(paging, [31, 0], 2)
        assert [call.on_host for call in calls] == [([30, 20], [30, 20])] * 2 + [([61], [31])] * 2
        assert isinstance(paging._tier, CudaTier)


def test_a_step_by_a_library_survives_a_failed_step(daemon: PrivateDaemon, device: Device, libraries: dict[str, int]) -> None:
    """After an abandoned step, a plane by a library has the same result."""
    with kvtide.attach(daemon.socket, space("abandoned", planes=[SHAPE.plane()] * 2), [40], device="cuda:0") as session:
        results: list[Any] = []
        for broken in (False, True):
            with Paging(session, SHAPE, [0, 0], backend="auto") as paging:
                paging.resize(1)
                if broken:
                    paging.begin([32])
                    paging.layer(0, rows(32, 6, 7), rows(32, 2, 8), rows(32, 2, 9), 0.18)
                    paging.abandon()
                results.append(step(paging, [32], 3))
        for one, other in zip(*results):
            assert torch.equal(one, other)
