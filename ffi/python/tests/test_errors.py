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


def test_the_environment_names_a_token(daemon: PrivateDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "other.token"
    token.write_text("0123456789abcdef" * 2)
    monkeypatch.setenv("KVTIDE_TOKEN_FILE", str(token))
    # The token decides, though the daemon would take this user.
    with pytest.raises(errors.NotPermitted, match="token"):
        kvtide.attach(daemon.socket, space("token"), [8])
    monkeypatch.setenv("KVTIDE_TOKEN_FILE", "")
    with pytest.raises(ValueError, match="KVTIDE_TOKEN_FILE: the path is empty"):
        kvtide.attach(daemon.socket, space("token"), [8])


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


@pytest.mark.parametrize(
    ("changes", "arguments", "says"),
    [
        ({"fingerprint": "f" * 32}, {}, "fingerprint is 'ffff.*expected 32 bytes"),
        ({"fingerprint": None}, {}, "fingerprint is None; expected 32 bytes"),
        ({"name": b"model"}, {}, "name is b'model'; expected a str"),
        ({"page_tokens": "16"}, {}, "page_tokens is '16'; expected an int"),
        ({"planes": [4096]}, {}, "planes.0. is 4096; expected a kvtide.Plane"),
        ({"planes": [kvtide.Plane("4096")]}, {}, "planes is .*'4096'.*expected kvtide.Plane objects"),  # type: ignore[arg-type]
        ({}, {"digests": 3}, "digests is 3; expected a kvtide.Digests"),
        ({}, {"tier0_frames": 8}, "tier0_frames is 8; expected a sequence"),
        ({}, {"device_memory": 8}, "device_memory is 8; expected .address, bytes. or None"),
    ],
)
def test_arguments_of_another_type_are_named(changes: dict[str, object], arguments: dict[str, object], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        kvtide.attach("nobody.sock", space("types", **changes), **arguments)  # type: ignore[arg-type]


def test_a_space_is_no_dictionary() -> None:
    with pytest.raises(TypeError, match="space is .*; expected a kvtide.Space"):
        kvtide.attach("nobody.sock", {"name": "model"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"tier0_frames": [-1]}, "tier0_frames is .-1.; expected"),
        ({"lanes": -1}, "lanes is -1; expected an int from 1 on"),
        ({"seqs_max": 1 << 32}, "seqs_max is 4294967296; expected"),
    ],
)
def test_numbers_out_of_range_are_named(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(errors.Invalid, match=says):
        kvtide.attach("nobody.sock", space("numbers"), **arguments)  # type: ignore[arg-type]


def test_a_daemon_that_cannot_start_shows_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DaemonError, match="not an executable file"):
        PrivateDaemon(1 << 20, program=tmp_path / "kvtided")
    with pytest.raises(DaemonError, match="nonsense"):
        PrivateDaemon(1 << 20, config="nonsense = 1")
    monkeypatch.delenv("KVTIDED", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DaemonError, match="PATH"):
        find_kvtided()
