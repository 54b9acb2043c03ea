"""Prefixes of other machines: ask the relay for them, share with it, send it the tokens of blocks. No call waits for the relay."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import Relay, Session
from ..errors import Again, Error
from .hashes import HASH_BYTES
from .reconnect import Connection
from .stats import Counts
from .trace import Traces

logger = logging.getLogger(f"vllm.{__name__}")

#: Time that a step without other work waits for an answer, in seconds. Otherwise an idle scheduler would ask without a pause.
IDLE_WAIT_S = 0.002
#: Time for sharing a prefix. No request waits for it.
SHARE_S = 60.0


@dataclass
class Recall:
    """A question to the relay, for a waiting request."""

    relay: Relay
    question: int
    #: Blocks of the prefix that the daemon had.
    found: int
    until: float
    since: float = field(default_factory=time.monotonic)


class Remote:
    """The relay of the scheduler's session, if the daemon names one. All calls come from the scheduler's thread."""

    def __init__(self, connection: Connection, timeout_s: float, stats: Counts, traces: Traces) -> None:
        self._connection = connection
        self._traces = traces
        self._timeout_s = timeout_s
        self._stats = stats
        self._session: Session | None = None
        self._relay: Relay | None = None
        self._logged = ""
        #: Questions about shared prefixes.
        self._shares: list[int] = []
        #: The step has waited already.
        self._paused = False

    def _found(self) -> Relay | None:
        """Return the relay of the session that exists now."""
        attached = self._connection.attached(0)
        if attached is None:
            return None
        session = attached[0]
        if session is not self._session:
            self._session, self._relay, self._shares = session, None, []
            try:
                self._relay = session.relay()
                if self._relay is not None:
                    _ = self._relay.traces  # it connects, so that the answer is there when a first question is asked
            except Error as error:
                logger.warning("kvtide: the relay is not asked: %s", error)
        return self._relay

    def _log(self, relay: Relay) -> None:
        """Log why the relay cannot be asked, once for each reason."""
        trouble = relay.trouble or ""
        if trouble and trouble != self._logged:
            logger.warning("kvtide: %s; continuing without prefixes of other machines", trouble)
            self._logged = trouble

    def recall(self, request: Any, hashes: bytes | bytearray, found: int, *, shared: bool) -> Recall | None:
        """Ask for a request's prefix of which the daemon has the first `found` blocks. `shared`: another machine is sharing it, so it will
        come. None: the request need not wait."""
        relay = self._found() if self._timeout_s > 0 else None
        if relay is None:
            return None
        self._traces.follow(relay, request)
        try:
            question = (relay.await_shared if shared else relay.recall)(bytes(hashes), wait=self._timeout_s)
        except Again:
            self._log(relay)
            self._stats.add("recalls_refused")
            return None
        self._stats.add("recalls")
        return Recall(relay, question, found, time.monotonic() + self._timeout_s)

    def waits(self, recall: Recall, idle: bool) -> bool:
        """Return whether the request must wait longer. `idle`: the scheduler has nothing else to do."""
        relay, now = recall.relay, time.monotonic()
        if relay is not self._found():
            return False  # the session was replaced
        # Once in a step: other requests wait too.
        pause, self._paused = 0.0 if self._paused or not idle else IDLE_WAIT_S, True
        answer = relay.poll(recall.question, timeout=pause)
        if not answer.ended:
            nothing = answer.blocks is not None and answer.blocks <= recall.found
            late = answer.within is not None and now + answer.within > recall.until
            if not nothing and not late:
                return True
            relay.forget(recall.question)
        self._stats.add("recall_seconds", now - recall.since)
        if answer.ended and answer.blocks is not None:
            self._stats.add("recalled_blocks", max(0, answer.blocks - recall.found))
        else:
            self._stats.add("recalls_late")
            self._log(relay)
        return False

    def forget(self, recall: Recall) -> None:
        """Forget a question: its request has ended."""
        recall.relay.forget(recall.question)

    def share(self, request: Any, hashes: bytes) -> None:
        """Have the cached prefix of a request copied to the store."""
        relay = self._found()
        if relay is None:
            return
        self._traces.follow(relay, request)
        try:
            self._shares.append(relay.share(hashes, wait=SHARE_S))
        except Again:
            self._log(relay)

    def step(self) -> None:
        """End a step: take the answers about shared prefixes."""
        self._paused = False
        if not self._shares or (relay := self._found()) is None:
            return
        answers = [(question, relay.poll(question)) for question in self._shares]
        self._shares = [question for question, answer in answers if not answer.ended]
        self._stats.add("blocks_shared", sum(answer.blocks or 0 for _, answer in answers if answer.ended))

    def wants_notes(self) -> bool:
        """Return whether the relay needs the tokens of blocks."""
        relay = self._found()
        return relay is not None and relay.wants_notes

    def note(self, hashes: bytes, tokens: Sequence[int], adapter: str) -> None:
        """Send the tokens of blocks."""
        relay = self._found()
        if relay is None or not relay.note(hashes, tokens, adapter):
            self._stats.add("notes_lost", len(hashes) // HASH_BYTES)
