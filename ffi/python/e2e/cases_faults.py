"""Cases with crashes and corruption. None relies on sleeping: a process's end is read from its pidfd, a state from the daemon's
metrics."""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path

from .cases import written
from .daemons import LOOK_S, Daemon
from .engines import Answer, Engine, Prompt
from .trace import prompt
from .world import Failed, Result, World, attached, check, full

#: Offset of the regions' position in a store's superblock (docs/design/format.md), and bytes of a sector.
REGIONS_AT = 56
SECTOR = 4096
#: Maximum number of turns until the engine has requested a store.
FREEZES_MAX = 40


def daemon_killed(world: World) -> Result:
    """(f) The daemon is killed while vLLM loads and stores: no request fails, outputs are equal, and the daemon is used when it is
    back."""
    result = Result("daemon-killed")
    old, new = (world.steady(name, *[500] * 10) for name in ("kill", "kill new"))
    prompts = [p for pair in zip(old, new, strict=True) for p in pair]
    reference = world.reference(prompts)
    with world.daemon() as daemon, world.engine("survives", daemon) as engine:
        first = engine.run(old)
        written(daemon, old, first)

        def kill(index: int, answer: Answer) -> None:
            if index == 5:
                daemon.kill()

        engine.forget()
        engine.start_run(prompts, at_once=2)
        answers, _ = engine.finish_run(kill)
        result.compare(answers, reference)
        before = engine.run(prompts, forget=True)
        result.compare(before, reference)
        check(all(answer.cached == 0 for answer in before), "blocks were hit after the daemon's death")
        daemon.start()
        attached(daemon)
        # Blocks that were only in host memory are lost; written ones may have returned. From here on it is a cache again.
        filled = engine.run(prompts, forget=True)
        result.compare(filled, reference)
        written(daemon, prompts, filled)
        last = engine.run(prompts, forget=True)
        result.compare(last, reference)
        result.hits(last, full(prompts))
        result.times(last, world.native(prompts))
    return result


def flip(store: Path, one_in: int, seed: int) -> int:
    """Change a byte in one of `one_in` non-empty sectors of a store's regions. Return the number of changed sectors."""
    numbers, flipped = random.Random(seed), 0
    with store.open("r+b") as file:
        superblock = file.read(SECTOR)
        check(superblock[:8] == b"kvtstore", f"{store} is not a store: it begins with {superblock[:8]!r}")
        (at,) = struct.unpack_from("<Q", superblock, REGIONS_AT)
        file.seek(at)
        while sector := file.read(SECTOR):
            if any(sector) and numbers.randrange(one_in) == 0:
                byte = numbers.randrange(len(sector))
                file.seek(at + byte)
                file.write(bytes([sector[byte] ^ 0x40]))
                file.seek(at + SECTOR)
                flipped += 1
            at += SECTOR
    return flipped


def bytes_flipped(world: World) -> Result:
    """(g) Bytes on disk change while the daemon is down: blocks with a wrong checksum are computed and never served."""
    result = Result("bytes-flipped")
    prompts = world.steady("flip", *[700] * 6)
    reference = world.reference(prompts)
    with world.daemon() as daemon, world.engine("reads", daemon) as engine:
        first = engine.run(prompts)
        count = written(daemon, prompts, first, stored=True)
        daemon.stop()
        result.more["sectors_flipped"] = flip(daemon.nvme / "kvtide.store", one_in=200, seed=7)
        check(result.more["sectors_flipped"] > 0, "all sectors of the store are empty")
        # Send a request, so that the engine notices that the daemon is gone, and attaches again.
        engine.run([prompt("meanwhile", 40)])
        daemon.start()
        attached(daemon)
        daemon.until(f"{count} blocks restored", lambda m: m.get("kvtide_cached_blocks", 0) >= count)
        second = engine.run(prompts, forget=True)
        result.compare(second, reference)
        failures = daemon.metrics().get("kvtide_checksum_failures_total", 0)
        check(failures > 0, "no page with a wrong checksum was read")
        result.more["checksum_failures"] = int(failures)
        # Lost blocks were computed and stored again: now everything is cached.
        written(daemon, prompts, second)
        third = engine.run(prompts, forget=True)
        result.compare(third, reference)
        result.hits(third, full(prompts))
        result.times(third, world.native(prompts))
    return result


def stores(metrics: dict[str, float]) -> bool:
    """Return whether an engine is copying."""
    return metrics.get("attached/jobs_in_flight", 0) > 0


def frozen_in_a_store(engine: Engine, daemon: Daemon, asked: Prompt) -> None:
    """Let an engine compute a prompt, and stop it while it has copy jobs for a store that it has not run.

    The daemon is stopped while the engine computes, so that the store waits. Then the engine is stopped, so that the copies wait.
    """
    before = daemon.metrics().get("core/requests", 0)
    engine.start_run([asked])
    daemon.until("the prompt's lookup", lambda m: m.get("core/requests", 0) > before, pause_s=0)
    daemon.freeze()
    next(engine.answers())
    for _ in range(FREEZES_MAX):
        # Only one of the two runs at a time: the daemon receives the engine's requests, and the engine cannot run the copies.
        engine.freeze()
        daemon.thaw()
        if copies(daemon):
            return
        daemon.freeze()
        engine.thaw()
        time.sleep(LOOK_S)  # there is no event for the engine's request
    daemon.thaw()
    raise Failed(f"an engine that had answered requested no store in {FREEZES_MAX} turns")


def copies(daemon: Daemon) -> bool:
    """Return whether copies of a stopped engine are pending. Three queries, so that the daemon has processed all its messages."""
    return all(stores(daemon.metrics()) for _ in range(3))


def engine_killed(world: World) -> Result:
    """(i) vLLM is killed in the middle of a store: its frames are freed, and no incomplete block is served."""
    result = Result("engine-killed")
    prompts = world.steady("torn", *[3000] * 3, max_tokens=1)
    reference = world.reference(prompts)
    with world.daemon() as daemon:
        engine = world.engine("killed", daemon)
        try:
            engine.run(prompts[:-1])
            frozen_in_a_store(engine, daemon, prompts[-1])
        finally:
            engine.kill()
        after = daemon.until("the session's end", lambda m: m.get("kvtide_sessions", 0) == 0 and not stores(m))
        check(after.get("core/quarantined_total", 0) > 0, "no frame was quarantined although the engine died while it copied")
        check(daemon.labelled("kvtide_tier_bytes", 'state="quarantined"') == 0, "frames are still quarantined")
        result.more["frames_quarantined"] = int(after["core/quarantined_total"])
        with world.engine("heir", daemon) as heir:
            second = heir.run(prompts, forget=True)
            result.compare(second, reference)
            check(second[-1].cached < full(prompts)[-1], "a whole prompt was hit although the engine died before its store ended")
            written(daemon, prompts, second)
            third = heir.run(prompts, forget=True)
            result.compare(third, reference)
            result.hits(third, full(prompts))
            result.times(third, world.native(prompts))
        held = daemon.until("the session's end", lambda m: m.get("kvtide_sessions", 0) == 0)
        pages = sum(v for k, v in held.items() if k.startswith("occupancy/host/") and k.endswith("/frames") and "/free/" not in k)
        blocks = held["kvtide_cached_blocks"]
        check(pages % blocks == 0 and pages > 0, f"host memory has {pages:g} pages for {blocks:g} blocks: some belong to no block")
    return result
