"""Chunks of `blocks_per_chunk`: larger blocks of kvtide, each of several of vLLM's blocks per cache group."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from .layout import MEMBERS_MAX, Groups

#: Id of vLLM's null block, which no request reads: loads put there what vLLM has already.
NULL_BLOCK = 0


def enlarge(groups: Groups, blocks_per_chunk: int) -> Groups:
    """Return the groups with blocks of kvtide that are `blocks_per_chunk` times as large. Raise ValueError if that is too large."""
    if groups.ids * blocks_per_chunk > MEMBERS_MAX:
        raise ValueError(
            f"kvtide: blocks_per_chunk is {blocks_per_chunk}; for this model it must be at most {MEMBERS_MAX // groups.ids}"
            f" (a block of kvtide holds at most {MEMBERS_MAX} of vLLM's blocks)"
        )
    members = tuple(count * blocks_per_chunk for count in groups.members)
    return dataclasses.replace(groups, page_tokens=groups.page_tokens * blocks_per_chunk, members=members)


def skip_computed(groups: Groups, ids: Sequence[int], tokens: int) -> list[int]:
    """Return the ids of consecutive blocks of kvtide with the null block in place of those that hold the first `tokens` tokens.

    vLLM's own prefix may end inside a block. Its blocks are in use and must not be written.
    """
    kept, at = list(ids), 0
    for group, members in zip(groups.groups, groups.members, strict=True):
        skipped = tokens // group.block_tokens
        kept[at : at + skipped] = [NULL_BLOCK] * skipped
        at += members
    return kept
