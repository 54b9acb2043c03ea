"""Messages between the scheduler half and the worker halves. They are pickled between processes."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)


@dataclass(frozen=True)
class Geometry(KVConnectorHandshakeMetadata):
    """Geometry of a worker's KV. Sent to the scheduler once, after the worker knows its tensors."""

    fingerprint: bytes
    #: Readable parts of the fingerprint.
    parts: tuple[tuple[str, str], ...]
    page_tokens: int
    #: Bytes, kind and window tokens of each plane.
    planes: tuple[tuple[int, str, int], ...]
    #: vLLM's block ids per block of kvtide, for each group.
    members: tuple[int, ...]
    shards: int
    shard: int

    @property
    def block_bytes(self) -> int:
        """Return the bytes of one rank's part of a block."""
        return sum(bytes_ for bytes_, _, _ in self.planes)


@dataclass
class LoadJob:
    """Load into `ids` the blocks from `first` on of a prefix of `count` blocks; `last` is the hash of its last block."""

    job: int
    request: str
    last: bytes
    count: int
    first: int
    #: vLLM's block ids, block by block; within a block those of all members.
    ids: list[int]
    #: The header `traceparent` of the request, if it is traced.
    trace: str | None = None


@dataclass
class StoreJob:
    """Store the blocks of `ids`, laid out as in `LoadJob`, under `hashes`. The first one is block `first` of its prefix."""

    job: int
    first: int
    parent: bytes | None
    hashes: bytes
    ids: list[int]
    trace: str | None = None


@dataclass
class StepMetadata(KVConnectorMetadata):
    """Jobs that start with a step."""

    loads: list[LoadJob] = field(default_factory=list)
    stores: list[StoreJob] = field(default_factory=list)
    #: The step computes nothing.
    idle: bool = False


@dataclass
class Ended:
    """Result of a job, combined over the workers that have reported."""

    workers: int = 0
    #: Smallest index in the job of a block that failed on any worker; None without failures.
    failed: int | None = None

    def add(self, other: Ended) -> None:
        """Add the report of other workers."""
        self.workers += other.workers
        if other.failed is not None:
            self.failed = other.failed if self.failed is None else min(self.failed, other.failed)


@dataclass
class WorkerMetadata(KVConnectorWorkerMetadata):
    """Jobs that ended since the last step."""

    ended: dict[int, Ended] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, WorkerMetadata)
        for job, ended in other.ended.items():
            self.ended.setdefault(job, Ended()).add(ended)
        return self
