"""The operators' CUDA implementations on the stand-in driver: the same kernels, compared with the CPU implementations."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from standin import Device, StandIn, needed
from test_ops import normal
from torch import Tensor

from kvtide.errors import DeviceFailed
from kvtide.torch import ops

pytestmark = needed

TOKENS, HEADS, DIM = 16, 2, 32


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(StandIn())


def on(device: Device, *tensors: Tensor) -> list[Tensor]:
    return [device.standin.copy(tensor) for tensor in tensors]


def same(found: Tensor, expected: Tensor) -> None:
    assert torch.equal(found.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


def attention(device: Device, pages: Tensor, lengths: Sequence[int], queries: Sequence[int], heads: int) -> tuple[object, ...]:
    blocks = [-(-length // TOKENS) for length in lengths]
    table = torch.full((len(lengths), max(blocks)), -1, dtype=torch.int32)
    order = torch.randperm(pages.shape[0], generator=torch.Generator().manual_seed(8)).to(torch.int32)
    for seq, count in enumerate(blocks):
        table[seq, :count] = order[sum(blocks[:seq]) : sum(blocks[: seq + 1])]
    query = normal((sum(queries), heads, pages.shape[-1]), pages.dtype, 6)
    return query, pages, table, torch.tensor(lengths), torch.tensor([0, *queries]).cumsum(0), max(queries), 0.1


def close(found: Tensor, expected: Tensor) -> None:
    error = (found.double() - expected.double()).norm() / expected.double().norm()
    assert float(error) < (2e-3 if expected.dtype == torch.float16 else 1e-2)


@pytest.mark.parametrize(("lengths", "queries"), [([40, 16, 3], [1, 1, 1]), ([50, 20], [2, 1])])
def test_latent_attention_whole_and_in_passes(device: Device, lengths: list[int], queries: list[int]) -> None:
    rows = normal((sum(lengths), 1, 576), torch.bfloat16)
    pages = torch.zeros(9, TOKENS, 576, dtype=torch.bfloat16)
    given = attention(device, pages, lengths, queries, 4)
    query, _, table, seq_lengths, starts, q_tokens, scale = given
    every = torch.tensor([0, *lengths]).cumsum(0)
    (there,) = on(device, pages)
    device.append(there, rows, None, table, seq_lengths, every)
    device.standin.settle()
    ops.append(pages, rows, None, table, seq_lengths, every)
    same(there, pages)
    (table_there,) = on(device, table)
    whole = device.attend(query, there, table_there, seq_lengths, starts, q_tokens, scale, 0)
    close(whole, ops.attend(*given))
    passes = device.passes(query, there, seq_lengths, starts, q_tokens, table.shape[1], scale, 0)
    for work in (table >= 0).nonzero().flip(0).split(2):
        passes.part(table_there, work)
    merged = passes.merge(table_there)
    device.standin.settle()
    same(merged, whole)


def test_a_workspace_has_a_bound(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = normal((12, 2, HEADS, TOKENS, DIM), torch.float16)
    query, _, table, *rest = attention(device, pages, [70], [64], 6)
    there, table_there = on(device, pages, table)
    given = (query, there, rest[0], rest[1], 64, table.shape[1], 0.1, 0)
    monkeypatch.setattr(device, "workspace_bytes_max", 1 << 16)
    with pytest.raises(ValueError, match="64 queries of 1 sequences over 5 pages needs 0 MiB.*prefill_chunk_size"):
        device.passes(*given)
    monkeypatch.undo()
    device.passes(*given)


def test_shapes_that_the_kernels_do_not_take_are_named(device: Device) -> None:
    pages = normal((3, 2, 1, TOKENS, 96), torch.float16)
    query, _, table, *rest = attention(device, pages, [20], [1], 2)
    with pytest.raises((ValueError, DeviceFailed), match="head dim of 96"):
        device.attend(query, *on(device, pages, table), *rest, 0)
