"""(h) 200 requests of a real trace, and what the connector costs where it finds nothing."""

from __future__ import annotations

import statistics

from .chain import Cache, computed
from .engines import Answer, Engine
from .trace import prompt, prompts
from .world import Result, World, check

#: Host memory that holds about a fifth of the trace's blocks, and between which shares of it the daemon keeps published blocks.
SMALL_MIB = 12
HIGH_PERCENT = 95
LOW_PERCENT = 85
#: Rounds of throughput, requests of a round, tokens of their prompts and answers, and how many run at once.
ROUNDS = 12
#: Rounds before that: a machine that has just begun to work runs faster or slower.
WARM_UP = 2
REQUESTS = 24
PROMPT_TOKENS = 384
ANSWER_TOKENS = 24
AT_ONCE = 8


def replayed(engine: Engine, reference: list[Answer], result: Result, caches: list[Cache]) -> list[list[int]]:
    """Sends the trace, one request after the other, nothing kept by vLLM itself. Returns the tokens hit, and what each model would have hit."""
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
    """Everything fits: hits are to the token what the trace allows."""
    result = Result("trace")
    asked = prompts()
    # vLLM's own prefix cache is on, as its users have it: it has room for all of the trace.
    world.plain.forget()
    reference = world.plain.run(asked)
    with world.daemon() as daemon, world.engine("trace", daemon) as engine:
        hit, allowed = replayed(engine, reference, result, [Cache()])
        result.hit_tokens, result.hit_tokens_expected = sum(hit), sum(allowed)
        for number, (ours, right) in enumerate(zip(hit, allowed, strict=True)):
            check(ours == right, f"request {number}: {ours} tokens were hit, the trace allows {right}")
        own = [a.cached for a in reference]
        check(own == allowed, "vLLM's own prefix cache, which has room for everything, hit something else than the model says")
        result.times(engine.run(asked[-20:], forget=True), [world.plain.run(asked[-20:])])
    return result


def trace_small(world: World) -> Result:
    """Host memory for a fifth of it and no NVMe: hits lie between those of LRUs of the sizes between which the daemon keeps what is published."""
    result = Result("trace-small")
    asked = prompts()
    reference = world.plain.run(asked)
    policy = f'[eviction]\npolicy = "lru"\n[tiers.host]\nhigh_percent = {HIGH_PERCENT}\nlow_percent = {LOW_PERCENT}\n'
    with world.daemon(host_mib=SMALL_MIB, nvme_mib=0, config=policy) as daemon, world.engine("trace-small", daemon) as engine:
        # A first request, so that the daemon has a space whose room can be asked for.
        engine.run([prompt("room", 64)])
        first = daemon.until("a space", lambda m: m.get("kvtide_published_blocks", 0) > 0)
        room = int(sum(v for k, v in first.items() if k.startswith("kvtide_pages{") and 'tier="host"' in k))
        largest = max(len(computed(p.tokens, a.tokens)) for p, a in zip(asked, reference, strict=True))
        # What is being stored has room of its own, at most a request's.
        hit, low, high, unbounded = replayed(engine, reference, result, [Cache(room * LOW_PERCENT // 100 - largest), Cache(room), Cache()])
        result.hit_tokens, result.hit_tokens_expected = sum(hit), sum(high)
        result.more |= {"room_blocks": room, "hit_tokens_least": sum(low), "hit_tokens_unbounded": sum(unbounded)}
        check(sum(low) <= sum(hit) <= sum(high), f"with room for {room} blocks {sum(hit)} tokens were hit, LRUs hit {sum(low)} to {sum(high)}")
        check(sum(high) < sum(unbounded), "the small cache is not small: it hits what one without bounds hits")
    return result


def throughput_ratio(world: World) -> float:
    """Throughput with the connector and no hits, which stores everything, over that without. The median of rounds, each in turn first."""
    ratios = []
    with world.daemon() as daemon, world.engine("throughput", daemon) as engine:
        for round_ in range(-WARM_UP, ROUNDS):
            seconds = {}
            for on in (world.plain, engine) if round_ % 2 else (engine, world.plain):
                on.start_run([prompt(("throughput", round_, n), PROMPT_TOKENS, max_tokens=ANSWER_TOKENS) for n in range(REQUESTS)], at_once=AT_ONCE)
                answers, took = on.finish_run()
                check(all(a.cached == 0 for a in answers), "prompts that nobody had yet were hit")
                seconds[on.name] = took
            if round_ >= 0:
                ratios.append(seconds[world.plain.name] / seconds[engine.name])
    return statistics.median(ratios)
