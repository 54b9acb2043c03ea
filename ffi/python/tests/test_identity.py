"""An engine's identity: if only another engine of the name has blocks, the log names the parts that differ."""

from __future__ import annotations

import json
import logging
import socket

import pytest
from conftest import PAGE_TOKENS, space

import kvtide
from kvtide import blocks, identity
from kvtide.daemon import PrivateDaemon

logger = logging.getLogger(__name__)


def described(name: str, model: int, parts: dict[str, str]) -> kvtide.Space:
    return space(name, fingerprint=bytes([model] * 32), identity=identity.text(parts))


def store_one(session: kvtide.Session) -> None:
    session.allocate_blocks(1)
    hashes = blocks.block_hashes(list(range(PAGE_TOKENS)), PAGE_TOKENS)
    assert session.channel().store(0, None, hashes, [0]).status == "ok"


def test_an_identity_has_a_bound_and_long_values_stay_different() -> None:
    long = identity.text({"a": "x" * 1000 + "1", "b": "short"})
    assert len(long) < 250
    assert long != identity.text({"a": "x" * 1000 + "2", "b": "short"})
    many = {f"part {n:03}": "é" * 100 for n in range(100)}
    assert 3500 < len(identity.text(many).encode()) <= identity.BYTES_MAX
    assert identity.text({"b": "2", "a": "1"}) == identity.text({"a": "1", "b": "2"})


def test_what_differs_is_named_if_only_the_other_engine_has_blocks(daemon: PrivateDaemon, caplog: pytest.LogCaptureFixture) -> None:
    name = "identity"
    first = described(name, 1, {"dtype": "bf16", "weights": "a"})
    second = described(name, 2, {"dtype": "fp16", "weights": "a"})
    caplog.set_level(logging.DEBUG)

    def said(of: kvtide.Space, stores: bool = False) -> list[tuple[str, str]]:
        caplog.clear()
        with kvtide.attach(daemon.socket, of) as session:
            identity.log_differences(logger, session, of)
            if stores:
                store_one(session)
        return [(record.levelname, record.getMessage()) for record in caplog.records]

    assert said(first, stores=True) == []
    assert said(first) == []
    assert said(second) == [
        ("INFO", "kvtide: no blocks are found for 'identity': the stored ones are of an engine with different dtype"),
        ("DEBUG", "kvtide: fingerprint differs: dtype: bf16 -> fp16"),
    ]
    assert said(space(name, fingerprint=bytes([3] * 32))) == [], "it says nothing of itself"
    ((level, text),) = said(space(name, fingerprint=bytes([3] * 32), identity="no JSON"))
    assert (level, "another kind of engine" in text) == ("INFO", True)
    assert said(second, stores=True)[0][0] == "INFO"
    assert said(second) == [], "it has blocks by now"


def test_an_identity_that_is_too_long_is_refused_by_name(daemon: PrivateDaemon) -> None:
    with pytest.raises(ValueError, match="option identity: is 4097 bytes long, expected at most 4096 bytes"):
        kvtide.attach(daemon.socket, space("long", identity="x" * 4097))


def test_a_logged_hash_is_what_operators_search(caplog: pytest.LogCaptureFixture) -> None:
    with PrivateDaemon(16 << 20) as daemon, kvtide.attach(daemon.socket, described("searched", 1, {})) as session:
        store_one(session)
        hashes = b"".join(blocks.block_hashes(list(range(PAGE_TOKENS)), PAGE_TOKENS))
        with caplog.at_level(logging.INFO):
            identity.log_lookup(logger, "request r", hashes, 1)
        assert not caplog.messages
        with caplog.at_level(logging.DEBUG):
            identity.log_lookup(logger, "request r", hashes, 1)
        logged = caplog.messages[-1].rpartition(" ")[2]
        assert caplog.messages == [f"kvtide: request r: 1 of 1 blocks found; the last block is {hashes.hex()}"]
        with socket.socket(socket.AF_UNIX) as asked:
            asked.settimeout(60)
            asked.connect(f"{daemon.socket}.http")
            asked.sendall(f"GET /v1/cache/search?q={logged} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            answer = b"".join(iter(lambda: asked.recv(1 << 16), b""))
        found = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert [(one["kind"], one["hash"]) for one in found["matches"]] == [("block", logged)], found
