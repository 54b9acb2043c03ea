"""Wait for the connector's background threads."""

from __future__ import annotations

import threading
import time

from kvtide.vllm.reconnect import Connection

#: Limit of every wait, in seconds.
PATIENCE_S = 60.0


def attached(connection: Connection) -> None:
    """Wait until the connection has a session with a running daemon."""
    deadline, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while (session := connection._session) is None or not session.alive:
        thread = connection._thread
        assert thread is not None and thread.is_alive(), "its thread ended without a session"
        assert time.monotonic() < deadline, "there is no session"
        pause.wait(0.001)
