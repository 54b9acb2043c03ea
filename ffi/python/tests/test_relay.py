"""Questions to a relay: two daemons that share a prefix through a directory."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kvtide
from kvtide import errors
from kvtide.daemon import PrivateDaemon, PrivateRelay
from conftest import PAGE_TOKENS, space

BLOCKS = 8
PAGE = 4096
#: Time that no answer takes.
BOUND = 60.0


class Machine:
    """A daemon that names its relay, and an engine with blocks of its own."""

    def __init__(self) -> None:
        self.daemon = PrivateDaemon(64 << 20, slab_bytes=4 << 20, relay=True)
        # Two planes of one page each.
        self.memory = ctypes.create_string_buffer(2 * BLOCKS * PAGE)
        self.session = kvtide.attach(self.daemon.socket, space("relayed"))
        at = ctypes.addressof(self.memory)
        pieces = [(plane, 0, at + plane * BLOCKS * PAGE, PAGE, PAGE) for plane in range(2)]
        self.session.set_blocks(BLOCKS, pieces, keep=self.memory)
        self.channel = self.session.channel()

    def close(self) -> None:
        self.session.detach()
        self.daemon.close()


@pytest.fixture
def machines() -> Iterator[list[Machine]]:
    both = [Machine(), Machine()]
    yield both
    for machine in both:
        machine.close()


def ended(relay: kvtide.Relay, question: int) -> kvtide.Answer:
    """Return the answer of a question."""
    while not (answer := relay.poll(question, timeout=BOUND)).ended:
        pass
    return answer


def ask_until(relay: kvtide.Relay, what: Callable[..., int], hashes: list[bytes] | bytes) -> int:
    """Ask until the relay is there, knows the space and has all blocks. Return the question."""
    deadline = time.monotonic() + BOUND
    while time.monotonic() < deadline:
        with contextlib.suppress(errors.Again):
            question = what(hashes, wait=BOUND)
            assert question, "numbers begin at 1"
            if ended(relay, question).blocks == BLOCKS:
                return question
    raise AssertionError(relay.trouble)


def test_a_prefix_is_shared_and_recalled(machines: list[Machine], tmp_path: Path) -> None:
    first, second = machines
    hashes = [bytes([i + 1] * 16) for i in range(BLOCKS)]
    for i in range(BLOCKS * 2 * PAGE // 64):
        first.memory[i * 64] = i % 251 + 1
    first.channel.store(0, None, hashes, list(range(BLOCKS)), level=kvtide.Level.PUBLISHED)
    there, here = first.session.relay(), second.session.relay()
    assert there is not None and here is not None
    with PrivateRelay(first.daemon, tmp_path), PrivateRelay(second.daemon, tmp_path):
        ask_until(there, there.share, hashes)
        question = ask_until(here, here.recall, b"".join(hashes))
        assert second.channel.lookup(hashes).blocks == BLOCKS
        with second.channel.lease(hashes[-1], BLOCKS, 60.0) as lease:
            assert second.channel.load(lease, 0, list(range(BLOCKS))).failed == []
        assert second.memory.raw == first.memory.raw
        # An answer is given once.
        assert repr(here.poll(question)) == "Answer(ended=True, blocks=None, within=None)"
        assert not here.wants_notes and not here.traces
        assert not here.trace(f"00-{1:032x}-{2:016x}-01"), "the relay makes no spans"
        with pytest.raises(ValueError, match="traceparent"):
            here.trace("00-1-2-01")
        assert here.note(hashes, [7] * (BLOCKS * PAGE_TOKENS), "adapter")
        with pytest.raises(ValueError, match="127 tokens for 8 blocks of 16 tokens"):
            here.note(hashes, [7] * 127)
        with pytest.raises(ValueError, match="all zeroes"):
            here.recall([bytes(16)], wait=1.0)
        with pytest.raises(ValueError, match="a question to the relay needs at least one"):
            here.recall([], wait=1.0)
        hung = [here.await_shared([bytes([99] * 16)], wait=BOUND)]
        with pytest.raises(errors.Again, match="too many questions are open: poll them to their end, or forget them"):
            while len(hung) < 1000:
                hung.append(here.await_shared([bytes([99] * 16)], wait=BOUND))
        assert len(set(hung)) == len(hung) and 0 not in hung
        for open_question in hung:
            here.forget(open_question)


def test_a_relay_that_is_not_there_costs_nothing(machines: list[Machine]) -> None:
    relay = machines[0].session.relay()
    assert relay is not None and relay.trouble is None
    for ask in (relay.recall, relay.await_shared, relay.share):
        with pytest.raises(errors.Again, match="relay.sock cannot be asked"):
            ask([bytes([1] * 16)], wait=BOUND)
    assert relay.trouble is not None and "relay.sock" in relay.trouble
    assert relay.wants_notes, "unknown so far"
    assert relay.poll(0).blocks is None
    with kvtide.attach(machines[0].daemon.socket, space("alone", local=True, fingerprint=bytes([5] * 32))) as session:
        assert session.relay() is None
