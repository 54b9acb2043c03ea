"""Blocks between layouts, block tables and attention on the CPU: against torch's own indexing and arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kvtide.torch import ops

TOKENS, HEADS, DIM = 16, 2, 32
#: Engines' layouts: shape of an allocation, and views of layer l's keys and values in it.
LAYOUTS: dict[str, tuple[tuple[int, ...], Any]] = {
    "layers first, K and V apart": ((2, 2, 9, TOKENS, HEADS, DIM), lambda t, layer, part: t[layer, part]),
    "heads before tokens": ((2, 2, 9, HEADS, TOKENS, DIM), lambda t, layer, part: t[layer, part].transpose(1, 2)),
    "blocks first": ((9, 2, 2, TOKENS, HEADS, DIM), lambda t, layer, part: t[:, layer, part]),
    "K and V side by side": ((2, 9, TOKENS, HEADS, 2 * DIM), lambda t, layer, part: t[layer].unflatten(3, (2, DIM))[..., part, :]),
}
DTYPES = [torch.float16, torch.bfloat16]


def views(name: str, tensor: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    view = LAYOUTS[name][1]
    return [view(tensor, layer, 0) for layer in range(2)], [view(tensor, layer, 1) for layer in range(2)]


def normal(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_go_into_pages_and_back(name: str, dtype: torch.dtype) -> None:
    engine = normal(LAYOUTS[name][0], dtype)
    keys, values = views(name, engine)
    pages = torch.full((7, 2, 2, HEADS, TOKENS, DIM), torch.nan, dtype=dtype)
    blocks, frames = torch.tensor([4, 0, 8]), torch.tensor([1, 6, 2], dtype=torch.int32)
    ops.gather(keys, values, blocks, pages, frames)
    expected = torch.full_like(pages, torch.nan)
    for layer in range(2):
        expected[[1, 6, 2], layer, 0] = keys[layer][blocks].transpose(1, 2)
        expected[[1, 6, 2], layer, 1] = values[layer][blocks].transpose(1, 2)
    assert torch.equal(pages.view(torch.int16), expected.view(torch.int16))
    back = torch.zeros_like(engine)
    ops.scatter(pages, frames, *views(name, back), blocks)
    for into, of in zip(views(name, back), (keys, values)):
        for layer in range(2):
            assert torch.equal(into[layer][blocks], of[layer][blocks])
            assert not into[layer][[1, 2, 3, 5, 6, 7]].any(), "a block that was not named was written"


def test_latent_pages_have_keys_alone() -> None:
    engine, pages = normal((5, TOKENS, 576), torch.bfloat16), torch.zeros(4, TOKENS, 576, dtype=torch.bfloat16)
    ops.gather([engine[:, :, None]], [], torch.tensor([3]), pages, torch.tensor([2]))
    assert torch.equal(pages[2], engine[3]) and not pages[[0, 1, 3]].any()


def test_block_tables_and_misses() -> None:
    # Entries are frame + 1; planes 1 and 2 are of a class that starts at frame 10.
    table = torch.zeros(50, 3, dtype=torch.int32)
    table[7, 1:], table[8, 1], table[40, 2] = torch.tensor([11, 13]), 12, 20
    ids = torch.full((2, 34), -1)
    ids[0, :3], ids[1] = torch.tensor([7, 8, 40]), 7
    given = (table, ids, torch.tensor([40, 34 * 16]), 16, 1, 2, 10, -9)
    tables, misses = ops.block_tables(*given)
    assert tables.shape == (2, 2, 34) and misses.shape == (2, 2, 2)
    assert tables[0, 0].tolist() == [0, 1, -9] + 31 * [-9] and tables[1, 0].tolist() == [2, -9, 9] + 31 * [-9]
    assert tables[0, 1].tolist() == 34 * [0] and misses[:, 0].tolist() == [[4, 0], [2, 0]] and not misses[:, 1].any()
    tables, misses = ops.block_tables(*given, starts=torch.tensor([33, 0]))
    assert tables[1, 0, :4].tolist() == [-9, -9, 9, -9] and misses[:, 0].tolist() == [[4, 0], [0, 0]]


def test_wrong_use_says_what_differs() -> None:
    keys, index = normal((3, TOKENS, HEADS, DIM), torch.float16), torch.tensor([0, 1])
    pages = normal((3, 2, HEADS, TOKENS, DIM), torch.float16)
    for call, says in (
        (lambda: ops.gather([keys], [], index, pages, index), r"cannot be copied|as many"),
        (lambda: ops.gather([keys], [keys[:, :8]], index, pages, index), "all must be alike"),
        (lambda: ops.gather([keys.float()], [keys.float()], index, pages, index), "float16 or bfloat16"),
        (lambda: ops.gather([keys], [keys], torch.tensor([0, 3]), pages, index), "block 3: there are only 3 blocks"),
        (lambda: ops.gather([keys], [keys], torch.tensor([0, -1]), pages, index), "must not be negative"),
        (lambda: ops.gather([keys], [keys], index, pages, index[:1]), "1 numbers for 2 blocks"),
        (lambda: ops.block_tables(torch.zeros(3, 2, dtype=torch.int32), index[None], index[:1], 16, 1, 2), "planes 1 to 3 of 2"),
    ):
        with pytest.raises(ValueError, match=says):
            call()


def test_operators_are_sound_for_torch() -> None:
    """torch's own checks: schema, mutated arguments, meta kernels."""
    tests = ("test_schema", "test_faketensor")
    keys, values = [normal((3, TOKENS, HEADS, DIM), torch.float16)], [normal((3, TOKENS, HEADS, DIM), torch.float16, 2)]
    to = [torch.zeros_like(keys[0])], [torch.zeros_like(keys[0])]
    index = torch.tensor([0, 2])
    torch.library.opcheck(ops.copy_blocks, (keys, values, index, *to, index), test_utils=tests)
    ids, lengths = torch.tensor([[0, 2], [2, 1]]), torch.tensor([32, 20])
    table = torch.ones(4, 2, dtype=torch.int32)
    torch.library.opcheck(ops.block_tables, (table, ids, lengths, TOKENS, 0, 2), test_utils=tests)


