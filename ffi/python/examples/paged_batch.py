"""Pages of a batch of sequences, for the examples of other attention libraries (attend_*.py)."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor

import kernels_on_cpu
from kvtide.torch import ops


@dataclass(frozen=True)
class Batch:
    """Arguments of `kvtide.torch.ops.attend`."""

    query: Tensor
    pages: Tensor
    block_table: Tensor
    lengths: Tensor
    q_starts: Tensor
    q_tokens: int
    scale: float

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, int, float]:
        """Return them in order."""
        return self.query, self.pages, self.block_table, self.lengths, self.q_starts, self.q_tokens, self.scale


def device_of(words: str | None) -> torch.device:
    """Parse the command line. With --cpu-check, the library's name means its stand-in on the CPU from now on."""
    parser = argparse.ArgumentParser(description=words)
    parser.add_argument("--cpu-check", action="store_true", help="check tables and strides on the CPU, without the library")
    if not parser.parse_args().cpu_check:
        return torch.device("cuda")
    kernels_on_cpu.install()
    return torch.device("cpu")


def make(
    device: torch.device, tokens: list[int], queries: list[int], heads: int, page: tuple[int, ...], dtype: torch.dtype = torch.bfloat16
) -> Batch:
    """Write random keys and values of sequences of `tokens[i]` tokens into pages in a random order; the last `queries[i]` tokens have
    queries. `page`: the shape of a page, (2, kv_heads, page_tokens, head_dim) or (page_tokens, 576)."""
    torch.manual_seed(1)
    page_tokens, dim = page[-2:]
    counts = [-(-length // page_tokens) for length in tokens]
    pages = torch.zeros(sum(counts) + 1, *page, dtype=dtype, device=device)
    # As in kvtide's own block tables, -1 is a page that is in no frame.
    block_table = torch.full((len(tokens), max(counts)), -1, dtype=torch.int32)
    order = torch.randperm(sum(counts)).to(torch.int32) + 1
    for seq, count in enumerate(counts):
        block_table[seq, :count] = order[sum(counts[:seq]) :][:count]
    block_table = block_table.to(device)
    lengths = torch.tensor(tokens, dtype=torch.int32, device=device)
    starts = torch.tensor([0, *queries], dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)
    every = torch.tensor([0, *tokens], dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)
    latent = len(page) == 2
    rows = [torch.randn(sum(tokens), 1 if latent else page[1], dim, dtype=dtype, device=device) for _ in range(2)]
    ops.append(pages, rows[0], None if latent else rows[1], block_table, lengths, every)
    query = torch.randn(sum(queries), heads, dim, dtype=dtype, device=device)
    return Batch(query, pages, block_table, lengths, starts, max(queries), dim**-0.5)


def compare(library: str, found: Tensor, batch: Batch) -> int:
    """Compare a library's output with that of kvtide's kernels. Return the exit status: 1 if they differ by more than rounding."""
    expected = ops.attend(*batch.arguments, backend="kvtide")
    error = float((found.double() - expected.double()).norm() / expected.double().norm())
    print(f"{library}: {tuple(found.shape)} on {found.device}, relative difference from kvtide's kernels {error:.1e}")
    return 0 if error < 1e-2 else 1
