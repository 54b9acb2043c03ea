"""Convert a Llama model (config.json, model.safetensors) to GGUF, without a tokenizer: `python gguf_model.py FOLDER OUT.gguf`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TensorNameMap, get_tensor_name_map
from gguf.constants import MODEL_ARCH
from safetensors.numpy import load_file


def for_gguf(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of a query or key projection: RoPE pairs channels i and i + d/2 here, and 2i and 2i + 1 in llama.cpp."""
    rows, columns = weight.shape
    half = rows // heads // 2
    return np.ascontiguousarray(weight.reshape(heads, 2, half, columns).swapaxes(1, 2).reshape(rows, columns))


def write(folder: Path, out: Path) -> None:
    """Convert the model in `folder` and write it to `out`."""
    config = json.loads((folder / "config.json").read_text())
    layers, heads, kv_heads = (config[k] for k in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads"))
    writer = GGUFWriter(out, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    names: TensorNameMap = get_tensor_name_map(MODEL_ARCH.LLAMA, layers)
    for name, weight in load_file(folder / "model.safetensors").items():
        if name.endswith("q_proj.weight"):
            weight = for_gguf(weight, heads)
        elif name.endswith("k_proj.weight"):
            weight = for_gguf(weight, kv_heads)
        to = names.get_name(name, try_suffixes=(".weight",))
        if to is None:
            raise ValueError(f"{folder}: no tensor of GGUF's Llama architecture for {name}")
        # llama.cpp expects norm weights (one dimension) in f32.
        writer.add_tensor(to, weight.astype(np.float32) if weight.ndim == 1 else weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
