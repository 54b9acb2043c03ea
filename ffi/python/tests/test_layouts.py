"""Views and tables for other attention libraries: the bytes that they address, and their results beside kvtide's."""

from __future__ import annotations

import ctypes
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from libraries import kernels_on_cpu, libraries
from test_ops import CASES, PAGE_TOKENS, TOLERANCE, Case
from torch import Tensor

from kvtide.errors import WrongState
from kvtide.torch import layouts, ops

__all__ = ["libraries"]

EXAMPLES = Path(__file__).parents[1] / "examples"
BENCHES = Path(__file__).parents[3] / "kernels/gpu/benches"


class Latent:
    """Ragged sequences of latent vectors in shuffled pages, filled with NaN elsewhere."""

    def __init__(self, lengths: list[int], queries: list[int], heads: int, page_tokens: int = 64) -> None:
        generator = torch.Generator().manual_seed(sum(lengths))
        blocks = [-(-length // page_tokens) for length in lengths]
        frames = sum(blocks) + 3
        # A longer distance between frames than a page has, so that an ignored stride is detected.
        flat = torch.full((frames, page_tokens * 576 + 32), torch.nan, dtype=torch.bfloat16)
        self.pages = flat[:, : page_tokens * 576].view(frames, page_tokens, 576)
        order = torch.randperm(frames, generator=generator)
        self.table = torch.full((len(lengths), max(blocks)), -1)
        for seq, count in enumerate(blocks):
            self.table[seq, :count] = order[sum(blocks[:seq]) :][:count]
        self.lengths = torch.tensor(lengths)
        self.starts = torch.tensor([0, *queries]).cumsum(0)
        self.queries, self.scale = max(queries), 0.05
        rows = torch.randn(sum(lengths), 1, 576, generator=generator).to(torch.bfloat16)
        ops.append(self.pages, rows, None, self.table, self.lengths, torch.tensor([0, *lengths]).cumsum(0))
        self.query = torch.randn(sum(queries), heads, 576, generator=generator).to(torch.bfloat16)


def given(case: Case | Latent) -> tuple[Any, ...]:
    return case.query, case.pages, case.table, case.lengths, case.starts, case.queries, case.scale


def close(found: Tensor, expected: Tensor) -> None:
    error = (found.double() - expected.double()).norm() / expected.double().norm()
    assert float(error) < TOLERANCE[expected.dtype]


def by_flash_attention_3(case: Case, window: int) -> Tensor:
    return kernels_on_cpu.flash_attn_with_kvcache(**layouts.flash_attention_3(*given(case), window))


def by_flashinfer(case: Case, window: int) -> Tensor:
    tables = layouts.flashinfer_tables(case.table, case.pages, case.lengths, case.starts, window)
    wrapper = kernels_on_cpu.BatchPrefillWithPagedKVCacheWrapper(torch.empty(1, dtype=torch.uint8), "HND")
    kv_heads, page_tokens, dim = case.pages.shape[2:]
    rest: dict[str, Any] = {"causal": True, "sm_scale": case.scale, "window_left": window - 1 if window else -1}
    plan = (tables.q_indptr, tables.indptr, tables.indices, tables.last_page_len, case.query.shape[1], kv_heads, dim, page_tokens)
    wrapper.plan(*plan, **rest, q_data_type=case.query.dtype, kv_data_type=case.pages.dtype)
    return wrapper.run(case.query, case.pages)


@pytest.mark.parametrize("library", [by_flash_attention_3, by_flashinfer])
@pytest.mark.parametrize("window", [0, 1, 20])
@pytest.mark.parametrize(("dtype", "lengths", "queries", "group", "kv_heads", "head_dim"), CASES)
def test_a_library_reads_what_kvtide_reads(
    library: Callable[[Case, int], Tensor],
    dtype: torch.dtype,
    lengths: list[int],
    queries: list[int],
    group: int,
    kv_heads: int,
    head_dim: int,
    window: int,
) -> None:
    case = Case(sum(lengths), dtype, lengths, queries, group, kv_heads, head_dim)
    expected = case.whole(window)
    # Pages before the windows are in no frame, as in a plane with a window.
    first = (case.lengths - case.starts.diff() - window + 1).clamp(min=0) // PAGE_TOKENS if window else torch.zeros_like(case.lengths)
    for seq, count in enumerate(first.tolist()):
        case.pages[case.table[seq, :count]] = torch.nan
        case.table[seq, :count] = -1
    if window:
        # The condition of `layouts`: a page that stands for pages before the window holds finite numbers behind the end.
        readable = case.table[case.table >= 0]
        case.pages[readable] = case.pages[readable].nan_to_num()
    close(library(case, window), expected)


@pytest.mark.parametrize(("lengths", "queries"), [([64, 65, 200], [1, 1, 1]), ([70, 300], [2, 2])])
def test_flash_mla_reads_what_kvtide_reads(lengths: list[int], queries: list[int]) -> None:
    case = Latent(lengths, queries, 24)
    arguments = layouts.flash_mla(*given(case))
    metadata, splits = kernels_on_cpu.get_mla_metadata(arguments["cache_seqlens"], case.queries * 24, 1)
    out, _ = kernels_on_cpu.flash_mla_with_kvcache(**arguments, tile_scheduler_metadata=metadata, num_splits=splits)
    close(out.flatten(0, 1), ops.attend(*given(case)))


@pytest.mark.parametrize("page_tokens", [16, 64])
def test_flashinfer_reads_the_latent_pages_that_kvtide_reads(page_tokens: int) -> None:
    case = Latent([70, 33, 200], [5, 1, 0], 8, page_tokens)
    tables = layouts.flashinfer_tables(case.table, case.pages, case.lengths, case.starts)
    wrapper = kernels_on_cpu.BatchMLAPagedAttentionWrapper(torch.empty(1, dtype=torch.uint8))
    dtype = case.query.dtype
    plan = (tables.q_indptr, tables.indptr, tables.indices, tables.lengths, 8, 512, 64, page_tokens)
    wrapper.plan(*plan, True, case.scale, dtype, dtype)
    out = wrapper.run(*layouts.flashinfer_latent(case.query), *layouts.flashinfer_latent(case.pages))
    close(out, ops.attend(*given(case)))


def test_views_address_the_elements_of_the_pages() -> None:
    """The address of each element, from the documented layout of a page: K of all heads, then V, [head][token][dim]."""
    case = Case(4, torch.float16, [40], [1], 2, 3, 64)
    arguments = layouts.flash_attention_3(*given(case))
    frame_bytes = 2 * case.pages.stride(0)
    for part, name in enumerate(("k_cache", "v_cache")):
        view = arguments[name]
        assert view.shape == (case.pages.shape[0], PAGE_TOKENS, 3, 64)
        for frame, token, head, dim in ((0, 0, 0, 0), (2, 15, 2, 63), (4, 7, 1, 5)):
            offset = 2 * (((part * 3 + head) * PAGE_TOKENS + token) * 64 + dim)
            address = case.pages.data_ptr() + frame * frame_bytes + offset
            assert view[frame, token, head, dim].data_ptr() == address
            bits = ctypes.c_uint16.from_address(address).value
            assert int(view[frame, token, head, dim].view(torch.int16)) & 0xFFFF == bits
    latent = Latent([100], [1], 4)
    latent_bytes = 2 * latent.pages.stride(0)
    element = latent.pages.data_ptr() + latent_bytes + 2 * (63 * 576 + 512)
    assert layouts.flash_mla(*given(latent))["k_cache"][1, 63, 0, 512].data_ptr() == element
    assert layouts.flashinfer_latent(latent.pages)[1][1, 63, 0].data_ptr() == element


def test_a_page_before_the_window_becomes_a_page_of_the_sequence() -> None:
    """Frame 0 holds NaN, as another model's page might, and kernels multiply what is masked by zero."""
    case = Case(7, torch.float16, [100], [4], 2, 1, 64)
    expected = case.whole(20)
    frames = case.table[0].clone()
    case.pages[frames[:4]] = torch.nan
    case.pages[0] = torch.nan if 0 not in frames[4:] else case.pages[0]
    case.table[0, :4] = -1
    table = layouts.page_table(case.table, case.pages, case.lengths, case.starts, 20)
    assert table.tolist() == [[int(frames[4])] * 4 + frames[4:].tolist()]
    for library in (by_flash_attention_3, by_flashinfer):
        close(library(case, 20), expected)


def test_entries_behind_the_end_are_numbers_that_libraries_take() -> None:
    case = Case(3, torch.float16, [100, 5], [1, 1], 2, 2, 64)
    table = layouts.page_table(case.table, case.pages, case.lengths, case.starts)
    assert table.dtype == torch.int32 and int(table.min()) >= 0 and table.is_contiguous()
    assert table[1].tolist() == [int(case.table[1, 0]), 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("page", "entry", "window", "says"),
    [
        (2, -1, 0, "page 2 of sequence 1 is in none of the 12 frames"),
        (1, 12, 0, "page 1 of sequence 1"),
        (2, -1, 16, "page 2 of sequence 1"),
        (0, -1, 8, None),
        (0, -1, 0, "page 0 of sequence 1"),
    ],
)
def test_a_missing_page_is_an_error(page: int, entry: int, window: int, says: str | None) -> None:
    case = Case(3, torch.float16, [100, 40], [1, 2], 2, 2, 64)
    assert case.pages.shape[0] == 13
    pages = case.pages[:12] if int(case.table.max()) < 12 else case.pages
    case.table[1, page] = entry if entry < 0 else len(pages)
    absent = layouts.missing(case.table, pages, case.lengths, case.starts, window)
    assert absent.tolist() == [False, says is not None]
    if says is None:
        layouts.page_table(case.table, pages, case.lengths, case.starts, window)
        return
    with pytest.raises(WrongState, match=says.replace("12 frames", f"{len(pages)} frames")):
        layouts.page_table(case.table, pages, case.lengths, case.starts, window)


def test_a_table_with_too_few_columns_misses_pages() -> None:
    case = Case(3, torch.float16, [100, 40], [1, 1], 2, 2, 64)
    assert layouts.missing(case.table[:, :3], case.pages, case.lengths, case.starts).tolist() == [True, False]
    with pytest.raises(WrongState, match="page 3 of sequence 0"):
        layouts.flashinfer_tables(case.table[:, :3], case.pages, case.lengths, case.starts)


def test_a_sequence_without_queries_needs_no_page() -> None:
    case = Case(3, torch.float16, [100, 40], [1, 0], 2, 2, 64)
    case.table[1] = -1
    assert layouts.missing(case.table, case.pages, case.lengths, case.starts).tolist() == [False, False]
    layouts.page_table(case.table, case.pages, case.lengths, case.starts)
    assert layouts.missing(case.table[:, :1], case.pages, case.lengths, case.starts).tolist() == [True, False]


def test_flashinfer_indices_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, one of several writes to the same place wins."""
    case = Case(3, torch.float16, [100, 5, 40], [1, 1, 1], 2, 2, 64)
    scatter = torch.Tensor.scatter_

    def once(out: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
        kept = index[index < len(out) - 1]
        assert len(kept) == len(kept.unique()) == 7 + 1 + 3
        return scatter(out, dim, index, source)

    monkeypatch.setattr(torch.Tensor, "scatter_", once)
    layouts.flashinfer_tables(case.table, case.pages, case.lengths, case.starts)


def test_flashinfer_tables_are_the_lists_that_it_documents() -> None:
    lengths, new = [33, 0, 16, 1], [1, 0, 3, 1]
    pages = torch.zeros(9, 2, 1, PAGE_TOKENS, 64, dtype=torch.float16)
    table = torch.tensor([[5, 2, 7, 3], [-1] * 4, [8, -1, -1, -1], [1, 4, -1, -1]])
    tensors = (table, pages, torch.tensor(lengths), torch.tensor([0, *new]).cumsum(0))
    on_device, on_host = layouts.flashinfer_tables(*tensors), layouts.flashinfer_tables(*tensors, on_host=(lengths, new))
    for found in (on_device, on_host):
        assert found.indptr.tolist() == [0, 3, 3, 4, 5]
        assert found.indices[:5].tolist() == [5, 2, 7, 8, 1]
        assert found.last_page_len.tolist() == [1, 0, 16, 1]
        assert found.lengths.tolist() == lengths and found.q_indptr.tolist() == [0, 1, 1, 4, 5]
        tables = (found.indptr, found.indices, found.last_page_len, found.lengths, found.q_indptr)
        assert all(each.dtype == torch.int32 and each.is_contiguous() for each in tables)
    assert len(on_host.indices) == 5 and len(on_device.indices) == table.numel()


def test_no_value_of_a_tensor_on_a_device_is_read() -> None:
    """Tensors without values: reading one raises, as it would wait on a GPU."""
    def meta(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    pages, latent = meta(9, 2, 2, 64, 128, dtype=torch.float16), meta(9, 64, 576, dtype=torch.float16)
    batch = (meta(3, 5), meta(3), meta(4))
    for window in (0, 100):
        arguments = layouts.flash_attention_3(meta(7, 8, 128, dtype=torch.float16), pages, *batch, 4, 0.1, window)
        assert arguments["page_table"].shape == (3, 5) and arguments["page_table"].dtype == torch.int32
        assert arguments["k_cache"].shape == (9, 64, 2, 128)
        tables = layouts.flashinfer_tables(batch[0], pages, *batch[1:], window, on_host=([64, 65, 1], [4, 1, 2]))
        assert tables.indices.shape == (4,) and tables.indices.is_meta and not tables.indptr.is_meta
    assert layouts.flash_mla(meta(3, 16, 576, dtype=torch.float16), latent, *batch, 1, 0.1)["q"].shape == (3, 1, 16, 576)
    assert layouts.missing(batch[0], pages, *batch[1:]).shape == (3,)


def test_pages_that_do_not_fit_are_refused_with_a_reason() -> None:
    heads, latent = Case(3, torch.float16, [20], [1], 1, 1, 64), Latent([70, 64], [1, 1], 4)
    with pytest.raises(ValueError, match="FlashMLA on these pages: pages of 16 tokens; it takes 64: attach with page_tokens=64"):
        layouts.flash_mla(*given(Latent([70], [1], 4, 16)))
    with pytest.raises(ValueError, match="3 queries of 2 sequences, at most 2 each; it takes the same number for every sequence"):
        layouts.flash_mla(*given(Latent([70, 64], [2, 1], 4)))
    with pytest.raises(ValueError, match="it reads latent vectors"):
        layouts.flash_mla(*given(heads))
    with pytest.raises(ValueError, match="FlashAttention-3 on these pages: .*latent vectors"):
        layouts.flash_attention_3(*given(latent))
    assert "a window of 5 tokens" in str(layouts.unsuited_to_flash_mla(latent.query, latent.pages, 2, 1, 5))
    assert "a window of 5 tokens" in str(layouts.unsuited_to_flashinfer(latent.pages, 5))
    assert layouts.unsuited_to_flashinfer(Case(3, torch.float16, [20], [1], 1, 1, 32).pages) == "head_dim 32; it takes 64, 128, 256"
    wide = torch.zeros(1, 2, 1, 16, 264, dtype=torch.float16)
    assert layouts.unsuited_to_flash_attention_3(wide) == "head_dim 264; it takes multiples of 8 up to 256"
    odd = torch.zeros(2 * (2 * 16 * 64 + 4), dtype=torch.float16).view(2, -1)[:, : 2 * 16 * 64].view(2, 2, 1, 16, 64)
    for reason in (layouts.unsuited_to_flash_attention_3(odd), layouts.unsuited_to_flashinfer(odd)):
        assert "4104 bytes from frame to frame; both must be multiples of 16" in str(reason)


def test_the_bench_of_the_gpu_bundle_runs(
    libraries: dict[str, int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = BENCHES / "libraries.py"
    monkeypatch.syspath_prepend(str(BENCHES))
    monkeypatch.setattr(sys, "argv", [str(program), "--device", "cpu"])
    runpy.run_path(str(program), run_name="__main__")
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    values = {figure["key"]: figure["value"] for each in said for figure in each["figures"]}
    assert len(values) == 2 + 4 * 3 and not any(each["measured"] for each in said)
    for key in ("prefill_flash_attention_3", "prefill_flashinfer", "mla_flash_mla", "mla_flashinfer"):
        assert values[key] > 0 and values[f"{key}_error"] < 1e-2


@pytest.mark.parametrize("name", ["flash_attention_3", "flash_mla", "flashinfer"])
def test_an_example_runs(
    name: str, libraries: dict[str, int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = str(EXAMPLES / f"attend_{name}.py")
    monkeypatch.setattr(sys, "argv", [program, "--cpu-check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(program, run_name="__main__")
    assert ended.value.code == 0
    assert "relative difference from kvtide's kernels" in capsys.readouterr().out
    assert libraries == {name: 2 if name == "flashinfer" else 1}
