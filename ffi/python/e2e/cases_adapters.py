"""LoRA adapters: requests with the same tokens and other adapters share no blocks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .cases_paged import SMALL, frames, paged, same_unless_near
from .daemons import Daemon
from .engines import Adapter, Answer, Engine, Prompt
from .trace import prompt
from .world import Result, World, check, full

RANK = 4
#: Options of every engine of these cases.
OPTIONS: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8} | SMALL
#: Size of an adapter's change of a projection's output, relative to its input.
GAIN = 0.5


def write(folder: Path, model: Path, seed: int) -> None:
    """Write an adapter with random weights, which changes queries, keys and values of all layers."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((model / "config.json").read_text())
    hidden, head = config["hidden_size"], config["head_dim"]
    rows = {"q_proj": config["num_attention_heads"] * head} | dict.fromkeys(("k_proj", "v_proj"), config["num_key_value_heads"] * head)
    numbers = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for name, size in rows.items():
            of = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{of}.lora_A.weight"] = torch.randn((RANK, hidden), generator=numbers) * hidden**-0.5
            weights[f"{of}.lora_B.weight"] = torch.randn((size, RANK), generator=numbers) * RANK**-0.5 * GAIN
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors")
    described = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": list(rows), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(described))


def _adapters(world: World, result: Result, start: Callable[[str, Daemon], Engine]) -> Result:
    """Run the same prompts without an adapter and with two, and again in another engine, and again with one of the adapters changed
    under its name and number."""
    place = world.directory / result.name
    place.mkdir()
    adapters = [None, Adapter(1, place / "a"), Adapter(2, place / "b")]
    for seed, adapter in enumerate(adapters):
        if adapter is not None:
            write(adapter.folder, world.model, seed)
    tokens = [prompt((result.name, i), 300 + 100 * i).tokens for i in range(2)]
    asked = {adapter: [Prompt(one, adapter=adapter) for one in tokens] for adapter in adapters}

    def references(name: str) -> dict[Adapter | None, list[Answer]]:
        with world.alone(name, **OPTIONS) as plain:
            return {adapter: plain.run(prompts, forget=True, margins=True) for adapter, prompts in asked.items()}

    def run(engine: Engine, right: dict[Adapter | None, list[Answer]], found: list[Adapter | None]) -> None:
        for adapter, prompts in asked.items():
            answers = engine.run(prompts)
            same_unless_near(result, answers, right[adapter])
            result.hits(answers, full(prompts) if adapter in found else [0] * len(prompts))

    reference = references("plain-adapters")
    outputs = {tuple(answer.tokens for answer in answers) for answers in reference.values()}
    check(len(outputs) == len(adapters), "the adapters do not change vLLM's answers")
    with world.daemon() as daemon:
        with start("first", daemon) as engine:
            run(engine, reference, [])
            # In one batch. Not those without an adapter: vLLM's kernel for CPUs applies an adapter of others in the batch to them.
            both = [one for adapter in adapters[1:] for one in asked[adapter]]
            answers = engine.run(both, at_once=len(both))
            same_unless_near(result, answers, [answer for adapter in adapters[1:] for answer in reference[adapter]])
            result.hits(answers, full(both))
        with start("second", daemon) as engine:
            run(engine, reference, adapters)
        changed = adapters[1]
        assert changed is not None
        write(changed.folder, world.model, 7)
        with start("changed", daemon) as engine:
            run(engine, references("plain-changed"), [None, adapters[2]])
    return result


def connector(world: World) -> Result:
    """Adapters with `KvtideConnector`."""
    return _adapters(world, Result("adapters"), lambda name, daemon: world.engine(name, daemon, **OPTIONS))


def decoding(world: World) -> Result:
    """Adapters with `KvtidePaged`."""
    return _adapters(world, Result("adapters-paged"), lambda name, daemon: paged(world, name, daemon, 150, frames(96), **OPTIONS))
