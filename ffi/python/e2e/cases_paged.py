"""Cases of `KvtidePaged`: vLLM decodes over kvtide's pages, most of them outside tier 0."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

from kvtide import Plane, Space, attach
from kvtide.errors import NoSpace

from .chain import BLOCK_TOKENS
from .daemons import MIB, Daemon
from .engines import Answer, Engine, EngineError, Prompt
from .trace import prompt
from .world import Failed, Result, World, check, full

#: The model's layers, and bytes of a page of one layer: K and V, heads, tokens, channels, f16.
LAYERS = 6
PAGE_BYTES = 2 * 2 * BLOCK_TOKENS * 32 * 2
#: Options of engines with few requests: a step needs little of tier 0.
SMALL: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 128, "max_model_len": 2048}
#: Options of every connector. Long limits: a late lookup on a busy machine is a miss, which is right in service but breaks hit counts.
PATIENT_PAGED: dict[str, Any] = {"space": "e2e", "lookup_timeout_s": 30, "wait_s": 60, "retry_max_s": "250ms"}
#: A token with a smaller lead over the next one may come out differently: bits depend on the order of additions.
NEAR_NATS = 0.05


def blocks(prompts: Sequence[Prompt]) -> int:
    """Return the blocks of these prompts and their answers."""
    return sum(-(-(len(p.tokens) + p.max_tokens) // BLOCK_TOKENS) for p in prompts)


def frames(pages: float) -> int:
    """Return the bytes of a number of pages, rounded to whole pages."""
    return round(pages) * PAGE_BYTES


def paged(world: World, name: str, daemon: Daemon, capacity_blocks: int, tier0_bytes: int, /, **options: Any) -> Engine:
    """Start vLLM with `KvtidePaged`. `epoch` among the options separates an engine's blocks from others'."""
    extra = {**PATIENT_PAGED, "socket": str(daemon.socket)}
    extra |= {"tier0_bytes": tier0_bytes, "capacity_tokens": capacity_blocks * BLOCK_TOKENS}
    extra |= {key: options.pop(key) for key in ("epoch", "level", "contract", "max_stall_s") if key in options}
    transfer = {"kv_connector": "KvtidePaged", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return world.alone(name, **SMALL | options, kv_transfer_config=transfer)


def same_tokens(found: Sequence[Sequence[int]], reference: Sequence[Answer]) -> None:
    """Compare tokens with those of plain vLLM."""
    for index, (tokens, right) in enumerate(zip(found, reference, strict=True)):
        check(tuple(tokens) == right.tokens, f"prompt {index}: the output is {list(tokens)}; plain vLLM says {list(right.tokens)}")


def same_unless_near(result: Result, answers: Sequence[Answer], reference: Sequence[Answer]) -> None:
    """Compare tokens with those of plain vLLM, up to the first one that vLLM itself nearly chose otherwise."""
    for index, (answer, right) in enumerate(zip(answers, reference, strict=True)):
        assert right.leads is not None
        for place, (token, expected, lead) in enumerate(zip(answer.tokens, right.tokens, right.leads, strict=True)):
            if token != expected:
                result.equal = lead < NEAR_NATS
                check(result.equal, f"prompt {index}, token {place}: {token}; plain vLLM says {expected}, {lead:.3f} nats ahead")
                break


def same_bits(answers: Sequence[Answer], others: Sequence[Answer], what: str) -> None:
    """Compare tokens and log-probabilities bit by bit."""
    for index, (answer, other) in enumerate(zip(answers, others, strict=True)):
        if (answer.tokens, answer.logprobs) != (other.tokens, other.logprobs):
            raise Failed(f"prompt {index}: log-probabilities of {what} differ")


def _percents(world: World, result: Result, prompts: list[Prompt], percents: Sequence[float], daemon: Daemon, options: dict[str, Any]) -> None:
    """Run prompts with each percentage of their pages in tier 0. All log-probabilities must be equal to the bit, and tokens equal to
    those of plain vLLM."""
    reference = world.reference(prompts)
    first: list[Answer] | None = None
    for percent in percents:
        tier0 = frames(blocks(prompts) * LAYERS * percent / 100)
        with paged(world, f"tier0-{percent}", daemon, blocks(prompts), tier0, epoch=f"{result.name} {percent}", **options) as engine:
            answers = engine.run(prompts, at_once=len(prompts), margins=True)
        same_unless_near(result, answers, reference)
        if first is not None:
            same_bits(answers, first, f"{percent} and {percents[0]} % in tier 0")
        first = first or answers
    result.more["tier0_percent"] = list(percents)


def tier0_small(world: World) -> Result:
    """A few short prompts, with 12.5 % and with 100 % of the pages in tier 0."""
    result = Result("tier0-small")
    prompts = [prompt(("small", i), 500 + 100 * i, max_tokens=8) for i in range(4)]
    with world.daemon() as daemon:
        _percents(world, result, prompts, (12.5, 100), daemon, {})
    return result


def tier0(world: World) -> Result:
    """16 prompts of 1,000 to 4,000 tokens in chunks, with 12.5 to 100 % of the pages in tier 0."""
    result = Result("tier0")
    prompts = [prompt(("tier0", i), 1000 + 200 * i, max_tokens=16) for i in range(16)]
    options = {"max_num_seqs": 16, "max_num_batched_tokens": 256, "max_model_len": 8192}
    with world.daemon() as daemon:
        _percents(world, result, prompts, (12.5, 25, 50, 100), daemon, options)
    return result


def nvme(world: World) -> Result:
    """Host memory has room for a fifth of the pages, tier 0 for an eighth; the rest is on NVMe."""
    result = Result("nvme")
    prompts = [prompt(("nvme", i), 1500 + 300 * i, max_tokens=8) for i in range(4)]
    mib = blocks(prompts) * LAYERS * PAGE_BYTES / (1 << 20)
    with world.daemon(host_mib=max(4, int(mib / 5))) as daemon:
        _percents(world, result, prompts, (12.5, 100), daemon, {"max_model_len": 4096})
        read = daemon.labelled("kvtide_disk_bytes_total", 'operation="read"')
        result.more["nvme_read_mib"] = round(read / (1 << 20), 1)
        check(read > 0, "nothing was read from NVMe")
    return result


def shared(world: World) -> Result:
    """A prefix is computed once: requests that share it attach it, one by one and together."""
    result = Result("shared")
    base = world.steady("shared", 640)[0]
    longer = world.steady("tails", 100, 130, 160, after=base.tokens)
    with world.daemon() as daemon, paged(world, "shared", daemon, 200, frames(96)) as engine:
        first = engine.run([base])
        result.compare(first, world.reference([base]))
        result.hits(first, [0])
        together = engine.run(longer, at_once=3)
        result.compare(together, world.reference(longer))
        result.hits(together, [640] * 3)
        again = engine.run([*longer, base])
        result.compare(again, world.reference([*longer, base]))
        result.hits(again, full([*longer, base]))
    return result


def preempted(world: World) -> Result:
    """Answers outgrow vLLM's blocks: requests are preempted, published, and resumed by attaching their pages."""
    result = Result("preempted")
    prompts = world.steady("preempted", 480, 480, 480, max_tokens=24)
    with world.daemon() as daemon, paged(world, "preempted", daemon, 46, frames(96), max_model_len=1024) as engine:
        result.compare(engine.run(prompts, at_once=3), world.reference(prompts))
        result.more["preemptions"] = engine.metrics()["vllm:num_preemptions"]
        check(result.more["preemptions"] > 0, "no request was preempted")
    return result


