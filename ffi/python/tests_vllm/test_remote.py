"""Prefixes of other machines: two daemons, each with a relay, and engines that ask."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from engine import TOKENS, Engine, hashes, request
from waiting import PATIENCE_S, attached

from kvtide.daemon import PrivateDaemon, PrivateRelay
from kvtide.errors import Again, TimedOut
from kvtide.vllm.config import ConnectorConfig


@pytest.fixture
def daemons() -> Iterator[list[PrivateDaemon]]:
    """Two daemons that name a relay."""
    with PrivateDaemon(64 << 20, slab_bytes=1 << 20, relay=True) as first:
        with PrivateDaemon(64 << 20, slab_bytes=1 << 20, relay=True) as second:
            yield [first, second]


def served(engine: Engine) -> None:
    """Wait until the engine's relay answers about its space."""
    remote, deadline = engine.scheduler._remote, time.monotonic() + PATIENCE_S
    assert remote is not None
    while True:
        relay = remote._found()
        assert relay is not None and time.monotonic() < deadline, relay and relay.trouble
        with contextlib.suppress(Again):
            if relay.poll(relay.recall([bytes([9] * 16)], wait=PATIENCE_S), timeout=PATIENCE_S).blocks is not None:
                return


def shared(engine: Engine, name: str, text: str, count: int, value: float) -> list[torch.Tensor]:
    """Compute a prompt, share it, and return its blocks once the store has them."""
    made = request(name, hashes(text, count), kv_transfer_params={"share": True})
    engine.prefill(made, value)
    shown = engine.shown(made, count)
    engine.finish(made)
    engine.await_shared(count)
    return shown


