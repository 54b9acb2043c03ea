"""Content digests of files, cached as long as a file's path, inode, size, mtime and ctime do not change."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Below vLLM's logger, which has the handlers.
logger = logging.getLogger(f"vllm.{__name__}")

#: Bytes per piece. Pieces of a file are hashed in parallel; the file's digest is the digest of theirs.
PIECE_BYTES = 64 << 20
#: Bytes that a thread reads at a time.
READ_BYTES = 1 << 20
#: Maximum number of hashing threads. Reading and hashing release the GIL.
THREADS_MAX = 8
DIGEST_BYTES = 32
#: Weight files. An engine may load any of them, so all that exist are hashed.
PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


def cache_dir() -> Path:
    """Return the directory of cached digests: `kvtide` in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvtide"


def _piece(path: Path, index: int) -> bytes:
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    with path.open("rb", buffering=0) as file:
        file.seek(index * PIECE_BYTES)
        left = PIECE_BYTES
        while left and (data := file.read(min(left, READ_BYTES))):
            state.update(data)
            left -= len(data)
    return state.digest()


def file_digest(path: Path) -> bytes:
    """Return the digest of a file's content, without the cache. Raise OSError if the file cannot be read."""
    size = path.stat().st_size
    pieces = max(1, -(-size // PIECE_BYTES))
    state = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=DIGEST_BYTES)
    with ThreadPoolExecutor(min(THREADS_MAX, os.cpu_count() or 1, pieces)) as pool:
        for digest in pool.map(lambda index: _piece(path, index), range(pieces)):
            state.update(digest)
    return state.digest()


def _identity(path: Path) -> list[int]:
    stat = path.stat()
    # Programs cannot set ctime back.
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


@contextlib.contextmanager
def _entry(path: Path) -> Iterator[int | None]:
    """Open and lock the file's cache entry, so that one process hashes and others wait. Yield its descriptor, or None without a
    cache."""
    try:
        folder = cache_dir() / "digests"
        folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.blake2b(os.fsencode(path), digest_size=16).hexdigest()
        fd = os.open(folder / f"{name}.json", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        logger.warning("kvtide: cannot cache file digests in %s: %s; weights are hashed at each start", cache_dir(), error)
        yield None
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def remembered_digest(path: Path) -> bytes:
    """Return the digest of a file's content, from the cache if the file has not changed.

    Raise OSError if the file cannot be read, or changes while it is read.
    """
    path = path.resolve()
    with _entry(path) as fd:
        before = _identity(path)
        if fd is not None:
            try:
                known = json.loads(os.pread(fd, 1 << 16, 0) or b"{}")
                if known.get("path") == str(path) and known.get("identity") == before:
                    return bytes.fromhex(known["digest"])
            except (ValueError, KeyError, TypeError, AttributeError):
                pass  # another version, or truncated: write it again
        digest = file_digest(path)
        if _identity(path) != before:
            raise OSError(f"{path} changed while it was read")
        if fd is not None:
            text = json.dumps({"path": str(path), "identity": before, "digest": digest.hex()}).encode()
            os.ftruncate(fd, 0)
            os.pwrite(fd, text, 0)
        return digest


def folder_digest(folder: Path, patterns: Sequence[str] = PATTERNS, also: Sequence[str] = ()) -> bytes:
    """Return the digest of names and contents of a folder's files that match `patterns`, and of the files in `also` that exist.

    Raise FileNotFoundError if no file matches `patterns`.
    """
    files = sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})
    if not files:
        raise FileNotFoundError(f"no weights in {folder}: no file matches {', '.join(patterns)}")
    files += sorted(folder / name for name in also if (folder / name).is_file())
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for file in files:
        state.update(os.fsencode(file.name) + b"\0" + remembered_digest(file))
    return state.digest()


def model_digest(model: str, revision: str | None, download_dir: str | None) -> bytes:
    """Return the digest of a model's weights: of a folder, a file, or a model name with a snapshot in the Hugging Face cache.

    Raise FileNotFoundError if the weights are not on this machine.
    """
    path = Path(model)
    if path.is_file():
        return remembered_digest(path)
    if path.is_dir():
        return folder_digest(path)
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415 (vLLM brings it)

        found = snapshot_download(model, revision=revision, cache_dir=download_dir, local_files_only=True)
    except Exception as error:  # exception classes differ between versions; all mean that there is no snapshot
        raise FileNotFoundError(
            f"the weights of {model!r} are neither a file nor a folder, nor in the Hugging Face cache: {error}"
        ) from error
    return folder_digest(Path(found))
