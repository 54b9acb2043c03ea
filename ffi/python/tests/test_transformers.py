"""transformers on a kvtide space: the fixture model and small random models, compared with transformers' own cache."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM
from transformers.cache_utils import DynamicCache

import kvtide
from kvtide import errors
from kvtide.daemon import PrivateDaemon
from kvtide.torch import KvtideCache
from kvtide.torch.transformers import shape_of

ROOT = Path(__file__).parents[3]
DEVICES = ["cpu", *(["cuda:0"] if torch.cuda.is_available() else [])]


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    """examples/decode.py as a module."""
    spec = importlib.util.spec_from_file_location("decode_example", Path(__file__).parents[1] / "examples" / "decode.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tokens_are_those_of_transformers_with_an_eighth_in_tier_0(example: ModuleType, device: str, dtype: torch.dtype) -> None:
    """Equal tokens. The margins show that they are not equal by chance of a near tie."""
    result = example.compare(str(ROOT / "benches/demo/assets"), device=device, dtype=dtype, prompt_tokens=480, new_tokens=32)
    assert result.share_in_tier0 <= 0.125 and result.planes_in_passes > 6 * 32 and result.bytes_host_to_tier0 > 0
    assert result.new_tokens == 32 and result.equal and result.margin_least > 0.5, result


def test_the_example_decodes_over_a_daemon_that_runs(daemon: PrivateDaemon, tmp_path: Path) -> None:
    """The example as a command, with --socket, and its error without a daemon."""
    program, model = Path(__file__).parents[1] / "examples" / "decode.py", ROOT / "benches/demo/assets"
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("        for block in self.blocks.drain() {\n            self.release(block);\n        }\n")

    def run(socket: Path) -> subprocess.CompletedProcess[str]:
        words = ["--socket", socket, "--model", model, "--device", "cpu", "--prompt", prompt, "--prompt-tokens", 480, "--new-tokens", 8]
        # No private daemon: without a daemon on the socket it must fail.
        environment = {name: text for name, text in os.environ.items() if name != "KVTIDED"} | {"PATH": ""}
        command = [sys.executable, "-s", str(program), *map(str, words)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)

    ran = run(daemon.socket)
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert result["equal"] and result["new_tokens"] == 8 and result["prompt_tokens"] == 480
    assert result["share_in_tier0"] <= 0.125 and result["bytes_host_to_tier0"] > 0
    gone = run(tmp_path / "none.sock")
    assert gone.returncode != 0 and "none.sock" in gone.stderr and not gone.stdout


def tiny(kind: type[PreTrainedModel], config: type, **changes: Any) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return the same random model twice: with kvtide, and with transformers' own attention, in 16 bits as in pages."""
    shape = {
        "vocab_size": 97,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "initializer_range": 0.3,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": None,
    }
    torch.manual_seed(11)
    models = []
    for implementation in ("kvtide", "eager"):
        made = config(**(shape | changes))
        made._attn_implementation = implementation
        models.append(kind(made).to(torch.float16).eval())
    models[1].load_state_dict(models[0].state_dict())
    return models[0], models[1]


def attach(model: PreTrainedModel, daemon: PrivateDaemon, frames: int = 120, **options: Any) -> KvtideCache:
    return KvtideCache.attach(model, daemon.socket, frames, **options)


def logits(model: PreTrainedModel, cache: Any, pieces: list[Tensor], mask: Tensor | None = None) -> Tensor:
    """Return the logits of every token, with the prompt given in several parts."""
    found, at = [], 0
    with torch.no_grad():
        for piece in pieces:
            at += piece.shape[1]
            seen = None if mask is None else mask[:, :at]
            position = None if seen is None else (seen.cumsum(1) - 1).clamp(min=0)[:, -piece.shape[1] :]
            out = model(piece, past_key_values=cache, attention_mask=seen, position_ids=position, use_cache=True)
            found.append(out.logits)
    return torch.cat(found, 1).float()


def close(found: Tensor, expected: Tensor) -> None:
    """Compare within the error of two ways to round f16: measured 0.6 % of the norm over these models."""
    error = (found - expected).norm() / expected.norm()
    assert float(error) < 0.02, float(error)


def near_greedy(model: PreTrainedModel, tokens: Tensor, prompt: int, mask: Tensor | None = None) -> None:
    """Verify that every new token is transformers' best one after the same tokens, or equally good within f16's rounding. A random
    model has near ties, which different rounding decides differently."""
    if mask is not None:
        mask = torch.nn.functional.pad(mask, (0, tokens.shape[1] - mask.shape[1]), value=1)
    scores = logits(model, DynamicCache(config=model.config), [tokens], mask)[:, prompt - 1 : -1]
    chosen = scores.gather(2, tokens[:, prompt:, None])[..., 0]
    assert float((scores.amax(2) - chosen).max()) < 0.02 * float(scores.abs().max())


