"""Cases with two machines: each has a daemon, a relay and vLLM, and they have a Valkey server in common."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kvtide.daemon import PrivateRelay

from .cases import written
from .daemons import LOOK_S, START_S, STATE_S, Daemon
from .engines import Answer, Engine
from .world import Failed, Result, World, check, full

#: Tokens of the prompts of the comparison of first tokens, and their number.
TIMED_TOKENS, TIMED_PROMPTS = 4000, 5
#: Time that a request may wait for the relay where the store is cut, and that a busy machine may add, in seconds.
CUT_WAIT_S, SLACK_S = 1.0, 5.0
#: Tokens of the prompts there, and their number.
CUT_TOKENS, CUT_PROMPTS = 600, 12


class Valkey:
    """A Valkey or Redis server with nothing on disk, for the duration of the `with` block."""

    def __init__(self, directory: Path) -> None:
        program = shutil.which("valkey-server") or shutil.which("redis-server")
        if program is None:
            raise Failed("neither valkey-server nor redis-server is on the PATH: install package redis-server")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{port}"
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        with (directory / "valkey.log").open("wb") as log:
            self._process = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=log)
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            check(time.monotonic() < deadline, f"{program} did not listen on port {port} within {START_S:g} s")
            time.sleep(LOOK_S)

    def stop(self) -> None:
        """Stop it with SIGSTOP: connections stay, and nothing is answered."""
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Valkey:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextlib.contextmanager
def machine(world: World, store: str, name: str, remote_timeout_s: float) -> Iterator[tuple[Daemon, PrivateRelay, Engine]]:
    """Run a daemon, its relay, which copies out all stored blocks, and vLLM."""
    with world.relayed() as daemon, world.relay(daemon, store) as relay:
        with world.engine(name, daemon, connector={"remote_timeout_s": remote_timeout_s}) as engine:
            until(relay, "its space is served", lambda m: m.get("kvtide_relay_feed_gaps_total", 0) >= 1)
            yield daemon, relay, engine


def until(relay: PrivateRelay, state: str, reached: Callable[[dict[str, float]], bool]) -> None:
    """Poll a relay's metrics until `reached` is true for them."""
    deadline = time.monotonic() + STATE_S
    while not reached(metrics := relay.metrics()):
        check(time.monotonic() < deadline, f"the relay did not reach within {STATE_S:g} s: {state}; {metrics}; its log:\n{relay.log()}")
        time.sleep(LOOK_S)


def copied(relay: PrivateRelay, blocks: int) -> None:
    """Wait until a relay has copied this number of blocks out."""
    until(relay, f"{blocks} blocks copied out", lambda m: m["kvtide_relay_blocks_out_total"] >= blocks and not m["kvtide_relay_waiting_runs"])


def relay(world: World) -> Result:
    """(i) A prompt that one machine computed is a hit on another one, after the first is gone."""
    result = Result("relay")
    prompts = world.steady("relay", 33, 64, 500, 1500) + world.steady("relay timed", *[TIMED_TOKENS] * TIMED_PROMPTS)
    reference = world.reference(prompts)
    with Valkey(world.directory) as valkey:
        with machine(world, valkey.url, "first", 0) as (daemon, first_relay, engine):
            first = engine.run(prompts, forget=True)
            result.compare(first, reference)
            copied(first_relay, written(daemon, prompts, first))
        with machine(world, valkey.url, "second", 60) as (_, _, engine):
            second: list[Answer] = []
            computed: list[Answer] = []
            for prompt in prompts:  # alternate, so that other load on the machine affects both
                second += engine.run([prompt], forget=True)
                computed += world.plain.run([prompt], forget=True)
            result.compare(second, reference)
            result.hits(second, full(prompts))
            metrics = engine.metrics()
            check(metrics["vllm:kvtide_recalls"] == len(prompts), f"{metrics['vllm:kvtide_recalls']:g} recalls of {len(prompts)} prompts")
            timed = [(ours.ttft_ms, own.ttft_ms) for ours, own in zip(second, computed, strict=True)][-TIMED_PROMPTS:]
            result.ttft_ms = statistics.median(ours for ours, _ in timed)
            result.more["ttft_computed_ms"] = round(statistics.median(own for _, own in timed), 2)
            result.more["ttft_ratio"] = round(statistics.median(ours / own for ours, own in timed), 4)
    return result


def cut(world: World) -> Result:
    """(j) The store hangs, then dies, while another machine recalls: outputs are equal, and no request waits past its time."""
    result = Result("relay-cut")
    prompts = world.steady("relay cut", *[CUT_TOKENS] * CUT_PROMPTS)
    reference = world.reference(prompts)
    slowest = max(answer.ttft_ms for answer in reference) / 1e3
    with Valkey(world.directory) as valkey:
        with machine(world, valkey.url, "writes", 0) as (daemon, first_relay, engine):
            copied(first_relay, written(daemon, prompts, engine.run(prompts, forget=True)))
        with machine(world, valkey.url, "recalls", CUT_WAIT_S) as (_, second_relay, engine):

            def break_store(index: int, _: Answer) -> None:
                if index == CUT_PROMPTS // 4:
                    valkey.stop()
                elif index == CUT_PROMPTS // 2:
                    valkey.kill()

            engine.start_run(prompts, forget=True)
            answers, _ = engine.finish_run(break_store)
            result.compare(answers, reference)
            hit = [answer.cached for answer in answers]
            check(hit[: CUT_PROMPTS // 4] == full(prompts)[: CUT_PROMPTS // 4], f"before the cut {hit} tokens were hit")
            check(hit[-1] == 0, f"after the cut {hit} tokens were hit")
            limit = slowest + CUT_WAIT_S + SLACK_S
            for index, answer in enumerate(answers):
                check(answer.ttft_ms < limit * 1e3, f"prompt {index} waited {answer.ttft_ms:.0f} ms; computing takes {slowest * 1e3:.0f} ms")
            check(second_relay.metrics()["kvtide_relay_store_in_use"] == 0, "the relay does not report the store's failure")
            result.more["ttft_max_ms"] = round(max(answer.ttft_ms for answer in answers), 2)
    return result
