"""Prometheus metrics: each scrape shows the present, also of an idle engine, and never fails."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine import Engine, hashes, request
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from vllm.v1.metrics.prometheus import unregister_vllm_metrics
from vllm.v1.metrics.reader import get_metrics_snapshot
from waiting import attached

from kvtide.daemon import PrivateDaemon
from kvtide.vllm import KvtideConnector, shared_stats, stats
from kvtide.vllm.shared_stats import SharedStats, read
from kvtide.vllm.stats import COUNTERS, Counts, KvtideStats

NAMES = list(COUNTERS)
TYPES = {Gauge: Gauge, Counter: Counter, Histogram: Histogram}
LABELS = {"model_name": "m", "engine": "0"}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    """A registry in place of the process's own."""
    monkeypatch.setattr(stats, "REGISTRY", made := CollectorRegistry(auto_describe=True))
    return made


def api_server(engine_id: str = "e", engines: int = 1) -> Any:
    """Create the metrics as vLLM's API server does."""
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(engine_id=engine_id))
    labels = {index: ["m", str(index)] for index in range(engines)}
    return KvtideConnector.build_prom_metrics(config, TYPES, ["model_name", "engine"], labels)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"vllm:kvtide_{name}", LABELS | labels)


def files(directory: Path) -> list[Path]:
    """Return the shared files in a test's directory."""
    return sorted((directory / f"kvtide-vllm-{os.geteuid()}").iterdir())


def test_an_idle_engine_shows_a_daemon_that_started_later(tmp_path: Path, registry: CollectorRegistry) -> None:
    socket = tmp_path / "kvtide.sock"
    api_server()
    with Engine(tmp_path, socket, engine_id="e") as engine:
        for part in ("scheduler", "rank 0"):
            assert value(registry, "attached", part=part) == 0
            assert value(registry, "last_attach_seconds", part=part) is None
        assert value(registry, "attaches_total") == 0
        assert (value(registry, "attach_failures_total") or 0) >= 2
        reasons = [s.labels for m in registry.collect() for s in m.samples if s.name == "vllm:kvtide_attach_error"]
        assert sorted(found["part"] for found in reasons) == ["rank 0", "scheduler"]
        assert all(str(socket) in found["reason"] for found in reasons)
        with PrivateDaemon(64 << 20, slab_bytes=1 << 20) as daemon:
            socket.symlink_to(daemon.socket)
            for connection in (engine.scheduler._connection, engine.worker._connection):
                assert connection is not None
                attached(connection)
            for part in ("scheduler", "rank 0"):
                assert value(registry, "attached", part=part) == 1
                since = value(registry, "last_attach_seconds", part=part)
                assert since is not None
                assert 0 <= since < 60
            assert value(registry, "attaches_total") == 2
            assert b"vllm:kvtide_attach_error{" not in generate_latest(registry)
            engine.worker.release()
            assert value(registry, "attached", part="rank 0") == 0, "the engine sleeps"
            assert value(registry, "attached", part="scheduler") == 1
    assert value(registry, "attached", part="scheduler") is None, "the engine has ended"
    assert files(tmp_path) == []


def test_counters_are_those_that_were_counted(daemon: PrivateDaemon, tmp_path: Path, registry: CollectorRegistry) -> None:
    metrics = api_server()
    with Engine(tmp_path, daemon.socket, engine_id="e") as engine:
        engine.prefill(request("r", hashes("p", 3)), 1.0)
        halves = [engine.scheduler.stats, engine.worker.stats]
        counted = {name: sum(half.data.get(name, 0) for half in halves) for name in NAMES}
        assert counted["blocks_stored"] == 3
        assert {name: value(registry, f"{name}_total") for name in NAMES} == pytest.approx(counted)
        for half in halves:  # a step's output reports them: nothing is counted twice
            taken = half.take()
            assert taken is not None
            metrics.observe(taken.data, 0)
        assert {name: value(registry, f"{name}_total") for name in NAMES} == pytest.approx(counted)
    assert {name: value(registry, f"{name}_total") for name in NAMES} == pytest.approx(counted), "counters never fall"


def test_what_several_threads_count_is_neither_lost_nor_counted_twice() -> None:
    counts = Counts(SharedStats("e", "scheduler", NAMES))

    def count() -> None:
        for _ in range(5000):
            counts.add("lookups")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (shown,) = read(["e"], NAMES)
    assert shown.counters["lookups"] == counts.data["lookups"] == 20000
    counts.close()
    counts.add("lookups")
    assert read(["e"], NAMES) == []


def test_engines_of_one_api_server_have_their_own_labels(registry: CollectorRegistry) -> None:
    made = [SharedStats(f"e_dp{index}", "scheduler", NAMES) for index in range(2)] + [SharedStats("other", "scheduler", NAMES)]
    made[0].add("lookups", 3)
    made[1].add("lookups", 5)
    made[1].attached()
    api_server(engines=2)
    assert [value(registry, "lookups_total", engine=str(index)) for index in range(2)] == [3, 5]
    assert [value(registry, "attached", engine=str(index), part="scheduler") for index in range(2)] == [0, 1]
    for each in made:
        each.close()


def test_two_files_of_one_part_are_one_series(registry: CollectorRegistry) -> None:
    api_server()
    made = [SharedStats("e", "scheduler", NAMES), SharedStats("e_dp0", "scheduler", NAMES)]
    assert generate_latest(registry).count(b'vllm:kvtide_attached{engine="0"') == 1
    for each in made:
        each.close()


