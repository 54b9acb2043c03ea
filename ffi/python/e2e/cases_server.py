"""Cases of `KvtidePaged` under vLLM's API server: requests, several ranks, and reports of omitted pages."""

from __future__ import annotations

from typing import Any

from .cases_paged import LAYERS, PAGE_BYTES, PATIENT_PAGED, same_tokens
from .chain import BLOCK_TOKENS
from .daemons import Daemon
from .servers import Server
from .world import Result, World, check, full

#: Options of all servers: a step needs little of tier 0.
SMALL = ("--max-num-seqs", "4", "--max-num-batched-tokens", "128", "--max-model-len", "2048", "--block-size", str(BLOCK_TOKENS), "--seed", "0")


def serve(world: World, name: str, daemon: Daemon, *, tier0_pages: int = 96, ranks: int = 1, **extra: Any) -> Server:
    """Start the API server with `KvtidePaged`."""
    options = {**PATIENT_PAGED, "socket": str(daemon.socket)}
    options |= {"tier0_bytes": tier0_pages * PAGE_BYTES, "capacity_tokens": 200 * BLOCK_TOKENS, **extra}
    transfer = {"kv_connector": "KvtidePaged", "kv_role": "kv_both", "kv_connector_extra_config": options}
    return Server(name, world.directory, world.model_path, SMALL, transfer, ranks)


def api_server(world: World) -> Result:
    """Requests through the API, several at once; their prefixes are found after a restart of the server."""
    result = Result("api-server")
    prompts = world.steady("api", 400, 500, 600)
    reference = world.reference(prompts)
    with world.daemon() as daemon:
        for name, hits in (("api-first", [0, 0, 0]), ("api-second", full(prompts))):
            with serve(world, name, daemon) as server:
                replies = server.run(prompts)
                same_tokens([reply.tokens for reply in replies], reference)
                cached = [reply.cached for reply in replies]
                check(cached == hits, f"{cached} tokens were hit; expected {hits}")
                check(all(reply.transfer is None for reply in replies), "exact requests report omitted pages")
                result.hit_tokens += sum(cached)
                result.hit_tokens_expected += sum(hits)
    return result


def ranks(world: World) -> Result:
    """Two ranks with one KV head each: a block counts as found if both ranks have it. A restart with one rank finds none of them."""
    result = Result("ranks")
    prompts = world.steady("ranks", 400, 500)
    with world.daemon() as daemon:
        for name, hits in (("ranks-first", [0, 0]), ("ranks-second", full(prompts))):
            # A page of a rank has half of the bytes.
            with serve(world, name, daemon, tier0_pages=48, ranks=2) as server:
                replies = server.run(prompts)
                check(all(len(reply.tokens) == prompt.max_tokens for reply, prompt in zip(replies, prompts)), "answers are cut")
                # Sums of two halves are rounded otherwise than one sum, so single tokens may differ from those of one rank.
                same = sum(reply.tokens == right.tokens for reply, right in zip(replies, world.reference(prompts)))
                result.more["equal_to_one_rank"] = f"{same} of {len(prompts)}"
                cached = [reply.cached for reply in replies]
                check(cached == hits, f"{cached} tokens were hit; expected {hits}")
                result.hit_tokens += sum(cached)
                result.hit_tokens_expected += sum(hits)
            if name == "ranks-first":
                first = [reply.tokens for reply in replies]
        check(first == [reply.tokens for reply in replies], "answers over attached prefixes differ from computed ones")
        with serve(world, "one-rank", daemon) as server:
            cached = [reply.cached for reply in server.run(prompts)]
            check(cached == [0, 0], f"one rank hit {cached} tokens of two ranks' blocks")
    return result


def approx(world: World) -> Result:
    """Under `approx` a request reports what its steps omitted, and so do the metrics. Its prompt's blocks are found by an exact engine;
    those of its answer are not published."""
    result = Result("approx")
    prompts = world.steady("approx", 1000, 1200, max_tokens=40)
    pages = sum(-(-(len(p.tokens) + p.max_tokens) // BLOCK_TOKENS) for p in prompts) * LAYERS
    longer = [type(p)(p.tokens + right.tokens, 4) for p, right in zip(prompts, world.reference(prompts))]
    with world.daemon() as daemon:
        with serve(world, "approx", daemon, tier0_pages=pages // 4, contract="approx:0.25") as server:
            replies = server.run(prompts)
            metrics = server.metrics()
        for reply in replies:
            report = (reply.transfer or {}).get("kvtide")
            check(report is not None and 0 < report["pages_omitted"] < report["pages_needed"], f"the request reports {reply.transfer}")
        counted = {name: metrics.get(f"vllm:kvtide_approx_{name}_total", 0) for name in ("steps", "pages_needed", "pages_omitted")}
        check(0 < counted["pages_omitted"] < counted["pages_needed"], f"metrics count {counted}")
        equal = sum(a == b for reply, right in zip(replies, world.reference(prompts)) for a, b in zip(reply.tokens, right.tokens))
        result.more |= {
            "omitted_percent": round(100 * counted["pages_omitted"] / counted["pages_needed"], 1),
            "tokens_equal_to_exact_percent": round(100 * equal / sum(p.max_tokens for p in prompts), 1),
        }
        with serve(world, "approx-exact", daemon) as server:
            replies = server.run(longer)
            same_tokens([reply.tokens for reply in replies], world.reference(longer))
            cached = [reply.cached for reply in replies]
            hits = [len(p.tokens) // BLOCK_TOKENS * BLOCK_TOKENS for p in prompts]
            check(cached == hits, f"{cached} tokens were hit; expected {hits}, the blocks of the prompts")
            result.hit_tokens, result.hit_tokens_expected = sum(cached), sum(hits)
    return result
