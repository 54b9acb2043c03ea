"""`Paging` over tier 0 in host memory: the same bits however much of the KV is in tier 0, and less reading under `approx`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import space
from torch import Tensor

import kvtide
from kvtide import errors
from kvtide.daemon import PrivateDaemon
from kvtide.torch import KvShape, Paging

SHAPE = KvShape(kv_heads=2, page_tokens=16, head_dim=32, dtype=torch.float16)
#: New tokens of two sequences in each step: prefill in chunks, decode.
STEPS = [(32, 20), (32, 0), (16, 9), (1, 1), (0, 32), (1, 16), (32, 3), (1, 1), (1, 1)]


def attach(daemon: PrivateDaemon, name: str, frames: int, windows: tuple[int, int] = (0, 0), **options: Any) -> kvtide.Session:
    planes = [SHAPE.plane(window + 63 if window else 0) for window in windows]
    return kvtide.attach(daemon.socket, space(name, planes=planes), [frames], **options)


def run(session: kvtide.Session, windows: tuple[int, int] = (0, 0), contract: str | None = None) -> tuple[list[Tensor], Paging, list[Any]]:
    """Return the outputs of all steps."""
    generator = torch.Generator().manual_seed(5)
    outputs, omissions = [], []
    paging = Paging(session, SHAPE, windows)
    paging.resize(2)
    for new in STEPS:
        if contract is not None:
            for row in paging._rows:
                paging.set_contract(row, contract)
        paging.begin(new)
        for plane in range(2):
            # Rows of one tensor, as a projection returns them: the tokens are not dense.
            rows = torch.randn(sum(new), 10, SHAPE.head_dim, generator=generator).half()
            outputs.append(paging.layer(plane, rows[:, :6], rows[:, 6:8], rows[:, 8:], 0.3))
        omissions += paging.end()
    return outputs, paging, omissions


@pytest.mark.parametrize("windows", [(0, 0), (0, 40)])
def test_bits_do_not_depend_on_where_pages_are(daemon: PrivateDaemon, windows: tuple[int, int]) -> None:
    with attach(daemon, f"all-{windows}", 100, windows) as session:
        expected, paging, omissions = run(session, windows)
        assert paging.totals.planes_in_passes == 0 and omissions == []
        paging.close()
    with attach(daemon, f"few-{windows}", 20, windows) as session:
        found, paging, omissions = run(session, windows)
        assert paging.totals.planes_in_passes > 0 and omissions == []
        copied = session.stats()["bytes_host_to_tier0"]
        paging.close()
    with attach(daemon, f"mapped-{windows}", 20, windows, mapped_frames=100) as session:
        mapped, paging, _ = run(session, windows)
        assert session.stats()["bytes_host_to_tier0"] < copied, "pages are read in host memory"
        paging.close()
    for one, other, third in zip(expected, found, mapped, strict=True):
        assert torch.equal(one, other) and torch.equal(one, third)


@pytest.mark.parametrize("digests", [None, kvtide.Digests(2, 32, False, 40)])
def test_approx_reads_less_and_says_so(daemon: PrivateDaemon, digests: kvtide.Digests | None) -> None:
    with attach(daemon, f"approx-{digests}", 24, digests=digests) as session:
        outputs, paging, omissions = run(session, contract="approx:0.3")
        paging.close()
    omitted, needed = sum(found.omitted for found in omissions), sum(found.needed for found in omissions)
    assert 0 < omitted < needed
    assert all(0 <= found.share < 1 for found in omissions)
    assert not any(bool(output.isnan().any()) for output in outputs)


def test_all_in_tier_0_under_approx_is_exact(daemon: PrivateDaemon) -> None:
    with attach(daemon, "approx-all", 100) as session, attach(daemon, "exact-all", 100) as other:
        outputs, paging, omissions = run(session, contract="approx:0.3")
        exact, _, _ = run(other)
        assert all(torch.equal(a, b) for a, b in zip(outputs, exact, strict=True))
        assert sum(found.omitted for found in omissions) == 0 < sum(found.needed for found in omissions)
        paging.close()


def test_wrong_arguments_say_what_differs(daemon: PrivateDaemon) -> None:
    with attach(daemon, "wrong", 40) as session:
        with pytest.raises(ValueError, match=r"1 windows for the 2 planes"):
            kvtide.PagedAttention(session.lane(), (2, 32, False), [0])
    with attach(daemon, "wrong-shape", 40) as session:
        with pytest.raises(ValueError, match="pages of 4096 bytes; keys and values of 4 heads, 16 tokens and 32 channels take 8192"):
            kvtide.PagedAttention(session.lane(), (4, 32, False), [0, 0])
    with attach(daemon, "wrong-tensors", 40) as session, Paging(session, SHAPE, [0, 0]) as paging:
        paging.resize(1)
        with pytest.raises(errors.WrongState, match="no step is open"):
            paging.layer(0, *[torch.zeros(1, 2, 32).half()] * 3, 1.0)
        paging.begin([3])
        rows, heads = torch.zeros(3, 2, 32).half(), torch.zeros(3, 6, 32).half()
        for query, key, value, out, says in (
            (heads[:2], rows, rows, None, "query is .2, 6, 32."),
            (heads, rows.float(), rows, None, "key is .* torch.float32"),
            (heads, rows, rows[:, :1], None, "value is .3, 1, 32."),
            (heads, rows, rows, torch.zeros(3, 32, 6).half().mT, "out is .*; it must be like the query"),
            (heads, rows, rows, torch.zeros(3, 6, 32), "out is .* torch.float32"),
            (torch.zeros(3, 5, 32).half(), rows, rows, None, "heads must be a multiple of KV heads"),
        ):
            with pytest.raises(ValueError, match=says):
                paging.layer(0, query, key, value, 1.0, out)
        with pytest.raises(errors.WrongState, match="the step is at plane 0"):
            paging.layer(1, heads, rows, rows, 1.0)
        paging.layer(0, heads, rows, rows, 1.0)
        paging.layer(1, heads, rows, rows, 1.0)
        paging.end()
        assert paging.tokens(0) == 3
        with pytest.raises(ValueError, match="invalid contract"):
            paging.set_contract(paging._rows[0], "bounded")


def test_a_layer_that_failed_is_not_repeated() -> None:
    """Pages that earlier passes handed out would be missing in a second try."""
    with (
        PrivateDaemon(64 << 20) as daemon,
        attach(daemon, "failed", 20, timeout=5.0) as session,
        Paging(session, SHAPE, [0, 0]) as paging,
    ):
        paging.resize(1)
        for count in [32] * 6 + [1]:
            paging.begin([count])
            if count == 1:
                daemon.kill()
            for plane in range(2):
                rows, heads = torch.ones(count, 2, 32).half(), torch.ones(count, 6, 32).half()
                if count == 1:
                    with pytest.raises(errors.DaemonGone):
                        paging.layer(plane, heads, rows, rows, 1.0)
                    with pytest.raises(errors.WrongState, match="end the step"):
                        paging.layer(plane, heads, rows, rows, 1.0)
                    paging.abandon()
                    break
                paging.layer(plane, heads, rows, rows, 1.0)
            else:
                paging.end()
        assert paging.tokens(0) == 192
