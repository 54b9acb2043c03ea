"""vLLM's API server in a process of its own, as `vllm serve` starts it, and requests to it.

Not `vllm serve` itself: it asks for the version of a package `vllm`, and the one for CPUs has another name."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from .engines import LOG_SHOWN, EngineError, Prompt

#: Limits in seconds for the server to start, to answer, and to end.
START_S, ANSWER_S, END_S = 300.0, 300.0, 60.0
#: Interval in seconds between two tries to reach the server.
LOOK_S = 0.1


@dataclass(frozen=True)
class Reply:
    """Answer of the API to one prompt."""

    tokens: tuple[int, ...]
    #: Tokens of the prompt that were hit.
    cached: int
    #: The connector's `kv_transfer_params` of the request.
    transfer: dict[str, Any] | None


class Server:
    """One API server."""

    def __init__(
        self, name: str, directory: Path, model: str, arguments: Sequence[str], transfer: Mapping[str, Any], ranks: int = 1
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        self._log = directory / f"{name}.log"
        command = [sys.executable, "-s", "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "model"]
        command += ["--host", "127.0.0.1", "--port", str(self._port), "--skip-tokenizer-init", "--enforce-eager"]
        command += ["--enable-prompt-tokens-details", "--kv-transfer-config", json.dumps(transfer), *arguments]
        if ranks > 1:
            command += ["--tensor-parallel-size", str(ranks)]
        environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
        if ranks > 1:  # vLLM refuses to place several ranks on one NUMA node by itself
            cpus = sorted(os.sched_getaffinity(0))
            environment["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(cpus[rank % len(cpus)]) for rank in range(ranks))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def log(self) -> str:
        """Return the end of the server's log."""
        return self._log.read_text(errors="replace")[-LOG_SHOWN:]

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                self._get("/health")
                return
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise EngineError(f"the API server did not start: {error}; its log:\n{self.log()}") from error
                time.sleep(LOOK_S)

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=ANSWER_S) as answer:
            found: bytes = answer.read()
        return found.decode()

    def metrics(self) -> dict[str, float]:
        """Return vLLM's counters and gauges, summed over their labels."""
        sums: dict[str, float] = {}
        for line in self._get("/metrics").splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = name.partition("{")[0]
                sums[name] = sums.get(name, 0) + float(value)
        return sums

    def _ask(self, prompt: Prompt) -> Reply:
        body = {"model": "model", "prompt": list(prompt.tokens), "max_tokens": prompt.max_tokens, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise EngineError(f"the API server: {error}: {error.read().decode()}; its log:\n{self.log()}") from error
        except OSError as error:
            raise EngineError(f"the API server: {error}; its log:\n{self.log()}") from error
        details = found["usage"].get("prompt_tokens_details") or {}
        return Reply(tuple(found["choices"][0]["token_ids"]), details.get("cached_tokens") or 0, found.get("kv_transfer_params"))

    def run(self, prompts: Sequence[Prompt]) -> list[Reply]:
        """Send all prompts at once and return their answers."""
        with ThreadPoolExecutor(len(prompts)) as threads:
            return list(threads.map(self._ask, prompts))

    def close(self) -> None:
        """End the server and its processes."""
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
