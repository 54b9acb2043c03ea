"""Attention backends on a GPU: kvtide's own kernels, and installed libraries that read kvtide's pages unmodified.

`ops.attend`, `Paging` and `KvtideCache` take `backend`; without it the environment variable `KVTIDE_ATTENTION` counts:

| value | effect |
| --- | --- |
| `kvtide` | kvtide's own kernels: the default |
| `auto` | a library where it is expected to be faster, is installed and takes the call; else kvtide's kernels |
| `flash_attention_3`, `flash_mla`, `flashinfer` | this library; an error with the reason if it is not installed or does not take the call |

- **Bits.** kvtide's kernels give the same bits in passes and as a whole. A library's results differ from them in rounding, and with
  `auto` depend on which planes fit into tier 0. This is why the default is `kvtide`.
- **What `auto` prefers.** FlashAttention-3, then FlashInfer, for prefill; FlashMLA, then FlashInfer, for latent pages (MLA) with
  many heads. No speed was measured yet.
- **What stays with kvtide's kernels.** Passes, partial results, pages in host memory, `append`.
- **Waits.** CUDA may load a library's kernels at their first use, which may wait until the device is idle. No stream may wait for
  pages meanwhile, so `Paging` waits on the host in each step that may use a library. Engines that call `ops.attend` with a library
  use `Lane.boundary`, not `boundary_async`. Unlike kvtide's kernels, a library writes its output even if a page did not arrive; the
  step's end reports that, and the output must not be used.
- **FlashInfer** plans each call on the host. `Paging` knows the lengths there; `ops.attend` gets them from the GPU and waits, so
  `auto` does not use it there.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from . import layouts
from .memory import LATENT_VALUE_DIM
from .shapes import kv

if TYPE_CHECKING:
    from .cuda import Device

__all__ = ["AUTO", "KVTIDE", "VARIABLE", "Choice", "names", "requested"]

#: Name of kvtide's own kernels, and of the choice by call.
KVTIDE, AUTO = "kvtide", "auto"
#: The environment variable with the backend of calls that do not name one.
VARIABLE = "KVTIDE_ATTENTION"
#: Rows of a KV head (queries × group) beyond which kvtide uses its kernel for many queries; `DECODE_ROWS_MAX` of the kernels.
_DECODE_ROWS_MAX = 64
#: Largest group of query heads of kvtide's kernels.
_GROUP_MAX = 16
#: Rows (queries × heads) of latent pages from which `auto` prefers a library: FlashMLA computes 64 rows at once.
_LATENT_ROWS_MIN = 64
#: Bytes of FlashInfer's workspace, one for each stream: what its documents recommend.
_FLASHINFER_WORKSPACE_BYTES = 128 << 20


@dataclass(frozen=True)
class Call:
    """One attention over pages that are all readable: the arguments of `ops.attend`, and the state of the device."""

    query: Tensor
    pages: Tensor
    block_table: Tensor
    lengths: Tensor
    q_starts: Tensor
    q_tokens: int
    scale: float
    window: int
    #: Compute capability of the device.
    capability: tuple[int, int]
    #: A graph of the current stream is captured.
    capturing: bool = False
    #: Tokens and number of queries of each sequence, if known on the host.
    on_host: tuple[list[int], list[int]] | None = None

    @property
    def latent(self) -> bool:
        """Return whether the pages hold latent vectors."""
        return self.pages.dim() == 3

    @property
    def rows(self) -> int:
        """Return the maximum number of queries × heads that read one KV head of a sequence."""
        return self.q_tokens * (self.query.shape[1] // kv(self.pages)[0])


@dataclass(frozen=True)
class Choice:
    """The backend of a call."""

    #: "kvtide", or the name of a library.
    name: str
    #: Why the libraries before it in the order of preference are not used, by name.
    reasons: dict[str, str] = field(default_factory=dict)


class Library(Protocol):
    """A library with attention over pages."""

    name: str

    def needless(self, call: Call) -> str | None:
        """Return why `auto` leaves a call to other kernels although this library may take it, or None."""

    def unsuited(self, call: Call) -> str | None:
        """Return why the library cannot take a call, or None. Import it last."""

    def run(self, call: Call, device: Device) -> Tensor:
        """Compute a call that suits the library. Return [tokens, heads, dim]."""


@functools.cache
def _imported(name: str, *functions: str) -> ModuleType | str:
    """Import a module; return a reason instead if it is not installed or lacks one of the functions. Cached, because a search for a
    module that is not installed takes longer than a launch."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name + ".").startswith(error.name + "."):
            return f"the module {name} is not installed"
        return f"the module {name} cannot be imported: {error}"
    except (ImportError, OSError) as error:
        return f"the module {name} cannot be imported: {error}"
    absent = [function for function in functions if not hasattr(module, function)]
    return f"the module {name} has no {', '.join(absent)}; install a newer version" if absent else module


