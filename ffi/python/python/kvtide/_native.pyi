"""Types of the native half. `python -m mypy.stubtest kvtide._native` holds them to it."""

from types import TracebackType
from typing import Any, Sequence, final

from .errors import Error

__all__ = [
    "Attention",
    "Batch",
    "SCORE_HEAD",
    "SCORE_WORDS",
    "STATUSES",
    "Channel",
    "Copied",
    "Done",
    "Found",
    "Kernels",
    "Lane",
    "Layout",
    "Lease",
    "Memory",
    "Pass",
    "Pin",
    "PageKernels",
    "PlaneLayout",
    "Session",
    "__version__",
    "attach",
    "attend",
    "attend_mass",
    "attend_merge",
    "attend_pages",
    "attention_bytes",
    "block_tables",
    "copy_blocks",
    "dequantize",
    "digest_build",
    "digest_scores",
    "digest_select",
    "gpu_report",
    "image_bytes",
    "quantize",
]

#: 64-bit words of a sequence's scores, and those before the first page.
SCORE_WORDS: int
SCORE_HEAD: int
STATUSES: list[tuple[str, int, str]]
__version__: str

@final
class Memory:
    """A piece of memory that array libraries take without a copy (`torch.from_dlpack`)."""

    @property
    def address(self) -> int: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def dtype(self) -> str: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...

@final
class PlaneLayout:
    """One plane: frame `f` is at byte `offset + (f - first_frame) * stride` of tier 0."""

    @property
    def size_class(self) -> int: ...
    @property
    def page_bytes(self) -> int: ...
    @property
    def stride(self) -> int: ...
    @property
    def first_frame(self) -> int: ...
    @property
    def frames(self) -> int: ...
    @property
    def offset(self) -> int: ...

