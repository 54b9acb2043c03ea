"""The operators against torch's own attention in f64, and under torch.compile."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from kvtide import errors
from kvtide.torch import ops

PAGE_TOKENS = 16
#: Allowed relative error of the result type: half of the last place of f16 or bf16, and as much again for sums in f32.
TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 8e-3}


def normal(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Case:
    """A batch of ragged sequences in shuffled pages, filled with NaN elsewhere."""

    def __init__(
        self, seed: int, dtype: torch.dtype, lengths: list[int], queries: list[int], group: int, kv_heads: int, head_dim: int
    ) -> None:
        generator = torch.Generator().manual_seed(seed)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(dtype)

        self.keys = [drawn(length, kv_heads, head_dim) for length in lengths]
        self.values = [drawn(length, kv_heads, head_dim) for length in lengths]
        self.query = drawn(sum(queries), kv_heads * group, head_dim)
        self.lengths = torch.tensor(lengths)
        self.starts = torch.tensor([0, *queries]).cumsum(0)
        self.scale = head_dim**-0.5
        blocks = [-(-length // PAGE_TOKENS) for length in lengths]
        frames = sum(blocks) + 3
        # Rows with an unusual stride, so that an ignored stride is detected.
        page = 2 * kv_heads * PAGE_TOKENS * head_dim
        rows = torch.full((frames, page + 32), torch.nan, dtype=dtype)
        self.pages = rows[:, :page].view(frames, 2, kv_heads, PAGE_TOKENS, head_dim)
        order = torch.randperm(frames, generator=generator)
        self.table = torch.full((len(lengths), max(blocks)), -1)
        at = 0
        for seq, count in enumerate(blocks):
            self.table[seq, :count] = order[at : at + count]
            at += count
        self.queries = max(queries)
        every = torch.tensor([0, *lengths]).cumsum(0)
        ops.append(self.pages, torch.cat(self.keys), torch.cat(self.values), self.table, self.lengths, every)

    def expected(self, window: int) -> Tensor:
        """Compute with torch's attention, in f64."""
        rows = []
        for seq, (key, value) in enumerate(zip(self.keys, self.values)):
            query = self.query[int(self.starts[seq]) : int(self.starts[seq + 1])]
            count, length = query.shape[0], key.shape[0]
            at, kv = torch.arange(length - count, length)[:, None], torch.arange(length)[None, :]
            seen = (kv <= at) & ((kv > at - window) if window else torch.ones(1, dtype=torch.bool))
            q, k, v = (t.double().transpose(0, 1)[None] for t in (query, key, value))
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=seen, scale=self.scale, enable_gqa=True
            )
            rows.append(out[0].transpose(0, 1))
        return torch.cat(rows)

    def whole(self, window: int) -> Tensor:
        return ops.attend(
            self.query, self.pages, self.table, self.lengths, self.starts, self.queries, self.scale, window
        )


CASES = [
    (torch.float16, [1], [1], 1, 1, 32),
    (torch.float16, [16, 17, 200], [1, 1, 1], 3, 2, 32),
    (torch.bfloat16, [33, 5], [33, 2], 4, 2, 64),
    (torch.bfloat16, [130, 64, 90], [1, 0, 40], 16, 1, 128),
    (torch.float16, [70], [3], 1, 4, 256),
]


@pytest.mark.parametrize("window", [0, 1, 20])
@pytest.mark.parametrize(("dtype", "lengths", "queries", "group", "kv_heads", "head_dim"), CASES)
def test_against_torch(
    dtype: torch.dtype, lengths: list[int], queries: list[int], group: int, kv_heads: int, head_dim: int, window: int
) -> None:
    case = Case(sum(lengths), dtype, lengths, queries, group, kv_heads, head_dim)
    found, expected = case.whole(window), case.expected(window)
    assert found.dtype == dtype and found.shape == case.query.shape
    error = (found.double() - expected).norm() / expected.norm()
    assert float(error) < TOLERANCE[dtype]


@pytest.mark.parametrize(("dtype", "lengths", "queries", "group", "kv_heads", "head_dim"), CASES)
def test_a_sequence_alone_has_the_bits_of_the_batch(
    dtype: torch.dtype, lengths: list[int], queries: list[int], group: int, kv_heads: int, head_dim: int
) -> None:
    case = Case(11, dtype, lengths, queries, group, kv_heads, head_dim)
    whole = case.whole(20)
    for seq, length in enumerate(case.lengths):
        rows = slice(int(case.starts[seq]), int(case.starts[seq + 1]))
        count = rows.stop - rows.start
        alone = ops.attend(
            case.query[rows], case.pages, case.table[seq : seq + 1], length[None], torch.tensor([0, count]), count, case.scale, 20
        )
        assert torch.equal(alone.view(torch.int16), whole[rows].view(torch.int16))


def print_bits() -> None:
    """Print a digest of results that several threads compute: split by sequences and heads, by pages, and by rows. Results in f16 and
    many of them, because rounding hides most differences of sums in f32."""
    digest = hashlib.sha256()
    for lengths, queries, kv_heads in (([700, 900, 33], [1, 1, 1], 4), ([4000], [32], 1), ([600], [300], 1)):
        case = Case(13, torch.float16, lengths, queries, 4, kv_heads, 128)
        digest.update(case.whole(0).view(torch.uint8).numpy().tobytes())
    print(digest.hexdigest())


