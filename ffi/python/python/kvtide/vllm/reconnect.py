"""A session that reconnects: attach once at start, then in the background, without delaying a scheduler step."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from .. import Channel, Session
from ..errors import DaemonGone, Error, ProtocolBroken
from .stats import Counts

logger = logging.getLogger(f"vllm.{__name__}")

#: Pause in seconds after the first failed attempt. It doubles up to the configured maximum.
RETRY_MIN_S = 0.5
#: Interval in seconds for checking that an idle session is still alive.
WATCH_S = 0.5


class Connection:
    """Keeps one session open. `attach` creates one that is ready for use, and raises kvtide's errors. It also runs on this object's
    thread.
    """

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
        """Attach. Log a failure once and retry in the background. Return whether a session exists now.

        Raise exceptions of `attach` that are not kvtide's.
        """
        attached = self._try(first=True)
        self._again()
        return attached

    def _try(self, *, first: bool) -> bool:
        """Try to attach. Return True if that succeeded, or if the connection is closed or paused."""
        try:
            session = self._attach()
        except Exception as error:
            self._stats.add("attach_failures")
            self._stats.detached(f"{error} ({type(error).__name__})")
            if not isinstance(error, Error):
                if first:
                    raise  # an error of this engine's own code: the engine must not start
                # On this thread only the log reports it. Continue, or nothing would attach again.
                logger.exception("kvtide: %s cannot attach; retrying in the background", self._what)
            elif first:
                logger.warning(
                    "kvtide: %s cannot attach: %s (%s); continuing without cache, retrying in the background",
                    self._what,
                    error,
                    type(error).__name__,
                )
            return False
        with self._lock:
            refused = self._closed or self._paused
            if not refused:
                self._session, self._channels = session, {}
                self._stats.attached()
        if refused:
            session.detach()
            return True
        logger.info("kvtide: %s attached", self._what)
        return True

    def _again(self) -> None:
        """Start the thread that watches the session and replaces it when it ends."""
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
                # Detect this also without calls, so that an idle engine is attached again before its next request.
                self._over(session, "connection to the daemon lost")

    def channel(self, index: int) -> Channel | None:
        """Return the session's channel `index`, or None without a session. Only one thread may use an index."""
        found = self.attached(index)
        return None if found is None else found[1]

    def attached(self, index: int) -> tuple[Session, Channel] | None:
        """Return the session and its channel `index`, or None without a session."""
        with self._lock:
            session = self._session
            if session is None:
                return None
            channel = self._channels.get(index)
        if not session.alive:
            self._over(session, "connection to the daemon lost")
            return None
        if channel is None:
            channel = session.channel(index)
            with self._lock:
                if self._session is session:
                    self._channels[index] = channel
        return session, channel

    def failed(self, channel: Channel, error: Error) -> None:
        """Report a failed call on the channel. If the error ends the session, attach again."""
        if isinstance(error, (DaemonGone, ProtocolBroken)):
            with self._lock:
                session = self._session if channel in self._channels.values() else None
            self._over(session, str(error))

    def end(self, session: Session, why: str) -> None:
        """Detach the session now and attach again. After return the old session accesses nothing."""
        session.detach()
        self._over(session, why)

    def _over(self, session: Session | None, why: str) -> None:
        """Record that the session ended. Reports about an earlier session have no effect."""
        with self._lock:
            if session is None or self._session is not session:
                return
            self._session, self._channels = None, {}
            self._stats.detached(why)
        logger.warning(
            "kvtide: %s lost its session: %s; continuing without cache, attaching again in the background", self._what, why
        )
        self._again()

    def pause(self) -> None:
        """Detach until `resume`. The caller must have ended all running requests."""
        with self._lock:
            self._paused = True
            session, self._session, self._channels = self._session, None, {}
            self._stats.detached("the engine sleeps or ends")
            self._wake.set()
        self._join()
        if session is not None:
            session.detach()

    def resume(self) -> None:
        """Attach again after `pause`."""
        with self._lock:
            self._paused = False
        self.start()

    def close(self) -> None:
        """Detach and stop the thread."""
        with self._lock:
            self._closed = True
        self.pause()

    def _join(self) -> None:
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
