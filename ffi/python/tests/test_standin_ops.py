"""The operators' CUDA implementations on the stand-in driver: the same kernels, compared with the CPU implementations."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from standin import Device, StandIn, needed
from test_pages import DIM, HEADS, LAYOUTS, TOKENS, normal, views
from torch import Tensor

from kvtide.errors import DeviceFailed
from kvtide.torch import launch, ops
from kvtide.torch.ops.blocks import rows_of

pytestmark = needed


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(StandIn())


@pytest.fixture(scope="module")
def kernels(device: Device) -> launch.Pages:
    return launch.Pages(device)


def on(device: Device, *tensors: Tensor) -> list[Tensor]:
    return [device.standin.copy(tensor) for tensor in tensors]


def same(found: Tensor, expected: Tensor) -> None:
    assert torch.equal(found.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


@pytest.mark.parametrize("name", LAYOUTS)
def test_copies_between_layouts(device: Device, kernels: launch.Pages, name: str) -> None:
    engine, pages = normal(LAYOUTS[name][0], torch.float16), normal((7, 2, 2, HEADS, TOKENS, DIM), torch.float16, 2)
    blocks, frames = torch.tensor([4, 0, 8]), torch.tensor([1, 6, 2])
    there, pages_there = on(device, engine, pages)
    source, target = rows_of("engine", *views(name, there)), rows_of("pages", *ops.layers_of(pages_there))
    kernels.copy_blocks(source, blocks, target, frames)
    device.standin.settle()
    ops.gather(*views(name, engine), blocks, pages, frames)
    same(pages_there, pages)
    kernels.copy_blocks(target, torch.tensor([0, 3]), source, torch.tensor([5, 6]))
    device.standin.settle()
    ops.scatter(pages, torch.tensor([0, 3]), *views(name, engine), torch.tensor([5, 6]))
    same(there, engine)
    with pytest.raises(RuntimeError, match="not within 0 and 9"):
        kernels.copy_blocks(source, torch.tensor([9]), target, torch.tensor([0]))
    with pytest.raises(ValueError, match="multiples of 16 bytes"):
        odd = rows_of("odd", [there.view(-1)[1 : 1 + DIM].view(1, 1, 1, DIM)], [])
        kernels.copy_blocks(odd, torch.tensor([0]), target, torch.tensor([0]))


def test_block_tables(device: Device, kernels: launch.Pages) -> None:
    table = torch.randint(0, 3, (50, 4), dtype=torch.int32, generator=torch.Generator().manual_seed(4)) * 11
    ids = torch.randint(-1, 60, (3, 70), generator=torch.Generator().manual_seed(5))
    lengths = torch.tensor([70 * TOKENS, 0, 33 * TOKENS + 1])
    (table_there,) = on(device, table)
    for starts in (None, torch.tensor([40, 0, 100])):
        expected = ops.block_tables(table, ids.clamp(max=49), lengths, TOKENS, 1, 3, 10, -7, starts)
        found = [device.empty(tuple(result.shape), torch.int32) for result in expected]
        kernels.block_tables(table_there, ids.clamp(max=49), lengths, TOKENS, 1, 10, -7, starts, *found)
        device.standin.settle()
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


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
