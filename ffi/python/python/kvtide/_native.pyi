"""Types of the native module. `python -m mypy.stubtest kvtide._native` verifies that they match it."""

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

#: 64-bit words of a sequence's scores, and number of words before the first page's.
SCORE_WORDS: int
SCORE_HEAD: int
STATUSES: list[tuple[str, int, str]]
__version__: str

@final
class Memory:
    """Memory that array libraries can use without a copy (`torch.from_dlpack`)."""

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
    """Layout of one plane: frame `f` is at byte `offset + (f - first_frame) * stride` of tier 0."""

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
    """Memory layout of a session's pages."""

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
    """Pinned pages. `Channel.release` unpins them."""

@final
class Pass:
    """Result of a boundary."""

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
    """One ordered stream of engine work. One thread at a time may use it."""

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
    """Result of a lookup."""

    @property
    def blocks(self) -> int:
        """Blocks of the prefix that are cached on all shards."""
    @property
    def in_host_permille(self) -> int:
        """Approximate share of these blocks that is in host memory, in 1/1000. The rest is on NVMe."""

@final
class Lease:
    """A cached prefix, pinned until the lease expires or `Channel.seq_drop(lease.seq)`."""

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
        """Estimated seconds to load the whole prefix; 0 without a measurement."""

@final
class Copied:
    """Result of a copy of blocks."""

    @property
    def failed(self) -> list[int]:
        """Indices into the call's blocks of those that failed. After a load their bytes are undefined."""
    @property
    def status(self) -> str:
        """"ok" if no block failed. Otherwise the reason for the first failure: "io", "not_found", "not_admitted", ..."""
    @property
    def code(self) -> int:
        """The status as a code; 0 is ok. `kvtide.errors.BY_CODE` maps it to an exception class."""
    @property
    def level(self) -> str:
        """Of a store without failures: the level that all blocks have reached."""