def aborted(world: World) -> Result:
    """A request is aborted while it decodes beside others. Its pages are freed, and its prefix is found."""
    result = Result("aborted")
    prompts = world.steady("aborted", 300, 400)
    victim = prompt("victim", 500, max_tokens=200)
    with world.daemon() as daemon, paged(world, "aborted", daemon, 100, frames(96)) as engine:
        answers = engine.run([victim, *prompts], at_once=3, abort={0: 3})
        check(3 <= len(answers[0].tokens) < 200, f"{len(answers[0].tokens)} tokens of the aborted request")
        result.compare(answers[1:], world.reference(prompts))
        again = engine.run([Prompt(victim.tokens, 1)])
        result.hits(again, full([victim]))
        daemon.until("no sequence is left", lambda m: m["kvtide_blocks"] <= m["kvtide_cached_blocks"])
    return result


def restarted(world: World) -> Result:
    """Prefixes are found after a restart of vLLM, and after a restart of the daemon, which then has them on NVMe."""
    result = Result("restarted")
    prompts = world.steady("restarted-paged", 500, 700)
    reference = world.reference(prompts)
    with world.daemon() as daemon:
        for name, hits in (("first", [0, 0]), ("second", full(prompts))):
            with paged(world, name, daemon, 100, frames(96)) as engine:
                answers = engine.run(prompts)
                result.compare(answers, reference)
                result.hits(answers, hits)
        daemon.stop()
        daemon.start()
        with paged(world, "third", daemon, 100, frames(96)) as engine:
            answers = engine.run(prompts)
            result.compare(answers, reference)
            result.hits(answers, full(prompts))
    return result


