"""Identify LoRA adapters by content. vLLM's block hash has only an adapter's name and path; the files may change."""

from __future__ import annotations

import logging
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..weights import folder_digest

logger = logging.getLogger(f"vllm.{__name__}")

#: Maximum number of digests kept in memory.
KNOWN_MAX = 4096
#: Files of an adapter: its weights, and the file that defines how they are applied.
_PATTERNS = ("*.safetensors", "*.bin", "*.pt")
_ALSO = ("adapter_config.json",)


class LoraDigests:
    """Digests of adapters, computed on a thread outside the scheduler's."""

    def __init__(self) -> None:
        #: By number, name and path; also by request if the adapter was loaded in place for it.
        self._known: OrderedDict[tuple[int, str, str, str], Future[bytes]] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None

    def digest(self, lora: Any, request: str) -> bytes | Exception | None:
        """Return the digest of a request's adapter, or b"" without one. None: not computed yet. Exception: it failed and was
        logged."""
        if lora is None:
            return b""
        usual = (lora.lora_int_id, lora.lora_name, lora.lora_path, "")
        # Loading in place changes the content under an old number, so the folder is read again for each such request.
        key = (*usual[:3], request) if getattr(lora, "load_inplace", False) else usual
        future = self._known.get(key)
        if future is None:
            if key != usual:
                self._known.pop(usual, None)
            future = self._begin(key)
        self._known.move_to_end(key)
        if not future.done():
            return None
        error = future.exception()
        if error is None:
            return future.result()
        return error if isinstance(error, Exception) else RuntimeError(str(error))

    def _begin(self, key: tuple[int, str, str, str]) -> Future[bytes]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="kvtide-adapters")
        future = self._known[key] = self._pool.submit(self._read, key[1], key[2])
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return future

    @staticmethod
    def _read(name: str, path: str) -> bytes:
        try:
            return folder_digest(Path(path).expanduser(), _PATTERNS, _ALSO)
        except OSError as error:
            logger.warning(
                "kvtide: requests with adapter %r are served without cache: its folder cannot be read: %s", name, error
            )
            raise

    def close(self) -> None:
        """End the thread after the folder that it is reading."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
