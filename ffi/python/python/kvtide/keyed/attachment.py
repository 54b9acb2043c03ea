"""A session that comes back: attached at once if the daemon is there, again by a thread of its own after it was not.

Each channel of the session has a lock, so that several threads of an engine may take turns on it; the session is detached when all of
them are free. Every call over a channel has a deadline, so every wait for a lock ends.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import kvtide
from kvtide import errors

from .layout import BlockMemory

logger = logging.getLogger(__name__)

#: Pauses between attempts to attach grow from the one to the other. Seconds.
PAUSE_MIN_S, PAUSE_MAX_S = 0.2, 10.0
GONE = "the daemon is gone"
#: Errors of an attempt that another attempt will not cure: they are raised from the first one.
HOPELESS = (errors.Invalid, errors.WrongVersion, errors.NotPermitted, errors.TooBig)


@dataclass(frozen=True)
class Target:
    """What to attach to, and how."""

    socket: str | os.PathLike[str]
    space: kvtide.Space
    memory: BlockMemory
    token_file: str | os.PathLike[str] | None = None
    channels: int = 1
    #: Requests of a channel under way at once.
    depth: int = 64
    #: How long one attempt may take. Seconds.
    timeout: float = 5.0

    def attach(self) -> kvtide.Session:
        """A session that knows the blocks."""
        session = kvtide.attach(
            self.socket,
            self.space,
            None,
            channels=self.channels,
            depth=self.depth,
            timeout=self.timeout,
            token_file=self.token_file,
        )
        try:
            pieces = [kvtide.Piece(*piece) for piece in self.memory.placed()]
            session.set_blocks(self.memory.count, pieces, keep=self.memory.keep)
        except BaseException:
            session.detach()
            raise
        return session


class Attachment:
    """At most one session with a target's daemon, used through `channel`."""

    def __init__(self, target: Target, what: str) -> None:
        """Tries once; later attempts are a thread's. `what` names it in the log. Errors that no retry cures are raised."""
        self._target, self._what = target, what
        self._locks = [threading.Lock() for _ in range(target.channels)]
        #: Guards what follows; never held while something waits.
        self._state = threading.Lock()
        self._session: kvtide.Session | None = None
        self._channels: list[kvtide.Channel] = []
        self._lost: kvtide.Session | None = None
        #: Held while a session that was lost is being detached.
        self._detaching = threading.Lock()
        self._wanted, self._closing = threading.Event(), threading.Event()
        self._said: str | None = None
        self.outages = 0
        if not self._attempt(first=True):
            self._wanted.set()
        self._thread = threading.Thread(target=self._keep, name=f"kvtide-attach-{what}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether there is a session. One whose daemon is found to be gone is given up."""
        session = self._session
        if session is None or session.alive:
            return session is not None
        self.lose(session, GONE)
        return False

    @contextmanager
    def channel(self, index: int) -> Iterator[kvtide.Channel | None]:
        """Channel `index` of the session, for this thread alone until the block ends; None without a daemon.

        An error of a dead session that leaves the block starts its replacement.
        """
        with self._locks[index]:
            with self._state:
                session = self._session
                channel = self._channels[index] if session is not None else None
            if session is not None and not session.alive:
                self.lose(session, GONE)
                session = channel = None
            try:
                yield channel
            finally:
                if session is not None and not session.alive:
                    self.lose(session, GONE)

    def lose(self, session: kvtide.Session, why: str) -> None:
        """Gives a session up: nothing is asked over it any more, and the thread detaches it and attaches anew."""
        with self._state:
            if self._session is not session:
                return
            self._session, self._channels, self._lost = None, [], session
            self.outages += 1
        self._say(f"{why}: serving without it until it is back")
        self._wanted.set()

    def lose_channel(self, channel: kvtide.Channel, why: str) -> None:
        """The same, by one of its channels."""
        with self._state:
            session = self._session if any(channel is one for one in self._channels) else None
        if session is not None:
            self.lose(session, why)

    def settle(self) -> None:
        """Returns when a session that was lost before is detached: nothing of it touches the blocks any more. Call it holding no channel."""
        with self._detaching:
            with self._state:
                session, self._lost = self._lost, None
            if session is None:
                return
            with ExitStack() as stack:
                for lock in self._locks:
                    stack.enter_context(lock)
                try:
                    session.detach()
                except errors.Error as error:
                    logger.warning("kvtide %s: detaching failed: %s", self._what, error)

    def close(self) -> None:
        """Ends the thread and the session. When it returns nothing touches the blocks any more."""
        self._closing.set()
        self._wanted.set()
        self._thread.join()
        self.settle()
        with self._state:
            self._lost, self._session, self._channels = self._session, None, []
        self.settle()

    def _keep(self) -> None:
        """The thread: detaches what was lost, attaches when a session is wanted."""
        while True:
            self._wanted.wait()
            self.settle()
            pause = PAUSE_MIN_S
            while not self._closing.is_set() and not self._attempt(first=False):
                self._closing.wait(pause)
                pause = min(2 * pause, PAUSE_MAX_S)
            if self._closing.is_set():
                return
            with self._state:
                if self._session is not None:
                    self._wanted.clear()

    def _attempt(self, *, first: bool) -> bool:
        """Attaches. Whether it did."""
        try:
            session = self._target.attach()
        except HOPELESS as error:
            if first:
                raise
            self._say(f"cannot attach: {error}")
            return False
        except (errors.Error, OSError) as error:
            self._say(f"no daemon ({error}): serving without it, and trying again in the background")
            return False
        channels = [session.channel(index) for index in range(self._target.channels)]
        with self._state:
            again, self._said = self._said is not None, None
        if again:  # before anybody can lose it again, so that what is said is in order
            logger.warning("kvtide %s: attached again", self._what)
        with self._state:
            self._session, self._channels = session, channels
        return True

    def _say(self, text: str) -> None:
        """Warns, once for an outage."""
        with self._state:
            told, self._said = self._said, text
        if told is None:
            logger.warning("kvtide %s: %s", self._what, text)
