"""What the scheduler's half and the workers' halves tell each other. All of it crosses process boundaries by pickle."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)


@dataclass(frozen=True)
class Geometry(KVConnectorHandshakeMetadata):
    """What a worker stores, told once to the scheduler after the worker knows its tensors."""

    fingerprint: bytes
    #: What the fingerprint was made from, readable.
    parts: tuple[tuple[str, str], ...]
    page_tokens: int
    #: Bytes, kind and window of each plane.
    planes: tuple[tuple[int, str, int], ...]
    #: Block ids of vLLM's that one block of kvtide is made of, a number for each group.
    members: tuple[int, ...]
    shards: int
    shard: int

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of one rank."""
        return sum(bytes_ for bytes_, _, _ in self.planes)


@dataclass
class LoadJob:
    """Blocks `first` and following of a prefix of `count` blocks, the last of which has the hash `last`, into `ids`."""

    job: int
    request: str
    last: bytes
    count: int
    first: int
    #: vLLM's ids, block by block, in each those of all members.
    ids: list[int]


@dataclass
class StoreJob:
    """Blocks of `ids`, laid out as in `LoadJob`, under `hashes`, whose first is the block `first` of its prefix."""

    job: int
    first: int
    parent: bytes | None
    hashes: bytes
    ids: list[int]


@dataclass
class StepMetadata(KVConnectorMetadata):
    """What is to be begun with a step."""

    loads: list[LoadJob] = field(default_factory=list)
    stores: list[StoreJob] = field(default_factory=list)
    #: Nothing is computed in it.
    idle: bool = False


@dataclass
class Ended:
    """How a job ended on the workers that have reported so far."""

    workers: int = 0
    #: The first block of it, by its place in the job, that failed on any of them; None if all went well.
    failed: int | None = None

    def add(self, other: Ended) -> None:
        """Takes in what other workers report."""
        self.workers += other.workers
        if other.failed is not None:
            self.failed = other.failed if self.failed is None else min(self.failed, other.failed)


@dataclass
class WorkerMetadata(KVConnectorWorkerMetadata):
    """The jobs that ended since the last step."""

    ended: dict[int, Ended] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, WorkerMetadata)
        for job, ended in other.ended.items():
            self.ended.setdefault(job, Ended()).add(ended)
        return self
