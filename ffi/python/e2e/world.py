"""Shared state of the cases: forker, an engine without the connector and its answers, daemons, engines with the connector."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chain import BLOCK_TOKENS, usable
from .daemons import Daemon
from .engines import Answer, Engine, Forker, Prompt
from .trace import prompt

if TYPE_CHECKING:
    from kvtide.daemon import PrivateRelay

#: Options of every engine, with and without the connector.
OPTIONS: dict[str, Any] = {"block_size": BLOCK_TOKENS, "seed": 0, "max_model_len": 8192}
#: Options of every connector. Long limits: a late lookup on a busy machine is a miss, which is right in service but breaks hit
#: counts.
PATIENT: dict[str, Any] = {
    "lookup_timeout_s": "30s",
    "max_load_s": "1min",
    "load_timeout_s": 60,
    "retry_max_s": "250ms",
}
#: Minimum lead of each token of an answer over the next likely one, and number of prompts tried for that. f16 and bf16 round logits
#: by some hundredths.
STEADY_NATS = 0.1
STEADY_TRIES = 20
#: Maximum prompts of a case that are timed against vLLM's own cache.
NATIVE_MAX = 3


class Failed(AssertionError):
    """A case failed."""


def check(true: bool, what: str) -> None:
    """Raise `Failed` with `what` unless `true`."""
    if not true:
        raise Failed(what)


@dataclass
class Result:
    """Result of a case."""

    name: str
    equal: bool = True
    hit_tokens: int = 0
    hit_tokens_expected: int = 0
    ttft_ms: float | None = None
    ttft_native_hit_ms: float | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def line(self) -> dict[str, Any]:
        """Return the result as `--json` prints it."""
        ttfts = {"ttft_ms": self.ttft_ms, "ttft_native_hit_ms": self.ttft_native_hit_ms}
        hits = {"hit_tokens": self.hit_tokens, "hit_tokens_expected": self.hit_tokens_expected}
        return {"name": self.name, "equal": self.equal, **hits, **{k: v and round(v, 2) for k, v in ttfts.items()}, **self.more}

    def compare(self, answers: Sequence[Answer], reference: Sequence[Answer]) -> None:
        """Compare outputs, token by token, with those of vLLM without the connector."""
        for index, (answer, right) in enumerate(zip(answers, reference, strict=True)):
            if answer.tokens != right.tokens:
                self.equal = False
                raise Failed(f"prompt {index}: the output is {answer.tokens}; without the connector it is {right.tokens}")

    def hits(self, answers: Sequence[Answer], expected: Sequence[int]) -> None:
        """Compare each prompt's hit tokens with the expected number."""
        self.hit_tokens += sum(answer.cached for answer in answers)
        self.hit_tokens_expected += sum(expected)
        for index, (answer, tokens) in enumerate(zip(answers, expected, strict=True)):
            check(answer.cached == tokens, f"prompt {index}: {answer.cached} tokens were hit; expected {tokens}")

    def times(self, answers: Sequence[Answer], native: Sequence[Sequence[Answer]]) -> None:
        """Record medians of the time to the first token, with the connector's hits and with vLLM's own."""
        self.ttft_ms = statistics.median(answer.ttft_ms for answer in answers)
        self.ttft_native_hit_ms = statistics.median(answer.ttft_ms for round_ in native for answer in round_)


def full(prompts: Sequence[Prompt]) -> list[int]:
    """Return the tokens that a hit covers if everything is cached."""
    return [usable(prompt.tokens) * BLOCK_TOKENS for prompt in prompts]