def _unavailable(name: str, *functions: str) -> str | None:
    found = _imported(name, *functions)
    return found if isinstance(found, str) else None


def _hopper(call: Call) -> str | None:
    """Return why kernels for compute capability 9.0 do not run, or None."""
    if call.capability[0] == 9:
        return None
    return f"the GPU has compute capability {call.capability[0]}.{call.capability[1]}; it needs 9.0"


def _few_rows(call: Call) -> str | None:
    """Return why kvtide's kernels are preferred for a call with few rows, or None."""
    if call.latent:
        return f"{call.rows} rows are fewer than {_LATENT_ROWS_MIN}" if call.rows < _LATENT_ROWS_MIN else None
    return f"{call.rows} rows of a KV head are decode, not prefill" if call.rows <= _DECODE_ROWS_MAX else None


class FlashAttention3:
    """FlashAttention-3, `flash_attn_interface`: prefill over pages of heads."""

    name = "flash_attention_3"

    def needless(self, call: Call) -> str | None:
        return _few_rows(call)

    def unsuited(self, call: Call) -> str | None:
        reason = layouts.unsuited_to_flash_attention_3(call.pages) or _hopper(call)
        return reason or _unavailable("flash_attn_interface", "flash_attn_with_kvcache")

    def run(self, call: Call, device: Device) -> Tensor:
        module: Any = importlib.import_module("flash_attn_interface")
        arguments = layouts.flash_attention_3(
            device.rows(call.query), call.pages, call.block_table, call.lengths, call.q_starts, call.q_tokens, call.scale, call.window
        )
        out: Tensor = module.flash_attn_with_kvcache(**arguments)
        return out


class FlashMla:
    """FlashMLA, `flash_mla`: decode over latent pages."""

    name = "flash_mla"

    def needless(self, call: Call) -> str | None:
        return _few_rows(call)

    def unsuited(self, call: Call) -> str | None:
        seqs = call.lengths.shape[0]
        reason = layouts.unsuited_to_flash_mla(call.query, call.pages, seqs, call.q_tokens, call.window) or _hopper(call)
        return reason or _unavailable("flash_mla", "get_mla_metadata", "flash_mla_with_kvcache")

    def run(self, call: Call, device: Device) -> Tensor:
        module: Any = importlib.import_module("flash_mla")
        arguments = layouts.flash_mla(
            device.rows(call.query), call.pages, call.block_table, call.lengths, call.q_starts, call.q_tokens, call.scale
        )
        metadata, splits = module.get_mla_metadata(arguments["cache_seqlens"], call.rows, 1)
        out: Tensor = module.flash_mla_with_kvcache(**arguments, tile_scheduler_metadata=metadata, num_splits=splits)[0]
        return out.reshape(*call.query.shape[:2], LATENT_VALUE_DIM)


