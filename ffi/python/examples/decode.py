#!/usr/bin/env python3
"""Decode with a limit on the KV in tier 0, and compare with transformers' own cache.

    python decode.py --kvtided target/release/kvtided --model benches/demo/assets
    python decode.py --socket /run/kvtide/kvtide.sock --model meta-llama/Llama-3.1-8B --device cuda --prompt notes.txt

Without --socket it starts a private daemon. A model without a tokenizer (as in benches/demo/assets) reads bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from kvtide.daemon import PrivateDaemon
from kvtide.torch import KvtideCache
from kvtide.torch.transformers import shape_of

#: Default prompt. With it the two best logits of the model in benches/demo/assets differ by at least 1.2 for every new token (f32;
#: prompts of 256 to 1,536 tokens, 8 to 128 new ones): rounding to 16 bits cannot change a token, but a wrong page does.
PROMPT = "        self.blocks.dying -= 1;\n        self.blocks.release(b);\n        self.wake_admission();\n"


@dataclass
class Result:
    """Result of a comparison."""

    device: str
    dtype: str
    prompt_tokens: int
    new_tokens: int
    equal: bool
    #: First new token that differs, and the difference of the reference's two best logits there.
    first_difference: int | None
    margin: float | None
    #: Smallest difference of the reference's two best logits over all new tokens.
    margin_least: float
    pages: int
    frames: int
    share_in_tier0: float
    planes_whole: int
    planes_in_passes: int
    passes: int
    bytes_host_to_tier0: int
    seconds_kvtide: float
    seconds_transformers: float


def load(model: str, device: str, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    """Load the model for inference."""
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation=attention)
    loaded.to(device).eval()  # type: ignore[arg-type]
    return loaded


def tokenize(model: PreTrainedModel, name: str, text: str, tokens: int) -> torch.Tensor:
    """Return `tokens` tokens of the text, repeated if it is shorter. A model without a tokenizer reads bytes."""
    begin = model.config.bos_token_id
    first = [] if begin is None else [begin]
    has_tokenizer = not Path(name).is_dir() or any(Path(name).glob("tokenizer*"))
    ids = AutoTokenizer.from_pretrained(name).encode(text, add_special_tokens=False) if has_tokenizer else list(text.encode())
    if not ids:
        raise SystemExit("the prompt is empty")
    ids = (first + ids * (tokens // len(ids) + 1))[:tokens]
    return torch.tensor([ids], device=model.device)


def frames_for(model: PreTrainedModel, tokens: int, share: float, page_tokens: int) -> tuple[int, int]:
    """Return the number of pages for `tokens` tokens, and the number of frames that hold `share` of them."""
    _, windows = shape_of(model, page_tokens)
    pages = -(-tokens // page_tokens) * len(windows)
    return pages, int(pages * share)


def compare(
    model: str,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float16,
    prompt: str = PROMPT,
    prompt_tokens: int = 512,
    new_tokens: int = 64,
    share: float = 0.125,
    page_tokens: int = 16,
    chunk: int = 32,
    socket: str | None = None,
    kvtided: str | None = None,
) -> Result:
    """Decode greedily with both caches and compare."""
    ours = load(model, device, dtype, "kvtide")
    inputs = tokenize(ours, model, prompt, prompt_tokens)
    total = prompt_tokens + new_tokens
    pages, frames = frames_for(ours, total, share, page_tokens)
    options: dict[str, Any] = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False}
    with contextlib.ExitStack() as stack:
        if socket is None:
            shape, windows = shape_of(ours, page_tokens)
            # Room for all KV plus half for pages in transfer, and at least a few slabs.
            host = max(64 << 20, pages * shape.page_bytes * 3 // 2)
            daemon = stack.enter_context(PrivateDaemon(host, slab_bytes=min(64 << 20, host // 8), program=kvtided))
            socket = str(daemon.socket)
        cache = stack.enter_context(KvtideCache.attach(ours, socket, frames, page_tokens=page_tokens))
        began = time.monotonic()
        found = ours.generate(inputs, past_key_values=cache, prefill_chunk_size=chunk, **options)
        seconds = time.monotonic() - began
        stats, totals = cache.session.stats(), cache.totals
    del ours
    theirs = load(model, device, dtype, "sdpa")
    began = time.monotonic()
    expected = theirs.generate(inputs, output_logits=True, return_dict_in_generate=True, **options)
    seconds_theirs = time.monotonic() - began
    best = torch.stack(expected.logits)[:, 0].float().topk(2).values
    margins = (best[:, 0] - best[:, 1]).tolist()
    new, wanted = found[0, prompt_tokens:].tolist(), expected.sequences[0, prompt_tokens:].tolist()
    different = next((i for i, (a, b) in enumerate(zip(new, wanted)) if a != b), None)
    return Result(
        device=torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        dtype=str(dtype).removeprefix("torch."),
        prompt_tokens=prompt_tokens,
        new_tokens=len(new),
        equal=new == wanted,
        first_difference=different,
        margin=None if different is None else margins[different],
        margin_least=min(margins),
        pages=pages,
        frames=frames,
        share_in_tier0=frames / pages,
        planes_whole=totals.planes_whole,
        planes_in_passes=totals.planes_in_passes,
        passes=totals.passes,
        bytes_host_to_tier0=stats["bytes_host_to_tier0"],
        seconds_kvtide=seconds,
        seconds_transformers=seconds_theirs,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", required=True, help="folder with config.json and weights, or a hub name")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16"])
    parser.add_argument("--prompt", type=Path, help="text file with the prompt")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--share", type=float, default=0.125, help="share of the KV in tier 0")
    parser.add_argument("--chunk", type=int, default=32, help="tokens per forward of the prefill")
    parser.add_argument("--socket", help="socket of a running daemon")
    parser.add_argument("--kvtided", help="program of the private daemon; default: KVTIDED, or kvtided on the PATH")
    given = parser.parse_args()
    result = compare(
        given.model,
        device=given.device,
        dtype=getattr(torch, given.dtype),
        prompt=given.prompt.read_text() if given.prompt else PROMPT,
        prompt_tokens=given.prompt_tokens,
        new_tokens=given.new_tokens,
        share=given.share,
        chunk=given.chunk,
        socket=given.socket,
        kvtided=given.kvtided,
    )
    print(json.dumps(asdict(result), indent=1))
    return 0 if result.equal else 1


if __name__ == "__main__":
    sys.exit(main())
