"""Types of the native module. `python -m mypy.stubtest kvtide._native` verifies that they match it."""

from types import TracebackType
from typing import Any, Sequence, final

from .blocks import Level
from .errors import Error

__all__ = [
    "Answer",
    "Attention",
    "Batch",
    "STATUSES",
    "Channel",
    "Completion",
    "CopyResult",
    "Kernels",
    "Lane",
    "Layout",
    "Lease",
    "LookupResult",
    "Memory",
    "PagedAttention",
    "Pass",
    "Pin",
    "PlaneLayout",
    "Relay",
    "Session",
    "__version__",
    "attach",
    "attend",
    "attention_bytes",
    "gpu_numa_node",
    "local_hash",
    "use_openmp",
]

STATUSES: list[tuple[str, int, str]]
__version__: str

@final
class Memory:
    """Memory that array libraries can use without a copy (`torch.from_dlpack`)."""

    @property
    def address(self) -> int:
        """Address of the first byte."""
    @property
    def shape(self) -> list[int]:
        """Elements in each dimension."""
    @property
    def dtype(self) -> str:
        """Element type: "uint8" or "int32"."""
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
    def size_class(self) -> int:
        """Size class of the plane's pages."""
    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
    @property
    def stride(self) -> int:
        """Bytes from one frame to the next."""
    @property
    def first_frame(self) -> int:
        """First frame of the class."""
    @property
    def frames(self) -> int:
        """Number of frames of the class."""
    @property
    def offset(self) -> int:
        """Byte offset of the class in tier 0."""

@final
class Layout:
    """Memory layout of a session's pages."""

    @property
    def tier0(self) -> int:
        """Address of tier 0's first byte."""
    @property
    def nbytes(self) -> int:
        """Bytes of tier 0."""
    @property
    def page_tokens(self) -> int:
        """Tokens per page."""
    @property
    def blocks_max(self) -> int:
        """Number of block ids; ids are below it."""
    @property
    def planes(self) -> list[PlaneLayout]:
        """Planes, in step order."""

@final
class Pin:
    """Pinned pages. `Channel.release` unpins them."""

