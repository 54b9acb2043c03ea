"""kvtide: more KV cache than the GPU has memory.

The client of the kvtide daemon: `attach` to a space, take a `Channel` for calls, and a `Lane` for the steps of an engine whose
KV is in kvtide's own pages. Engines that keep their KV in tensors of their own attach without tier 0 and use the block API:
`Session.set_blocks`, `Channel.lookup`, `lease`, `load`, `store`, `fetch`; `kvtide.blocks` describes tensors and hashes prompts.
Calls wait without the interpreter's lock; each handle is used by one thread at a time. `kvtide.torch` shows tier 0 as tensors
and decodes with transformers; `kvtide.daemon` starts a private daemon for experiments and tests.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from . import _native
from ._native import (
    Batch,
    Channel,
    Copied,
    Done,
    Found,
    Lane,
    Layout,
    Lease,
    Memory,
    Pass,
    Pin,
    PlaneLayout,
    Session,
    __version__,
)
from .blocks import Piece
from .errors import Error

__all__ = [
    "Batch",
    "Channel",
    "Copied",
    "Done",
    "Error",
    "Found",
    "Lane",
    "Layout",
    "Lease",
    "Memory",
    "Pass",
    "Piece",
    "Pin",
    "Plane",
    "PlaneLayout",
    "Session",
    "Space",
    "__version__",
    "attach",
]


@dataclass(frozen=True)
class Plane:
    """One layer, or a group of layers that share pages."""

    #: Bytes of a page of one shard.
    page_bytes: int
    #: What a step reads of it: every page, those of the last `window_tokens` tokens, or the newest snapshot alone.
    kind: Literal["full", "window", "state"] = "full"
    window_tokens: int = 0


@dataclass(frozen=True)
class Space:
    """What a session attaches to. Engines of one domain whose spaces are equal, but for their names, share blocks."""

    #: Its name, for humans alone.
    name: str
    #: 32 bytes that stand for weights and adapters: what makes KV of one engine valid for another.
    fingerprint: bytes
    #: Tokens of a page.
    page_tokens: int
    #: Planes of one shard, in the order in which a step visits them.
    planes: Sequence[Plane]
    #: Tensor-, pipeline-, context-parallel ranks, and which of them this session is.
    shards: int = 1
    shard: int = 0


def attach(
    socket: str | os.PathLike[str],
    space: Space,
    tier0_frames: Sequence[int] | None = None,
    *,
    lanes: int = 1,
    channels: int = 1,
    depth: int = 64,
    seqs_max: int = 1024,
    timeout: float = 10.0,
    token_file: str | os.PathLike[str] | None = None,
    device: str = "cpu",
    device_chunk_bytes: int = 0,
    device_memory: tuple[int, int] | None = None,
) -> Session:
    """Attaches to the daemon that listens at `socket`: allocates tier 0, opens the session, starts its copy thread.

    `tier0_frames` has one number for each class of planes of equal `page_bytes`, in the order in which they first appear;
    without it the session has no tier 0, and serves an engine's own blocks. `timeout` (seconds) bounds every wait that has no timeout of its own. `device` is where tier 0 is: "cpu", "cuda",
    "cuda:N" or "cuda:GPU-<uuid>"; on a GPU the agent allocates it in chunks of `device_chunk_bytes` (0: 64 MiB), or takes
    `device_memory` (address, bytes), which must stay until the session's memory is gone.
    """
    given: dict[str, object] = {
        "socket": os.fspath(socket),
        "token_file": None if token_file is None else os.fspath(token_file),
        "name": space.name,
        "fingerprint": list(space.fingerprint),
        "page_tokens": space.page_tokens,
        "planes": [(plane.page_bytes, plane.kind, plane.window_tokens) for plane in space.planes],
        "shards": space.shards,
        "shard": space.shard,
        "tier0_frames": None if tier0_frames is None else list(tier0_frames),
        "lanes": lanes,
        "channels": channels,
        "depth": depth,
        "seqs_max": seqs_max,
        "timeout": timeout,
        "device": device,
        "device_chunk_bytes": device_chunk_bytes,
        "device_memory": device_memory,
    }
    return _native.attach(given)
