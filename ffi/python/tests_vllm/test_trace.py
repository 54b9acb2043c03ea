"""Traces: the daemon's spans of a request's lookup, lease, load and store continue the span in the request's trace headers."""

from __future__ import annotations

import http.server
import logging
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine import TOKENS, Engine, hashes, request
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from test_remote import served

from kvtide.daemon import PrivateDaemon, PrivateRelay

#: Maximum seconds for a span to arrive: the daemon sends spans after a second.
BOUND_S = 30.0


class Collector(http.server.ThreadingHTTPServer):
    """A collector that keeps the spans that it gets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.spans: queue.SimpleQueue[tuple[str, str, str]] = queue.SimpleQueue()
        self.config = f'[tracing]\nendpoint = "http://127.0.0.1:{self.server_port}"\n'

    def take(self, count: int) -> list[tuple[str, str, str]]:
        """Return the next spans, sorted: name, trace id, id of the parent span."""
        return sorted(self.spans.get(timeout=BOUND_S) for _ in range(count))


class Handler(http.server.BaseHTTPRequestHandler):
    """Takes one message."""

    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.server.spans.put((span.name, span.trace_id.hex(), span.parent_span_id.hex()))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep the output of the tests short."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        yield collector
        collector.shutdown()
        thread.join()


def context(number: int, flags: str = "01") -> tuple[str, str, dict[str, str]]:
    """Return trace id, span id and headers of a request."""
    trace, span = f"{number:032x}", f"{number + 100:016x}"
    return trace, span, {"traceparent": f"00-{trace}-{span}-{flags}", "tracestate": "vendor=1"}


def test_a_request_is_traced_in_both_halves(collector: Collector, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    daemon = PrivateDaemon(64 << 20, slab_bytes=1 << 20, config=collector.config)
    with daemon, Engine(tmp_path, daemon.socket) as engine:
        trace, span, headers = context(1)
        stored = request("stored", hashes("p", 3), trace_headers=headers)
        engine.prefill(stored, 1.0)
        engine.finish(stored)
        assert collector.take(2) == [("lookup", trace, span), ("store", trace, span)]
        # Requests without a sampled context between traced ones, on the same channels.
        for number, given in enumerate([None, {}, context(2, "00")[2]]):
            engine.prefill(request(f"other {number}", hashes(f"q {number}", 2), trace_headers=given), 2.0)
        with caplog.at_level(logging.WARNING):
            for number in range(2):
                wrong = request(f"wrong {number}", hashes("w", 1), trace_headers={"traceparent": "00-1-2-01"})
                assert engine.match(wrong) == (0, False)
        assert engine.scheduler.stats.data["traces_malformed"] == 2
        assert [record.name for record in caplog.records] == ["vllm.kvtide.vllm.trace"], "logged once"
        trace, span, headers = context(3)
        loaded = request("loaded", hashes("p", 3), trace_headers=headers)
        assert engine.match(loaded) == (2 * TOKENS + TOKENS, True)
        engine.step({})
        assert engine.end() == ({"loaded"}, set(), set())
        # The scheduler's lease and the worker's. No other span came before them.
        expected = [("lease", trace, span), ("lease", trace, span), ("load", trace, span), ("lookup", trace, span)]
        assert collector.take(4) == expected


def test_the_relay_continues_the_trace_of_a_request(collector: Collector, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with PrivateDaemon(64 << 20, slab_bytes=1 << 20, relay=True) as daemon, Engine(tmp_path, daemon.socket, remote_timeout_s=60) as engine:
        with PrivateRelay(daemon, store, config=collector.config):
            served(engine)
            trace, span, headers = context(1)
            assert engine.answer(request("r", hashes("p", 3), trace_headers=headers)) == (0, False)
            assert engine.answer(request("s", hashes("q", 3))) == (0, False)
            made = request("t", hashes("p", 3), kv_transfer_params={"share": True}, trace_headers=headers)
            assert engine.answer(made) == (0, False)
            engine.prefill(made, 1.0)
            engine.finish(made)
            engine.await_shared(3)
            # Two recalls and a share; the daemon does not trace.
            assert collector.take(3) == [("remote", trace, span)] * 3


def test_without_a_collector_nothing_is_read(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        assert engine.prefill(request("r", hashes("p", 3), trace_headers={"traceparent": "wrong"}), 1.0).stores[0].trace is None
        assert "traces_malformed" not in engine.scheduler.stats.data
