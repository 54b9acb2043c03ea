"""The NUMA node that an engine names: found by its GPU, told to the daemon."""

from __future__ import annotations

import logging
from typing import NoReturn

import pytest
from conftest import space

import kvtide
from kvtide import errors, numa
from kvtide.daemon import PrivateDaemon
from kvtide.keyed_store import Target
from test_keyed_store import memory


def test_the_daemon_is_told_a_node(daemon: PrivateDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    with kvtide.attach(daemon.socket, space("node"), numa_node=1023) as session:
        assert session.alive
    with pytest.raises(ValueError, match="NUMA node"):
        kvtide.attach(daemon.socket, space("node"), numa_node=1024)
    given: list[object] = []

    def gone(*_: object, **options: object) -> NoReturn:
        given.append(options["numa_node"])
        raise errors.DaemonGone

    monkeypatch.setattr(kvtide, "attach", gone)
    blocks = memory(4096)[1]
    with pytest.raises(errors.DaemonGone):
        Target(daemon.socket, space("node", planes=blocks.planes()), blocks, numa_node=5).attach()
    assert given == [5]


def test_the_node_of_a_gpu_is_asked_from_the_driver(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def node(ordinal: int) -> int | None:
        if ordinal > 1:
            raise errors.DeviceFailed(f"no CUDA device {ordinal}")
        return [3, None][ordinal]

    monkeypatch.setattr(numa, "gpu_numa_node", node)
    with caplog.at_level(logging.WARNING):
        assert [numa.of_engine("cuda", index) for index in (None, 0, 1)] == [3, 3, None]
        assert numa.of_engine("cpu", None) is None
        assert not caplog.records, "a node that the system does not know is not an error"
        assert numa.of_engine("cuda", 2) is None
    assert "no CUDA device 2" in caplog.text and "numactl" in caplog.text