def test_operators_compile() -> None:
    """One graph without a break, with bit-identical results, also into views of one allocation."""
    keys, values = normal((3, TOKENS, HEADS, DIM), torch.float16), normal((3, TOKENS, HEADS, DIM), torch.float16, 2)
    index, ids, lengths = torch.tensor([0, 2]), torch.tensor([[0, 2], [2, 1]]), torch.tensor([32, 20])
    table = torch.tensor([[1], [0], [3]], dtype=torch.int32)

    def store(pages: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ops.gather([keys], [values], index, pages, index)
        tables, misses = ops.block_tables(table, ids, lengths, TOKENS)
        return pages[:, 0] + 1, tables, misses + 1

    pages = [torch.zeros(3, 2, HEADS, TOKENS, DIM, dtype=torch.float16) for _ in range(2)]
    compiled = torch.compile(store, fullgraph=True, backend="aot_eager")
    for found, expected in zip(compiled(pages[0]), store(pages[1])):
        assert torch.equal(found, expected)
    assert torch.equal(pages[0], pages[1]) and bool(pages[0].any())


class TestLatent:
    """Latent vectors: keys of 576 elements, of which the first 512 are the value."""

    def test_against_torch_whole_and_in_passes(self) -> None:
        lengths, queries = [40, 16, 3], [1, 2, 1]
        rows = [normal((length, 1, 576), torch.bfloat16, length) for length in lengths]
        query = normal((sum(queries), 4, 576), torch.bfloat16, 9)
        pages = torch.full((7, TOKENS, 576), torch.nan, dtype=torch.bfloat16)
        table = torch.tensor([[5, 0, 2], [1, -1, -1], [6, -1, -1]])
        starts, every = torch.tensor([0, *queries]).cumsum(0), torch.tensor([0, *lengths]).cumsum(0)
        ops.append(pages, torch.cat(rows), None, table, torch.tensor(lengths), every)
        given = (torch.tensor(lengths), starts)
        whole = ops.attend(query, pages, table, *given, 2, 0.04)
        assert whole.shape == (4, 4, 512)
        for seq, row in enumerate(rows):
            asked = query[int(starts[seq]) : int(starts[seq + 1])].double()
            kv, at = torch.arange(len(row)), torch.arange(len(row) - len(asked), len(row))
            scores = torch.einsum("qhd,kd->qhk", asked, row[:, 0].double()) * 0.04
            weights = scores.masked_fill((kv > at[:, None])[:, None], -torch.inf).softmax(2)
            expected = weights @ row[:, 0, :512].double()
            found = whole[int(starts[seq]) : int(starts[seq + 1])].double()
            assert float((found - expected).norm() / expected.norm()) < 8e-3
        torch.library.opcheck(ops.attend, (query, pages, table, *given, 2, 0.04), test_utils=("test_schema", "test_faketensor"))
        with pytest.raises(ValueError, match="keys alone"):
            ops.append(pages, rows[0], rows[0], table[:1], given[0][:1], torch.tensor([0, 40]))
        with pytest.raises(ValueError, match=r"latent vectors \[frames, page_tokens, 576\]"):
            ops.attend(query[..., :100], pages[..., :100], table, *given, 2, 0.04)