@final
class Pass:
    """Result of a boundary."""

    @property
    def whole(self) -> bool:
        """Every page that the plane needs is readable, and no earlier pass returned any of them."""
    @property
    def last(self) -> bool:
        """This pass completes the plane."""
    @property
    def count(self) -> int:
        """Number of pages in the lane's `ready`; 0 if `whole`."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Lane:
    """One ordered stream of engine work. One thread at a time may use it. A context manager that closes it."""

    @property
    def index(self) -> int:
        """Index of the lane in the session."""
    def begin(self, seqs: Sequence[tuple[int, int]]) -> None:
        """Begin a step over `(sequence, tokens that attention covers)`."""
    def boundary(self, plane: int) -> Pass:
        """Run a boundary before the pages of `plane` are read. Wait only if no missing page became readable."""
    def boundary_async(self, plane: int) -> None:
        """Run a boundary without waiting: the lane's stream waits until every page of the plane is readable. Requires a GPU and a
        step that fits into tier 0; otherwise raise `WrongState`, and `boundary` must be used."""
    def open_gates(self) -> None:
        """Open the gates of the step that `begin` began, in place of boundaries: from now on each gate in the lane's stream waits for
        its plane. Then launch the graph that contains the gates, and call `end`. Raise `WrongState` where `boundary_async` does, and
        after a boundary."""
    def gate(self, plane: int) -> None:
        """Enqueue the gate of `plane` on the lane's stream, before the kernels that read the plane's pages. It may be captured into a
        CUDA graph: capture on the lane's stream (`torch.cuda.graph(graph, stream=...)`). Gates come in ascending order of planes.
        Outside of a gated step they return at once."""
    def check(self) -> None:
        """Raise the error of a boundary that failed while the stream waited for it; later kernels' output is then invalid. Call it
        after the stream has passed the step's last kernel."""
    def status_word(self) -> int | None:
        """Return the address of the device word that is not 0 after a boundary of the step failed in the stream; None without a
        device."""
    def batch(self, seqs: int, max_blocks: int, table_planes: int = 1) -> Batch:
        """Create a batch: block ids, lengths and block tables of this lane's steps on tier 0's device, for `seqs` sequences of at
        most `max_blocks` blocks, and tables of `table_planes` planes at once. The lane must be bound to a stream."""
    def ready(self) -> list[tuple[int, int, int]]:
        """Return the pages that the last boundary made ready: `(position in the step, block index, frame)`."""
    def ready_memory(self) -> Memory:
        """Return the same as a copied int32 tensor of shape [count, 3]."""
    def end(self) -> None:
        """End the step, complete or not."""
    def pte(self, block: int, plane: int) -> int | None:
        """Return the frame of the page of `block` in `plane` as of the last boundary, or None."""
    def page(self, seq: int, index: int, plane: int) -> bytes | None:
        """Return a copy of a page of a sequence in this lane's step, or None if it is not readable now."""
    def write_page(self, seq: int, index: int, plane: int, data: bytes, offset: int = 0) -> None:
        """Write `data` into an unsealed page of a sequence in this lane's step, starting at byte `offset`."""
    def table(self) -> Memory:
        """Return this lane's table as an int32 tensor [blocks_max, planes]: 0 is absent, else frame + 1. Do not write to it. It is
        valid between `begin` and `end`. The lane is released when it and all such tensors are gone."""
    def device_table(self) -> Memory | None:
        """Return the table on tier 0's device, as this lane's stream sees it; None without a device."""
    def bind(self, stream: int) -> None:
        """Bind the lane to a stream of tier 0's device (`torch.cuda.Stream.cuda_stream`; 0 is the legacy default stream, as in
        torch). The contents of the lane's tables are ordered with that stream. Call it between steps, before `begin`."""
    def close(self) -> None:
        """End the lane's step and release the lane. Closing twice has no effect."""
    def __enter__(self) -> Lane: ...
    def __exit__(self, *_raised: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class PagedAttention:
    """Steps of a lane over tier 0 in host memory, one call per layer: writes new tokens into their pages, and attends over pages as
    they become readable.

    Bits do not depend on the order in which pages become readable. Other calls of the lane's steps must not be mixed in."""

    def __new__(cls, lane: Lane, shape: tuple[int, int, bool], windows: Sequence[int]) -> PagedAttention:
        """Take a lane. `shape`: KV heads, channels, and True for bfloat16 numbers. `windows`: for each plane the maximum tokens that a
        query sees, 0 for all. Raise ValueError if the planes' pages do not have that shape."""

    def begin(self, rows: Sequence[tuple[int, int, int]]) -> None:
        """Begin a step over `(sequence, tokens that attention covers, new tokens among them)`. The new ones must be reserved."""
    def layer(
        self,
        plane: int,
        tokens: int,
        heads: int,
        scale: float,
        query: tuple[int, int],
        key: tuple[int, int],
        value: tuple[int, int],
        out: tuple[int, int],
    ) -> int:
        """Write the keys and values of the `tokens` new tokens, and attend with `heads` query heads. Planes come in order.

        Each tensor is [tokens, heads, channels], given as its address and the numbers from token to token; its other dimensions are
        dense. Return the number of passes; 0 if all pages were readable at once. After a layer that failed, end
        the step."""
    def end(self) -> list[tuple[int, int, int, float]]:
        """End the step, complete or not. Return for each sequence under "approx": its number, the pages needed over all
        planes, those that were not read, and the mean share of attention that they would have had, as estimated."""

@final
class LookupResult:
    """Result of a lookup."""

    @property
    def blocks(self) -> int:
        """Blocks of the prefix that are cached on all shards."""
    @property
    def in_host_permille(self) -> int:
        """Approximate share of these blocks that is in host memory, in 1/1000. The rest is on NVMe."""

@final
class Lease:
    """A cached prefix, pinned until the lease is released or expires. A context manager that releases it.

    The daemon does not evict the prefix meanwhile. After the lease has expired it does, but the session still counts the lease as
    one of its sequences (`seqs_max`) until `release`."""

    @property
    def seq(self) -> int:
        """Number of the lease in its session. `Channel.load` also takes the number in place of the lease."""
    @property
    def in_host(self) -> int:
        """Blocks in host memory."""
    @property
    def on_nvme(self) -> int:
        """Blocks on NVMe only."""
    @property
    def elsewhere(self) -> int:
        """Blocks that only other sessions' tier 0 has."""
    @property
    def load_seconds(self) -> float:
        """Estimated seconds to load the whole prefix; 0 without a measurement."""
    @property
    def released(self) -> bool:
        """True after `release`."""
    def release(self) -> None:
        """Release the prefix. Never waits. A load from it that is still running fails with `NotFound` for the blocks
        not copied yet: release the lease after its completion. Releasing twice has no effect, and so has releasing after the
        session has lost its daemon.

        Raise `Again` if the channel is full: the lease stays, so release it after a completion. Raise `WrongState` if the channel
        is closed, or in a call of another thread."""
    def __enter__(self) -> Lease: ...
    def __exit__(self, *_raised: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class CopyResult:
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
    def level(self) -> Level:
        """Of a store without failures: the level that all blocks have reached."""

@final
class Completion:
    """Completion of a request that was started with `start_*`."""

    @property
    def ticket(self) -> int:
        """Ticket of the request."""
    @property
    def user(self) -> int:
        """The caller's value, given with the request."""
    @property
    def result(self) -> LookupResult | Lease | CopyResult | None:
        """What the blocking call would have returned."""
    @property
    def error(self) -> Error | None:
        """The exception that the blocking call would have raised."""

@final
class Channel:
    """The calls of one engine thread. A sequence belongs to the channel that created it. A context manager that closes it.

    `timeout` is in seconds; None: the session's. Hashes are `bytes` of length 16; a list of them may also be given concatenated."""

    @property
    def index(self) -> int:
        """Index of the channel in the session."""
    @property
    def traces(self) -> bool:
        """True if the daemon makes spans of traced requests (`[tracing] endpoint` in its configuration)."""
    def trace(self, traceparent: str | None) -> bool:
        """Set the trace that the calls on this channel belong to from now on, by the value of a W3C header `traceparent`; None: no
        trace. Return whether they are traced: the daemon makes spans, and the caller's span is sampled. Raise ValueError if it is no
        such value; the calls then belong to no trace."""
    def nop(self, *, timeout: float | None = None) -> None:
        """Make a round trip to the daemon without effect."""
    def create_seq(self) -> int:
        """Create an empty sequence and return its number."""
    def drop_seq(self, seq: int) -> None:
        """Drop a sequence and its pins. Release a lease with `Lease.release` instead."""
    def reserve(self, seq: int, tokens: int, *, timeout: float | None = None) -> None:
        """Reserve space for positions below `tokens`. Raise `NoSpace` or `TooBig` if there is none."""
    def commit(self, seq: int, tokens: int) -> None:
        """Declare tokens below `tokens` final."""
    def fork(self, seq: int, *, timeout: float | None = None) -> int:
        """Create a child sequence that shares the sealed blocks and has copies of the unsealed ones. Return its number."""
    def truncate(self, seq: int, tokens: int, *, timeout: float | None = None) -> None:
        """Truncate the sequence to `tokens`."""
    def publish(
        self,
        seq: int,
        first: int,
        parent: bytes | None,
        hashes: bytes | Sequence[bytes],
        *,
        level: Level = ...,
        timeout: float | None = None,
    ) -> Level:
        """Publish sealed blocks of a sequence, from block index `first` on, under their content hashes. `parent` is the hash of the
        block before the first one, None at the root. Return the level that all have reached (default: `Level.PUBLISHED`)."""
    def attach_prefix(
        self, seq: int, hashes: bytes | Sequence[bytes], *, looked_up: bool = False, timeout: float | None = None
    ) -> int:
        """Attach the longest cached prefix of `hashes` to an empty sequence. Return its number of blocks.

        `looked_up`: a lookup has found it, so statistics do not count it a second time.
        """
    def set_contract(self, seq: int, contract: str, *, timeout: float | None = None) -> None:
        """Set the reading contract of a sequence: "exact" (all pages, the default), or "approx:SHARE" (that share of the pages, 0.001 to
        1: those with most attention; all, if all are in tier 0). It takes effect with the next step. Forks inherit it."""
    def park(self, seq: int, due: float = 0.0) -> None:
        """Allow an idle sequence to leave tier 0. `due`: expected seconds until it is used again, 0 if unknown."""
    def resume(self, seq: int, *, timeout: float | None = None) -> None:
        """Bring a parked sequence back."""
    def advise(self, seq: int, first: int, count: int, advice: str, value: int = 0) -> None:
        """Announce how blocks `first .. first + count` will be used: "willneed", "dontneed", "sequential", "cold", "priority" or
        "remaining"."""
    def acquire(
        self, seq: int, first: int, count: int, plane: int, planes: int = 1, *, timeout: float | None = None
    ) -> Pin:
        """Pin blocks `first .. first + count` of `planes` planes, starting at `plane`, in tier 0."""
    def release(self, pin: Pin) -> None:
        """Unpin pages."""
    def resize_tier0(self, size_class: int, frames: int, *, timeout: float | None = None) -> int:
        """Limit a size class of tier 0 to its first `frames` frames, of those that it attached with. Return that number. Do not
        access the frames beyond it."""
    def tier0_frames(self, size_class: int) -> int:
        """Return the number of frames that a size class of tier 0 has now."""
    def lookup(self, hashes: bytes | Sequence[bytes], *, timeout: float | None = None) -> LookupResult:
        """Return how many blocks of a prefix are cached. `hashes` are those of its blocks in order, 16 bytes each, as a list or
        concatenated. Without a lease the blocks may be evicted before they are loaded."""
    def lease(self, last_hash: bytes, count: int, seconds: float, *, timeout: float | None = None) -> Lease:
        """Pin a cached prefix of `count` blocks for `seconds`. `last_hash` is the hash of its last block. The lease ends when it is
        released or when it expires, but not while a load from it runs. Raise `NotFound` if the prefix is no longer cached,
        `Invalid` if it has another number of blocks, `LimitReached` for too long or too many leases."""
    def load(
        self, lease: Lease | int, first: int, blocks: Sequence[int], *, timeout: float | None = None
    ) -> CopyResult:
        """Copy blocks of a lease, starting at block index `first`, into these blocks of the engine's own memory.

        Raise before anything is copied: `NotFound` if the lease has ended, `OutOfRange` if it has fewer blocks or one of `blocks` does
        not exist, `WrongState` without `Session.set_blocks`. After `TimedOut` or `DaemonGone` copies may still run: call `settle`."""
    def store(
        self,
        first: int,
        parent: bytes | None,
        hashes: bytes | Sequence[bytes],
        blocks: Sequence[int],
        *,
        level: Level = ...,
        timeout: float | None = None,
    ) -> CopyResult:
        """Cache blocks of the engine's own memory under `hashes`. `first` is the index of the first one in its prefix. `parent` is
        the hash of the block before it, None at the root. If a block fails, all later ones fail too. Wait until all have reached
        `level` (default: `Level.PUBLISHED`), or have failed.

        Raise before anything is copied: `OutOfRange` if one of `blocks` does not exist, `WrongState` without `Session.set_blocks`,
        `Invalid` if hashes and blocks differ in number. After `TimedOut` or `DaemonGone` copies may still run: call `settle`."""
    def settle(self, *, timeout: float | None = None) -> None:
        """Wait until no request that ended before the daemon confirmed it (for example by timeout) accesses the engine's own
        memory."""
    def start_lookup(
        self, hashes: bytes | Sequence[bytes], *, timeout: float | None = None, user: int = 0
    ) -> int:
        """Start a lookup and return its ticket. `timeout` (seconds) is the request's deadline. The completion returns `user`.
        Raise `Again` if `depth` requests were started and their completions not taken."""
    def start_lease(
        self, last_hash: bytes, count: int, seconds: float, *, timeout: float | None = None, user: int = 0
    ) -> int:
        """Start a lease and return its ticket. The completion has the `Lease`, which must be released."""
    def start_load(
        self, lease: Lease | int, first: int, blocks: Sequence[int], *, timeout: float | None = None, user: int = 0
    ) -> int:
        """Start a load of at most 506 blocks and return its ticket. Raise as `load`, before anything is sent."""
    def start_store(
        self,
        first: int,
        parent: bytes | None,
        hashes: bytes | Sequence[bytes],
        blocks: Sequence[int],
        *,
        level: Level = ...,
        timeout: float | None = None,
        user: int = 0,
    ) -> int:
        """Start a store of at most 101 blocks and return its ticket. Start a store of child blocks after their parent's store
        ended. Raise as `store`, before anything is sent."""
    def poll(self) -> list[Completion]:
        """Return the completions that have arrived. Do not wait."""
    def wait(self, ticket: int, *, timeout: float | None = None) -> Completion:
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
    def close(self) -> None:
        """Close the channel; its sequences and leases stay. Closing twice has no effect."""
    def __enter__(self) -> Channel: ...
    def __exit__(self, *_raised: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class Answer:
    """How far a question to a relay is."""

    @property
    def ended(self) -> bool:
        """True: nothing more comes, and the question is forgotten."""
    @property
    def blocks(self) -> int | None:
        """Of a recall: blocks of the prefix that the daemon has. Of a share: blocks that the store has. Before the end: blocks that are
        expected. None: not known, or no answer came in time."""
    @property
    def within(self) -> float | None:
        """Before the end: seconds in which the blocks are expected, if known."""

@final
class Relay:
    """A connection to the relay that shares blocks between machines; `Session.relay` opens it.

    A relay may hang or be absent: no call waits for it, except `poll`, up to its timeout. After failures in a row it is left alone
    for a while that doubles up to 30 seconds. One thread at a time."""

    def recall(self, hashes: bytes | Sequence[bytes], *, wait: float) -> int:
        """Ask to bring a prefix in from the store: `hashes` are those of its blocks, from the first on, 16 bytes each. Return the number of
        the question, from 1 on, which `poll` answers within `wait` seconds. Raise `Again` if the relay cannot be asked now: the text
        says why. Compute the prefix then."""
    def await_shared(self, hashes: bytes | Sequence[bytes], *, wait: float) -> int:
        """Ask to bring in a prefix that another machine is sharing just now: the relay asks the store until it has all of it. Otherwise as
        `recall`."""
    def share(self, hashes: bytes | Sequence[bytes], *, wait: float) -> int:
        """Ask to copy a cached prefix out to the store. The answer comes when the store has it. Otherwise as `recall`."""
    def poll(self, question: int, *, timeout: float = 0.0) -> Answer:
        """Return how far a question is, after at most `timeout` seconds."""
    def forget(self, question: int) -> None:
        """Forget a question: its answer is not needed any more."""
    @property
    def traces(self) -> bool:
        """True if the relay makes spans of traced questions (`[tracing] endpoint` in its configuration). False until it has answered a
        first connection."""
    def trace(self, traceparent: str | None) -> bool:
        """Set the trace that questions belong to from now on. Otherwise as `Channel.trace`."""
    @property
    def wants_notes(self) -> bool:
        """True if the relay publishes KV events and needs the tokens of blocks, or it is not known yet."""
    def note(self, hashes: bytes | Sequence[bytes], tokens: Sequence[int], adapter: str = "") -> bool:
        """Send the tokens of blocks, as many as a page has for each hash, from which routers recognize prompts. `adapter`: name of the
        adapter (LoRA) with which they were computed. Return whether they were sent, or the relay needs none."""
    @property
    def trouble(self) -> str | None:
        """Why the relay cannot be asked now; None if nothing is known to be wrong."""

@final
class Session:
    """A session with the daemon; `kvtide.attach` opens it. A context manager that ends it. Its memory lives until the last tensor,
    channel and lane that uses it is gone."""

    def channel(self, index: int = 0) -> Channel:
        """Return channel `index`, for calls of one thread."""
    def lane(self, index: int = 0) -> Lane:
        """Return lane `index`, for steps of one thread."""
    @property
    def layout(self) -> Layout:
        """Memory layout of the session's pages."""
    def frames(self, plane: int) -> Memory:
        """Return the frames of the plane's size class as bytes [frames, stride]. Tensors made from it keep the session's memory
        alive."""
    def stats(self) -> dict[str, int]:
        """Return counts since the attach."""
    def relay(self) -> Relay | None:
        """Return a connection to the relay that the daemon names, for questions about this space. None: it names none
        (`relay_socket` in its configuration), or the space stays on this machine. It connects with its first question."""
    @property
    def other_identity(self) -> str | None:
        """Identity of the last engine of this space name with another fingerprint. None if this fingerprint had blocks at the attach,
        if no other one of the name has any, or if that engine gave no identity."""
    @property
    def alive(self) -> bool:
        """True unless the connection to the daemon is known to be lost."""
    def seq_blocks(self, seq: int) -> list[int]:
        """Return the block ids of a sequence, in order."""
    def set_blocks(
        self, count: int, pieces: Sequence[tuple[int, int, int, int, int]], *, keep: object | None = None
    ) -> None:
        """Register the engine's own blocks, replacing an earlier registration. There are `count` blocks. `pieces`
        (`kvtide.blocks.Piece`: plane, member, base address, stride, nbytes) together make up each plane's page. An empty list
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
    def reattach(self, socket: str) -> Session:
        """Create a new session around this one's tier 0, after its daemon has died."""
    def detach(self) -> None:
        """End the session now. Memory stays until the last tensor on it is gone."""
    def __enter__(self) -> Session: ...
    def __exit__(self, *_raised: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class Attention:
    """Attention of one configuration on a device, with its workspace. One stream at a time may use it."""

    def whole(self, stream: int, batch: dict[str, object]) -> None: ...
    def begin(self, stream: int) -> None: ...
    def part(self, stream: int, batch: dict[str, object], items: int, count: int) -> None: ...
    def merge(self, stream: int, batch: dict[str, object]) -> None: ...
    def emitted(self, seqs: int) -> Memory: ...

@final
class Batch:
    """Block ids, lengths and block tables of one lane's steps, on a device, at fixed addresses."""

    @property
    def seqs(self) -> int:
        """Number of rows."""
    @property
    def max_blocks(self) -> int:
        """Number of columns."""
    def set_sequences(self, seqs: Sequence[tuple[int, int]]) -> None:
        """Set the rows to these sequences and lengths: those of the lane's `begin`. Call it after `begin`."""
    def tables(self, first: int, count: int = 1, absent: int = ...) -> None:
        """Build the block tables and miss bits of planes `first .. first + count`, all of one size class, at the current position
        of the lane's stream. Call it after their boundary."""
    def lengths(self) -> Memory:
        """Return int32 [seqs]: tokens of each row, 0 for unused rows."""
    def block_ids(self) -> Memory:
        """Return int32 [seqs, max_blocks]: block ids; -1: none."""
    def block_tables(self) -> Memory:
        """Return int32 [table_planes, seqs, max_blocks]: frames of the planes' size class; `absent` for pages in no frame."""
    def misses(self) -> Memory:
        """Return int32 [table_planes, seqs, max_blocks / 32 rounded up]: bit i of word w is set if page 32 w + i is needed and in
        no frame."""

@final
class Kernels:
    """Attention kernels on one device: write new tokens into their pages, and attend."""

    def __new__(cls, ordinal: int) -> Kernels: ...
    def append(self, stream: int, new: dict[str, object]) -> None: ...
    def attention(self, config: dict[str, object]) -> Attention: ...

def gpu_numa_node(ordinal: int) -> int | None:
    """Return the NUMA node whose memory is nearest to a GPU, by the driver's number of it in this process; None if the system does not
    say. Raise `DeviceFailed` if there is no such device or no driver."""

def local_hash(given: bytes) -> bytes: ...
def attach(given: dict[str, object]) -> Session: ...
def use_openmp(parallel: int, max_threads: int) -> None: ...
def attend(given: dict[str, object], table: Sequence[Sequence[int]], out: int) -> None: ...
def attention_bytes(config: dict[str, object]) -> int: ...