@final
class Done:
    """Completion of a request that was started with `start_*`."""

    @property
    def ticket(self) -> int: ...
    @property
    def user(self) -> int: ...
    @property
    def result(self) -> Found | Lease | Copied | None:
        """What the blocking call would have returned."""
    @property
    def error(self) -> Error | None:
        """The exception that the blocking call would have raised."""

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
        """Return how many blocks of a prefix are cached. `hashes` are those of its blocks in order, 16 bytes each, as a list or
        concatenated. Without a lease the blocks may be evicted before they are loaded."""
    def lease(self, hash: bytes, count: int, seconds: float, *, timeout: float | None = None) -> Lease:
        """Pin a cached prefix of `count` blocks for `seconds`. `hash` is the hash of its last block. The lease ends with
        `seq_drop(lease.seq)` or when it expires, but not while a load from it runs. Its number stays in use until `seq_drop`.
        Raise `NotFound` if the prefix is no longer cached, `Invalid` if it has another number of blocks."""
    def load(self, lease: int, first: int, blocks: Sequence[int], *, timeout: float | None = None) -> Copied:
        """Copy blocks of a lease (`lease.seq`), starting at block index `first`, into these blocks of the engine's own memory.
        Raise `NotFound` if the lease has expired. After `TimedOut` or `DaemonGone` copies may still run: call `settle_blocks`."""
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
        """Cache blocks of the engine's own memory under `hashes`. `first` is the index of the first one in its prefix. `parent` is
        the hash of the block before it, None at the root. If a block fails, all later ones fail too. Wait until all have reached
        `level` ("published", "stored" or "durable"), or have failed."""
    def fetch(self, lease: int, first: int, count: int, *, timeout: float | None = None) -> Copied:
        """Read blocks of a lease from NVMe into host memory, as far as there is room."""
    def settle_blocks(self, *, timeout: float | None = None) -> None:
        """Wait until no request that ended before the daemon confirmed it (for example by timeout) accesses the engine's own
        memory."""
    def start_lookup(
        self, hashes: bytes | Sequence[bytes], *, timeout: float | None = None, user: int = 0
    ) -> int:
        """Start a lookup and return its ticket. `timeout` (seconds) is the request's deadline. The completion returns `user`.
        Raise `Again` if `depth` requests were started and their completions not taken."""
    def start_lease(
        self, hash: bytes, count: int, seconds: float, *, timeout: float | None = None, user: int = 0
    ) -> int: ...
    def start_load(
        self, lease: int, first: int, blocks: Sequence[int], *, timeout: float | None = None, user: int = 0
    ) -> int:
        """Start a load of at most 512 blocks and return its ticket."""
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
        """Start a store of at most 102 blocks and return its ticket. Start a store of child blocks after their parent's store
        ended."""
    def start_fetch(
        self, lease: int, first: int, count: int, *, timeout: float | None = None, user: int = 0
    ) -> int:
        """Start a fetch of at most 512 blocks and return its ticket."""
    def poll(self) -> list[Done]:
        """Return the completions that have arrived. Do not wait."""
    def wait(self, ticket: int, *, timeout: float | None = None) -> Done:
        """Wait for one request and return its completion. Raise `TimedOut` if the request still runs; the ticket stays valid. Raise
        `NotFound` if the ticket does not exist, or its completion was taken before."""
    def cancel(self, ticket: int) -> None:
        """Request cancellation. The request still completes: with `Canceled`, or normally if it ended first."""
    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a request completes after `arm`, or when the daemon is gone. An event
        loop polls until nothing comes, calls `arm`, and waits for the descriptor if the result was False. Never read from it."""
    def arm(self) -> bool:
        """Enable a wake-up through `fileno`. True: a completion has already arrived. Poll first; the descriptor may not signal
        it."""
    def close(self) -> None: ...
    def __enter__(self) -> Channel: ...
    def __exit__(self, *_raised: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class Session:
    """A session with the daemon. Its memory lives until the last tensor, channel and lane that uses it is gone."""

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
        """Register the engine's own blocks, replacing an earlier registration. There are `count` blocks. `pieces`
        (`kvtide.blocks.Piece`: plane, member, base address, stride, bytes) together make up each plane's page. An empty list
        removes the registration.

        `keep` owns the memory (an object or a list of tensors). The session holds a reference until nothing accesses the memory:
        until the next successful call, or the end of the session. Without it the caller must keep the memory alive. During a load
        into a block, or a store from it, no other code may write the block, nor read a block that is being loaded.

        Raise `Invalid` if the pieces do not add up to the planes' pages, `WrongState` if loads or stores are running."""
    def name_blocks(self, first: int, ids: Sequence[int]) -> None:
        """Map block names to block ids, for pieces with several members. Names start at `first`. `ids` has one id per member of
        each name, name after name. Each id is below `count`, or all ids of a name are `kvtide.blocks.UNNAMED`, which removes it.
        Loads and stores then take names as block numbers; a name without ids raises `OutOfRange`.

        An error changes nothing. Raise `Invalid` if `ids` is not a whole number of names, or an id is out of range. Raise
        `WrongState` if a load or store of one of the names is running, or if blocks have a single member. Raise `LimitReached` for
        more than 2^24 ids."""
    def allocate_blocks(self, count: int) -> list[Memory]:
        """Register blocks in zeroed memory that the session allocates. Return one array of bytes [count, page_bytes] per plane. The
        memory lives as long as an array refers to it."""
    def reattach(self, socket: str) -> Session: ...
    def detach(self) -> None: ...
    def __enter__(self) -> Session: ...
    def __exit__(self, *_raised: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class Attention:
    """Attention of one configuration on a device, with its workspace. One stream at a time may use it."""

    def whole(self, stream: int, batch: dict[str, object]) -> None: ...
    def begin(self, stream: int) -> None: ...
    def part(self, stream: int, batch: dict[str, object], items: int, count: int) -> None: ...
    def merge(self, stream: int, batch: dict[str, object]) -> None: ...
    def mass(self, stream: int, batch: dict[str, object], top: int, out: int) -> None: ...
    def emitted(self, seqs: int) -> Memory: ...

@final
class Batch:
    """Block ids, lengths and block tables of one lane's steps, on a device, at fixed addresses."""

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
    """Page kernels other than attention, on one device."""

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
    """Attention kernels on one device: write new tokens into their pages, and attend."""

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
