"""vLLM in a process of its own, controlled over a socket.

`python -m e2e.serve` imports vLLM once, which takes longer than the tests' work with it, and forks a process for each line on its
stdin: {"socket": PATH, "log": PATH, "environment": {NAME: VALUE}}. The forked process has only imported vLLM: it has no engine, no
thread, no device. It connects to the socket and speaks JSON lines: one request, then its answers. It ends with the connection, and
with its parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

PR_SET_PDEATHSIG = 1
#: Limit in seconds for the connector's running work after all requests have ended.
SETTLE_S = 90.0


class Engine:
    """One `vllm.LLM`. Requests run in a loop over its engine's steps, so that the time of the first token is measured when it
    arrives."""

    def __init__(self, options: dict[str, Any]) -> None:
        from vllm import LLM

        self._llm = LLM(skip_tokenizer_init=True, enforce_eager=True, disable_log_stats=False, **options)
        self._next = 0

    def _add(self, prompt: dict[str, Any]) -> str:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.lora.request import LoRARequest

        self._next += 1
        name = str(self._next)
        tokens = TokensPrompt(prompt_token_ids=prompt["tokens"])
        if "salt" in prompt:
            tokens["cache_salt"] = prompt["salt"]
        likely = 2 if prompt.get("margins") else None
        sampling = SamplingParams(max_tokens=prompt["max_tokens"], temperature=0, ignore_eos=True, detokenize=False, logprobs=likely)
        adapter = LoRARequest(*prompt["adapter"]) if "adapter" in prompt else None
        self._llm.llm_engine.add_request(name, tokens, sampling, lora_request=adapter)
        return name

    def run(self, prompts: list[dict[str, Any]], at_once: int, forget: bool) -> Iterator[dict[str, Any]]:
        """Yield each prompt's answer as it ends: index, tokens, milliseconds to the first token and between tokens, hit tokens of the
        prompt, and for each token its lead over the next likely one and its log-probability, if requested.

        At most `at_once` prompts run together. With `forget` vLLM drops its own prefix cache before each.
        """
        engine, waiting = self._llm.llm_engine, list(enumerate(prompts))
        began: dict[str, tuple[int, float]] = {}
        times: dict[str, list[float]] = {}
        while waiting or began:
            while waiting and len(began) < at_once:
                index, prompt = waiting.pop(0)
                if forget:
                    self.forget()
                began[self._add(prompt)] = (index, time.monotonic())
            for output in engine.step():
                now = time.monotonic()
                index, start = began[output.request_id]
                if output.outputs[0].token_ids:
                    times.setdefault(output.request_id, []).append(now)
                limit = prompts[index].get("abort")
                aborted = limit is not None and len(output.outputs[0].token_ids) >= limit
                if aborted and not output.finished:
                    engine.abort_request([output.request_id])
                if output.finished or aborted:
                    del began[output.request_id]
                    at = times.pop(output.request_id, [now])
                    ttft, gaps = (at[0] - start) * 1e3, [round((b - a) * 1e3, 3) for a, b in zip(at, at[1:])]
                    tokens = list(output.outputs[0].token_ids)
                    cached, likely = output.num_cached_tokens or 0, _likely(output.outputs[0].logprobs)
                    answer = {"index": index, "tokens": tokens, "ttft_ms": ttft, "gaps_ms": gaps}
                    yield {**answer, "cached": cached, "likely": likely}

        self.settle()

    def settle(self) -> None:
        """Run steps until the connector has no work left, as an idle vLLM server does."""
        engine, deadline = self._llm.llm_engine, time.monotonic() + SETTLE_S
        scheduler = engine.engine_core.engine_core.scheduler
        while scheduler.has_requests():
            engine.step()
            if time.monotonic() > deadline:
                raise RuntimeError(f"the connector still has work {SETTLE_S:g} s after the last answer")

    def forget(self) -> None:
        """Drop vLLM's own prefix cache. The connector's blocks stay."""
        self.settle()
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not drop its prefix cache: blocks are in use")

    def metrics(self) -> dict[str, float]:
        """Return vLLM's counters and gauges, summed over their labels."""
        sums: dict[str, float] = {}
        for metric in self._llm.get_metrics():
            value = getattr(metric, "value", None)
            if value is not None:
                sums[metric.name] = sums.get(metric.name, 0) + value
        return sums


def _likely(logprobs: Sequence[Mapping[int, Any]] | None) -> list[tuple[float, float]] | None:
    """Return for each position the lead of the likeliest token over the next one, in nats, and its log-probability."""
    if logprobs is None:
        return None
    found = []
    for position in logprobs:
        best, second = sorted((float(token.logprob) for token in position.values()), reverse=True)[:2]
        found.append((best - second, best))
    return found


def serve(connection: socket.socket) -> None:
    """Serve requests until the connection ends: {"do": "start", "run", "forget" or "metrics"}. Answers are lines; the last has
    "done"."""
    engine: Engine | None = None
    with connection.makefile("r") as requests:
        for line in requests:
            request = json.loads(line)

            def say(answer: dict[str, Any]) -> None:
                connection.sendall(json.dumps(answer).encode() + b"\n")

            try:
                if request["do"] == "start":
                    engine = Engine(request["options"])
                    say({"done": True})
                    continue
                assert engine is not None, "start first"
                if request["do"] == "run":
                    began = time.monotonic()
                    for answer in engine.run(request["prompts"], request["at_once"], request["forget"]):
                        say(answer)
                    say({"done": True, "seconds": time.monotonic() - began})
                elif request["do"] == "forget":
                    engine.forget()
                    say({"done": True})
                elif request["do"] == "metrics":
                    say({"done": True, "metrics": engine.metrics()})
                else:
                    raise ValueError(f"unknown request {request['do']!r}")
            except Exception as error:
                import traceback

                traceback.print_exc()
                say({"error": f"{type(error).__name__}: {error}"})


def _child(order: dict[str, Any]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, to in ((null, 0), (log, 1), (log, 2)):
        os.dup2(fd, to)
    os.environ.update(order["environment"])
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(order["socket"])
    serve(connection)
    # Exit normally: vLLM's threads and exit handlers run at the interpreter's end, as for users.
    sys.exit(0)


def main() -> None:
    """Fork an engine's process for each line of stdin, until stdin ends."""
    import vllm  # noqa: F401 - the slow part
    import vllm.v1.engine.llm_engine  # noqa: F401
    import vllm.v1.worker.cpu_worker  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        if os.fork() == 0:
            _child(json.loads(line))


if __name__ == "__main__":
    main()
