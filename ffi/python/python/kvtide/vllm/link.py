"""A session that comes and goes with the daemon: attached once at start, then anew in the background, never in a step's way."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from .. import Channel, Session
from ..errors import DaemonGone, Error, ProtocolBroken
from .stats import Counts

logger = logging.getLogger(f"vllm.{__name__}")

#: The pause after the first attempt that failed; it doubles up to the configured maximum. Seconds.
RETRY_MIN_S = 0.5
#: How often it is looked whether a session that nobody uses is still there. Seconds.
WATCH_S = 0.5


class Link:
    """Keeps a session. `attach` makes one, fit for use, and raises kvtide's errors; it runs on this object's thread too."""

    def __init__(self, what: str, attach: Callable[[], Session], retry_max_s: float, stats: Counts) -> None:
        self._what = what
        self._attach = attach
        self._retry_max_s = retry_max_s
        self._stats = stats
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._channels: dict[int, Channel] = {}
        self._wake = threading.Event()
        self._closed = False
        self._paused = False
        self._thread: threading.Thread | None = None

    def start(self) -> bool:
        """Attaches; what fails is logged once and tried again in the background. Whether it is attached now."""
        attached = self._try(first=True)
        self._again()
        return attached

    def _try(self, *, first: bool) -> bool:
        """Whether it is attached, or need not be."""
        try:
            session = self._attach()
        except Exception as error:
            self._stats.add("attach_failures")
            if not isinstance(error, Error):
                if first:
                    raise  # of this engine's own making: it does not start
                # Nobody else hears of it, and without this thread nobody would try again.
                logger.exception("kvtide: %s cannot be attached. It is tried again", self._what)
            elif first:
                logger.warning(
                    "kvtide: %s serves without cache: %s (%s). It is tried again in the background",
                    self._what,
                    error,
                    type(error).__name__,
                )
            return False
        with self._lock:
            refused = self._closed or self._paused
            if not refused:
                self._session, self._channels = session, {}
        if refused:
            session.detach()
            return True
        self._stats.add("attaches")
        logger.info("kvtide: %s is attached", self._what)
        return True

    def _again(self) -> None:
        """Has the session watched, and another one looked for when it is over."""
        with self._lock:
            if self._closed or self._paused or self._thread is not None:
                return
            self._wake.clear()
            self._thread = threading.Thread(target=self._watch, name="kvtide-attach", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        pause = min(RETRY_MIN_S, self._retry_max_s)
        while True:
            with self._lock:
                if self._closed or self._paused:
                    self._thread = None
                    return
                session = self._session
            if session is None:
                self._wake.wait(pause)
                pause = min(pause * 2, self._retry_max_s)
                if not (self._closed or self._paused):
                    self._try(first=False)
            elif session.alive:
                pause = min(RETRY_MIN_S, self._retry_max_s)
                self._wake.wait(WATCH_S)
            else:
                # Nobody may be using it: an idle engine is attached again before its next request.
                self._over(session, "its daemon is gone")

    def channel(self, index: int) -> Channel | None:
        """The session's channel of that number, for the one thread that asks for it; None while there is no session."""
        found = self.attached(index)
        return None if found is None else found[1]

    def attached(self, index: int) -> tuple[Session, Channel] | None:
        """The session and its channel, as `channel` does."""
        with self._lock:
            session = self._session
            if session is None:
                return None
            channel = self._channels.get(index)
        if not session.alive:
            self._over(session, "its daemon is gone")
            return None
        if channel is None:
            channel = session.channel(index)
            with self._lock:
                if self._session is session:
                    self._channels[index] = channel
        return session, channel

    def failed(self, channel: Channel, error: Error) -> None:
        """A call on the channel failed: if that means that the session is over, the next one is looked for."""
        if isinstance(error, (DaemonGone, ProtocolBroken)):
            with self._lock:
                session = self._session if channel in self._channels.values() else None
            self._over(session, str(error))

    def end(self, session: Session, why: str) -> None:
        """Ends the session now: when this returns it touches nothing any more. The next one is looked for."""
        session.detach()
        self._over(session, why)

    def _over(self, session: Session | None, why: str) -> None:
        """The session is over. Who says so of one that is not the present one changes nothing."""
        with self._lock:
            if session is None or self._session is not session:
                return
            self._session, self._channels = None, {}
        logger.warning("kvtide: %s lost its session and serves without cache until it is attached again: %s", self._what, why)
        self._again()

    def pause(self) -> None:
        """Detaches until `resume`. The caller has ended what was under way."""
        with self._lock:
            self._paused = True
            session, self._session, self._channels = self._session, None, {}
            self._wake.set()
        self._join()
        if session is not None:
            session.detach()

    def resume(self) -> None:
        """Attaches again after `pause`."""
        with self._lock:
            self._paused = False
        self.start()

    def close(self) -> None:
        """Detaches for good."""
        with self._lock:
            self._closed = True
        self.pause()

    def _join(self) -> None:
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