#: An owner with a forked child, which both wait.
OWNER = (
    "import os, sys, time\n"
    "from kvtide.vllm.shared_stats import SharedStats\n"
    "owner = SharedStats('e', 'rank 0', sys.argv[1].split(','))\n"
    "owner.add('lookups', 7)\n"
    "owner.attached()\n"
    "child = os.fork()\n"
    "if child == 0: print(os.getpid(), flush=True)  # it has closed its copies of the descriptors\n"
    "time.sleep(600)\n"
)


def test_the_file_of_a_dead_owner_disappears_though_its_child_lives(tmp_path: Path, registry: CollectorRegistry) -> None:
    api_server()
    owner = subprocess.Popen([sys.executable, "-c", OWNER, ",".join(NAMES)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    try:
        assert value(registry, "lookups_total") == 7
        assert value(registry, "attached", part="rank 0") == 1
        assert len(files(tmp_path)) == 1
    finally:
        owner.kill()
        owner.wait(60)
    try:
        assert value(registry, "attached", part="rank 0") is None
        assert files(tmp_path) == []
    finally:
        os.kill(child, signal.SIGKILL)
        owner.stdout.close()


def test_a_new_owner_removes_files_of_dead_owners_of_any_engine(tmp_path: Path) -> None:
    first = SharedStats("another", "scheduler", NAMES)
    dead = first._path.with_name("0" * 32 + "-" + "0" * 16)
    dead.write_bytes(b"of a crash")
    second = SharedStats("e", "scheduler", NAMES)
    assert files(tmp_path) == sorted([first._path, second._path])
    first.close()
    second.close()


def _cells(data: bytes, value: float) -> bytes:
    return data[:-8] + struct.pack("=d", value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:100],
        lambda data: data + b"\0",
        lambda data: b"\xff" * len(data),
        lambda data: bytes(len(data)),
        lambda data: b"other" + data[5:],
        lambda data: _cells(data, float("nan")),
        lambda data: _cells(data, float("inf")),
        lambda data: _cells(data, -1.0),
        lambda data: data[: shared_stats._REASON_AT + 4] + b"\xff" * 4 + data[shared_stats._REASON_AT + 8 :],
    ],
)
def test_a_damaged_file_is_not_shown_and_the_scrape_goes_on(registry: CollectorRegistry, damage: Any) -> None:
    api_server()
    good, bad = SharedStats("e", "scheduler", NAMES), SharedStats("e", "rank 0", NAMES)
    good.add("lookups", 2)
    bad.add("lookups", 5)
    assert value(registry, "lookups_total") == 7
    data = bad._path.read_bytes()
    bad._path.write_bytes(damage(data))
    text = generate_latest(registry).decode()
    assert value(registry, "lookups_total") == 2
    assert 'part="scheduler"' in text
    assert 'part="rank 0"' not in text
    bad._path.write_bytes(data)
    good.close()
    bad.close()


def test_things_that_are_no_files_and_directories_of_others_are_not_read(
    tmp_path: Path, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    api_server()
    made = SharedStats("e", "scheduler", NAMES)
    directory = made._path.parent
    prefix = made._path.name[:33]
    os.mkfifo(directory / f"{prefix}{'1' * 16}")
    (directory / f"{prefix}{'2' * 16}").mkdir()
    (directory / f"{prefix}{'3' * 16}").symlink_to("/dev/zero")
    assert value(registry, "attached", part="scheduler") == 0
    directory.chmod(0o755)
    assert value(registry, "attached", part="scheduler") is None, "others can read the directory"
    directory.chmod(0o700)
    made.close()

    def failing(*_: Any) -> Any:
        raise RuntimeError("of any kind")

    monkeypatch.setattr(stats, "read", failing)
    assert b"vllm:kvtide_lookups_total" in generate_latest(registry)


def test_a_reason_is_one_line_and_has_a_limit(registry: CollectorRegistry) -> None:
    api_server()
    made = SharedStats("e", "scheduler", NAMES)
    made.detached('no "socket"\n\0' + "\u00e9" * 1000)
    (shown,) = read(["e"], NAMES)
    assert shown.reason.startswith('no "socket"  \u00e9')
    assert len(shown.reason) <= shared_stats.REASON_MAX
    assert generate_latest(registry).count(b"\nvllm:kvtide_attach_error{") == 1
    made.close()


def test_without_room_for_the_file_the_engine_starts_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    counts = Counts.of(SimpleNamespace(kv_transfer_config=SimpleNamespace(engine_id="e")), "scheduler")
    counts.attached()
    counts.detached("gone")
    taken = counts.take()
    assert taken is not None
    assert taken.data == {"attaches": 1}
    counts.close()


def test_several_api_servers_keep_the_counters_of_prometheus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    unregister_vllm_metrics()
    metrics = api_server()
    metrics.observe({"lookups": 4, "of_another_version": 1}, 0)
    assert value(REGISTRY, "lookups_total") == 4
    assert "vllm:kvtide_attached" not in {metric.name for metric in REGISTRY.collect()}
    unregister_vllm_metrics()


def test_vllm_can_create_the_metrics_again_and_reads_them() -> None:
    unregister_vllm_metrics()
    api_server()
    unregister_vllm_metrics()
    api_server().observe(KvtideStats(data={"lookups": 2}).data, 0)
    found = {metric.name: metric for metric in get_metrics_snapshot()}
    assert found["vllm:kvtide_lookups"].value == 2  # type: ignore[attr-defined]
    unregister_vllm_metrics()
    assert not any(metric.name.startswith("vllm:kvtide") for metric in get_metrics_snapshot())