class World:
    """State created once for all cases."""

    def __init__(self, directory: Path, kvtided: Path, model: Path) -> None:
        self.directory, self._kvtided, self._daemons = directory, kvtided, 0
        # vLLM loads every safetensors file in a model's folder, so link only the model's.
        model_directory = directory / "model"
        model_directory.mkdir()
        for name in ("config.json", "model.safetensors"):
            (model_directory / name).symlink_to(model / name)
        self.model = model_directory
        self.model_path = str(model_directory)
        self._options = {**OPTIONS, "model": self.model_path}
        self.forker = Forker(directory)
        self._plain: Engine | None = None
        self._known: dict[Prompt, Answer] = {}

    def daemon(self, *, host_mib: int = 512, nvme_mib: int = 512, config: str = "") -> Daemon:
        """Return a daemon that is not yet started."""
        self._daemons += 1
        place = self.directory / f"daemon-{self._daemons}"
        return Daemon(self._kvtided, place, host_mib=host_mib, nvme_mib=nvme_mib, config=config)

    def relayed(self) -> Daemon:
        """Return a daemon that is not yet started and names a relay. It has no NVMe."""
        from kvtide.daemon import relay_domain  # noqa: PLC0415 (llama.cpp's environment has no kvtide)

        place = self.directory / f"daemon-{self._daemons + 1}"
        return self.daemon(nvme_mib=0, config=relay_domain(place / "relay.sock"))

    def relay(self, daemon: Daemon, store: str) -> PrivateRelay:
        """Start the relay of a daemon. It copies out all stored blocks."""
        from kvtide.daemon import PrivateRelay  # noqa: PLC0415

        program = self._kvtided.with_name("kvtide-relay")
        return PrivateRelay(daemon, store, config='[copy_out]\nwhen = "stored"\n', program=program)

    def engine(self, name: str, daemon: Daemon, /, *, connector: Mapping[str, Any] | None = None, **options: Any) -> Engine:
        """Start vLLM with the connector on this daemon's socket; `connector`: more of its options."""
        extra = {**PATIENT, "socket": str(daemon.socket), "space": "e2e", **(connector or {})}
        # The shortest form: the wheel's entry point registers the connector, and the connector sets the load failure policy.
        transfer = {"kv_connector": "KvtideConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
        return self.forker.start(name, {**self._options, **options, "kv_transfer_config": transfer})

    def alone(self, name: str, **options: Any) -> Engine:
        """Start vLLM without the connector."""
        return self.forker.start(name, {**self._options, **options})

    @property
    def plain(self) -> Engine:
        """Return the shared vLLM without the connector."""
        if self._plain is None:
            self._plain = self.alone("plain")
        return self._plain

    def reference(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """Return vLLM's answers without the connector and without hits."""
        new = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._known]
        self._known |= dict(zip(new, self.plain.run(new, forget=True, margins=True), strict=True))
        return [self._known[prompt] for prompt in prompts]

    def steady(
        self, name: str, *sizes: int, max_tokens: int = 8, after: tuple[int, ...] = (), of: Engine | None = None
    ) -> list[Prompt]:
        """Return a prompt of each size, after the tokens `after`. Its answer (by the engine `of`, if given) has no near tie.

        Rounding differs between a batch, a hit, and a full computation. If two tokens are almost equally likely, even vLLM alone
        then gives different answers. Such a prompt would not test the KV.
        """
        found = []
        for place, size in enumerate(sizes):
            for attempt in range(STEADY_TRIES):
                own = prompt((name, place, attempt), size, max_tokens=max_tokens)
                candidate = Prompt(after + own.tokens, max_tokens)
                (answer,) = self.reference([candidate]) if of is None else of.run([candidate], forget=True, margins=True)
                if answer.margin is not None and answer.margin >= STEADY_NATS:
                    found.append(candidate)
                    break
            else:
                raise Failed(f"each of {STEADY_TRIES} prompts of {size} tokens has a near tie in its answer")
        return found

    def native(self, prompts: Sequence[Prompt], rounds: int = 1, between: Callable[[], None] = lambda: None) -> list[list[Answer]]:
        """Return vLLM's answers without the connector, with everything hit in its own prefix cache: the first few prompts, `rounds`
        times, each after a call of `between`."""
        few = prompts[:NATIVE_MAX]
        self.plain.forget()
        self.plain.run(few)
        answers: list[list[Answer]] = []
        for _ in range(rounds):
            between()
            answers.append(self.plain.run(few))
        for answer, tokens in zip(answers[0], full(few), strict=True):
            check(answer.cached == tokens, f"vLLM alone hit {answer.cached} tokens of a prompt that it had computed, not {tokens}")
        return answers

    def close(self) -> None:
        """End all processes."""
        if self._plain is not None:
            self._plain.close()
        self.forker.close()


def attached(daemon: Daemon, engines: int = 1) -> None:
    """Wait until `engines` engines are attached."""

    def live(metrics: dict[str, float]) -> float:
        return sum(v for k, v in metrics.items() if k.startswith("kvtide_sessions{") and 'state="live"' in k)

    # Each has two sessions: of the connector's scheduler half and of its worker half.
    daemon.until(f"{engines} engines attached", lambda m: live(m) >= 2 * engines)


def memcpy_bytes_per_ms(size: int = 64 << 20) -> float:
    """Return the copy rate of one core in bytes per millisecond, memory to memory and uncached; the best of a few runs."""
    source, target = bytearray(size), bytearray(size)
    best = 0.0
    for _ in range(5):
        began = time.perf_counter()
        memoryview(target)[:] = source
        best = max(best, size / ((time.perf_counter() - began) * 1e3))
    return best
