"""The harness's side of vLLM processes: the process that forks them, and the engines."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

#: Limits in seconds for vLLM to be imported, to start, and to answer. Exceeding one is a hang, and an error.
IMPORT_S = 600.0
START_S = 300.0
ANSWER_S = 300.0
#: Bytes at the end of an engine's log that an error shows.
LOG_SHOWN = 6000


class EngineError(RuntimeError):
    """An engine's process failed or exited. The text includes the end of its log."""


@dataclass(frozen=True)
class Answer:
    """Result of one prompt."""

    tokens: tuple[int, ...]
    #: Milliseconds from adding the request to its first token.
    ttft_ms: float
    #: Milliseconds between tokens.
    gaps_ms: tuple[float, ...]
    #: Tokens of the prompt that were hit, in vLLM's own cache or through the connector.
    cached: int
    #: For each token its lead over the next likely one, in nats, and its log-probability; `None` if not requested.
    leads: tuple[float, ...] | None = None
    logprobs: tuple[float, ...] | None = None

    @property
    def margin(self) -> float | None:
        """Return the smallest lead."""
        return None if self.leads is None else min(self.leads)


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter: the number that vLLM knows it by, and its folder, after which it is named."""

    number: int
    folder: Path


@dataclass(frozen=True)
class Prompt:
    """One request."""

    tokens: tuple[int, ...]
    max_tokens: int = 8
    salt: str | None = None
    adapter: Adapter | None = None

    def line(self) -> dict[str, Any]:
        """Return the prompt in the child's format."""
        more: dict[str, Any] = {} if self.salt is None else {"salt": self.salt}
        if self.adapter is not None:
            more["adapter"] = [self.adapter.folder.name, self.adapter.number, str(self.adapter.folder)]
        return {"tokens": list(self.tokens), "max_tokens": self.max_tokens, **more}


class Forker:
    """The process that has imported vLLM and forks engines."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0
        environment = {**os.environ, "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}
        environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        # Run the engine in the process itself, so that a kill ends both at once, and messages between them cost no time.
        environment |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        self._log = directory / "forker.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "e2e.serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=Path(__file__).parent.parent,
                text=True,
            )
        self._ready = False

    def _wait(self) -> None:
        if self._ready:
            return
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            heard = selector.select(IMPORT_S) and self._process.stdout.readline()
        if heard != "ready\n":
            raise EngineError(f"vLLM was not imported within {IMPORT_S:g} s; its log:\n{self._log.read_text()[-LOG_SHOWN:]}")
        self._ready = True

    def start(self, name: str, options: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Engine:
        """Start an engine of `vllm.LLM(**options)` and wait until it serves."""
        self._wait()
        self._count += 1
        path, log = self._directory / f"{self._count}.sock", self._directory / f"{self._count}-{name}.log"
        assert self._process.stdin is not None
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(1)
            listener.settimeout(START_S)
            order = {"socket": str(path), "log": str(log), "environment": dict(environment or {})}
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            connection, _ = listener.accept()
        engine = Engine(name, connection, log)
        try:
            engine.ask({"do": "start", "options": dict(options)}, START_S)
        except BaseException:
            engine.kill()
            raise
        return engine

    def close(self) -> None:
        """End the process and all running engines."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process.wait()


