"""A session that reconnects: it always comes back, and reports about an old session do not affect the new one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from waiting import attached

from kvtide.errors import DaemonGone, TimedOut
from kvtide.vllm.reconnect import Connection
from kvtide.vllm.stats import Counts
from kvtide.vllm.transfer import Lanes


class FakeSession:
    """`alive` returns the function's result; channels are plain objects."""

    def __init__(self, alive: Callable[[], bool] = lambda: True) -> None:
        self._alive = alive
        self.ended = False

    @property
    def alive(self) -> bool:
        return self._alive() and not self.ended

    def channel(self, index: int) -> Any:
        return object()

    def detach(self) -> None:
        self.ended = True


def connection(attach: Callable[[], Any]) -> Connection:
    return Connection("a test", attach, 0.001, Counts())


def test_an_attempt_that_fails_in_another_way_than_kvtides_is_not_the_last() -> None:
    session = FakeSession()
    ends: list[Any] = [TimedOut("no answer"), RuntimeError("of torch"), ValueError("of the kernel"), session]

    def attach() -> Any:
        end = ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    made = connection(attach)
    assert not made.start()
    attached(made)
    assert made._session is session
    assert made._stats.data["attach_failures"] == 3
    made.close()
    assert session.ended


def test_what_is_this_engines_own_fault_is_said_at_the_start() -> None:
    def attach() -> Any:
        raise ValueError("pages of no bytes")

    with pytest.raises(ValueError, match="pages of no bytes"):
        connection(attach).start()


def test_the_loss_of_an_old_session_does_not_end_the_new_one() -> None:
    new = FakeSession()

    def replaced() -> bool:
        made._session, made._channels = new, {}  # type: ignore[assignment]
        return False

    made = connection(lambda: FakeSession(replaced))  # type: ignore[arg-type, return-value]
    assert made._try(first=True)  # without its thread, which would be the first to look
    assert made.channel(0) is None
    assert made._session is new
    made.failed(object(), DaemonGone("on an unknown channel"))  # type: ignore[arg-type]
    assert made._session is new
    assert made.channel(0) is not None
    made.close()


def test_a_session_that_is_ended_is_followed_by_another() -> None:
    sessions = [FakeSession(), FakeSession()]
    given = iter(sessions)
    made = connection(lambda: next(given))  # type: ignore[arg-type, return-value]
    made.start()
    made.end(sessions[0], "it was slow")  # type: ignore[arg-type]
    assert sessions[0].ended
    attached(made)
    assert made._session is sessions[1]
    made.end(sessions[0], "reported again")  # type: ignore[arg-type]
    assert made._session is sessions[1]
    made.close()


def test_lanes_are_given_to_another_session_only_while_none_is_in_a_call() -> None:
    lanes, old, new = Lanes(2), FakeSession(), FakeSession()
    changed = threading.Event()

    def change() -> None:
        with lanes.changing(new):  # type: ignore[arg-type]
            changed.set()

    with lanes.changing(old):  # type: ignore[arg-type]
        pass
    with pytest.raises(RuntimeError), lanes.changing(new):  # type: ignore[arg-type]
        raise RuntimeError("its memory is refused")
    with lanes.using(1, old):  # type: ignore[arg-type]
        thread = threading.Thread(target=change)
        thread.start()
        assert not changed.wait(0.05)
    thread.join(60)
    assert changed.is_set()
    with pytest.raises(DaemonGone, match="replaced"), lanes.using(1, old):  # type: ignore[arg-type]
        raise AssertionError
    with lanes.using(0, new):  # type: ignore[arg-type]
        pass