def test_a_prompt_of_one_machine_is_a_hit_on_another(daemons: list[PrivateDaemon], tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    first, second = Engine(tmp_path, daemons[0].socket, remote_timeout_s=0), Engine(tmp_path, daemons[1].socket, remote_timeout_s=60)
    with first, second:
        with PrivateRelay(daemons[0], store):
            served(first)
            expected = shared(first, "r", "p", 5, 1.0)
        # The first machine's relay is gone.
        with PrivateRelay(daemons[1], store):
            served(second)
            made = request("s", hashes("p", 5) + hashes("more", 1))
            assert second.match(made) == (None, False), "vLLM asks again later"
            assert second.answer(made) == (5 * TOKENS, True)
            assert len(second.step({}).loads) == 1
            assert second.end() == ({"s"}, set(), set())
            found = second.shown(made, 5)
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
            counts = second.scheduler.stats.data
            assert (counts["recalls"], counts["recalled_blocks"]) == (1, 5)
            # A prefix that no machine has is asked for once, and then computed.
            other = request("t", hashes("q", 3))
            assert second.answer(other) == (0, False)
            assert second.answer(other) == (0, False)
            assert counts["recalls"] == 2 and "recalls_late" not in counts
            # A prefix that is here already is not asked for.
            assert second.answer(request("u", hashes("p", 5))) == (5 * TOKENS, True)
            assert counts["recalls"] == 2


def test_blocks_that_were_found_stay_while_the_request_waits(daemons: list[PrivateDaemon], tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with Engine(tmp_path, daemons[0].socket, remote_timeout_s=60) as engine, PrivateRelay(daemons[0], store):
        served(engine)
        with Engine(tmp_path, daemons[0].socket, remote_timeout_s=0) as other:
            other.prefill(request("r", hashes("p", 3)), 1.0)
        longer = request("s", hashes("p", 3) + hashes("more", 5))
        assert engine.match(longer) == (None, False)
        tracked = engine.scheduler._tracked["s"]
        assert tracked.held is not None and tracked.held.lease.in_host == 3 and tracked.hit == 0
        held = tracked.held
        assert engine.answer(longer) == (3 * TOKENS, True)
        assert held.lease.released, "the load has a lease of its own"
        # Blocks that the request may not load are not asked for.
        limited = request("t", hashes("p", 3) + hashes("more", 5), kv_transfer_params={"max_load_tokens": 3 * TOKENS})
        assert engine.match(limited) == (3 * TOKENS, True)
        # A request that ends while it waits leaves nothing.
        aborted = request("u", hashes("aborted", 4))
        assert engine.match(aborted) == (None, False)
        engine.scheduler.finished(aborted)
        assert "u" not in engine.scheduler._tracked


@pytest.mark.parametrize("relay", ["none", "hangs", "off"])
def test_a_relay_that_does_not_answer_delays_a_request_by_its_timeout(
    daemons: list[PrivateDaemon], tmp_path: Path, relay: str, caplog: pytest.LogCaptureFixture
) -> None:
    timeout = 0 if relay == "off" else 0.05
    hung = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if relay == "hangs":
        hung.bind(str(daemons[0].relay_socket))
        hung.listen()
    with hung, Engine(tmp_path, daemons[0].socket, remote_timeout_s=timeout) as engine:
        for index in range(5):
            assert engine.answer(request(f"r{index}", hashes(f"p{index}", 3))) == (0, False)
        counts = engine.scheduler.stats.data
        found = {name: counts.get(name, 0) for name in ("recalls", "recalls_late", "recalls_refused")}
        # After three questions without an answer, the relay is left alone for a while.
        expected = {
            "none": {"recalls": 0, "recalls_late": 0, "recalls_refused": 5},
            "hangs": {"recalls": 3, "recalls_late": 3, "recalls_refused": 2},
            "off": {"recalls": 0, "recalls_late": 0, "recalls_refused": 0},
        }
        assert found == expected[relay]
        warned = [record.message for record in caplog.records if "prefixes of other machines" in record.message]
        assert len(warned) == (relay != "off"), warned
        assert all("relay.sock" in line for line in warned)


def test_a_random_epoch_asks_nobody(daemons: list[PrivateDaemon], tmp_path: Path) -> None:
    with Engine(tmp_path, daemons[0].socket) as engine, PrivateRelay(daemons[0], tmp_path):
        served(engine)
        assert engine.scheduler.reset()
        assert engine.answer(request("r", hashes("p", 3))) == (0, False)
        assert "recalls" not in engine.scheduler.stats.data


def test_options() -> None:
    assert ConnectorConfig.parse({"remote_timeout_s": "250ms"}).remote_timeout_s == 0.25
    assert ConnectorConfig.parse({"remote_timeout_s": 0}).remote_timeout_s == 0
    with pytest.raises(ValueError, match="remote_timeout_s"):
        ConnectorConfig.parse({"remote_timeout_s": -1})


def test_a_late_lease_is_no_outage(daemons: list[PrivateDaemon], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a request waits for the relay, a lease that is late costs only the pin: lookups go on."""
    with Engine(tmp_path, daemons[0].socket, remote_timeout_s=60) as engine, PrivateRelay(daemons[0], tmp_path):
        served(engine)
        with Engine(tmp_path, daemons[0].socket, remote_timeout_s=0) as other:
            other.prefill(request("r", hashes("p", 3)), 1.0)
        late = SimpleNamespace(late=True)
        half = engine.scheduler
        channel = half._channel()

        class Late:
            """The channel, with a first lease that is late."""

            def __getattr__(self, name: str) -> object:
                return getattr(channel, name)

            def lease(self, *args: object, **options: object) -> object:
                if late.late:
                    late.late = False
                    raise TimedOut("the test's")
                return channel.lease(*args, **options)

        monkeypatch.setattr(half, "_channel", lambda: None if time.monotonic() < half._rest_until else Late())
        longer = request("s", hashes("p", 3) + hashes("more", 5))
        assert engine.match(longer) == (None, False)
        assert half._tracked["s"].held is None and not late.late
        assert engine.answer(longer) == (3 * TOKENS, True)
        assert "lookup_misses_by_timeout" not in half.stats.data


def test_a_question_to_the_relay_of_an_earlier_session_is_over(daemons: list[PrivateDaemon], tmp_path: Path) -> None:
    """Numbers of questions begin anew with each session: one must not take another's answer."""
    with Engine(tmp_path, daemons[0].socket, remote_timeout_s=60) as engine, PrivateRelay(daemons[0], tmp_path):
        served(engine)
        remote = engine.scheduler._remote
        assert remote is not None
        # No other machine shares it, so no answer comes.
        old = remote.recall(request("r", []), bytes([1] * 16), 0, shared=True)
        assert old is not None and remote.waits(old, idle=True)
        session = engine.scheduler._connection._session  # type: ignore[union-attr]
        assert session is not None
        engine.scheduler._connection.end(session, "the test ends it")  # type: ignore[union-attr]
        attached(engine.scheduler._connection)  # type: ignore[arg-type]
        fresh = next(iter(lambda: remote.recall(request("r", []), bytes([2] * 16), 0, shared=False), "never"))
        assert fresh is not None and fresh.relay is not old.relay
        assert not remote.waits(old, idle=True)
        while remote.waits(fresh, idle=True):
            pass
        assert engine.scheduler.stats.data.get("recalls_late", 0) == 0