class Engine:
    """One vLLM process."""

    def __init__(self, name: str, connection: socket.socket, log: Path) -> None:
        self.name = name
        self._connection, self._log = connection, log
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid: int = struct.unpack("3i", peer)[0]
        # Refers to this process alone, even after its pid is reused.
        self._pidfd = os.pidfd_open(self.pid)
        self._lines = connection.makefile("r")

    def log(self) -> str:
        """Return the end of the engine's log."""
        return self._log.read_text(errors="replace")[-LOG_SHOWN:] if self._log.exists() else ""

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request without waiting."""
        try:
            self._connection.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise EngineError(f"engine {self.name} is gone: {error}; its log:\n{self.log()}") from error

    def answers(self, timeout_s: float = ANSWER_S) -> Iterator[dict[str, Any]]:
        """Yield the answers up to the one with "done". Each must arrive within the timeout."""
        while True:
            self._connection.settimeout(timeout_s)
            try:
                line = self._lines.readline()
            except (TimeoutError, ConnectionError) as error:
                raise EngineError(f"engine {self.name}: {error or 'no answer'}; its log:\n{self.log()}") from error
            if not line:
                raise EngineError(f"engine {self.name} exited; its log:\n{self.log()}")
            answer: dict[str, Any] = json.loads(line)
            if "error" in answer:
                raise EngineError(f"engine {self.name}: {answer['error']}; its log:\n{self.log()}")
            yield answer
            if "done" in answer:
                return

    def ask(self, request: Mapping[str, Any], timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Send a request and return its last answer."""
        self.send(request)
        return list(self.answers(timeout_s))[-1]

    def start_run(
        self,
        prompts: Sequence[Prompt],
        *,
        at_once: int = 1,
        forget: bool = False,
        margins: bool = False,
        abort: Mapping[int, int] | None = None,
    ) -> None:
        """Start prompts; `finish_run` returns their answers. `abort`: number of tokens after which a prompt is aborted."""
        lines = [p.line() | {"margins": margins, "abort": (abort or {}).get(i)} for i, p in enumerate(prompts)]
        self.send({"do": "run", "prompts": lines, "at_once": at_once, "forget": forget})
        self._asked = len(prompts)

    def finish_run(self, each: Callable[[int, Answer], None] | None = None) -> tuple[list[Answer], float]:
        """Return the answers in the prompts' order, and the total seconds. `each` is called as they arrive."""
        found: dict[int, Answer] = {}
        seconds = 0.0
        for line in self.answers():
            if "done" in line:
                seconds = line["seconds"]
                continue
            likely = (None, None) if line["likely"] is None else tuple(map(tuple, zip(*line["likely"])))
            answer = Answer(tuple(line["tokens"]), line["ttft_ms"], tuple(line["gaps_ms"]), line["cached"], *likely)
            found[line["index"]] = answer
            if each is not None:
                each(line["index"], answer)
        return [found[i] for i in range(self._asked)], seconds

    def run(
        self,
        prompts: Sequence[Prompt],
        *,
        at_once: int = 1,
        forget: bool = False,
        margins: bool = False,
        abort: Mapping[int, int] | None = None,
    ) -> list[Answer]:
        """Run prompts, `at_once` at a time. With `forget` vLLM's own prefix cache is emptied before each."""
        self.start_run(prompts, at_once=at_once, forget=forget, margins=margins, abort=abort)
        return self.finish_run()[0]

    def forget(self) -> None:
        """Empty vLLM's own prefix cache."""
        self.ask({"do": "forget"})

    def metrics(self) -> dict[str, float]:
        """Return vLLM's counters and gauges, summed over their labels."""
        metrics: dict[str, float] = self.ask({"do": "metrics"})["metrics"]
        return metrics

    def gone(self, timeout_s: float = ANSWER_S) -> None:
        """Wait for the exit of the process."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._pidfd, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                raise EngineError(f"engine {self.name} (process {self.pid}) did not exit within {timeout_s:g} s; its log:\n{self.log()}")

    def freeze(self) -> None:
        """Send SIGSTOP and wait until all threads have stopped."""
        from kvtide.daemon import wait_stopped  # noqa: PLC0415 (llama.cpp's environment has no kvtide)

        signal.pidfd_send_signal(self._pidfd, signal.SIGSTOP)
        wait_stopped(self.pid)

    def thaw(self) -> None:
        """Send SIGCONT."""
        signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL and wait for the exit."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self.gone()

    def close(self) -> None:
        """End the engine normally and wait for the exit."""
        self._connection.shutdown(socket.SHUT_RDWR)
        try:
            self.gone(30)
        except EngineError:
            self.kill()
            raise
        finally:
            self._lines.close()
            self._connection.close()
            os.close(self._pidfd)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.kill()
        self.close()