@final
class Layout:
    """Where a session's pages are in memory."""

    @property
    def tier0(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def page_tokens(self) -> int: ...
    @property
    def blocks_max(self) -> int: ...
    @property
    def planes(self) -> list[PlaneLayout]: ...

@final
class Pin:
    """Pinned pages, given back by `Channel.release`."""

@final
class Pass:
    """What a boundary found."""

    @property
    def all(self) -> bool: ...
    @property
    def last(self) -> bool: ...
    @property
    def count(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Lane:
    """One ordered stream of engine work. One thread uses it at a time."""

    @property
    def index(self) -> int: ...
    def begin(self, seqs: Sequence[tuple[int, int]]) -> None: ...
    def boundary(self, plane: int) -> Pass: ...
    def boundary_async(self, plane: int) -> None: ...
    def check(self) -> None: ...
    def status_word(self) -> int | None: ...
    def batch(self, seqs: int, max_blocks: int, table_planes: int = 1) -> Batch: ...
    def ready(self) -> list[tuple[int, int, int]]: ...
    def ready_memory(self) -> Memory: ...
    def end(self) -> None: ...
    def pte(self, block: int, plane: int) -> int | None: ...
    def page(self, seq: int, index: int, plane: int) -> bytes | None: ...
    def page_write(self, seq: int, index: int, plane: int, data: bytes, offset: int = 0) -> None: ...
    def table(self) -> Memory: ...
    def device_table(self) -> Memory | None: ...
    def bind(self, stream: int) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Lane: ...
    def __exit__(self, *_raised: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class Found:
    """What a lookup found."""

    @property
    def blocks(self) -> int:
        """Blocks of the prefix that are cached, whole over all shards."""
    @property
    def in_host_permille(self) -> int:
        """About the share of them that is in host memory, in thousandths; the rest is on NVMe."""

@final
class Lease:
    """A cached prefix that stays until its time is over, or `Channel.seq_drop(lease.seq)`."""

    @property
    def seq(self) -> int: ...
    @property
    def in_host(self) -> int: ...
    @property
    def on_nvme(self) -> int: ...
    @property
    def elsewhere(self) -> int: ...
    @property
    def load_seconds(self) -> float:
        """How long loading all of it takes, as far as that was measured; 0 if nothing was."""

@final
class Copied:
    """Blocks that were copied, and those that were not."""

    @property
    def failed(self) -> list[int]:
        """Indices into the call's blocks of those that were not. After a load their bytes are undefined."""
    @property
    def status(self) -> str:
        """"ok": none failed. Else the name of what befell the first one: "io", "not_found", "not_admitted", ..."""
    @property
    def code(self) -> int:
        """The same as a status code: `kvtide.errors.BY_CODE` has its class; 0 is ok."""
    @property
    def level(self) -> str:
        """Of a store without failures: how well all of it is kept."""

@final
class Done:
    """The end of a request that was started."""

    @property
    def ticket(self) -> int: ...
    @property
    def user(self) -> int: ...
    @property
    def result(self) -> Found | Lease | Copied | None:
        """What it ended with, as the call that waits would have returned it."""
    @property
    def error(self) -> Error | None:
        """What the call that waits would have raised."""

@final
class Channel:
    """The calls of one engine thread. A sequence belongs to the channel that created it."""

    @property
    def index(self) -> int: ...
    def nop(self, *, timeout: float | None = None) -> None: ...
    def seq_create(self) -> int: ...
    def seq_drop(self, seq: int) -> None: ...
    def reserve(self, seq: int, tokens: int, *, timeout: float | None = None) -> None: ...
    def reserve_session(self, blocks: int, *, timeout: float | None = None) -> int: ...
    def append(self, seq: int, tokens: int = 1) -> None: ...
    def commit(self, seq: int, tokens: int) -> None: ...
    def fork(self, seq: int, *, timeout: float | None = None) -> int: ...
    def truncate(self, seq: int, tokens: int, *, timeout: float | None = None) -> None: ...
    def publish(
        self,
        seq: int,
        first: int,
        parent: int,
        hashes: Sequence[int],
        *,
        level: str = "published",
        timeout: float | None = None,
    ) -> str: ...
    def map(self, seq: int, hashes: Sequence[int], *, timeout: float | None = None) -> int: ...
    def park(self, seq: int, due: float = 0.0) -> None: ...
    def resume(self, seq: int, *, timeout: float | None = None) -> None: ...
    def advise(self, seq: int, first: int, count: int, advice: str, value: int = 0) -> None: ...
    def acquire(
        self, seq: int, first: int, count: int, plane: int, planes: int = 1, *, timeout: float | None = None
    ) -> Pin: ...
    def release(self, pin: Pin) -> None: ...
    def tier0_resize(self, size_class: int, frames: int, *, timeout: float | None = None) -> int: ...
    def tier0_frames(self, size_class: int) -> int: ...
    def lookup(self, hashes: bytes | Sequence[bytes], *, timeout: float | None = None) -> Found:
        """How many blocks of a prefix are cached: `hashes` are those of its blocks in order, 16 bytes each, one by one or
        all in one piece. What is found may be dropped before it is loaded, unless a lease holds it."""
    def lease(self, hash: bytes, count: int, seconds: float, *, timeout: float | None = None) -> Lease:
        """Holds a cached prefix of `count` blocks for `seconds`; `hash` is that of the last one. It ends with
        `seq_drop(lease.seq)`, or by itself after that time, but not while it is loaded from; its number is in use until
        `seq_drop` in any case. `NotFound`: it is not cached any more. `Invalid`: it has another number of blocks."""
    def load(self, lease: int, first: int, blocks: Sequence[int], *, timeout: float | None = None) -> Copied:
        """Copies blocks of a lease (`lease.seq`), from block index `first` on, into these blocks of the engine's own memory.
        `NotFound`: the lease is over. After `TimedOut` and `DaemonGone` copies may go on for a moment: `settle_blocks`."""
    def store(
        self,
        first: int,
        parent: bytes | None,
        hashes: bytes | Sequence[bytes],
        blocks: Sequence[int],
        *,
        level: str = "published",
        timeout: float | None = None,
    ) -> Copied:
        """Makes blocks of the engine's own memory cached under `hashes`. `first` is the index of the first one in its prefix,
        `parent` the hash of the block before it, None at the root. From the first one that fails on all do. Waits until
        all have reached `level` ("published", "stored", "durable"), or cannot."""
    def fetch(self, lease: int, first: int, count: int, *, timeout: float | None = None) -> Copied:
        """Brings blocks of a lease that are on NVMe up into host memory, as far as there is room."""
    def settle_blocks(self, *, timeout: float | None = None) -> None:
        """Returns when nothing that was asked before, and has ended without the daemon's word, touches the engine's own
        memory any more."""
    def start_lookup(
        self, hashes: bytes | Sequence[bytes], *, timeout: float | None = None, user: int = 0
    ) -> int:
        """Begins what `lookup` waits for, and returns its ticket; `Again`: as many requests as the channel is deep have begun
        and were not taken. `timeout` is the request's deadline; `user` comes back with its end."""
    def start_lease(
        self, hash: bytes, count: int, seconds: float, *, timeout: float | None = None, user: int = 0
    ) -> int: ...
    def start_load(
        self, lease: int, first: int, blocks: Sequence[int], *, timeout: float | None = None, user: int = 0
    ) -> int:
        """Begins a load of at most 512 blocks."""
    def start_store(
        self,
        first: int,
        parent: bytes | None,
        hashes: bytes | Sequence[bytes],
        blocks: Sequence[int],
        *,
        level: str = "published",
        timeout: float | None = None,
        user: int = 0,
    ) -> int:
        """Begins a store of at most 102 blocks. One that stands on blocks of another is begun when that has ended."""
    def start_fetch(
        self, lease: int, first: int, count: int, *, timeout: float | None = None, user: int = 0
    ) -> int:
        """Begins a fetch of at most 512 blocks."""
    def poll(self) -> list[Done]:
        """Takes the ends of requests that have ended; does not wait."""
    def wait(self, ticket: int, *, timeout: float | None = None) -> Done:
        """Waits for the end of one request and takes it. `TimedOut`: it goes on, and the ticket stays good. `NotFound`: there is
        no such ticket, or its end was taken before."""
    def cancel(self, ticket: int) -> None:
        """Asks to cancel a request. It still ends: with `Canceled` or, if that was first, as it would have."""
    def fileno(self) -> int:
        """The descriptor that becomes readable when a request ends after `arm`, or the daemon is gone. For event loops, which
        poll until nothing comes, arm, and sleep on it if that was False; never read it."""
    def arm(self) -> bool:
        """Asks for a wake-up through `fileno`. True: something has ended already; poll first, the descriptor may stay silent."""
    def close(self) -> None: ...
    def __enter__(self) -> Channel: ...
    def __exit__(self, *_raised: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class Session:
    """A session with the daemon. Its memory lives until the last tensor, channel and lane of it is gone."""

    def channel(self, index: int = 0) -> Channel: ...
    def lane(self, index: int = 0) -> Lane: ...
    @property
    def layout(self) -> Layout: ...
    def frames(self, plane: int) -> Memory: ...
    def stats(self) -> dict[str, int]: ...
    @property
    def alive(self) -> bool: ...
    def seq_blocks(self, seq: int) -> list[int]: ...
    def set_blocks(
        self, count: int, pieces: Sequence[tuple[int, int, int, int, int]], *, keep: object | None = None
    ) -> None:
        """Says where the engine's own blocks are: `count` of them, in `pieces` (`kvtide.blocks.Piece`: plane, member, base
        address, stride, bytes) that together are each plane's page; without pieces there are none. What was said before holds
        no longer. `keep` owns the memory, or all tensors of it: it is kept until nothing touches them any more, that is until the
        next call that succeeds, or the end of the session; without it the caller sees to that. While a load into a block or
        a store from it is under way nobody else may write there, nor read what is loaded.

        `Invalid`: the pieces do not add up to the planes' pages. `WrongState`: loads or stores are under way."""
    def name_blocks(self, first: int, ids: Sequence[int]) -> None:
        """Says what blocks' names stand for, where the pieces have several members: the names from `first` on, `ids` having one id
        for each member of each name, one name after another, all below `count`, or `kvtide.blocks.UNNAMED` for all of a name.
        The numbers that loads and stores are given are names then; one that stands for nothing is refused (`OutOfRange`).

        Nothing is changed after: `Invalid`: ids that are no whole names, or out of range. `WrongState`: a load or store of one
        of the names is under way, or blocks have one member alone. `LimitReached`: more than 2^24 ids."""
    def allocate_blocks(self, count: int) -> list[Memory]:
        """The same with memory that the session allocates, all zeroes: for each plane bytes [count, page_bytes], which stay as
        long as an array of them lives."""
    def reattach(self, socket: str) -> Session: ...
    def detach(self) -> None: ...
    def __enter__(self) -> Session: ...
    def __exit__(self, *_raised: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class Attention:
    """Attention of one configuration on a device, with its workspace. One stream uses it at a time."""

    def whole(self, stream: int, batch: dict[str, object]) -> None: ...
    def begin(self, stream: int) -> None: ...
    def part(self, stream: int, batch: dict[str, object], items: int, count: int) -> None: ...
    def merge(self, stream: int, batch: dict[str, object]) -> None: ...
    def mass(self, stream: int, batch: dict[str, object], top: int, out: int) -> None: ...
    def emitted(self, seqs: int) -> Memory: ...

@final
class Batch:
    """Block ids, lengths and block tables of one lane's steps on a device, at addresses that never change."""

    @property
    def seqs(self) -> int: ...
    @property
    def max_blocks(self) -> int: ...
    def set(self, seqs: Sequence[tuple[int, int]]) -> None: ...
    def tables(self, first: int, count: int = 1, absent: int = ...) -> None: ...
    def lengths(self) -> Memory: ...
    def block_ids(self) -> Memory: ...
    def block_tables(self) -> Memory: ...
    def misses(self) -> Memory: ...

@final
class PageKernels:
    """The kernels over pages other than attention's, on one device."""

    def __new__(cls, ordinal: int) -> PageKernels: ...
    def copy_blocks(
        self,
        stream: int,
        source: dict[str, int],
        target: dict[str, int],
        shape: dict[str, int],
        items: int,
        count: int,
    ) -> None: ...
    def quantize(self, stream: int, rows: dict[str, int], shape: dict[str, int], images: dict[str, object]) -> None: ...
    def dequantize(self, stream: int, rows: dict[str, int], shape: dict[str, int], images: dict[str, object]) -> None: ...
    def digest_build(self, stream: int, build: dict[str, object]) -> None: ...
    def digest_scores(self, stream: int, scores: dict[str, object]) -> None: ...
    def digest_select(self, stream: int, select: dict[str, object]) -> None: ...
    def block_tables(self, stream: int, tables: dict[str, object]) -> None: ...

@final
class Kernels:
    """What attention needs, on one device: new tokens into their pages, and attention itself."""

    def __new__(cls, ordinal: int) -> Kernels: ...
    def append(self, stream: int, new: dict[str, object]) -> None: ...
    def attention(self, config: dict[str, object]) -> Attention: ...

def gpu_report() -> str: ...
def attach(given: dict[str, object]) -> Session: ...
def attend(given: dict[str, object], table: Sequence[Sequence[int]], out: int) -> None: ...
def attend_pages(given: dict[str, object], work: Sequence[Sequence[int]]) -> None: ...
def attend_merge(given: dict[str, object], out: int) -> None: ...
def attend_mass(
    given: dict[str, object], table: Sequence[Sequence[int]], out: int, top: int, scores: int
) -> None: ...
def attention_bytes(config: dict[str, object]) -> int: ...
def block_tables(asked: dict[str, object]) -> None: ...
def copy_blocks(
    source: dict[str, object], target: dict[str, object], shape: dict[str, int], items: Sequence[Sequence[int]]
) -> None: ...
def image_bytes(shape: dict[str, int], codec: int) -> int: ...
def quantize(
    rows: dict[str, object],
    shape: dict[str, int],
    codec: int,
    bf16: bool,
    items: Sequence[Sequence[int]],
    images: int,
    refused: int,
) -> None: ...
def dequantize(
    images: int, rows: dict[str, object], shape: dict[str, int], codec: int, bf16: bool, items: Sequence[Sequence[int]]
) -> None: ...
def digest_build(
    rows: dict[str, object], shape: dict[str, int], bf16: bool, items: Sequence[Sequence[int]], plane: dict[str, int]
) -> None: ...
def digest_scores(plane: dict[str, int], asked: dict[str, object]) -> None: ...
def digest_select(given: dict[str, object]) -> None: ...
