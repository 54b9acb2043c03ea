"""Every status has its exception class, and errors name the wrong argument."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import space

import kvtide
from kvtide import _native, errors
from kvtide.daemon import DaemonError, PrivateDaemon, find_kvtided


def test_every_status_has_its_class() -> None:
    codes = {code for _, code, _ in _native.STATUSES if code != 0}
    assert codes == set(errors.BY_CODE), "errors.BY_CODE and the wire's statuses have come apart"
    for _, code, text in _native.STATUSES[1:]:
        error = errors.from_code(code, text)
        assert isinstance(error, kvtide.Error) and error.code == code and str(error) == text


@pytest.mark.parametrize(
    ("changes", "arguments", "says"),
    [
        ({"fingerprint": b"short"}, {}, "fingerprint: 5 bytes; it must have 32"),
        ({"planes": [kvtide.Plane(4096, kind="half")]}, {}, 'plane 0: kind "half"'),  # type: ignore[arg-type]
        ({"planes": []}, {}, "plane"),
        ({"page_tokens": 0}, {}, "page_tokens"),
        ({"shards": 2, "shard": 2}, {}, "shard"),
        ({}, {"lanes": 0}, "channels, lanes"),
        ({}, {"lanes": 16, "channels": 1}, "17 rings"),
        ({}, {"device": "tpu"}, "invalid device `tpu`"),
        ({}, {"device_memory": (0, 1)}, "device_memory: device cpu"),
        ({}, {"timeout": -1.0}, "timeout"),
        ({}, {"timeout": float("nan")}, "timeout"),
    ],
)
def test_wrong_options_say_what_is_wrong(
    daemon: PrivateDaemon, changes: dict[str, object], arguments: dict[str, object], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        kvtide.attach(daemon.socket, space("wrong", **changes), [8], **arguments)  # type: ignore[arg-type]


def test_frames_for_each_class_and_no_other(daemon: PrivateDaemon) -> None:
    with pytest.raises(kvtide.Error, match="size classes with tier-0 frames: is 2"):
        kvtide.attach(daemon.socket, space("classes"), [8, 8])


def test_nobody_listens(tmp_path: Path) -> None:
    socket = tmp_path / "nobody.sock"
    with pytest.raises(ConnectionError, match="nobody.sock") as raised:
        kvtide.attach(socket, space("nobody"), [8])
    assert isinstance(raised.value, errors.DaemonGone)


def test_types_are_checked(daemon: PrivateDaemon) -> None:
    with pytest.raises((TypeError, OverflowError)):
        kvtide.attach(daemon.socket, space("types"), [-1])


def test_a_daemon_that_cannot_start_shows_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DaemonError, match="not an executable file"):
        PrivateDaemon(1 << 20, program=tmp_path / "kvtided")
    with pytest.raises(DaemonError, match="nonsense"):
        PrivateDaemon(1 << 20, config="nonsense = 1")
    monkeypatch.delenv("KVTIDED", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DaemonError, match="PATH"):
        find_kvtided()
