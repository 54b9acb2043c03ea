"""Blocks under independent keys, against a real daemon."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from pathlib import Path

import pytest
import torch
from conftest import space

from kvtide import errors
from kvtide.daemon import PrivateDaemon, PrivateRelay
from kvtide.keyed_store import LOCAL, BlockMemory, KeyedStore, Target, key_hash
from kvtide.keyed_store.store import CHANNELS, DEPTH
from kvtide.keyed_store.memory import PLANE_BYTES_MAX

BLOCKS = 16
#: Time that nothing takes.
BOUND = 60.0


def memory(block_bytes: int, pieces: int = 1, count: int = BLOCKS) -> tuple[torch.Tensor, BlockMemory]:
    """Return blocks made of several separate pieces, as [pieces, blocks, bytes of a piece]."""
    size = block_bytes // pieces
    tensor = torch.zeros((pieces, count, size), dtype=torch.uint8)
    base = tensor.data_ptr()
    return tensor, BlockMemory(count, tuple((base + p * count * size, size, size) for p in range(pieces)), keep=tensor)


def target(socket: Path, name: str, blocks: BlockMemory) -> Target:
    # Only the fingerprint decides which spaces are shared, not the name.
    fingerprint = hashlib.sha256(name.encode()).digest()
    return Target(socket, space(name, fingerprint=fingerprint, planes=blocks.planes()), blocks, channels=CHANNELS)


def names(count: int) -> list[bytes]:
    return [f"key {index}".encode() for index in range(count)]


def test_keys_of_this_machine_alone_are_marked() -> None:
    assert [key_hash(key)[-4:] == b"\xff" * 4 for key in (b"a", LOCAL + b"a", b"b", LOCAL)] == [False, True, False, True]
    assert key_hash(LOCAL + b"a") != key_hash(LOCAL + b"b")


def test_blocks_are_cut_into_planes_of_one_size() -> None:
    for size, count in ((4096, 1), (PLANE_BYTES_MAX, 1), (PLANE_BYTES_MAX + 4096, 2), (6 * PLANE_BYTES_MAX, 6)):
        for pieces in (1, 2, 4):
            blocks = memory(size, pieces)[1]
            planes, placed = blocks.planes(), blocks.placed()
            assert len(planes) == count
            assert sum(plane.page_bytes for plane in planes) == size
            for plane, page in enumerate(planes):
                assert sum(piece[4] for piece in placed if piece[0] == plane) == page.page_bytes
            # In order, and each byte of a block is in exactly one piece.
            assert [(a, n) for _, _, a, _, n in placed] == sorted((a, n) for _, _, a, _, n in placed)


@pytest.mark.parametrize(("block_bytes", "pieces"), [(4096, 1), (3 * 4096, 3), (5 << 20, 2)])
def test_what_was_stored_is_loaded(daemon: PrivateDaemon, request: pytest.FixtureRequest, block_bytes: int, pieces: int) -> None:
    tensor, blocks = memory(block_bytes, pieces)
    keyed = KeyedStore(target(daemon.socket, request.node.name, blocks), "test")
    tensor.random_(0, 256)
    before, keys = tensor.clone(), names(10)
    assert keyed.exists(keys) == [False] * 10
    assert keyed.load(keys[:2], [0, 1]) == [False] * 2
    assert keyed.store(keys[:4] + keys[5:], [*range(4), *range(5, 10)]) == [True] * 9
    assert keyed.exists(keys) == [index != 4 for index in range(10)]
    tensor.zero_()
    assert keyed.load(keys, [index + 3 for index in range(10)]) == [index != 4 for index in range(10)]
    for index in range(10):
        assert torch.equal(tensor[:, index + 3], before[:, index]) is (index != 4)
    assert keyed.counts() == {
        "looked_up": 20, "found": 9, "recalled": 0, "load_asked": 12, "loaded": 9, "store_asked": 9, "stored": 9, "outages": 0
    }  # fmt: skip
    with pytest.raises(ValueError, match="one block per key"):
        keyed.load(keys, [0])
    keyed.close()
    assert keyed.exists(keys) == [False] * 10


def test_more_blocks_at_once_than_a_channel_takes(daemon: PrivateDaemon, request: pytest.FixtureRequest) -> None:
    count = 8 * DEPTH
    tensor, blocks = memory(4096, count=count)
    keyed = KeyedStore(target(daemon.socket, request.node.name, blocks), "test")
    tensor.random_(0, 256)
    before, keys = tensor.clone(), names(count)
    assert keyed.store(keys, range(count)) == [True] * count
    for _ in range(4):
        tensor.zero_()
        assert keyed.load(keys, range(count)) == [True] * count
        assert torch.equal(tensor, before)
    assert keyed.exists(keys) == [True] * count
    keyed.close()


def test_a_block_that_the_engine_does_not_have_is_refused(daemon: PrivateDaemon, request: pytest.FixtureRequest) -> None:
    _, blocks = memory(4096)
    keyed = KeyedStore(target(daemon.socket, request.node.name, blocks), "test")
    for move in (keyed.store, keyed.load):
        for block in (BLOCKS, -1):
            with pytest.raises(errors.OutOfRange, match=f"block {block}: the memory has {BLOCKS} blocks"):
                move(names(3), [0, block, 2])
    assert keyed.exists(names(3)) == [False] * 3, "nothing was stored"
    keyed.close()


def test_a_refusal_is_raised(daemon: PrivateDaemon, request: pytest.FixtureRequest) -> None:
    _, blocks = memory(4096)
    other = memory(8192)[1]
    wrong = Target(daemon.socket, space(request.node.name, planes=other.planes()), blocks, channels=CHANNELS)
    with pytest.raises(errors.Invalid):
        KeyedStore(wrong, "test")


def test_threads_of_a_daemon_that_dies_see_misses_and_true_bytes(request: pytest.FixtureRequest) -> None:
    tensor, blocks = memory(1 << 20, 2)
    with PrivateDaemon(64 << 20, slab_bytes=4 << 20) as daemon:
        keyed = KeyedStore(target(daemon.socket, request.node.name, blocks), "test")
        tensor[:, :8].random_(0, 256)
        before, keys = tensor.clone(), names(8)
        assert keyed.store(keys, range(8)) == [True] * 8
        rounds = [threading.Semaphore(0), threading.Semaphore(0)]
        ended, wrong = threading.Event(), []

        def load() -> None:
            while not ended.is_set():
                tensor[:, 8:].zero_()
                for index, went in enumerate(keyed.load(keys, range(8, 16))):
                    if went and not torch.equal(tensor[:, 8 + index], before[:, index]):
                        wrong.append(index)
                rounds[0].release()

        def store() -> None:
            number = 0
            while not ended.is_set():
                keyed.store([f"{number} {index}".encode() for index in range(8)], range(8))
                number += 1
                rounds[1].release()

        threads = [threading.Thread(target=load), threading.Thread(target=store)]
        for thread in threads:
            thread.start()
        for one in rounds:
            assert all(one.acquire(timeout=30) for _ in range(3))
        daemon.kill()
        for one in rounds:
            assert all(one.acquire(timeout=30) for _ in range(5))
        ended.set()
        for thread in threads:
            thread.join()
        assert not wrong
        assert not keyed.alive
        assert keyed.exists(keys) == [False] * 8
        assert keyed.counts()["outages"] == 1
        # Stores did not change the engine's memory.
        assert torch.equal(tensor[:, :8], before[:, :8])
        keyed.close()


def test_blocks_of_another_machine_are_brought_in(tmp_path: Path) -> None:
    there, stored = memory(4096, count=40)
    here, brought = memory(4096, count=40)
    keys = names(40)
    def start() -> PrivateDaemon:
        return PrivateDaemon(64 << 20, slab_bytes=4 << 20, relay=True)

    with start() as first, start() as second:
        one = KeyedStore(target(first.socket, "remote", stored), "one")
        two = KeyedStore(target(second.socket, "remote", brought), "two", remote_timeout=BOUND)
        there.random_(0, 256)
        # All but one.
        assert all(one.store(keys[:30] + keys[31:], [*range(30), *range(31, 40)]))
        assert one.recall(keys[30:31]) == 0, "without a timeout no relay is asked"
        deadline = time.monotonic() + BOUND
        with PrivateRelay(first, tmp_path, config='[copy_out]\nwhen = "stored"\n') as relay:
            while relay.metrics()["kvtide_relay_blocks_out_total"] < 39:
                assert time.monotonic() < deadline, relay.log()
        with PrivateRelay(second, tmp_path) as relay:
            # It may not know the space yet.
            while relay.metrics().get("kvtide_relay_spaces", 0) < 1:
                assert time.monotonic() < deadline, relay.log()
            assert two.recall(keys) == 30
            assert two.exists(keys[:31]) == [True] * 30 + [False]
            assert two.recall(keys[31:]) == 9
            assert two.load(keys, range(40)) == [index != 30 for index in range(40)]
            assert all(torch.equal(here[:, index], there[:, index]) for index in range(40) if index != 30)
            assert two.counts()["recalled"] == 39
            # Blocks that no machine has cost one question.
            asked = relay.metrics()["kvtide_relay_blocks_recalled_total"]
            assert two.recall([b"nowhere", *keys]) == 0
            assert relay.metrics()["kvtide_relay_blocks_recalled_total"] == asked + 1
        one.close(), two.close()


@pytest.mark.parametrize("there", [False, True])
def test_a_relay_that_does_not_answer_delays_a_call_by_its_timeout(there: bool, caplog: pytest.LogCaptureFixture) -> None:
    with PrivateDaemon(64 << 20, slab_bytes=4 << 20, relay=True) as daemon, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hung:
        if there:
            hung.bind(str(daemon.relay_socket))
            hung.listen()
        keyed = KeyedStore(target(daemon.socket, "hung", memory(4096)[1]), "test", remote_timeout=0.05)
        # After three questions without an answer, the relay is left alone: this ends, with one line in the log.
        for _ in range(100):
            assert keyed.recall(names(3)) == 0
        # Nor does it wait longer for another call.
        with keyed._remote._lock:
            assert keyed.recall(names(3)) == 0
        lines = [record.getMessage() for record in caplog.records if "other machines" in record.getMessage()]
        assert len(lines) == 1 and "kvtide test: " in lines[0], lines
        keyed.close()