class FlashInfer:
    """FlashInfer, `flashinfer`: prefill over pages of heads, decode over latent pages."""

    name = "flashinfer"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workspaces: dict[tuple[int, int], Tensor] = {}
        #: A wrapper keeps the kernels of its first plan, so it is for one kind of call.
        self._wrappers: dict[tuple[object, ...], Any] = {}
        #: Lengths of the last plan of each wrapper, and a wait for the end of the work that uses it.
        self._planned: dict[tuple[object, ...], tuple[tuple[list[int], list[int]], Callable[[], None]]] = {}

    def needless(self, call: Call) -> str | None:
        if call.on_host is None:
            return "its plan needs the lengths on the host, and reading them from the GPU would wait"
        return _few_rows(call)

    def unsuited(self, call: Call) -> str | None:
        reason = layouts.unsuited_to_flashinfer(call.pages, call.window)
        if reason is None and call.capturing:
            reason = "a graph is captured, and its plan runs on the host"
        reason = reason or _unavailable("flashinfer", "BatchPrefillWithPagedKVCacheWrapper")
        return reason or (_unavailable("flashinfer.mla", "BatchMLAPagedAttentionWrapper") if call.latent else None)

    def run(self, call: Call, device: Device) -> Tensor:
        on_host = call.on_host or (call.lengths.tolist(), call.q_starts.diff().tolist())
        found = layouts.flashinfer_tables(
            call.block_table, call.pages, call.lengths, call.q_starts, call.window, on_host=on_host
        )
        query, (kind, wrapper) = device.rows(call.query), self._wrapper(call, device, on_host)
        kv_heads, page_tokens, head_dim = kv(call.pages)
        q_indptr, indptr, last, lengths = (
            device.pinned(each) for each in (found.q_indptr, found.indptr, found.last_page_len, found.lengths)
        )
        dtype = query.dtype
        if call.latent:
            rest = head_dim - LATENT_VALUE_DIM
            sizes = (query.shape[1], LATENT_VALUE_DIM, rest, page_tokens)
            wrapper.plan(q_indptr, indptr, found.indices, lengths, *sizes, True, call.scale, dtype, dtype)
            out: Tensor = wrapper.run(*layouts.flashinfer_latent(query), *layouts.flashinfer_latent(call.pages))
            self._planned[kind] = on_host, device.mark()
            return out
        sizes = (query.shape[1], kv_heads, head_dim, page_tokens)
        left = call.window - 1 if call.window else -1
        more: dict[str, object] = {"causal": True, "sm_scale": call.scale, "window_left": left}
        wrapper.plan(q_indptr, indptr, found.indices, last, *sizes, **more, q_data_type=dtype, kv_data_type=dtype)
        out = wrapper.run(query, call.pages)
        self._planned[kind] = on_host, device.mark()
        return out

    def _wrapper(self, call: Call, device: Device, on_host: tuple[list[int], list[int]]) -> tuple[tuple[object, ...], Any]:
        """Return the kind of a call on the current stream, and its wrapper, ready for a plan of these lengths.

        `plan` fills pinned memory that the stream copies later. It may fill it again for the next plane of a step, because that
        plan is equal. Otherwise the stream must have run the last plane with the wrapper: after a step it has, so this waits only if
        a step was abandoned.
        """
        module: Any = importlib.import_module("flashinfer.mla" if call.latent else "flashinfer")
        place = (device.ordinal, device.stream())
        # All that a plan depends on besides the lengths: planes of a step that share a wrapper have equal plans.
        kind = (*place, tuple(call.pages.shape[1:]), call.pages.dtype, call.query.shape[1], call.window)
        with self._lock:
            if place not in self._workspaces:
                self._workspaces[place] = device.empty((_FLASHINFER_WORKSPACE_BYTES,), torch.uint8)
            if kind not in self._wrappers:
                workspace = self._workspaces[place]
                self._wrappers[kind] = (
                    module.BatchMLAPagedAttentionWrapper(workspace)
                    if call.latent
                    else module.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND")
                )
            planned, wait = self._planned.get(kind, (on_host, None))
            if planned != on_host and wait is not None:
                wait()
            return kind, self._wrappers[kind]


#: The libraries in the order of preference.
LIBRARIES: dict[str, Library] = {library.name: library for library in (FlashAttention3(), FlashMla(), FlashInfer())}


def names() -> list[str]:
    """Return the values that `backend` and `KVTIDE_ATTENTION` take."""
    return [KVTIDE, AUTO, *LIBRARIES]


def requested(backend: str | None = None) -> str:
    """Return the backend that calls on a GPU request: `backend`, else the environment variable `KVTIDE_ATTENTION`, else "kvtide".

    Raise ValueError if it is unknown.
    """
    source, value = ("backend", backend) if backend is not None else (VARIABLE, os.environ.get(VARIABLE, KVTIDE))
    if value not in (KVTIDE, AUTO) and value not in LIBRARIES:
        raise ValueError(f"{source}={value!r} is unknown; use one of {', '.join(names())}")
    return value


def check_host(backend: str | None, what: str) -> None:
    """Check the backend of attention over `what`, which is in host memory. Raise ValueError if it is a library."""
    if backend is not None and requested(backend) not in (KVTIDE, AUTO):
        raise ValueError(f"attention by {backend}: {what} in host memory; libraries read GPU memory. Use backend={AUTO!r} or {KVTIDE!r}")


def may_use_library(wanted: str, q_tokens: int) -> bool:
    """Return whether a step with at most `q_tokens` queries of a sequence, over pages of heads, may use a library."""
    return wanted not in (KVTIDE, AUTO) or (wanted == AUTO and q_tokens * _GROUP_MAX > _DECODE_ROWS_MAX)


def choose(call: Call, wanted: str) -> Choice:
    """Return the backend of a call. Raise ValueError with the reason if `wanted` is a library that cannot take it."""
    if wanted == KVTIDE:
        return Choice(KVTIDE)
    if wanted != AUTO:
        reason = LIBRARIES[wanted].unsuited(call)
        if reason is not None:
            raise ValueError(f"attention by {wanted}: {reason}. Use backend={AUTO!r} or {KVTIDE!r}")
        return Choice(wanted)
    reasons: dict[str, str] = {}
    for library in LIBRARIES.values():
        reason = library.needless(call) or library.unsuited(call)
        if reason is None:
            return Choice(library.name, reasons)
        reasons[library.name] = reason
    return Choice(KVTIDE, reasons)
