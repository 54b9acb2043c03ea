"""Blocks of other machines: have the relay bring them in."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

from .. import Relay
from ..errors import Again
from .reconnect import Connection

logger = logging.getLogger(__name__)

#: Maximum questions to the relay at a time. A connection may have 48.
WINDOW_MAX = 32


class Remote:
    """The relay of a connection's session, if the daemon names one. Thread-safe; calls run one after another."""

    def __init__(self, connection: Connection, what: str, timeout_s: float) -> None:
        """`timeout_s`: limit of one call; 0: no relay is asked. `what` names the blocks in the log."""
        self._connection, self._what, self._timeout_s = connection, what, timeout_s
        self._lock = threading.Lock()
        self._logged = ""

    def recall(self, hashes: Sequence[bytes]) -> int:
        """Have blocks brought in, each stored without a parent. Return how many of them, from the first on, the daemon has then."""
        if not hashes or self._timeout_s <= 0:
            return 0
        deadline = time.monotonic() + self._timeout_s
        if not self._lock.acquire(timeout=self._timeout_s):
            return 0
        try:
            relay = self._connection.relay
            return 0 if relay is None else self._ask(relay, deque(hashes), deadline)
        finally:
            self._lock.release()

    def _ask(self, relay: Relay, left: deque[bytes], deadline: float) -> int:
        """Ask for each block, in order, until one does not come."""
        asked: deque[int] = deque()
        came = 0
        while True:
            # One question first: most prefixes that are not here are nowhere, and each question may cost the store a request.
            while left and len(asked) < min(came + 1, WINDOW_MAX):
                # A question without time for its answer would count as a failure of the relay.
                wait = deadline - time.monotonic()
                if wait <= 0:
                    left.clear()
                    break
                try:
                    asked.append(relay.recall(left.popleft(), wait=wait))
                except Again:  # the relay's trouble is logged below
                    left.clear()
            if not asked:
                break
            question = asked.popleft()
            answer = relay.poll(question, timeout=max(0.0, deadline - time.monotonic()))
            if not answer.ended or answer.blocks != 1:
                for unneeded in (question, *asked):
                    relay.forget(unneeded)
                break
            came += 1
        trouble = relay.trouble
        if trouble and trouble != self._logged:
            logger.warning("kvtide %s: %s; continuing without blocks of other machines", self._what, trouble)
            self._logged = trouble
        return came
