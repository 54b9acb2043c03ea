"""Messages of a step from the scheduler half to the worker."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata


@dataclass
class Begun:
    """A request that begins or resumes."""

    request: str
    #: Its first block id of vLLM, which names it in the batch.
    block: int
    #: Hashes of its cached prefix, 16 bytes per block, which is attached instead of computed.
    prefix: bytes
    #: Tokens that are known now. Steps that compute them read all pages, whatever the contract.
    exact_tokens: int


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


@dataclass
class Omitted:
    """Omissions of a request's steps under the contract `approx`."""

    steps: int = 0
    #: Pages needed over all layers, and those of them that were not read.
    needed: int = 0
    omitted: int = 0
    #: Sum over steps of the share of attention that the omitted pages would have had, estimated, the mean over layers.
    share: float = 0.0

    def add(self, other: Omitted) -> None:
        """Add other steps of the request."""
        self.steps += other.steps
        self.needed += other.needed
        self.omitted += other.omitted
        self.share += other.share


@dataclass
class OmittedReport(KVConnectorWorkerMetadata):
    """Omissions since the last report, by request. From the worker to the scheduler half."""

    requests: dict[str, Omitted] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> OmittedReport:
        """Add the report of another rank."""
        assert isinstance(other, OmittedReport), type(other)
        for name, omitted in other.requests.items():
            self.requests.setdefault(name, Omitted()).add(omitted)
        return self
