"""The asynchronous block API, and blocks with independently numbered members."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Iterator

import numpy as np
import pytest
from engine import BLOCKS, Tensors, hashes, space

import kvtide
from kvtide import errors
from kvtide.blocks import UNNAMED, pieces
from kvtide.daemon import PrivateDaemon

Engine = tuple[kvtide.Session, kvtide.Channel, Tensors]


@pytest.fixture
def engine(daemon: PrivateDaemon, request: pytest.FixtureRequest) -> Iterator[Engine]:
    with kvtide.attach(daemon.socket, space(request.node.name), depth=8) as session:
        tensors = Tensors()
        session.set_blocks(BLOCKS, tensors.pieces(), keep=tensors)
        yield session, session.channel(), tensors


def ends(channel: kvtide.Channel, count: int) -> dict[int, kvtide.Completion]:
    """Wait for `count` completions as an event loop does. Return them by their user value."""
    found: dict[int, kvtide.Completion] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while len(found) < count:
            some = channel.poll()
            found |= {done.user: done for done in some}
            if not some and not channel.arm():
                assert selector.select(60.0), "nothing came"
    return found


def test_many_at_once_are_told_apart(engine: Engine) -> None:
    session, channel, tensors = engine
    for block in range(BLOCKS):
        tensors.write(block, block // 8, block % 8)
    tickets = {p: channel.start_store(0, None, hashes(p, 8), range(8 * p, 8 * p + 8), user=p) for p in range(1, 8)}
    stored = ends(channel, 7)
    for prefix, ticket in tickets.items():
        done = stored[prefix]
        assert done.ticket == ticket and done.error is None
        assert isinstance(done.result, kvtide.CopyResult) and done.result.status == "ok"
    channel.start_lookup(hashes(1, 8) + hashes(9, 2000), user=1)
    channel.start_lookup(b"", user=2)
    channel.start_lease(hashes(2, 8)[7], 8, 60.0, user=3)
    channel.start_lease(hashes(2, 8)[7], 9, 60.0, user=4)
    found = ends(channel, 4)
    assert [found[user].result.blocks for user in (1, 2)] == [8, 0]  # type: ignore[union-attr]
    lease, refused = found[3].result, found[4]
    assert isinstance(lease, kvtide.Lease) and lease.in_host == 8
    assert refused.result is None and isinstance(refused.error, errors.Invalid) and "lease" in str(refused.error)
    ticket = channel.start_load(lease, 2, [60, 62, 61])
    with pytest.raises(errors.WrongState):
        session.set_blocks(0, [])
    loaded = channel.wait(ticket).result
    assert isinstance(loaded, kvtide.CopyResult) and (loaded.failed, loaded.status) == ([], "ok")
    assert tensors.holds(60, 2, 2) and tensors.holds(61, 2, 4)
    with pytest.raises(errors.NotFound, match="wait"):
        channel.wait(ticket)
    with pytest.raises(errors.NotFound, match="cancel"):
        channel.cancel(ticket)
    assert channel.poll() == [] and "CopyResult" in repr(channel.wait(channel.start_load(lease, 0, [60])))
    with pytest.raises(errors.LimitReached):
        channel.start_load(lease, 0, [0] * 513)
    with pytest.raises(errors.LimitReached):
        channel.start_store(0, None, hashes(20, 103), [0] * 103)


def test_a_channel_is_as_deep_as_it_is(engine: Engine) -> None:
    channel, begun = engine[1], 0
    with pytest.raises(errors.Again):
        while begun <= 100:
            channel.start_lookup(hashes(1, 300), user=begun)
            begun += 1
    assert sorted(ends(channel, begun)) == list(range(begun)) and 0 < begun <= 8


def test_cancel_and_deadline() -> None:
    with PrivateDaemon(64 << 20) as daemon, kvtide.attach(daemon.socket, space("cancel")) as session:
        channel, tensors = session.channel(), Tensors()
        session.set_blocks(BLOCKS, tensors.pieces(), keep=tensors)
        tensors.store(channel, 1, 4)
        lease = channel.lease(hashes(1, 4)[3], 4, 60.0)
        daemon.freeze()
        ticket = channel.start_load(lease, 0, range(4))
        with pytest.raises(errors.TimedOut, match="wait"):
            channel.wait(ticket, timeout=0.05)
        channel.cancel(ticket)
        daemon.thaw()
        done = channel.wait(ticket)  # whichever is first, it completes once
        if done.error is None:
            assert isinstance(done.result, kvtide.CopyResult) and done.result.status in ("ok", "canceled")
        else:
            assert isinstance(done.error, errors.Canceled)
        ticket = channel.start_load(lease, 0, range(4))
        daemon.kill()
        done = channel.wait(ticket)
        assert done.error is None or isinstance(done.error, errors.DaemonGone)


def test_an_event_loop_waits_on_the_channel(engine: Engine) -> None:
    channel, tensors = engine[1], engine[2]

    async def ended(ticket: int) -> kvtide.Completion:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(channel.fileno(), woken.set)
        try:
            while True:
                woken.clear()
                for done in channel.poll():
                    assert done.ticket == ticket
                    return done
                if not channel.arm():
                    await asyncio.wait_for(woken.wait(), 60.0)
        finally:
            loop.remove_reader(channel.fileno())

    async def engine_loop() -> None:
        for index in range(10):
            tensors.write(index, 5, index)
        stored = await ended(channel.start_store(0, None, hashes(5, 10), range(10)))
        assert isinstance(stored.result, kvtide.CopyResult) and stored.result.status == "ok"
        lease = (await ended(channel.start_lease(hashes(5, 10)[9], 10, 60.0))).result
        assert isinstance(lease, kvtide.Lease)
        loaded = (await ended(channel.start_load(lease, 0, range(30, 40)))).result
        assert isinstance(loaded, kvtide.CopyResult) and loaded.status == "ok"
        assert all(tensors.holds(30 + index, 5, index) for index in range(10))

    asyncio.run(engine_loop())


def test_members_go_by_their_own_ids(daemon: PrivateDaemon) -> None:
    """Two cache groups of an engine in one pool: a block of the space has one block of each."""
    with kvtide.attach(daemon.socket, space("members")) as session:
        channel, full, window = session.channel(), np.zeros((32, 1024), np.uint8), np.zeros((32, 384), np.uint8)
        parts = pieces(full, plane=0, block_dim=0, member=0) + pieces(window, plane=1, block_dim=0, member=1)
        with pytest.raises(errors.WrongState, match="name blocks"):
            session.name_blocks(0, [0, 0])
        session.set_blocks(32, parts, keep=(full, window))
        with pytest.raises(errors.Invalid, match="3 ids; a block needs 2 for each name"):
            session.name_blocks(0, [1, 2, 3])
        with pytest.raises(errors.Invalid, match="name 1: member 1 has id 32, not below 32"):
            session.name_blocks(0, [1, 2, 3, 32])
        with pytest.raises(errors.LimitReached):
            session.name_blocks(1 << 23, [1, 2])
        with pytest.raises(errors.OutOfRange, match="blocks.0. is 0; this name has no ids: call name_blocks first"):
            channel.store(0, None, hashes(1, 2), [0, 1])
        for index, (a, b) in enumerate([(3, 9), (7, 1)]):
            full[a], window[b] = 10 + index, 20 + index
        session.name_blocks(100, [3, 9, 7, 1])
        assert channel.store(0, None, hashes(1, 2), [100, 101]).status == "ok"
        lease = channel.lease(hashes(1, 2)[1], 2, 60.0)
        session.name_blocks(5, [30, 0, 0, 31])
        ticket = channel.start_load(lease, 0, [5, 6])
        with pytest.raises(errors.WrongState, match="name blocks"):
            session.name_blocks(6, [8, 8])
        loaded = channel.wait(ticket).result
        assert isinstance(loaded, kvtide.CopyResult) and loaded.status == "ok"
        assert (full[30] == 10).all() and (window[0] == 20).all()
        assert (full[0] == 11).all() and (window[31] == 21).all() and not full[8].any()
        session.name_blocks(6, [UNNAMED, UNNAMED])
        with pytest.raises(errors.OutOfRange, match="blocks.1. is 6; this name has no ids"):
            channel.load(lease, 0, [5, 6])
