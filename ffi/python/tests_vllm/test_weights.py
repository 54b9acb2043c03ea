"""Digests follow the content, and are cached only while the file does not change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvtide import weights


def test_a_digest_is_that_of_the_content_however_many_pieces_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PIECE_BYTES", 1000)
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(bytes(range(256)) * 40)
    b.write_bytes(bytes(range(256)) * 40)
    assert weights.file_digest(a) == weights.file_digest(b)
    for at in (0, 999, 1000, 10239):
        changed = bytearray(a.read_bytes())
        changed[at] ^= 1
        b.write_bytes(changed)
        assert weights.file_digest(a) != weights.file_digest(b), at


def test_pieces_that_change_places_are_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PIECE_BYTES", 4)
    (tmp_path / "a").write_bytes(b"aaaabbbb")
    (tmp_path / "b").write_bytes(b"bbbbaaaa")
    assert weights.file_digest(tmp_path / "a") != weights.file_digest(tmp_path / "b")


def test_a_remembered_digest_is_not_computed_again_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    first = weights.remembered_digest(file)
    computed: list[Path] = []
    real = weights.file_digest
    monkeypatch.setattr(weights, "file_digest", lambda path: (computed.append(path), real(path))[1])
    assert weights.remembered_digest(file) == first
    assert computed == []
    stat = file.stat()
    file.write_bytes(b"WEIGHTS")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert weights.remembered_digest(file) != first
    assert computed == [file]


def test_a_broken_cache_entry_is_written_anew(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    first = weights.remembered_digest(file)
    entries = list((weights.cache_dir() / "digests").iterdir())
    assert len(entries) == 1
    for text in ("", "{", "[]", "7", '{"path": 3}'):
        entries[0].write_text(text)
        assert weights.remembered_digest(file) == first


def test_a_time_of_change_that_is_set_back_hides_no_change(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    first, before = weights.remembered_digest(file), file.stat()
    file.write_bytes(b"WEIGHTS")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # file timestamps have a coarse clock
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert weights.remembered_digest(file) != first


def test_a_folder_is_all_its_weights_whichever_of_them_an_engine_loads(tmp_path: Path) -> None:
    found = []
    for name, content in (("model.safetensors", b"1"), ("pytorch_model.bin", b"2"), ("pytorch_model.bin", b"3"), ("a.gguf", b"4")):
        (tmp_path / name).write_bytes(content)
        found.append(weights.folder_digest(tmp_path))
    assert len(set(found)) == 4
    (tmp_path / "README.md").write_text("no weights")
    assert weights.folder_digest(tmp_path) == found[-1]
    with pytest.raises(FileNotFoundError, match="no weights"):
        weights.folder_digest(tmp_path / "nowhere")