TINY = [
    (LlamaForCausalLM, LlamaConfig, {}),
    (LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 8, "head_dim": 64}),
    (Qwen2ForCausalLM, Qwen2Config, {"num_key_value_heads": 1, "num_attention_heads": 16}),
    (MistralForCausalLM, MistralConfig, {"sliding_window": 24}),
]


@pytest.mark.parametrize(("kind", "config", "changes"), TINY)
@pytest.mark.parametrize("frames", [24, 240])
def test_logits(
    daemon: PrivateDaemon, kind: type[PreTrainedModel], config: type, changes: dict[str, Any], frames: int
) -> None:
    ours, theirs = tiny(kind, config, **changes)
    if frames == 24 and changes.get("head_dim") == 64:
        frames = 27
    ids = torch.randint(2, 97, (2, 150))
    pieces = list(ids.split([16, 16, 8, 1, 1, 7, *[16] * 5, *[1] * 21], 1))
    with attach(ours, daemon, frames, query_tokens_max=16) as cache:
        close(logits(ours, cache, pieces), logits(theirs, DynamicCache(config=theirs.config), pieces))
        assert cache.get_seq_length() == 150
        assert (cache.totals.planes_in_passes > 0) == (frames < 60 and "sliding_window" not in changes)


def test_padding_on_the_left_takes_no_room(daemon: PrivateDaemon) -> None:
    ours, theirs = tiny(LlamaForCausalLM, LlamaConfig)
    ids, pads = torch.randint(2, 97, (3, 60)), [0, 19, 7]
    mask = torch.ones(3, 60, dtype=torch.int64)
    for row, pad in enumerate(pads):
        ids[row, :pad], mask[row, :pad] = 0, 0
    pieces = list(ids.split([40, 1, 19], 1))
    with attach(ours, daemon) as cache:
        found = logits(ours, cache, pieces, mask)
        expected = logits(theirs, DynamicCache(config=theirs.config), pieces, mask)
        close(found[mask.bool()], expected[mask.bool()])
        assert [cache._batch.paging.tokens(row) for row in range(3)] == [60, 41, 53]
        options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "attention_mask": mask}
        cache.reset()
        near_greedy(theirs, ours.generate(ids, past_key_values=cache, **options), 60, mask)


@pytest.mark.parametrize("options", [{"num_beams": 4}, {"num_beams": 3, "num_return_sequences": 3}])
def test_beams_are_forks(daemon: PrivateDaemon, options: dict[str, Any]) -> None:
    ours, theirs = tiny(LlamaForCausalLM, LlamaConfig)
    ids = torch.randint(2, 97, (2, 35))
    with attach(ours, daemon, 240) as cache:
        options = options | {"length_penalty": 0.0, "return_dict_in_generate": True, "output_scores": True}
        found = ours.generate(ids, past_key_values=cache, max_new_tokens=20, do_sample=False, **options)
        # A beam's reported score must equal the score that transformers computes for it; a wrong page would change it.
        scores = logits(theirs, DynamicCache(config=theirs.config), [found.sequences])[:, 34:-1].log_softmax(2)
        true = scores.gather(2, found.sequences[:, 35:, None]).sum((1, 2))
        assert torch.allclose(found.sequences_scores.float(), true, atol=0.2, rtol=0), (found.sequences_scores, true)
        assert cache.session.stats()["jobs_within_tier0"] > 0, "no beam was forked"


def test_crop_select_and_repeat(daemon: PrivateDaemon) -> None:
    ours, theirs = tiny(LlamaForCausalLM, LlamaConfig)
    ids = torch.randint(2, 97, (3, 50))
    with attach(ours, daemon, 240) as cache:
        both = [(ours, cache), (theirs, DynamicCache(config=theirs.config))]
        for model, kept in both:
            logits(model, kept, [ids])
            kept.crop(-13)
            kept.batch_select_indices(torch.tensor([2, 0]))
            kept.batch_repeat_interleave(2)
        assert cache.get_seq_length() == 37 and cache._batch.paging.sequences == 4
        more = torch.randint(2, 97, (4, 9))
        close(*(logits(model, kept, [more]) for model, kept in both))
        for _, kept in both:
            kept.reorder_cache(torch.tensor([3, 3, 1, 0]))
        close(*(logits(model, kept, [more]) for model, kept in both))


def test_assisted_decoding_rolls_back(daemon: PrivateDaemon) -> None:
    """Prompt lookup verifies several tokens at once and crops the rejected ones."""
    ours, theirs = tiny(LlamaForCausalLM, LlamaConfig)
    ids = torch.randint(2, 97, (1, 20)).repeat(1, 3)
    options: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "prompt_lookup_num_tokens": 4}
    with attach(ours, daemon) as cache:
        near_greedy(theirs, ours.generate(ids, past_key_values=cache, **options), 60)


