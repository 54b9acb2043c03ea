"""A small model with random weights, full attention layers and sliding-window layers: vLLM has two cache groups for it."""

from __future__ import annotations

import json
from pathlib import Path

WINDOW_TOKENS = 128
LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD = 4, 128, 256, 4, 2, 32
VOCABULARY = 320
#: Gain of each layer's attention output relative to its input: the result depends on the attended tokens, not on the last one.
GAIN = 5.0


def make(directory: Path) -> Path:
    """Write the model to `directory`. It is the same in every process."""
    import torch
    from safetensors.torch import save_file

    directory.mkdir()
    config = {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "query_pre_attn_scalar": HEAD,
        "max_position_embeddings": 8192,
        "sliding_window": WINDOW_TOKENS,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config))
    numbers = torch.Generator().manual_seed(7)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        scaled: torch.Tensor = torch.randn((rows, columns), generator=numbers) * columns**-0.5
        return scaled

    weights = {"model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN) * 3, "model.norm.weight": torch.zeros(HIDDEN)}
    for layer in range(LAYERS):
        of = f"model.layers.{layer}."
        for name, gain in (("input", 0.0), ("post_attention", GAIN), ("pre_feedforward", 0.0), ("post_feedforward", 1.0)):
            weights[f"{of}{name}_layernorm.weight"] = torch.full((HIDDEN,), gain)
        for name, rows in (("q", HEADS * HEAD), ("k", KV_HEADS * HEAD), ("v", KV_HEADS * HEAD)):
            # Large queries and keys, so that heads attend to few tokens and not to all equally.
            weights[f"{of}self_attn.{name}_proj.weight"] = matrix(rows, HIDDEN) * (1 if name == "v" else 2)
        weights[f"{of}self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * HEAD)
        weights |= {f"{of}mlp.{name}_proj.weight": matrix(INNER, HIDDEN) for name in ("gate", "up")}
        weights[f"{of}mlp.down_proj.weight"] = matrix(HIDDEN, INNER)
    save_file(weights, directory / "model.safetensors")
    return directory
