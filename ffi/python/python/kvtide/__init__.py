"""kvtide: KV cache beyond GPU memory.

Client of the kvtide daemon. `attach` opens a session on a space. A `Channel` makes calls. A `Lane` runs the steps of an engine
whose KV is in kvtide's own pages.

Engines that keep their KV in their own tensors attach without tier 0 and use the block API: `Session.set_blocks`, `Channel.lookup`,
`lease`, `load`, `store`. `kvtide.blocks` describes tensors and hashes prompts.

>>> import kvtide
>>> space = kvtide.Space("example", bytes([3] * 32), page_tokens=16, planes=[kvtide.Plane(4096)])
>>> with kvtide.attach(socket, space) as session, session.channel() as channel:
...     channel.lookup([bytes([1] * 16)])
LookupResult(blocks=0, in_host_permille=0)

Blocking calls release the GIL. One thread at a time may use a handle. `kvtide.torch` shows tier 0 as tensors and decodes with
transformers. `kvtide.daemon` starts a private daemon for experiments and tests.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from . import _native
from ._native import (
    Answer,
    Batch,
    Channel,
    Completion,
    CopyResult,
    Lane,
    Layout,
    Lease,
    LookupResult,
    Memory,
    PagedAttention,
    Pass,
    Pin,
    PlaneLayout,
    Relay,
    Session,
    __version__,
    gpu_numa_node,
)
from .blocks import Level, Piece
from .errors import Error

__all__ = [
    "Answer",
    "Batch",
    "Channel",
    "Completion",
    "CopyResult",
    "Digests",
    "Error",
    "Lane",
    "Layout",
    "Lease",
    "Level",
    "LookupResult",
    "Memory",
    "PagedAttention",
    "Pass",
    "Piece",
    "Pin",
    "Plane",
    "PlaneLayout",
    "Relay",
    "Session",
    "Space",
    "__version__",
    "attach",
    "gpu_numa_node",
]


@dataclass(frozen=True)
class Plane:
    """A layer, or a group of layers that share pages."""

    #: Bytes of one page of one shard.
    page_bytes: int
    #: Pages that a step reads: all ("full"), those of the last `window_tokens` tokens ("window"), or the newest snapshot ("state").
    kind: Literal["full", "window", "state"] = "full"
    #: Tokens that a query sees, for kind "window".
    window_tokens: int = 0


@dataclass(frozen=True)
class Space:
    """The space that a session attaches to. Engines of one domain share blocks if their spaces are equal; the name does not
    count."""

    #: Name, for display only.
    name: str
    #: 32 bytes that identify weights and adapters: KV of one engine is valid for another only if they are equal.
    fingerprint: bytes
    #: Tokens per page.
    page_tokens: int
    #: Planes of one shard, in the order in which a step visits them.
    planes: Sequence[Plane]
    #: Number of shards: tensor-, pipeline- and context-parallel ranks.
    shards: int = 1
    #: Index of this session's shard.
    shard: int = 0
    #: Text that describes everything that the fingerprint covers, at most 4096 bytes. The daemon keeps it, and returns it as
    #: `Session.other_identity` to an engine of the same name with another fingerprint. Not part of the comparison.
    identity: str = field(default="", compare=False)
    #: Keep the space on this machine: relays do not hear of it. For a fingerprint that means nothing elsewhere. The first engine of
    #: the space decides.
    local: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Digests:
    """Summaries of the keys in a session's pages, which estimate how much attention a query gives to a page.

    Each page is `K[kv_heads][page_tokens][head_dim]`, then V, in float16 or bfloat16, in all planes."""

    kv_heads: int
    head_dim: int
    bf16: bool
    #: Number of pages with digests. Their memory is taken from tier 0's frames, about 5 % of a page for each.
    pages: int


#: Maximum bytes of a socket's path (unix(7): `sun_path` without its end).
SOCKET_BYTES_MAX = 107
#: Environment variable that names the file of the token, as for C programs.
TOKEN_FILE = "KVTIDE_TOKEN_FILE"


def _path(name: str, given: str | os.PathLike[str], bytes_max: int = 4096) -> str:
    """Return a path as a string. Raise TypeError if it is none, ValueError if it is empty, a URL, begins with ~, or is too long."""
    path = os.fspath(given)
    if not isinstance(path, str):
        raise TypeError(f"{name}: {path!r} is bytes; give a str, for example os.fsdecode(path)")
    if not path:
        raise ValueError(f"{name}: the path is empty")
    if "://" in path or path.startswith("~"):
        raise ValueError(f"{name}: {path!r} is no path of a file; URLs and ~ are not expanded")
    if (size := len(os.fsencode(path))) > bytes_max:
        raise ValueError(f"{name}: the path has {size} bytes, at most {bytes_max} are possible: {path!r}")
    return path


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
    mapped_frames: int = 0,
    guaranteed_blocks: int = 0,
    digests: Digests | None = None,
    max_stall: float = 0.0,
    numa_node: int | None = None,
) -> Session:
    """Attach to the daemon that listens at `socket`: allocate tier 0, open the session, start its copy thread.

    `tier0_frames` has one number for each class of planes of equal `page_bytes`, in the order in which they first appear. Without
    it the session has no tier 0 and serves the engine's own blocks. `timeout` (seconds) bounds each wait that has no timeout of its
    own.

    `device` is the location of tier 0: "cpu", "cuda", "cuda:N" or "cuda:GPU-<uuid>". On a GPU the agent allocates it in chunks of
    `device_chunk_bytes` (0: 64 MiB), or uses `device_memory` (address, bytes), which must stay valid until the session's memory is
    released.

    `mapped_frames` is the number of frames of each class that have no memory of their own: they show pages in the daemon's host
    memory, which are then read there without a copy. For sequences under "approx" (`Channel.set_contract`), `digests` are kept of
    keys, by which pages are selected, and a step waits at most `max_stall` seconds in each plane for selected pages.

    `guaranteed_blocks` is the number of blocks that the session may have at the same time, whatever other sessions do. Blocks that
    other sessions refer to as well do not count. Cached blocks use the memory meanwhile.

    `token_file` is the file with the token of the engine's domain; without it, the environment variable `KVTIDE_TOKEN_FILE` may name
    one. Without both, the daemon identifies the process by its user id.

    `numa_node` is the node on which the session asks for host memory. Without it that is the node of `device`, else that of the CPUs to which this process is bound. An engine that keeps KV in GPU memory of its own passes
    `gpu_numa_node` of its GPU.

    Raise `DaemonGone` if nothing listens at `socket`, `WrongVersion`, `NotPermitted` or `LimitReached` if the daemon rejects the
    session, `NoSpace` if it cannot guarantee the blocks, and another `kvtide.Error` for other failures. The text of a `TypeError` or
    `ValueError` names the wrong argument.
    """
    if not isinstance(space, Space):
        raise TypeError(f"space is {space!r}; expected a kvtide.Space(name, fingerprint, page_tokens=..., planes=[...])")
    for index, plane in enumerate(space.planes):
        if not isinstance(plane, Plane):
            raise TypeError(f"planes[{index}] is {plane!r}; expected a kvtide.Plane(page_bytes)")
    if digests is not None and not isinstance(digests, Digests):
        raise TypeError(f"digests is {digests!r}; expected a kvtide.Digests(kv_heads, head_dim, bf16, pages) or None")
    named, token_file = ("token_file", token_file) if token_file is not None else (TOKEN_FILE, os.environ.get(TOKEN_FILE))
    given: dict[str, object] = {
        "socket": _path("socket", socket, SOCKET_BYTES_MAX),
        "token_file": None if token_file is None else _path(named, token_file),
        "name": space.name,
        "fingerprint": space.fingerprint,
        "identity": space.identity,
        "local": space.local,
        "page_tokens": space.page_tokens,
        "planes": [(plane.page_bytes, plane.kind, plane.window_tokens) for plane in space.planes],
        "shards": space.shards,
        "shard": space.shard,
        "tier0_frames": tier0_frames,
        "lanes": lanes,
        "channels": channels,
        "depth": depth,
        "seqs_max": seqs_max,
        "timeout": timeout,
        "device": device,
        "device_chunk_bytes": device_chunk_bytes,
        "device_memory": device_memory,
        "mapped_frames": mapped_frames,
        "guaranteed_blocks": guaranteed_blocks,
        "digests": None if digests is None else (digests.kv_heads, digests.head_dim, digests.bf16, digests.pages),
        "max_stall": max_stall,
        "numa_node": numa_node,
    }
    return _native.attach(given)
