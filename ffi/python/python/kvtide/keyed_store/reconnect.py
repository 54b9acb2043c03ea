"""A session that reconnects: the first attempt to attach is made at once, later ones by a background thread.

Each channel of the session has a lock, so several threads of an engine can share it. The session is detached when all locks are
free. Every call on a channel has a deadline, so every wait for a lock ends.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import kvtide
from kvtide import errors, identity

from .memory import BlockMemory

logger = logging.getLogger(__name__)

#: Shortest and longest pause between attempts to attach, in seconds. The pause doubles after each failure.
PAUSE_MIN_S, PAUSE_MAX_S = 0.2, 10.0
GONE = "connection to the daemon lost"
#: Errors that another attempt cannot fix. The first attempt raises them.
HOPELESS = (errors.Invalid, errors.WrongVersion, errors.NotPermitted, errors.TooBig)


@dataclass(frozen=True)
class Target:
    """Parameters of a session: daemon, space, memory, limits."""

    socket: str | os.PathLike[str]
    space: kvtide.Space
    memory: BlockMemory
    token_file: str | os.PathLike[str] | None = None
    #: Channels of the session; `CHANNELS` for a `KeyedStore`.
    channels: int = 1
    #: Maximum requests in flight on one channel.
    depth: int = 64
    #: Limit of one attempt to attach, in seconds.
    timeout: float = 5.0
    #: NUMA node of the daemon's memory, as `kvtide.attach` takes it.
    numa_node: int | None = None

    def attach(self) -> kvtide.Session:
        """Attach and register the blocks. Return the session."""
        session = kvtide.attach(
            self.socket,
            self.space,
            None,
            channels=self.channels,
            depth=self.depth,
            timeout=self.timeout,
            token_file=self.token_file,
            numa_node=self.numa_node,
        )
        identity.log_differences(logger, session, self.space)
        try:
            pieces = [kvtide.Piece(*piece) for piece in self.memory.placed()]
            session.set_blocks(self.memory.count, pieces, keep=self.memory.keep)
        except BaseException:
            session.detach()
            raise
        return session


class Connection:
    """At most one session with the target's daemon, used through `channel`."""

    def __init__(self, target: Target, what: str) -> None:
        """Try to attach once, then start the background thread. `what` names the connection in the log.

        Raise the errors in `HOPELESS` if the first attempt fails with them.
        """
        self._target, self._what = target, what
        self._locks = [threading.Lock() for _ in range(target.channels)]
        #: Guards the fields below. Never held during a wait.
        self._state = threading.Lock()
        self._session: kvtide.Session | None = None
        self._channels: list[kvtide.Channel] = []
        self._relay: kvtide.Relay | None = None
        self._lost: kvtide.Session | None = None
        #: Held while a lost session is being detached.
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
        """Return whether a session exists. Close the session if its daemon is gone."""
        session = self._session
        if session is None or session.alive:
            return session is not None
        self.lose(session, GONE)
        return False

    @property
    def relay(self) -> kvtide.Relay | None:
        """Return the relay of the session; None without a daemon, or if it names none. One thread at a time may use it."""
        with self._state:
            return self._relay if self._session is not None else None

    @contextmanager
    def channel(self, index: int) -> Iterator[kvtide.Channel | None]:
        """Lend channel `index` of the session to this thread until the block ends; None without a daemon.

        If the session is dead when the block ends, the background thread replaces it.
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
        """Give up a session: stop using it, and let the thread detach it and attach again."""
        with self._state:
            if self._session is not session:
                return
            self._session, self._channels, self._lost = None, [], session
            self.outages += 1
        self._say(f"{why}; continuing without it, retrying in the background")
        self._wanted.set()

    def lose_channel(self, channel: kvtide.Channel, why: str) -> None:
        """Give up the session that owns `channel`."""
        with self._state:
            session = self._session if any(channel is one for one in self._channels) else None
        if session is not None:
            self.lose(session, why)

    def settle(self) -> None:
        """Wait until a lost session is detached, so that it no longer accesses the blocks. The caller must hold no channel."""
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
                    logger.warning("kvtide %s: cannot detach from the daemon: %s", self._what, error)

    def close(self) -> None:
        """End the thread and the session. After return nothing accesses the blocks."""
        self._closing.set()
        self._wanted.set()
        self._thread.join()
        self.settle()
        with self._state:
            self._lost, self._session, self._channels = self._session, None, []
        self.settle()

    def _keep(self) -> None:
        """Run the thread: detach lost sessions, attach when a session is wanted."""
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
        """Try to attach. Return whether it succeeded. Raise an error in `HOPELESS` if `first`."""
        try:
            session = self._target.attach()
        except HOPELESS as error:
            if first:
                raise
            self._say(f"cannot attach: {error}; continuing without the daemon, retrying in the background")
            return False
        except (errors.Error, OSError) as error:
            self._say(f"cannot attach ({error}); continuing without the daemon, retrying in the background")
            return False
        channels = [session.channel(index) for index in range(self._target.channels)]
        with self._state:
            again, self._said = self._said is not None, None
        if again:  # before the session becomes visible and can be lost, so that log lines are in order
            logger.warning("kvtide %s: attached again", self._what)
        try:
            relay = session.relay()
        except errors.Error as error:
            logger.warning("kvtide %s: the relay is not asked: %s", self._what, error)
            relay = None
        with self._state:
            self._session, self._channels, self._relay = session, channels, relay
        return True

    def _say(self, text: str) -> None:
        """Log a warning, once per outage."""
        with self._state:
            told, self._said = self._said, text
        if told is None:
            logger.warning("kvtide %s: %s", self._what, text)
