"""Cases with a daemon behind vLLM. Each starts the processes that it needs. The trace's case is in cases_trace.py; cases with
crashes and corruption are in cases_faults.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .chain import computed
from .daemons import Daemon
from .engines import Answer, EngineError, Prompt
from .hybrid import make
from .trace import prompt
from .world import Failed, Result, World, attached, check, full, memcpy_bytes_per_ms

#: Prompt lengths with a limit on the time to the first token.
TIMED_TOKENS = (2000, 4000)
#: Number of measurements of each.
TIMED_ROUNDS = 9
#: Milliseconds that a hit may take beyond vLLM's own hit and the copy.
ALLOWED_MS = 3.0


def written(daemon: Daemon, prompts: Sequence[Prompt], answers: Sequence[Answer], *, stored: bool = False) -> int:
    """Wait until the daemon has every block of these prompts and answers, with `stored` also on disk. Return their number."""
    names: set[bytes] = set()
    for asked, answer in zip(prompts, answers, strict=True):
        names.update(computed(asked.tokens, answer.tokens))
    metric = "kvtide_blocks_stored_total" if stored else "kvtide_cached_blocks"
    daemon.until(f"{metric} is {len(names)}", lambda m: m.get(metric, 0) >= len(names))
    return len(names)


def tokens_loaded(figures: dict[str, float]) -> float:
    """Return the tokens that engines loaded, of all tiers."""
    return sum(figures.get(f"hits/loaded_tokens/{tier}", 0.0) for tier in ("tier0", "host", "nvme"))


def again(world: World) -> Result:
    """(a) The same prompts twice: the second run hits host memory."""
    result = Result("again")
    prompts = world.steady("again", 33, 64, 65, 500, *TIMED_TOKENS)
    reference = world.reference(prompts)
    with world.daemon() as daemon, world.engine("again", daemon) as engine:
        first = engine.run(prompts, forget=True)
        result.compare(first, reference)
        check(all(answer.cached == 0 for answer in first), "new prompts were hit")
        written(daemon, prompts, first)
        second = engine.run(prompts, forget=True)
        result.compare(second, reference)
        result.hits(second, full(prompts))
        daemon.until(f"its status counts {result.hit_tokens} tokens loaded", lambda m: tokens_loaded(m) == result.hit_tokens)
        hits = daemon.metrics()
        check(
            result.hit_tokens <= hits["hits/found_tokens"] <= hits["hits/asked_tokens"],
            f"the status counts {hits['hits/found_tokens']:g} of {hits['hits/asked_tokens']:g} tokens found, {result.hit_tokens} were hit",
        )
        external = engine.metrics()["vllm:external_prefix_cache_hits"]
        check(external == result.hit_tokens, f"vLLM counts {external:g} tokens hit by the connector, its answers {result.hit_tokens}")
        timed = prompts[-len(TIMED_TOKENS) :]
        warm: list[list[Answer]] = []
        # Alternate, so that other load on the machine affects both.
        native = world.native(timed, TIMED_ROUNDS, lambda: warm.append(engine.run(timed, forget=True)))
        result.times([answer for round_ in warm for answer in round_], native)
        kv_bytes = 2 * 2 * 6 * 2 * 32  # K and V, f16, layers, KV heads, channels: of a token
        for i, tokens in enumerate(TIMED_TOKENS):
            own, ours = (sorted(r[i].ttft_ms for r in rounds)[TIMED_ROUNDS // 2] for rounds in (native, warm))
            copy = warm[0][i].cached * kv_bytes / memcpy_bytes_per_ms()
            figures = {"ttft_ms": ours, "ttft_native_hit_ms": own, "copy_ms": copy, "limit_ms": own + copy + ALLOWED_MS}
            result.more[f"tokens_{tokens}"] = {k: round(v, 2) for k, v in figures.items()}
    return result


def engine_restarted(world: World) -> Result:
    """(b) vLLM ends and another one starts: it hits the daemon's blocks. Another salt finds none of them."""
    result = Result("engine-restarted")
    prompts = world.steady("restarted", *[700] * 4)
    reference = world.reference(prompts)
    with world.daemon() as daemon:
        with world.engine("before", daemon) as engine:
            first = engine.run(prompts)
            written(daemon, prompts, first)
        with world.engine("after", daemon) as engine:
            salted = engine.run([Prompt(p.tokens, p.max_tokens, salt="another user's") for p in prompts])
            check(all(answer.cached == 0 for answer in salted), "requests with another salt hit these blocks")
            result.compare(salted, reference)
            second = engine.run(prompts)
            result.compare(second, reference)
            result.hits(second, full(prompts))
            result.times(second, world.native(prompts))
    return result