def two_engines(world: World) -> Result:
    """Two engines on one daemon, at the same time: each attaches prefixes that the other published."""
    result = Result("two-engines-paged")
    prompts = world.steady("two-paged", *[400] * 4)
    reference = world.reference(prompts)
    with world.daemon() as daemon, paged(world, "a", daemon, 100, frames(96)) as a, paged(world, "b", daemon, 100, frames(96)) as b:
        a.start_run(prompts[:2], at_once=2)
        b.start_run(prompts[2:], at_once=2)
        result.compare([*a.finish_run()[0], *b.finish_run()[0]], reference)
        swapped = [*b.run(prompts[:2], at_once=2), *a.run(prompts[2:], at_once=2)]
        result.compare(swapped, reference)
        result.hits(swapped, full(prompts))
    return result


def daemon_killed(world: World) -> Result:
    """The daemon is killed while requests decode, and started again: they are computed again, and the engine goes on."""
    result = Result("daemon-killed-paged")
    prompts = world.steady("killed-paged", 400, 500, 600, max_tokens=24)
    reference = world.reference(prompts)
    with world.daemon(nvme_mib=0) as daemon, paged(world, "killed", daemon, 100, frames(96)) as engine:
        engine.start_run(prompts, at_once=3)
        whole = sum(len(p.tokens) // BLOCK_TOKENS for p in prompts)
        daemon.until("all prompts are computed", lambda m: m.get("kvtide_cached_blocks", 0) >= whole)
        daemon.kill()
        daemon.start()
        result.compare(engine.finish_run()[0], reference)
        again = engine.run(prompts, at_once=3)
        result.compare(again, reference)
        result.hits(again, full(prompts))
    return result


def guaranteed(world: World) -> Result:
    """An engine with a guarantee serves all its requests although another engine has taken all other memory. An engine that requests a
    larger guarantee than possible does not start."""
    result = Result("guaranteed")
    prompts = [prompt(("guaranteed", i), 700, max_tokens=16) for i in range(6)]
    promised = blocks(prompts)
    tier0 = frames(promised * LAYERS / 3)
    mib = math.ceil(promised * LAYERS * PAGE_BYTES / MIB)
    with world.daemon(host_mib=mib, nvme_mib=0) as daemon:
        try:
            paged(world, "too-much", daemon, 1 << 20, tier0).close()
            raise Failed("an engine started with more than the daemon has")
        except EngineError as error:
            check("the daemon can guarantee" in str(error), f"the refusal is {error}")
        other = Space("other", bytes(32), BLOCK_TOKENS, [Plane(PAGE_BYTES)])
        with paged(world, "guaranteed", daemon, promised, tier0, max_num_seqs=6) as engine, attach(daemon.socket, other, [64]) as session:
            with session.channel(0) as channel, contextlib.suppress(NoSpace):
                seq, tokens = channel.create_seq(), 0
                while True:
                    tokens += 8 * BLOCK_TOKENS
                    channel.reserve(seq, tokens)
                    channel.commit(seq, tokens)
            same_unless_near(result, engine.run(prompts, at_once=6, margins=True), world.reference(prompts))
            check(engine.metrics()["vllm:num_preemptions"] == 0, "requests were preempted")
            result.more |= {"other_engine_mib": round(tokens / BLOCK_TOKENS * PAGE_BYTES / MIB, 1), "host_mib": mib}
    return result


def capacity(world: World) -> Result:
    """With the tier 0 of 20 blocks, which is all that plain vLLM has: a context, and requests at once, of eight times as much."""
    result = Result("capacity")
    plain_blocks = 20
    options = {"max_num_seqs": 16, "max_num_batched_tokens": 32, "max_model_len": 8192}
    long = world.steady("capacity", 8 * plain_blocks * BLOCK_TOKENS)
    many = world.steady("many", *[plain_blocks * BLOCK_TOKENS // 2 - 8] * 16)
    with world.daemon() as daemon, paged(world, "capacity", daemon, 300, frames(plain_blocks * LAYERS), **options) as engine:
        result.compare(engine.run(long), world.reference(long))
        result.compare(engine.run(many, at_once=16), world.reference(many))
        check(engine.metrics()["vllm:num_preemptions"] == 0, "requests were preempted")
    plain_tokens = plain_blocks * BLOCK_TOKENS
    result.more |= {"context_times_plain": len(long[0].tokens) / plain_tokens, "at_once_tokens_times_plain": blocks(many) / plain_blocks}
    return result
