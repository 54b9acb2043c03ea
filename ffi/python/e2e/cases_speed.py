"""Speed of `KvtidePaged` beside plain vLLM and `KvtideConnector`, in alternation, with a model dominated by matrix products."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from kvtide.vllm.paged.worker import STREAM_FRAMES

from . import cases_paged
from .cases_paged import PATIENT_PAGED, blocks
from .chain import BLOCK_TOKENS
from .daemons import MIB, Daemon
from .engines import Answer, Engine, Prompt
from .trace import prompt
from .world import PATIENT, Result, World, check

#: A decoder of 0.2 billion parameters with random weights, and its layers and bytes of a page of one layer.
MODEL = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 4,
    "head_dim": 64, "max_position_embeddings": 16384,
}  # fmt: skip
LAYERS, PAGE_BYTES = 12, 2 * 4 * BLOCK_TOKENS * 64 * 2
#: Rounds of each engine, after one that is not counted.
ROUNDS = 9
BATCHED, SEQUENCES = 512, 8


class Field:
    """Engines on one daemon that answer the same prompts, in turn."""

    def __init__(self, world: World, daemon: Daemon, prompts: Sequence[Prompt]) -> None:
        self._world, self._daemon, self._prompts = world, daemon, list(prompts)
        self._blocks = blocks(prompts)
        longest = max(len(p.tokens) + p.max_tokens for p in prompts) + BLOCK_TOKENS
        self._options = {"load_format": "dummy", "hf_overrides": MODEL, "dtype": "bfloat16", "max_model_len": longest}
        self._options |= {"max_num_seqs": SEQUENCES, "max_num_batched_tokens": BATCHED}
        self.engines: dict[str, Engine] = {}
        self.seconds: dict[str, list[float]] = {}
        self.answers: dict[str, list[list[Answer]]] = {}

    def tier0(self, percent: float) -> int:
        """Return the bytes of a percentage of all pages, at least those of a step."""
        step = LAYERS * (BATCHED // BLOCK_TOKENS + SEQUENCES) + STREAM_FRAMES
        return max(step, round(self._blocks * LAYERS * percent / 100)) * PAGE_BYTES

    def plain(self, name: str, tier0_bytes: int | None = None, connector: bool = False) -> None:
        """Start vLLM without `KvtidePaged`, with a cache of its own of this size."""
        options = dict(self._options)
        if tier0_bytes is not None:
            options["num_gpu_blocks_override"] = tier0_bytes // (LAYERS * PAGE_BYTES)
        if connector:
            extra = {**PATIENT, "socket": str(self._daemon.socket), "space": "e2e"}
            options["kv_transfer_config"] = {"kv_connector": "KvtideConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
        self.engines[name] = self._world.alone(name, **options)

    def paged(self, name: str, tier0_bytes: int, **extra: Any) -> None:
        """Start vLLM with `KvtidePaged`."""
        extra |= PATIENT_PAGED | {"socket": str(self._daemon.socket), "tier0_bytes": tier0_bytes, "epoch": name}
        extra["capacity_tokens"] = (self._blocks + SEQUENCES) * BLOCK_TOKENS
        transfer = {"kv_connector": "KvtidePaged", "kv_role": "kv_both", "kv_connector_extra_config": extra}
        self.engines[name] = self._world.alone(name, kv_transfer_config=transfer, **self._options)

    def run(self, rounds: int = ROUNDS, again: bool = False) -> None:
        """Let all engines answer all prompts in each round. `again`: the second time, when all prefixes are found."""
        for number in range(rounds + 1):
            for name, engine in self.engines.items():
                prompts = [Prompt(p.tokens, p.max_tokens, salt=str(number)) for p in self._prompts]
                for _ in range(1 + again):
                    engine.start_run(prompts, at_once=len(prompts))
                    answers, seconds = engine.finish_run()
                if number:
                    self.seconds.setdefault(name, []).append(seconds)
                    self.answers.setdefault(name, []).append(answers)

    def figures(self, name: str) -> dict[str, float]:
        """Return the figures of an engine, medians over the rounds. The tokens are those of prompts and answers."""
        tokens = sum(len(p.tokens) + p.max_tokens for p in self._prompts)
        flat = [answer for answers in self.answers[name] for answer in answers]
        gaps = sorted(gap for answer in flat for gap in answer.gaps_ms)
        return {
            "tokens_per_second": round(tokens / statistics.median(self.seconds[name]), 1),
            "ttft_ms": round(statistics.median(answer.ttft_ms for answer in flat), 1),
            "inter_token_ms": round(statistics.median(gaps), 1),
            "inter_token_p99_ms": round(gaps[len(gaps) * 99 // 100], 1),
        }

    def ratio(self, name: str, other: str, of: Callable[[list[Answer]], float]) -> float:
        """Return the median over rounds of another engine's figure over this one's: how many times faster it is."""
        return round(statistics.median(of(b) / of(a) for a, b in zip(self.answers[name], self.answers[other], strict=True)), 3)

    def close(self) -> None:
        """End the engines."""
        for engine in self.engines.values():
            engine.close()


def _decode(answers: list[Answer]) -> float:
    return statistics.median(gap for answer in answers for gap in answer.gaps_ms)


def _first(answers: list[Answer]) -> float:
    return statistics.median(answer.ttft_ms for answer in answers)


def speed(world: World) -> Result:
    """Two requests of 4,000 tokens: plain vLLM, all pages in tier 0, an eighth of them under `exact`, and under `approx:0.25`."""
    result = Result("speed")
    prompts = [prompt(("speed", i), 4000, max_tokens=48) for i in range(2)]
    with world.daemon(host_mib=2048, nvme_mib=0) as daemon:
        field = Field(world, daemon, prompts)
        try:
            field.plain("plain")
            field.paged("all", field.tier0(100))
            field.paged("exact", field.tier0(12.5))
            field.paged("approx", field.tier0(12.5), contract="approx:0.25")
            field.run()
        finally:
            field.close()
        equal = [a.tokens == b.tokens for one, other in zip(field.answers["all"], field.answers["exact"]) for a, b in zip(one, other)]
        check(all(equal), "tokens differ between sizes of tier 0")
        pairs = [(x, y) for one, other in zip(field.answers["all"], field.answers["approx"]) for a, b in zip(one, other) for x, y in zip(a.tokens, b.tokens)]
        result.more |= {name: field.figures(name) for name in field.engines}
        result.more |= {
            "decode_all_over_plain": field.ratio("all", "plain", _decode),
            "ttft_all_over_plain": field.ratio("all", "plain", _first),
            "decode_exact_over_all": field.ratio("exact", "all", _decode),
            "ttft_exact_over_all": field.ratio("exact", "all", _first),
            "decode_approx_over_exact": field.ratio("approx", "exact", _decode),
            "approx_same_tokens_percent": round(100 * sum(x == y for x, y in pairs) / len(pairs), 1),
        }
    return result


def beside(world: World) -> Result:
    """Eight requests of 1,000 tokens at once with cached prefixes, and the memory of two: vLLM alone queues and computes them again,
    `KvtideConnector` queues and loads them, `KvtidePaged` attaches them all."""
    result = Result("beside")
    prompts = [prompt(("beside", i), 1000, max_tokens=48) for i in range(SEQUENCES)]
    with world.daemon(host_mib=2048, nvme_mib=0) as daemon:
        field = Field(world, daemon, prompts)
        tier0 = field.tier0(25)
        try:
            field.plain("plain", tier0)
            field.plain("connector", tier0, connector=True)
            field.paged("paged", tier0)
            field.run(again=True)
        finally:
            field.close()
        result.more |= {name: field.figures(name) for name in field.engines} | {"tier0_mib": round(tier0 / MIB, 1)}
    return result


def prefetch(world: World) -> Result:
    """Two requests of 4,000 tokens of the trained model under `approx:0.25`, 40 % of the pages in tier 0 and half of them in host
    memory: with predictions of attention, and with a daemon that may use 1 % of the bandwidth for them."""
    result = Result("prefetch")
    prompts = [prompt(("prefetch", i), 4000, max_tokens=64) for i in range(2)]
    pages = blocks(prompts) * cases_paged.LAYERS
    half = round(pages * cases_paged.PAGE_BYTES / 2 / MIB)
    speeds: dict[str, list[float]] = {"with": [], "without": []}
    counts: dict[str, dict[str, float]] = {}
    with contextlib.ExitStack() as stack:
        engines = {}
        for name, percent in (("with", 90), ("without", 1)):
            daemon = stack.enter_context(world.daemon(host_mib=half, config=f"[attention]\nbandwidth_percent = {percent}\n"))
            engine = cases_paged.paged(
                world, f"prefetch-{name}", daemon, 2 * blocks(prompts), cases_paged.frames(pages * 0.4),
                contract="approx:0.25", max_stall_s=0.02, max_model_len=8192,
            )  # fmt: skip
            engines[name] = (stack.enter_context(engine), daemon)
        for number in range(ROUNDS + 1):
            for name, (engine, daemon) in engines.items():
                before = _predicted(daemon)
                engine.start_run([Prompt(p.tokens, p.max_tokens, salt=str(number)) for p in prompts], at_once=len(prompts))
                answers, _ = engine.finish_run()
                after = _predicted(daemon)
                if number:
                    speeds[name].append(_decode(answers))
                    counts[name] = {key: counts.get(name, {}).get(key, 0) + after[key] - before[key] for key in after}
    result.more |= {"decode_with_over_without": round(statistics.median(b / a for a, b in zip(speeds["with"], speeds["without"])), 3)}
    result.more |= {f"inter_token_ms_{name}": round(statistics.median(found), 1) for name, found in speeds.items()}
    result.more |= {"predicted_pages": counts["with"], "used_percent": round(100 * counts["with"]["used"] / sum(counts["with"].values()), 1)}
    return result


def _predicted(daemon: Daemon) -> dict[str, float]:
    """Return the pages that predictions loaded, by outcome."""
    outcomes = ("used", "late", "wasted", "canceled")
    metrics = daemon.metrics()
    return {name: metrics.get(f"core/attention_{name}", 0) for name in outcomes}
