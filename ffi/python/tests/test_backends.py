"""The choice of an attention backend: which library takes which call, with which arguments, and what is said if none does."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from libraries import Hopper, libraries
from test_layouts import Latent, close, given
from test_ops import Case

from kvtide.torch import backends, ops

__all__ = ["libraries"]

#: What `auto` tries, in order.
ORDER = ["flash_attention_3", "flash_mla", "flashinfer"]


def prefill(head_dim: int = 64, **changes: Any) -> backends.Call:
    """A call with 40 × 2 rows of a KV head, lengths known on the host."""
    case = Case(9, torch.float16, [90, 100], [40, 30], 2, 2, head_dim)
    return Hopper().call(*given(case), changes.pop("window", 0), on_host=([90, 100], [40, 30]))


def decode() -> backends.Call:
    case = Case(9, torch.float16, [90, 100], [1, 1], 2, 2, 64)
    return Hopper().call(*given(case), 0, on_host=([90, 100], [1, 1]))


def latent(queries: list[int], heads: int = 128, page_tokens: int = 64) -> backends.Call:
    case = Latent([70, 100], queries, heads, page_tokens)
    return Hopper().call(*given(case), 0, on_host=([70, 100], queries))


def expected(call: backends.Call) -> torch.Tensor:
    return ops.attend(
        call.query, call.pages, call.block_table, call.lengths, call.q_starts, call.q_tokens, call.scale, call.window
    )


def run(call: backends.Call, wanted: str, device: Hopper | None = None) -> tuple[str, torch.Tensor]:
    given = (call.query, call.pages, call.block_table, call.lengths, call.q_starts, call.q_tokens, call.scale, call.window)
    return (device or Hopper()).attend_by(wanted, *given, on_host=call.on_host)


def test_kvtide_is_the_default_and_the_variable_names_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(backends.VARIABLE, raising=False)
    assert backends.requested() == "kvtide"
    monkeypatch.setenv(backends.VARIABLE, "auto")
    assert backends.requested() == "auto" and backends.requested("flash_mla") == "flash_mla"
    monkeypatch.setenv(backends.VARIABLE, "fastest")
    with pytest.raises(ValueError, match="KVTIDE_ATTENTION='fastest' is unknown; use one of kvtide, auto, flash_attention_3"):
        backends.requested()
    with pytest.raises(ValueError, match="backend='fa3' is unknown"):
        backends.requested("fa3")


def test_the_limit_of_decode_is_that_of_the_kernels() -> None:
    source = (Path(__file__).parents[3] / "kernels/src/launch/attention/config.rs").read_text()
    found = re.search(r"DECODE_ROWS_MAX: u32 = (\d+);", source)
    assert found is not None and int(found[1]) == backends._DECODE_ROWS_MAX
    assert f"(1..={backends._GROUP_MAX}).contains(&self.group)" in source


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (prefill(), "flash_attention_3"),
        (prefill(window=50), "flash_attention_3"),
        (replace(prefill(), capability=(8, 0)), "flashinfer"),
        (replace(prefill(32), capability=(8, 0)), "kvtide"),
        (replace(prefill(), capability=(8, 0), on_host=None), "kvtide"),
        (replace(prefill(), capability=(8, 0), capturing=True), "kvtide"),
        (replace(prefill(), capturing=True), "flash_attention_3"),
        (decode(), "kvtide"),
        (latent([1, 1]), "flash_mla"),
        (latent([1, 1], 16), "kvtide"),
        (latent([2, 1]), "flashinfer"),
        (latent([1, 1], page_tokens=16), "flashinfer"),
        (replace(latent([1, 1]), capability=(10, 0)), "flashinfer"),
    ],
)
def test_auto_picks_the_first_library_that_takes_the_call(libraries: dict[str, int], call: backends.Call, name: str) -> None:
    choice = backends.choose(call, "auto")
    assert choice.name == name
    assert list(choice.reasons) == (ORDER[: ORDER.index(name)] if name in ORDER else ORDER)
    if call.capability == (9, 0) and not call.capturing:
        used, found = run(call, "auto")
        assert used == name and libraries == ({name: 1} if name in ORDER else {})
        close(found, expected(call))


@pytest.mark.parametrize("name", ORDER)
@pytest.mark.parametrize("call", [prefill(), prefill(window=50), decode(), latent([1, 1]), latent([2, 2], 4), latent([3, 1], 4)])
def test_a_named_library_computes_the_call_or_says_why_not(libraries: dict[str, int], name: str, call: backends.Call) -> None:
    reason = backends.LIBRARIES[name].unsuited(call)
    if reason is None:
        used, found = run(call, name)
        assert used == name and libraries == {name: 1}
        close(found, expected(call))
        return
    with pytest.raises(ValueError) as error:
        run(call, name)
    assert str(error.value) == f"attention by {name}: {reason}. Use backend='auto' or 'kvtide'" and libraries == {}


def test_every_library_takes_some_of_these_calls(libraries: dict[str, int]) -> None:
    calls = [prefill(), prefill(window=50), decode(), latent([1, 1]), latent([2, 2], 4), latent([3, 1], 4)]
    takes = {name: [backends.LIBRARIES[name].unsuited(call) is None for call in calls] for name in ORDER}
    assert takes["flash_attention_3"] == [True, True, True, False, False, False]
    assert takes["flash_mla"] == [False, False, False, True, True, False]
    assert takes["flashinfer"] == [True] * 6


def test_flashinfer_without_lengths_on_the_host_reads_them(libraries: dict[str, int]) -> None:
    call = replace(prefill(), on_host=None)
    close(run(call, "flashinfer")[1], expected(call))
    reason = backends.choose(replace(call, capability=(8, 0)), "auto").reasons["flashinfer"]
    assert reason == "its plan needs the lengths on the host, and reading them from the GPU would wait"


def test_flashinfer_keeps_one_wrapper_for_each_kind_of_call(libraries: dict[str, int]) -> None:
    library, device = backends.FlashInfer(), Hopper()
    for call in (prefill(), prefill(), prefill(window=50), prefill(window=30), decode(), latent([1, 1])):
        close(library.run(call, device), expected(call))
        # Only the decode follows a plan of other lengths.
        assert device.waits == (call.q_tokens == 1)
    assert len(library._wrappers) == 4 and len(library._workspaces) == 1


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    backends._imported.cache_clear()
    for call, library, module in (
        (prefill(), "flash_attention_3", "flash_attn_interface"),
        (latent([1, 1]), "flash_mla", "flash_mla"),
        (prefill(), "flashinfer", "flashinfer"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ValueError, match=f"attention by {library}: the module {module} (is not installed|cannot be imported)"):
            run(call, library)
    choice = backends.choose(prefill(), "auto")
    assert choice.name == "kvtide" and set(choice.reasons) == set(ORDER)
    assert run(prefill(), "auto")[0] == "kvtide"
    backends._imported.cache_clear()


def test_a_library_without_a_function_is_too_old(libraries: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules["flash_mla"], "get_mla_metadata")
    with pytest.raises(ValueError, match="the module flash_mla has no get_mla_metadata; install a newer version"):
        run(latent([1, 1]), "flash_mla")


def test_a_call_without_queries_needs_no_library(libraries: dict[str, int]) -> None:
    case = Case(9, torch.float16, [90], [0], 2, 2, 64)
    name, out = Hopper().attend_by("flash_attention_3", *given(case), 0)
    assert name == "kvtide" and out.shape == (0, 4, 64) and libraries == {}


def test_tensors_on_the_cpu_import_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(backends.VARIABLE, "flash_attention_3")

    def imported(name: str, *functions: str) -> str:
        raise AssertionError(f"imports {name}")

    monkeypatch.setattr(backends, "_imported", imported)
    case = Case(9, torch.float16, [90, 100], [40, 30], 2, 2, 64)
    ops.attend(*given(case))
    ops.attend(*given(case), backend="auto")
    assert ops.attention_backend(*given(case), backend="auto") == backends.Choice("kvtide")
    for wanted in ORDER:
        with pytest.raises(ValueError, match=f"attention by {wanted}: pages are in host memory; libraries read GPU memory"):
            ops.attend(*given(case), backend=wanted)
    with pytest.raises(ValueError, match="backend='fa3' is unknown"):
        ops.attention_backend(*given(case), backend="fa3")


def test_few_queries_are_never_worth_a_library() -> None:
    assert [backends.may_use_library("auto", tokens) for tokens in (1, 4, 5, 64)] == [False, False, True, True]
    assert not backends.may_use_library("kvtide", 64) and backends.may_use_library("flashinfer", 1)