def test_too_many_tokens_at_once_say_what_to_do_and_leave_the_cache_whole(daemon: PrivateDaemon) -> None:
    ours, theirs = tiny(LlamaForCausalLM, LlamaConfig)
    ids = torch.randint(2, 97, (1, 400))
    with attach(ours, daemon, 24) as cache:
        with pytest.raises(MemoryError, match="prefill_chunk_size"):
            logits(ours, cache, [ids])
        assert cache.get_seq_length() == 0
        pieces = list(ids.split(32, 1))
        close(logits(ours, cache, pieces), logits(theirs, DynamicCache(config=theirs.config), pieces))


def test_a_forward_that_breaks_off_leaves_the_cache_whole(daemon: PrivateDaemon) -> None:
    ours, theirs = tiny(LlamaForCausalLM, LlamaConfig)
    ids = torch.randint(2, 97, (1, 40))
    with attach(ours, daemon) as cache:
        first = logits(ours, cache, [ids[:, :20]])

        def fail(*_: object) -> None:
            raise RuntimeError("a hook of the user's")

        hook = ours.model.layers[1].mlp.register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="a hook"):
            logits(ours, cache, [ids[:, 20:]])
        hook.remove()
        assert cache.get_seq_length() == 20
        rest = logits(ours, cache, [ids[:, 20:]])
        close(torch.cat([first, rest], 1), logits(theirs, DynamicCache(config=theirs.config), [ids]))


def test_a_dead_daemon_is_an_error_and_not_a_wrong_token() -> None:
    ours, _ = tiny(LlamaForCausalLM, LlamaConfig)
    ids = torch.randint(2, 97, (1, 200))
    with PrivateDaemon(64 << 20) as daemon, attach(ours, daemon, 24) as cache:
        logits(ours, cache, list(ids.split(32, 1)))
        daemon.kill()
        with pytest.raises(errors.DaemonGone):
            logits(ours, cache, [ids[:, :1]])


class TestWrongUse:
    """Unsupported use raises an error; nothing falls back silently."""

    def test_other_attention(self, daemon: PrivateDaemon) -> None:
        ours, theirs = tiny(LlamaForCausalLM, LlamaConfig)
        with pytest.raises(ValueError, match="attends with 'eager'.*attn_implementation=\"kvtide\""):
            attach(theirs, daemon)
        with attach(ours, daemon) as cache:
            with pytest.raises(errors.WrongState, match="layer 0 did not read its keys"):
                logits(theirs, cache, [torch.ones(1, 4, dtype=torch.int64)])
            logits(ours, cache, [torch.ones(1, 4, dtype=torch.int64)])

    def test_other_cache(self) -> None:
        ours, _ = tiny(LlamaForCausalLM, LlamaConfig)
        with pytest.raises(ValueError, match="pass one as past_key_values"):
            ours(torch.ones(1, 4, dtype=torch.int64))

    def test_other_types(self) -> None:
        ours, _ = tiny(LlamaForCausalLM, LlamaConfig)
        with pytest.raises(ValueError, match="the model is torch.float32"):
            shape_of(ours.float())
        ours.half().config.layer_types = ["full_attention", "chunked_attention", "full_attention"]
        with pytest.raises(ValueError, match="layer 1 is 'chunked_attention'"):
            shape_of(ours)

    def test_other_space(self, daemon: PrivateDaemon) -> None:
        ours, _ = tiny(LlamaForCausalLM, LlamaConfig)
        space = KvtideCache.space(ours)
        fewer = kvtide.Space(space.name, space.fingerprint, space.page_tokens, list(space.planes)[:2])
        with kvtide.attach(daemon.socket, fewer, [24]) as session:
            with pytest.raises(ValueError, match="3 windows for the 2 planes"):
                KvtideCache(ours, session)

    def test_masks(self, daemon: PrivateDaemon) -> None:
        ours, _ = tiny(LlamaForCausalLM, LlamaConfig)
        ids = torch.ones(1, 6, dtype=torch.int64)
        with attach(ours, daemon) as cache:
            for hidden in ([1, 1, 1, 1, 0, 0], [1, 1, 0, 1, 1, 1]):
                with pytest.raises(ValueError, match="no padding on the left"):
                    logits(ours, cache, [ids], torch.tensor([hidden]))
            with pytest.raises(ValueError, match="padding alone"):
                logits(ours, cache, [ids], torch.zeros(1, 6, dtype=torch.int64))
            with pytest.raises(ValueError, match="attention mask"):
                ours(ids, past_key_values=cache, attention_mask=torch.ones(1, 1, 6, 6, dtype=torch.bool))
            logits(ours, cache, [ids])
            with pytest.raises(ValueError, match="a batch of 2 rows; the cache holds 1"):
                logits(ours, cache, [ids.repeat(2, 1)])

    def test_window_and_more_queries_than_its_pages_are_kept_for(self, daemon: PrivateDaemon) -> None:
        ours, _ = tiny(MistralForCausalLM, MistralConfig, sliding_window=24)
        with attach(ours, daemon, query_tokens_max=16) as cache, pytest.raises(ValueError, match="for 16 at most"):
            logits(ours, cache, [torch.ones(1, 17, dtype=torch.int64)])
