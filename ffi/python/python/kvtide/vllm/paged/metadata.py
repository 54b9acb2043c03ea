"""Messages of a step from the scheduler half to the worker."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata


@dataclass
class Begun:
    """A request that begins or resumes."""

    request: str
    #: Its first block id of vLLM, which names it in the batch.
    block: int
    #: Hashes of its cached prefix, 16 bytes per block, which is attached instead of computed.
    prefix: bytes


@dataclass
class Filled:
    """Complete blocks of a request that are to be published."""

    request: str
    #: Index of the first one, hash of the block before it, and their hashes.
    first: int
    parent: bytes | None
    hashes: bytes


@dataclass
class PagedStep(KVConnectorMetadata):
    """Changes of requests since the last step, in the order in which the worker applies them."""

    filled: list[Filled] = field(default_factory=list)
    #: Requests that ended or were preempted.
    gone: list[str] = field(default_factory=list)
    begun: list[Begun] = field(default_factory=list)
