"""Failures end in bounded time, are reported as vLLM can use them, and leak nothing."""

from __future__ import annotations

import queue
import time
from pathlib import Path
from typing import Any

import pytest
from engine import TOKENS, Engine, full, hashes, request, vllm_config, window

from kvtide.blocks import Level
from kvtide.daemon import PrivateDaemon
from kvtide.errors import DaemonGone, TimedOut, TransferFailed
from kvtide.vllm import fingerprint, scheduler, worker
from kvtide.vllm.config import ConnectorConfig
from kvtide.vllm.metadata import LoadJob, StoreJob
from kvtide.vllm.worker import LOADS, SEQS_MAX, STORES


def transfer(engine: Engine) -> Any:
    assert engine.worker._transfer is not None
    return engine.worker._transfer


def test_with_a_window_a_failed_load_is_told_by_request(tmp_path: Path) -> None:
    with PrivateDaemon(64 << 20, slab_bytes=1 << 20) as daemon, Engine(tmp_path, daemon.socket, [window()]) as engine:
        engine.prefill(request("r", hashes("p", 3)), 1.0)
        assert engine.match(request("s", hashes("p", 3))) == (3 * TOKENS, True), "its blocks may be the null block"
        daemon.kill()
        engine.step({})
        assert engine.end() == ({"s"}, {"s"}, set())