def daemon_restarted(world: World) -> Result:
    """(c) The daemon ends and returns while vLLM runs and attaches again by itself: hits come from NVMe."""
    result = Result("daemon-restarted")
    prompts = world.steady("daemon", *[700] * 4)
    reference = world.reference(prompts)
    with world.daemon() as daemon, world.engine("stays", daemon) as engine:
        first = engine.run(prompts)
        count = written(daemon, prompts, first, stored=True)
        daemon.stop()
        alone = engine.run(prompts, forget=True)
        result.compare(alone, reference)
        check(all(answer.cached == 0 for answer in alone), "blocks were hit while no daemon ran")
        daemon.start()
        attached(daemon)
        restored = daemon.until(f"{count} blocks restored", lambda m: m.get("kvtide_cached_blocks", 0) >= count)
        check(restored["kvtide_disk_recovered_blocks"] >= count, f"of {count} stored blocks {restored['kvtide_disk_recovered_blocks']:g} were found")
        second = engine.run(prompts, forget=True)
        result.compare(second, reference)
        result.hits(second, full(prompts))
        read = daemon.labelled("kvtide_disk_bytes_total", 'operation="read"')
        check(read > 0, "nothing was read from NVMe")
        result.more["nvme_read_mib"] = round(read / (1 << 20), 1)
        result.times(second, world.native(prompts))
    return result


def host_too_small(world: World) -> Result:
    """(d) Host memory holds only part of the stored blocks: the rest comes from NVMe."""
    result = Result("host-too-small")
    prompts = world.steady("small", *[1000] * 16)
    reference = world.reference(prompts)
    with world.daemon(host_mib=8) as daemon, world.engine("small", daemon) as engine:
        for asked, right in zip(prompts, reference, strict=True):
            first = engine.run([asked])
            result.compare(first, [right])
            # One after the other: host memory rejects blocks without space while nothing can be evicted.
            daemon.until("nothing under way", lambda m: m.get("occupancy/persisting", 0) == 0 and m.get("attached/jobs_in_flight", 0) == 0)
        written(daemon, prompts, reference, stored=True)
        second = engine.run(prompts, forget=True)
        result.compare(second, reference)
        result.hits(second, full(prompts))
        read = daemon.labelled("kvtide_disk_bytes_total", 'operation="read"')
        check(read > 8 << 20, f"only {read:g} bytes were read from NVMe; most blocks must have come from there")
        result.more["nvme_read_mib"] = round(read / (1 << 20), 1)
        result.times(second, world.native(prompts))
    return result


def two_engines(world: World) -> Result:
    """(e) Two vLLM processes at once: each hits the other's blocks."""
    result = Result("two-engines")
    shared = prompt("shared", 960).tokens
    mine, theirs = (world.steady(who, *[200] * 8, after=shared) for who in ("mine", "theirs"))
    reference = world.reference([*mine, *theirs])
    with world.daemon() as daemon, world.engine("one", daemon) as one, world.engine("other", daemon) as other:
        one.start_run(mine, at_once=4, forget=False)
        other.start_run(theirs, at_once=4, forget=False)
        first, second = one.finish_run()[0], other.finish_run()[0]
        result.compare(first, reference[: len(mine)])
        result.compare(second, reference[len(mine) :])
        names = written(daemon, [*mine, *theirs], [*first, *second])
        check(names < 2 * sum(len(computed(p.tokens, ())) for p in mine), "the shared prefix was counted once per prompt")
        crossed = [*one.run(theirs, forget=True), *other.run(mine, forget=True)]
        result.compare(crossed, [*reference[len(mine) :], *reference[: len(mine)]])
        result.hits(crossed, full([*theirs, *mine]))
        result.times(crossed, world.native(mine))
    return result


def hybrid(world: World) -> Result:
    """Layers with full attention and with a window: a block is found only if all groups have it; windows need only the last
    blocks."""
    result = Result("hybrid")
    model: dict[str, Any] = {"model": str(make(world.directory / "hybrid")), "dtype": "float32", "disable_hybrid_kv_cache_manager": False}
    sizes = (65, 300, 300, 1000, 1000)
    with world.alone("hybrid alone", **model) as plain:
        prompts = world.steady("hybrid", *sizes, of=plain)
        reference = plain.run(prompts, forget=True)
    with world.daemon() as daemon:
        with world.engine("hybrid", daemon, **model) as engine:
            first = engine.run(prompts)
            result.compare(first, reference)
            written(daemon, prompts, first, stored=True)
            second = engine.run(prompts, forget=True)
            result.compare(second, reference)
            result.hits(second, full(prompts))
        # Another process, and empty host memory.
        daemon.stop()
        daemon.start()
        with world.engine("hybrid after", daemon, **model) as engine:
            third = engine.run(prompts)
            result.compare(third, reference)
            result.hits(third, full(prompts))
    return result


def prefix_caching_off(world: World) -> Result:
    """Without vLLM's prefix caching the connector cannot work: vLLM does not start, and the error says what to set."""
    with world.daemon() as daemon:
        try:
            world.engine("no prefix caching", daemon, enable_prefix_caching=False).kill()
        except EngineError as error:
            said = str(error).partition("; its log:")[0]
            check("prefix caching is off" in said and "--enable-prefix-caching" in said, f"unexpected error: {said}")
            return Result("prefix-caching-off")
    raise Failed("vLLM started without prefix caching")