def test_the_number_of_threads_does_not_change_the_bits() -> None:
    def run(threads: int) -> str:
        command = [sys.executable, "-c", "import test_ops; test_ops.print_bits()"]
        env = os.environ | {"OMP_NUM_THREADS": str(threads)}
        return subprocess.run(command, cwd=os.path.dirname(__file__), env=env, check=True, stdout=subprocess.PIPE, text=True).stdout

    one = run(1)
    assert len(one) == 65 and run(2) == one and run(5) == one


def test_a_page_that_is_not_in_the_table_is_an_error() -> None:
    case = Case(3, torch.float16, [100, 40], [1, 1], 2, 2, 32)
    case.table[1, 2] = -1
    with pytest.raises(errors.WrongState, match="page 2 of sequence 1"):
        case.whole(0)


def test_what_is_not_a_number_comes_out_as_such() -> None:
    case = Case(3, torch.float16, [20], [1], 1, 1, 32)
    case.pages[case.table[0, 0], 0, 0, 3] = torch.nan
    assert bool(case.whole(0).isnan().all())


def test_append_writes_the_last_tokens_and_nothing_else() -> None:
    case = Case(5, torch.bfloat16, [20, 33], [1, 1], 1, 2, 32)
    before = case.pages.clone()
    key = torch.ones(3, 2, 32, dtype=torch.bfloat16)
    given = (case.table, torch.tensor([18, 33]), torch.tensor([0, 2, 3]))
    ops.append(case.pages, key, 2 * key, *given)
    for seq, position in ((0, 16), (0, 17), (1, 32)):
        frame, token = case.table[seq, position // PAGE_TOKENS], position % PAGE_TOKENS
        before[frame, 0, :, token], before[frame, 1, :, token] = 1, 2
    assert torch.equal(case.pages.view(torch.int16), before.view(torch.int16))
    for wrong, says in (
        ((case.table - 100, *given[1:]), "in none of the"),
        ((case.table[:, :1], *given[1:]), "outside their sequences"),
        ((case.table, torch.tensor([1, 33]), given[2]), "outside their sequences"),
        ((case.table, given[1], torch.tensor([0, 2, 4])), "must rise from 0 to the 3 new tokens"),
        ((case.table[:1], *given[1:]), "for 2 sequences"),
    ):
        with pytest.raises(ValueError, match=says):
            ops.append(case.pages, key, key, *wrong)
    with pytest.raises(ValueError, match="key is torch.float32"):
        ops.append(case.pages, key.float(), key.float(), *given)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: {"query": c.query.float()}, "query is torch.float32 and pages are torch.float16"),
        (lambda c: {"query": c.query[:, :3]}, "3 heads, which is not a multiple of the pages' 2 KV heads"),
        (lambda c: {"query": c.query[..., :16].contiguous()}, "head_dim 16, pages have 32"),
        (lambda c: {"query": c.query[0]}, "must be \\[tokens, heads, head_dim\\]"),
        (lambda c: {"lengths": c.lengths[:1]}, "must be \\[seqs\\] and \\[seqs \\+ 1\\]"),
        (lambda c: {"q_starts": c.starts + 1}, "must rise from 0 to the 2 query tokens"),
        (lambda c: {"lengths": torch.tensor([20, 0])}, "sequence 1: 0 tokens are fewer than its 1 queries"),
        (lambda c: {"block_table": c.table[:1]}, "must be \\[seqs, blocks\\], for 2 sequences"),
        (lambda c: {"block_table": c.table + 100}, "block 0 of sequence 0: frame 10[0-9]; there are 6"),
        (lambda c: {"window": -1}, "window -1"),
        (lambda c: {"pages": c.pages.transpose(2, 3)}, "must be dense|multiple"),
    ],
)
def test_wrong_inputs_say_what_differs(change: object, says: str) -> None:
    case = Case(1, torch.float16, [20, 9], [1, 1], 2, 2, 32)
    given = {
        "query": case.query,
        "pages": case.pages,
        "block_table": case.table,
        "lengths": case.lengths,
        "q_starts": case.starts,
        "q_tokens": 1,
        "scale": case.scale,
        "window": 0,
    }
    with pytest.raises(ValueError, match=says):
        ops.attend(**(given | change(case)))  # type: ignore[operator]


def test_operators_are_sound_for_torch() -> None:
    """torch's own checks: schema, mutated arguments, meta kernels."""
    case = Case(2, torch.float16, [40, 3], [2, 1], 2, 2, 32)
    tests = ("test_schema", "test_faketensor")
    whole = (case.query, case.pages, case.table, case.lengths, case.starts, 2, case.scale, 0)
    torch.library.opcheck(ops.attend, whole, test_utils=tests)
    new = (case.keys[1], case.values[1], case.table, torch.tensor([40, 3]), torch.tensor([0, 0, 3]))
    torch.library.opcheck(ops.append, (case.pages, *new), test_utils=tests)


def test_operators_compile() -> None:
    """One graph without a break, with bit-identical results."""
    case = Case(2, torch.bfloat16, [40, 3], [1, 1], 2, 2, 32)

    def block(query: Tensor) -> Tensor:
        return 2 * ops.attend(query + 0, case.pages, case.table, case.lengths, case.starts, 1, case.scale)

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(case.query), block(case.query))


def test_latent_vectors_against_torch() -> None:
    """Keys of 576 elements, of which the first 512 are the value."""
    lengths, queries = [40, 16, 3], [1, 2, 1]
    rows = [normal((length, 1, 576), torch.bfloat16, length) for length in lengths]
    query = normal((sum(queries), 4, 576), torch.bfloat16, 9)
    pages = torch.full((7, PAGE_TOKENS, 576), torch.nan, dtype=torch.bfloat16)
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