def test_a_request_whose_load_failed_is_not_promised_it_again(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        engine.prefill(request("r", hashes("p", 2)), 1.0)
        asked = request("s", hashes("p", 2) + hashes("s", 1))
        assert engine.match(asked) == (2 * TOKENS, True)
        transfer(engine).load = lambda *_: 0
        engine.step({})
        assert len(engine.end()[2]) == 2
        asked.num_computed_tokens = 0
        assert engine.scheduler.matched(asked, 0) == (0, False)
        assert engine.scheduler.matched(request("t", hashes("p", 2)), 0) == (2 * TOKENS, True), "another one may try"
        stored = engine.step({"s": asked.num_tokens}, [(asked, 1.0)]).stores
        assert [(job.first, len(job.ids)) for job in stored] == [(0, 3)]
        engine.end()
        assert engine.scheduler.matched(request("u", hashes("p", 2) + hashes("s", 1)), 0)[0] == 3 * TOKENS


def test_a_late_answer_is_waited_for_and_no_miss(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket, lookup_timeout_s="10ms", lookup_max_s="1min") as engine:
        engine.prefill(request("r", hashes("p", 3)), 1.0)
        asked = request("s", hashes("p", 3))
        daemon.freeze()
        late = [engine.match(asked) for _ in range(3)]
        daemon.thaw()
        assert late == [(None, False)] * 3, "vLLM is to ask again"
        found = engine.answer(asked)
        assert found == (3 * TOKENS, True)
        counted = engine.scheduler.stats.data
        assert counted["lookups_late"] >= 3
        assert "lookup_misses_by_timeout" not in counted


def test_a_daemon_that_stands_still_is_a_miss_in_the_end_and_then_not_asked(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket, lookup_timeout_s="10ms", lookup_max_s="100ms") as engine:
        engine.prefill(request("r", hashes("p", 3)), 1.0)
        daemon.freeze()
        assert engine.answer(request("s", hashes("p", 3))) == (0, False)
        began = time.monotonic()
        counted = engine.scheduler.stats.data
        lookups = counted["lookups"]
        assert engine.match(request("t", hashes("p", 3))) == (0, False)
        rested = time.monotonic() - began < scheduler.REST_MIN_S
        assert not rested or engine.scheduler.stats.data["lookups"] == lookups, "it was asked though it had not answered"
        assert counted["lookup_misses_by_timeout"] == 1
        daemon.thaw()


def load_job(engine: Engine, text: str, count: int) -> LoadJob:
    """Return a load of cached blocks, as the scheduler half creates it."""
    assert engine.match(request("l", hashes(text, count)))[0] == count * TOKENS
    (job,) = engine.scheduler.step({}).loads
    return job


def test_whatever_a_load_fails_by_its_lease_ends(daemon: PrivateDaemon, tmp_path: Path) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        engine.prefill(request("r", hashes("p", 2)), 1.0)
        job, until = load_job(engine, "p", 2), time.monotonic() + 60
        real = transfer(engine).load

        def fails(*_: Any) -> int:
            raise RuntimeError("of torch")

        transfer(engine).load = fails
        for _ in range(SEQS_MAX + 1):
            with pytest.raises(RuntimeError, match="of torch"):
                engine.worker._load_blocks(LOADS, job, None, until)
        transfer(engine).load = real
        assert engine.worker._load_blocks(LOADS, job, None, until) is None


@pytest.mark.parametrize("error", [TransferFailed("short"), TimedOut("late"), RuntimeError("of torch")])
def test_after_every_failure_it_is_waited_until_no_copy_goes_on(
    daemon: PrivateDaemon, tmp_path: Path, error: Exception
) -> None:
    with Engine(tmp_path, daemon.socket) as engine:
        engine.prefill(request("r", hashes("p", 2)), 1.0)
        job, settled = load_job(engine, "p", 2), 0

        def settle(_: object) -> None:
            nonlocal settled
            settled += 1

        engine.worker._settle = settle  # type: ignore[method-assign]

        def fails(*_: Any) -> int:
            raise error

        transfer(engine).load = transfer(engine).store = fails
        engine.worker._load(LOADS, job, None, time.monotonic() + 60)
        store = StoreJob(7, 0, None, bytes(16), job.ids[:1])
        engine.worker._store(STORES, store, None, time.monotonic() + 60)
        assert settled == 2


def test_what_comes_after_its_time_fails_at_once(daemon: PrivateDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(tmp_path, daemon.socket, [full(), window()], load_timeout_s=3.0, store_timeout_s=7.0) as engine:
        engine.prefill(request("r", hashes("p", 2)), 1.0)
        job = load_job(engine, "p", 2)
        assert engine.worker._load_blocks(LOADS, job, None, time.monotonic()) == 0
        assert engine.worker._store_blocks(STORES, StoreJob(7, 0, None, bytes(16), job.ids[:2]), None, time.monotonic()) == 0
        connection = engine.worker._connection
        assert connection is not None
        with pytest.raises(TimedOut, match="before this part could start"):
            transfer(engine).load(connection.attached(LOADS), LOADS, 0, 0, job.ids, None, time.monotonic())
        # The limit counts from the request, not from the start of the copy.
        given = engine.worker._queues[LOADS]
        engine.worker._queues[LOADS] = queue.SimpleQueue()
        monkeypatch.setattr(worker.time, "monotonic", lambda: 1000.0)
        engine.worker.start_loads(worker.StepMetadata([job]))
        monkeypatch.undo()
        assert engine.worker._queues[LOADS].get() == (job, None, 1003.0)
        engine.worker._queues[LOADS] = given


def test_a_daemon_that_stands_still_in_a_load_costs_a_session_and_nothing_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "SETTLE_S", 0.1)
    options = {"load_timeout_s": 5.0, "attach_timeout_s": 0.5}
    with PrivateDaemon(64 << 20, slab_bytes=1 << 20) as daemon:
        try:
            with Engine(tmp_path, daemon.socket, **options) as engine:
                engine.prefill(request("r", hashes("p", 2)), 1.0)
                assert engine.match(request("s", hashes("p", 2))) == (2 * TOKENS, True)
                real, connection = transfer(engine).load, engine.worker._connection
                assert connection is not None
                session = connection._session
                assert session is not None

                def stands(*given: Any) -> Any:
                    daemon.freeze()
                    return real(*given[:-1], time.monotonic() + 0.1)

                transfer(engine).load = stands
                engine.step({})
                loaded, _, invalid = engine.end()
                assert (loaded, len(invalid)) == ({"s"}, 2)
                assert not session.alive, "it might have written into blocks that vLLM has given to others"
                assert connection._session is not session
        finally:
            daemon.thaw()


def test_a_channel_of_the_session_before_does_not_use_the_memory_of_the_next(daemon: PrivateDaemon, tmp_path: Path) -> None:
    for staging in ("auto", "always"):
        with Engine(tmp_path, daemon.socket, [full(), window()], staging=staging) as engine:
            engine.prefill(request("r", hashes("p", 2)), 1.0)
            job, connection = load_job(engine, "p", 2), engine.worker._connection
            assert connection is not None
            on = connection.attached(LOADS)
            with engine.worker._attach():
                with pytest.raises(DaemonGone, match="replaced"):
                    transfer(engine).load(on, LOADS, 0, 0, job.ids, None, time.monotonic() + 60)
                with pytest.raises(DaemonGone, match="replaced"):
                    transfer(engine).store(on, LOADS, 0, None, bytes(16), job.ids[:2], None, Level.PUBLISHED, time.monotonic() + 60)


def test_what_changes_what_is_computed_changes_the_fingerprint(tmp_path: Path) -> None:
    def digest(part: str, name: str, value: object) -> bytes:
        config = vllm_config(tmp_path)
        setattr(getattr(config, part), name, value)
        return fingerprint.digest(fingerprint.parts(config, ConnectorConfig(weights_id="w"), "l"))

    same = digest("parallel_config", "enable_expert_parallel", False)
    assert digest("model_config", "seed", 7) == same, "with named weights"
    assert digest("model_config", "max_model_len", 2048) != same
    assert digest("load_config", "load_format", "pt") != same
    assert digest("parallel_config", "enable_expert_parallel", True) != same


def test_chunks_leave_blocks_as_windows_do() -> None:
    from kvtide.vllm.layout import Group, Groups  # noqa: PLC0415

    def plain(*leaves: bool) -> bool:
        made = tuple(Group(("l",), TOKENS, "full", 0, "", leave) for leave in leaves)
        return Groups(made, TOKENS, (1,) * len(made), TOKENS, drafts=False).plain

    assert plain(False)
    assert not plain(True)
    assert not plain(False, False)


def test_the_session_names_the_numa_node_of_the_device_that_has_the_kv(
    daemon: PrivateDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    given: list[object] = []
    attach = worker.attach

    def of_engine(*device: object) -> int:
        asked.append(device)
        return 7

    def attach_noted(*arguments: Any, **options: Any) -> Any:
        given.append(options["numa_node"])
        return attach(*arguments, **options)

    monkeypatch.setattr(worker.numa, "of_engine", of_engine)
    monkeypatch.setattr(worker, "attach", attach_noted)
    with Engine(tmp_path, daemon.socket):
        assert (asked, given) == ([("cpu", None)], [7])
