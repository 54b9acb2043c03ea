"""(h) 200 requests of a real trace, and the cost of the connector without hits."""

from __future__ import annotations

import statistics

from .chain import Cache, computed
from .engines import Answer, Engine
from .trace import prompt, prompts
from .world import Result, World, check

#: Host memory for about a fifth of the trace's blocks, and the shares of it between which the daemon keeps published blocks.
SMALL_MIB = 12
HIGH_PERCENT = 95
LOW_PERCENT = 85
#: Throughput: number of rounds, requests per round, tokens of prompts and answers, and concurrent requests.
ROUNDS = 12
#: Rounds before the measurement, because a machine that was idle runs at another speed.
WARM_UP = 2
REQUESTS = 24
PROMPT_TOKENS = 384
ANSWER_TOKENS = 24
AT_ONCE = 8


def replayed(engine: Engine, reference: list[Answer], result: Result, caches: list[Cache]) -> list[list[int]]:
    """Send the trace, one request after the other, with vLLM's own cache empty. Return the hit tokens, and those of each model."""
    counts: list[list[int]] = [[] for _ in range(1 + len(caches))]
    for asked, right in zip(prompts(), reference, strict=True):
        answer = engine.run([asked], forget=True)[0]
        result.compare([answer], [right])
        names = computed(asked.tokens, answer.tokens)
        for count, hit in zip(counts, [answer.cached, *(cache.hit_tokens(asked.tokens) for cache in caches)], strict=True):
            count.append(hit)
        for cache in caches:
            cache.use(names)
    return counts


def trace(world: World) -> Result:
    """Everything fits: the hits equal those of the model, exact to the token."""
    result = Result("trace")
    asked = prompts()
    # vLLM's own prefix cache is enabled, as users have it, and has space for the whole trace.
    world.plain.forget()
    reference = world.plain.run(asked)
    with world.daemon() as daemon, world.engine("trace", daemon) as engine:
        hit, allowed = replayed(engine, reference, result, [Cache()])
        result.hit_tokens, result.hit_tokens_expected = sum(hit), sum(allowed)
        for number, (ours, right) in enumerate(zip(hit, allowed, strict=True)):
            check(ours == right, f"request {number}: {ours} tokens were hit; the model hits {right}")
        own = [a.cached for a in reference]
        check(own == allowed, "vLLM's own prefix cache, which has space for everything, and the model hit different tokens")
        result.times(engine.run(asked[-20:], forget=True), [world.plain.run(asked[-20:])])
    return result


def trace_small(world: World) -> Result:
    """Host memory for a fifth of the trace, no NVMe: hits lie between those of LRU caches with the daemon's lower and upper
    bound."""
    result = Result("trace-small")
    asked = prompts()
    reference = world.plain.run(asked)
    policy = f'[eviction]\npolicy = "lru"\n[tiers.host]\nhigh_percent = {HIGH_PERCENT}\nlow_percent = {LOW_PERCENT}\n'
    with world.daemon(host_mib=SMALL_MIB, nvme_mib=0, config=policy) as daemon, world.engine("trace-small", daemon) as engine:
        # A first request creates the space, so that its frames can be counted.
        engine.run([prompt("room", 64)])
        first = daemon.until("a space", lambda m: m.get("kvtide_cached_blocks", 0) > 0)
        room = int(sum(v for k, v in first.items() if k.startswith("occupancy/host/") and k.endswith("/frames")))
        largest = max(len(computed(p.tokens, a.tokens)) for p, a in zip(asked, reference, strict=True))
        # Running stores have frames of their own, at most those of one request.
        hit, low, high, unbounded = replayed(engine, reference, result, [Cache(room * LOW_PERCENT // 100 - largest), Cache(room), Cache()])
        result.hit_tokens, result.hit_tokens_expected = sum(hit), sum(high)
        result.more |= {"room_blocks": room, "hit_tokens_least": sum(low), "hit_tokens_unbounded": sum(unbounded)}
        check(sum(low) <= sum(hit) <= sum(high), f"{room} blocks: {sum(hit)} tokens were hit; LRU caches hit {sum(low)} to {sum(high)}")
        check(sum(high) < sum(unbounded), "the small cache is too large: it hits as much as an unbounded one")
    return result


def throughput_ratio(world: World) -> float:
    """Return throughput with the connector and no hits (everything is stored), divided by without: the median of alternating
    rounds."""
    ratios = []
    with world.daemon() as daemon, world.engine("throughput", daemon) as engine:
        for round_ in range(-WARM_UP, ROUNDS):
            seconds = {}
            for on in (world.plain, engine) if round_ % 2 else (engine, world.plain):
                on.start_run([prompt(("throughput", round_, n), PROMPT_TOKENS, max_tokens=ANSWER_TOKENS) for n in range(REQUESTS)], at_once=AT_ONCE)
                answers, took = on.finish_run()
                check(all(a.cached == 0 for a in answers), "new prompts were hit")
                seconds[on.name] = took
            if round_ >= 0:
                ratios.append(seconds[world.plain.name] / seconds[engine.name])
    return statistics.median(ratios)
