"""The block API against a real daemon."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from engine import BLOCKS, PAGES, Tensors, hashes, space

import kvtide
from kvtide import errors
from kvtide.blocks import Level, Piece
from kvtide.daemon import PrivateDaemon

Engine = tuple[kvtide.Session, kvtide.Channel, Tensors]


def attach(socket: Path, name: str, **options: int) -> Engine:
    session, tensors = kvtide.attach(socket, space(name), **options), Tensors()  # type: ignore[arg-type]
    session.set_blocks(BLOCKS, tensors.pieces(), keep=tensors)
    return session, session.channel(), tensors


@pytest.fixture
def engine(daemon: PrivateDaemon, request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = attach(daemon.socket, request.node.name, channels=2)
    yield engine
    engine[0].detach()


def test_what_is_stored_is_found_leased_and_loaded(engine: Engine) -> None:
    _, channel, tensors = engine
    chain = hashes(1, 20) + hashes(2, 3)
    assert channel.lookup(chain).blocks == 0
    stored = tensors.store(channel, 1, 20)
    assert (stored.failed, stored.status, stored.code, stored.level) == ([], "ok", 0, Level.PUBLISHED)
    for given in (chain, b"".join(chain)):
        found = channel.lookup(given)
        assert (found.blocks, found.in_host_permille) == (20, 1000)
    lease = channel.lease(chain[19], 20, 60.0)
    assert (lease.in_host, lease.on_nvme, lease.elsewhere) == (20, 0, 0) and lease.load_seconds >= 0.0
    loaded = channel.load(lease, 5, [40, 33, 63])
    assert (loaded.failed, loaded.status) == ([], "ok")
    assert all(tensors.holds(block, 1, 5 + i) for i, block in enumerate([40, 33, 63]))
    channel.settle()
    lease.release()
    for released in (lease, lease.seq):
        with pytest.raises(errors.NotFound):
            channel.load(released, 0, [0])
    assert "blocks=20" in repr(found) and "in_host=20" in repr(lease) and "'ok'" in repr(loaded).replace('"', "'")


def test_a_lease_ends_with_its_block(engine: Engine) -> None:
    _, channel, tensors = engine
    tensors.store(channel, 1, 4)
    last = hashes(1, 4)[3]
    with channel.lease(last, 4, 60.0) as lease:
        assert channel.load(lease, 0, [8, 9]).status == "ok" and not lease.released
        assert channel.load(lease.seq, 2, [10, 11]).status == "ok"
    assert lease.released and "released" in repr(lease)
    # The next lease may get the number, so the old object must not act on it.
    with channel.lease(last, 4, 60.0) as other:
        lease.release()
        with pytest.raises(errors.NotFound, match=f"lease {lease.seq} was released"):
            channel.load(lease, 0, [12])
        assert channel.load(other, 0, [12]).status == "ok"
    with pytest.raises(KeyError), channel.lease(last, 4, 60.0) as lease:
        raise KeyError
    assert lease.released
    with pytest.raises(TypeError, match="lease is 'lease'; expected a kvtide.Lease, or its number"):
        channel.load("lease", 0, [0])  # type: ignore[arg-type]
    completion = channel.wait(channel.start_lease(last, 4, 60.0))
    assert isinstance(completion.result, kvtide.Lease)
    with completion.result as lease:
        assert channel.wait(channel.start_load(lease, 0, [13])).error is None
    with pytest.raises(errors.NotFound):
        channel.drop_seq(lease.seq)


def test_a_lease_that_cannot_be_released_hides_no_exception(
    daemon: PrivateDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    _session, channel, tensors = attach(daemon.socket, "unreleased")
    tensors.store(channel, 1, 4)
    last = hashes(1, 4)[3]
    seen: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: seen.append(raised.exc_value))
    with pytest.raises(KeyError), channel.lease(last, 4, 60.0):
        channel.close()
        raise KeyError
    assert len(seen) == 1 and isinstance(seen[0], errors.WrongState)
    with pytest.raises(errors.WrongState, match="open it again"):
        channel.nop()


def test_as_many_leases_as_a_session_may_have_can_follow_each_other(daemon: PrivateDaemon) -> None:
    session, channel, tensors = attach(daemon.socket, "leases", seqs_max=2)
    with session:
        tensors.store(channel, 1, 1)
        for _ in range(50):
            with channel.lease(hashes(1, 1)[0], 1, 60.0):
                pass
        held = [channel.lease(hashes(1, 1)[0], 1, 60.0) for _ in range(2)]
        with pytest.raises(errors.LimitReached, match="seqs_max"):
            channel.lease(hashes(1, 1)[0], 1, 60.0)
    for lease in held:
        lease.release()  # the session has ended, and the leases with it
        assert lease.released


READER = """
import sys, kvtide
from engine import BLOCKS, Tensors, hashes, space
socket, name, blocks = sys.argv[1], sys.argv[2], int(sys.argv[3])
with kvtide.attach(socket, space(name)) as session:
    tensors, channel = Tensors(), session.channel()
    session.set_blocks(BLOCKS, tensors.pieces(), keep=tensors)
    assert channel.lookup(hashes(1, blocks + 9)).blocks == blocks
    lease = channel.lease(hashes(1, blocks)[-1], blocks, 60.0)
    loaded = channel.load(lease, 0, range(BLOCKS - 1, BLOCKS - 1 - blocks, -1))
    assert loaded.failed == [] and all(tensors.holds(BLOCKS - 1 - i, 1, i) for i in range(blocks))
