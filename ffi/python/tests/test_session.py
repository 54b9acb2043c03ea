"""The address-space API against a real daemon."""

from __future__ import annotations

import gc
import os
import threading

import pytest
from conftest import PAGE_BYTES, PAGE_TOKENS, PLANES, space

import kvtide
from kvtide import errors
from kvtide.daemon import PrivateDaemon


def pattern(seq: int, index: int, plane: int) -> bytes:
    """Return the content of a page: its own name, repeated."""
    name = f"{seq}/{index}/{plane};".encode()
    return (name * (PAGE_BYTES // len(name) + 1))[:PAGE_BYTES]


def fill(session: kvtide.Session, channel: kvtide.Channel, lane: kvtide.Lane, seq: int, tokens: int) -> None:
    """Write a sequence's pages, block by block."""
    for index in range(tokens // PAGE_TOKENS):
        end = (index + 1) * PAGE_TOKENS
        channel.reserve(seq, end)
        lane.begin([(seq, end)])
        for plane in range(PLANES):
            lane.write_page(seq, index, plane, pattern(seq, index, plane))
        lane.end()
        channel.commit(seq, end)


def read(lane: kvtide.Lane, seq: int, tokens: int) -> int:
    """Read every page of a sequence in passes. Return the number of passes."""
    passes, blocks = 0, tokens // PAGE_TOKENS
    lane.begin([(seq, tokens)])
    for plane in range(PLANES):
        seen: set[int] = set()
        while True:
            found = lane.boundary(plane)
            passes += 1
            indices = range(blocks) if found.whole else [index for _, index, _ in lane.ready()]
            assert found.whole or len(indices) == found.count > 0
            for index in indices:
                assert lane.page(seq, index, plane) == pattern(seq, index, plane)
                assert index not in seen
                seen.add(index)
            if found.last:
                break
        assert seen == set(range(blocks))
    lane.end()
    return passes


def test_more_pages_than_tier_0_has_come_in_passes(session: kvtide.Session) -> None:
    channel, lane = session.channel(), session.lane()
    seq = channel.create_seq()
    tokens = 200 * PAGE_TOKENS  # 400 pages, 64 frames
    fill(session, channel, lane, seq, tokens)
    assert read(lane, seq, tokens) > PLANES
    stats = session.stats()
    assert stats["bytes_host_to_tier0"] >= (400 - 64) * PAGE_BYTES
    assert stats["pages_missed"] > 0 and stats["steps"] == 201
    assert len(session.seq_blocks(seq)) == 200


def test_tier_0_shrinks_and_grows_under_the_pages(session: kvtide.Session) -> None:
    channel, lane = session.channel(), session.lane()
    seq = channel.create_seq()
    tokens = 30 * PAGE_TOKENS
    fill(session, channel, lane, seq, tokens)
    assert channel.tier0_frames(0) == 64 and read(lane, seq, tokens) == PLANES
    assert channel.resize_tier0(0, 20) == 20 == channel.tier0_frames(0)
    assert read(lane, seq, tokens) > PLANES
    with pytest.raises(errors.OutOfRange, match="resize tier-0 class 0"):
        channel.resize_tier0(0, 65)
    assert channel.resize_tier0(0, 64) == 64
    read(lane, seq, tokens)


def test_a_guarantee_is_given_or_refused(daemon: PrivateDaemon) -> None:
    frames = [8 * PLANES]
    with pytest.raises(errors.NoSpace, match="guarantee of 1073741824 blocks: the daemon can guarantee ([0-9]+)") as refused:
        kvtide.attach(daemon.socket, space("guaranteed", fingerprint=bytes([3] * 32)), frames, guaranteed_blocks=1 << 30)
    possible = int(str(refused.value).split("can guarantee ")[1].split(":")[0])
    with kvtide.attach(daemon.socket, space("guaranteed", fingerprint=bytes([3] * 32)), frames, guaranteed_blocks=possible):
        with pytest.raises(errors.NoSpace):
            kvtide.attach(daemon.socket, space("guaranteed", fingerprint=bytes([3] * 32)), frames, guaranteed_blocks=possible)


def test_fork_truncate_publish_attach(session: kvtide.Session) -> None:
    channel, lane = session.channel(), session.lane()
    parent = channel.create_seq()
    fill(session, channel, lane, parent, 4 * PAGE_TOKENS)
    child = channel.fork(parent)
    assert session.seq_blocks(child) == session.seq_blocks(parent)
    channel.truncate(child, 2 * PAGE_TOKENS)
    assert len(session.seq_blocks(child)) == 2
    hashes = [number.to_bytes(16, "little") for number in (2**127 + 1, 5, 2**64)]
    assert channel.publish(parent, 0, None, hashes[:2]) is kvtide.Level.PUBLISHED
    assert channel.publish(parent, 2, hashes[1], b"".join(hashes[2:])) is kvtide.Level.PUBLISHED
    found = channel.create_seq()
    assert channel.attach_prefix(found, hashes) == 3
    assert session.seq_blocks(found) == session.seq_blocks(parent)[:3]
    channel.park(parent, due=1.5)
    channel.resume(parent)
    channel.advise(parent, 0, 2, "cold")
    channel.advise(parent, 0, 0, "remaining", 300)
    pin = channel.acquire(parent, 0, 2, plane=0, planes=PLANES)
    channel.release(pin)
    with pytest.raises(errors.WrongState, match="release pin"):
        channel.release(pin)
    for seq in (parent, child, found):
        channel.drop_seq(seq)


def test_wrong_calls_say_what_and_on_what(session: kvtide.Session) -> None:
    channel, lane = session.channel(), session.lane()
    with pytest.raises(errors.NotFound, match="sequence 7"):
        channel.reserve(7, 16)
    with pytest.raises(errors.OutOfRange, match="take channel 9"):
        session.channel(9)
    with pytest.raises(errors.WrongState, match="take lane 0"):
        session.lane()
    with pytest.raises(errors.WrongState, match="boundary of plane 0"):
        lane.boundary(0)
    with pytest.raises(ValueError, match='advice "often"'):
        channel.advise(0, 0, 1, "often")
    with pytest.raises(TypeError, match="level 'forever' is not a kvtide.Level"):
        channel.publish(0, 0, None, [bytes([1] * 16)], level="forever")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="hash 0: 3 bytes; a hash has 16"):
        channel.publish(0, 0, None, [b"abc"])
    with pytest.raises(ValueError, match="block 2 of a prefix needs its parent's hash"):
        channel.publish(0, 2, None, [bytes([1] * 16)])
    with pytest.raises(TypeError):
        channel.attach_prefix(0, [1])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="-3 seconds"):
        channel.nop(timeout=-3)
    seq = channel.create_seq()
    channel.reserve(seq, PAGE_TOKENS)
    with pytest.raises(errors.OutOfRange, match="begin a step"):
        lane.begin([(seq, 100 * PAGE_TOKENS)])
    lane.begin([(seq, PAGE_TOKENS)])
    with pytest.raises(ValueError, match="4096 bytes from byte 1 do not fit into a page of 4096"):
        lane.write_page(seq, 0, 0, bytes(PAGE_BYTES), 1)
    with pytest.raises(errors.WrongState, match="write page 1 of sequence"):
        lane.write_page(seq, 1, 0, b"x")
    with pytest.raises(errors.WrongState, match="drop sequence"):
        channel.drop_seq(seq)
    lane.end()
    with pytest.raises(errors.WrongState, match="commit"):
        channel.commit(seq, 2 * PAGE_TOKENS)
    with pytest.raises(errors.TooBig):
        channel.reserve(seq, 4096 * PAGE_TOKENS)


def test_closed_handles_come_back(session: kvtide.Session) -> None:
    with session.channel(1) as channel:
        channel.nop()
    with pytest.raises(errors.WrongState, match="channel 1 is closed"):
        channel.nop()
    with session.lane(1) as lane:
        lane.begin([])
    with pytest.raises(errors.WrongState, match="lane 1 is closed"):
        lane.end()
    session.channel(1).nop()
    session.lane(1).close()
    gc.collect()
    session.lane(1)


def test_waits_release_the_interpreter() -> None:
    """A thread that waits for a hung daemon does not block other threads; a second user of its channel gets an error."""
    with PrivateDaemon(64 << 20) as daemon, kvtide.attach(daemon.socket, space("waits"), [16], timeout=30.0) as session:
        channel = session.channel()
        ended: list[BaseException] = []

        def wait() -> None:
            while not ended:
                try:
                    channel.nop(timeout=2.0)
                except errors.WrongState:
                    continue  # the other thread was in the channel first
                except BaseException as error:  # noqa: BLE001
                    ended.append(error)

        daemon.freeze()
        thread = threading.Thread(target=wait)
        thread.start()
        refused = None
        while refused is None and thread.is_alive():
            try:
                channel.nop(timeout=0.01)
            except errors.WrongState as error:
                refused = error
            except errors.TimedOut:
                pass
        thread.join()
        daemon.thaw()
        assert refused is not None and "another thread" in str(refused)
        assert [type(error) for error in ended] == [errors.TimedOut]
        channel.nop()


def test_a_dead_daemon_is_said_and_reattached_from() -> None:
    with PrivateDaemon(64 << 20) as first, PrivateDaemon(64 << 20) as second:
        session = kvtide.attach(first.socket, space("dies"), [64])
        channel, lane = session.channel(), session.lane()
        seq = channel.create_seq()
        fill(session, channel, lane, seq, 4 * PAGE_TOKENS)
        first.kill()
        with pytest.raises(ConnectionError, match="daemon is gone"):
            channel.nop(timeout=10.0)
        assert not session.alive
        channel.close()
        lane.close()
        again = session.reattach(os.fspath(second.socket))
        assert read(again.lane(), seq, 4 * PAGE_TOKENS) == PLANES
        again.detach()
        assert not again.alive


def test_a_forked_child_gets_an_error(session: kvtide.Session) -> None:
    channel = session.channel()
    child = os.fork()
    if child == 0:
        try:
            channel.nop()
        except errors.Forked:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    channel.nop()
