"""Traces: the daemon's spans continue the span of vLLM's request (W3C trace context)."""

from __future__ import annotations

import logging
from typing import Any

from .. import Channel, Relay
from .stats import Counts

logger = logging.getLogger(f"vllm.{__name__}")


class Traces:
    """Trace contexts of requests, for one thread."""

    def __init__(self, stats: Counts) -> None:
        self._stats = stats
        self._warned = False

    def follow(self, channel: Channel | Relay, request: Any) -> str | None:
        """Make the calls on a channel, or the questions to a relay, from now on part of the request's trace, or of none. Return its
        `traceparent` if they are traced."""
        if not channel.traces:
            return None
        traceparent = (request.trace_headers or {}).get("traceparent")
        try:
            return traceparent if channel.trace(traceparent) else None
        except ValueError as error:
            self._stats.add("traces_malformed")
            if not self._warned:
                self._warned = True
                logger.warning("kvtide: request %s is not traced, and others may not be: %s", request.request_id, error)
            return None