"""


def test_another_process_finds_it_after_the_writer_has_gone(daemon: PrivateDaemon) -> None:
    session, channel, tensors = attach(daemon.socket, "restart")
    assert tensors.store(channel, 1, 30).status == "ok"
    session.detach()
    environment = os.environ | {"PYTHONPATH": os.fspath(Path(__file__).parent)}
    command = [sys.executable, "-c", READER, os.fspath(daemon.socket), "restart", "30"]
    subprocess.run(command, env=environment, check=True, timeout=60)


def test_the_example_runs(daemon: PrivateDaemon) -> None:
    program = Path(__file__).parents[1] / "examples/blocks.py"
    command = [sys.executable, os.fspath(program), os.fspath(daemon.socket)]
    out = subprocess.run(command, check=True, timeout=60, stdout=subprocess.PIPE, text=True).stdout
    assert "stored 40 blocks: ok" in out and "loaded 40 of 41 blocks" in out and "equal prompt: 0 blocks" in out


def test_more_blocks_than_a_request_holds_go_in_parts(daemon: PrivateDaemon) -> None:
    session, channel, tensors = attach(daemon.socket, "parts")
    with session:
        own = [index % BLOCKS for index in range(600)]
        for block in range(BLOCKS):
            tensors.write(block, 7, block)
        chain = hashes(7, 600)
        assert channel.store(0, None, chain[:250], own[:250]).status == "ok"
        assert channel.store(250, chain[249], b"".join(chain[250:]), own[250:]).status == "ok"
        assert channel.lookup(chain).blocks == 600
        lease = channel.lease(chain[-1], 600, 60.0)
        assert channel.load(lease, 0, own).failed == []
        # A mistake in a later request of a long call: nothing is copied.
        own[555] = BLOCKS
        tensors.write(0, 8, 8)
        with pytest.raises(errors.OutOfRange, match=f"blocks.555. is {BLOCKS}; only {BLOCKS} blocks are registered"):
            channel.load(lease, 0, own)
        with pytest.raises(errors.OutOfRange, match=f"blocks 80 to 680 of lease {lease.seq}, which has 600 blocks"):
            channel.load(lease, 80, [0] * 600)
        assert tensors.holds(0, 8, 8)


def test_a_mistake_is_raised_with_its_reason_and_copies_nothing(daemon: PrivateDaemon) -> None:
    session, tensors = kvtide.attach(daemon.socket, space("mistakes")), Tensors()
    chain = hashes(3, 250)
    with session, session.channel() as channel:
        calls = (channel.store, channel.start_store)
        for store in calls:
            with pytest.raises(errors.WrongState, match="no blocks are registered: call set_blocks first"):
                store(0, None, chain[:1], [0])
        session.set_blocks(BLOCKS, tensors.pieces(), keep=tensors)
        for store in calls:
            with pytest.raises(errors.OutOfRange, match=f"blocks.1. is {BLOCKS}; only {BLOCKS} blocks are registered"):
                store(0, None, chain[:2], [0, BLOCKS])
            with pytest.raises(errors.OutOfRange, match="blocks is .0, -1.; expected numbers of registered blocks"):
                store(0, None, chain[:2], [0, -1])
            with pytest.raises(TypeError, match="blocks is '0'; expected numbers of registered blocks"):
                store(0, None, chain[:1], "0")
            with pytest.raises(errors.Invalid, match="2 hashes for 1 blocks"):
                store(0, None, chain[:2], [0])
        with pytest.raises(errors.OutOfRange, match=f"blocks.120. is {BLOCKS}"):
            channel.store(0, None, chain, [0] * 120 + [BLOCKS] + [0] * 129)
        assert channel.lookup(chain).blocks == 0
        assert channel.store(0, None, chain[:2], [0, 1]).status == "ok"
        lease = channel.lease(chain[1], 2, 60.0)
        session.set_blocks(0, [])
        for load in (channel.load, channel.start_load):
            with pytest.raises(errors.WrongState, match="call set_blocks first"):
                load(lease, 0, [0])
        session.set_blocks(BLOCKS, tensors.pieces(), keep=tensors)
        for load in (channel.load, channel.start_load):
            with pytest.raises(errors.OutOfRange, match=f"blocks.0. is {BLOCKS}"):
                load(lease, 0, [BLOCKS])
            with pytest.raises(errors.OutOfRange, match="which has 2 blocks"):
                load(lease, 1, [0, 1])
        with pytest.raises(errors.NotFound, match="no sequence or lease 99"):
            channel.load(99, 0, [0])
        for wrong, says in ((tensors.kv, "expected kvtide.Piece objects: call kvtide.blocks.pieces"), (None, "pieces is None")):
            with pytest.raises(TypeError, match=says):
                session.set_blocks(BLOCKS, wrong)  # type: ignore[arg-type]


def test_a_store_whose_parent_is_not_cached_is_not_admitted(engine: Engine) -> None:
    _, channel, _ = engine
    chain = hashes(3, 250)
    stored = channel.store(130, chain[129], chain[130:132], [0, 1])
    assert (stored.failed, stored.status) == ([0, 1], "not_admitted")
    assert errors.BY_CODE[stored.code] is errors.NotAdmitted


def test_what_does_not_fit_together_is_refused_in_words(engine: Engine) -> None:
    session, channel, tensors = engine
    wrong: list[tuple[int, list[Piece], str]] = [
        (BLOCKS, tensors.pieces()[:2], "plane 1: 0 pieces of 0 bytes, a page has 384"),
        (BLOCKS, [Piece(2, 0, 4096, 384, 384)], "piece 0: there is no plane 2 of 2"),
        (BLOCKS, [Piece(0, 0, 4096, 8, 384)], "384 bytes overlap at stride 8"),
        (BLOCKS, [Piece(0, 0, 0, 384, 384)], "invalid memory"),
    ]
    for count, pieces, says in wrong:
        with pytest.raises(errors.Invalid, match=says):
            session.set_blocks(count, pieces)
    with pytest.raises(errors.Invalid, match="count is 0"):
        session.allocate_blocks(0)
    with pytest.raises(ValueError, match="hash 1: 15 bytes; a hash has 16"):
        channel.lookup([bytes([1] * 16), bytes(15)])
    with pytest.raises(ValueError, match="hashes: 17 bytes"):
        channel.lookup(bytes(17))
    with pytest.raises(ValueError, match="hash 0 is all zeroes"):
        channel.lookup(bytes(32))
    with pytest.raises(TypeError, match="hash 0 is 1; expected bytes"):
        channel.lookup([1, 2])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="hashes is 7; expected bytes"):
        channel.lookup(7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 hashes for 1 blocks"):
        channel.store(0, None, hashes(1, 2), [0])
    with pytest.raises(ValueError, match="block 3 of a prefix needs its parent's hash"):
        channel.store(3, None, hashes(1, 1), [0])
    with pytest.raises(ValueError, match="block 0 of a prefix has no parent"):
        channel.store(0, hashes(1, 1)[0], hashes(1, 1), [0])
    for wrong in ("stored", 1):
        with pytest.raises(TypeError, match=f"level {wrong!r} is not a kvtide.Level; use Level.PUBLISHED"):
            channel.store(0, None, hashes(1, 1), [0], level=wrong)  # type: ignore[arg-type]
    with pytest.raises(errors.NotFound, match="lease"):
        channel.lease(hashes(8, 1)[0], 1, 1.0)
    assert (nothing := channel.store(0, None, [], [])).status == "ok" and not nothing.failed
    tensors.store(channel, 1, 2)
    with pytest.raises(errors.Invalid, match="lease"):
        channel.lease(hashes(1, 2)[1], 1, 1.0)
    lease = channel.lease(hashes(1, 2)[1], 2, 60.0)
    with pytest.raises(errors.OutOfRange):
        channel.load(lease, 1, [0, 1])
    with pytest.raises(errors.LimitReached):
        channel.load(lease, 0, [0] * ((1 << 20) + 1))


def test_another_model_finds_nothing(daemon: PrivateDaemon, engine: Engine) -> None:
    _, channel, tensors = engine
    tensors.store(channel, 1, 4)
    name = "test_another_model_finds_nothing"
    others: list[dict[str, object]] = [{"fingerprint": bytes([1] * 32)}, {"page_tokens": 32}, {"planes": [kvtide.Plane(512)]}]
    for other in others:
        with kvtide.attach(daemon.socket, space(name, **other)) as session:
            assert session.channel().lookup(hashes(1, 4)).blocks == 0
            if "planes" in other:
                with pytest.raises(errors.Invalid, match="2 pieces of 1024 bytes, a page has 512"):
                    session.set_blocks(BLOCKS, tensors.pieces()[:2])
    assert channel.lookup(hashes(1, 4)).blocks == 4


def test_memory_of_the_session_is_shown_and_outlives_it(daemon: PrivateDaemon) -> None:
    session = kvtide.attach(daemon.socket, space("own"))
    channel, memory = session.channel(), session.allocate_blocks(8)
    assert [tuple(m.shape) for m in memory] == [(8, page) for page in PAGES]
    shown = [np.from_dlpack(m) for m in memory]
    for plane, array in enumerate(shown):
        writable = np.frombuffer((np.ctypeslib.ctypes.c_uint8 * array.size).from_address(array.ctypes.data), np.uint8)
        writable.reshape(array.shape)[2] = 50 + plane
    assert channel.store(0, None, hashes(1, 1), [2]).status == "ok"
    lease = channel.lease(hashes(1, 1)[0], 1, 60.0)
    assert channel.load(lease, 0, [7]).status == "ok"
    session.set_blocks(0, [])
    session.detach()
    del session, channel, memory
    gc.collect()
    for plane, array in enumerate(shown):
        assert (array[7] == 50 + plane).all() and not array[3:7].any()


class Kept:
    """Object that records its destruction."""


def test_memory_is_kept_until_nothing_touches_it(engine: Engine) -> None:
    session, channel, tensors = engine
    pieces, kept = tensors.pieces(), [Kept(), Kept(), Kept()]
    refs = [weakref.ref(one) for one in kept]
    session.set_blocks(BLOCKS, pieces, keep=kept.pop(0))
    gc.collect()
    assert refs[0]() is not None
    with pytest.raises(errors.Invalid):
        session.set_blocks(BLOCKS, pieces[:1], keep=kept[0])
    assert refs[0]() is not None, "a call that failed changes nothing"
    session.set_blocks(BLOCKS, pieces, keep=kept.pop(0))
    assert refs[0]() is None and refs[1]() is not None
    session.set_blocks(BLOCKS, pieces, keep=kept.pop(0))
    assert refs[1]() is None
    tensors.store(channel, 1, 1)
    session.detach()
    assert refs[2]() is None
    with pytest.raises(errors.DaemonGone):
        channel.lookup(hashes(1, 1))


def test_waits_release_the_interpreter() -> None:
    with PrivateDaemon(64 << 20) as daemon:
        _, channel, tensors = attach(Path(daemon.socket), "waits")
        tensors.store(channel, 1, 4)
        lease = channel.lease(hashes(1, 4)[3], 4, 60.0)
        loaded: list[kvtide.CopyResult] = []

        def wait() -> None:
            while not loaded:
                try:
                    loaded.append(channel.load(lease, 0, range(4, 8), timeout=60.0))
                except errors.WrongState:
                    continue  # the other thread was in the channel first

        thread = threading.Thread(target=wait)
        daemon.freeze()
        try:
            thread.start()
            refused = None
            while refused is None and thread.is_alive():
                try:
                    channel.tier0_frames(0)  # does not wait itself
                except errors.WrongState as error:
                    refused = error
        finally:
            daemon.thaw()
        thread.join()
        assert refused is not None and "another thread" in str(refused)
        assert [one.status for one in loaded] == ["ok"] and tensors.holds(4, 1, 0)


def test_a_daemon_that_hangs_is_waited_for_as_long_as_is_said() -> None:
    with PrivateDaemon(64 << 20) as daemon:
        session, channel, tensors = attach(Path(daemon.socket), "hangs")
        tensors.store(channel, 1, 4)
        lease = channel.lease(hashes(1, 4)[3], 4, 60.0)
        daemon.freeze()
        with pytest.raises(errors.TimedOut, match="load blocks"):
            channel.load(lease, 0, range(4), timeout=0.05)
        with pytest.raises(errors.TimedOut, match="look up"):
            channel.lookup(hashes(1, 4), timeout=0.05)
        with pytest.raises(errors.TimedOut, match="settle"):
            channel.settle(timeout=0.05)
        with pytest.raises(errors.WrongState, match="register the engine's blocks"):
            session.set_blocks(BLOCKS, tensors.pieces(), keep=tensors)
        daemon.thaw()
        channel.settle()
        session.set_blocks(BLOCKS, tensors.pieces(), keep=tensors)
        assert channel.lookup(hashes(1, 4)).blocks == 4
        daemon.kill()
        with pytest.raises(errors.DaemonGone):
            channel.store(0, None, hashes(2, 1), [0])
        channel.settle()
        assert not session.alive
