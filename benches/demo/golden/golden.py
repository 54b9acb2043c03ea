"""Write golden.safetensors: logits of the model over the begin of text.txt, in f64, computed without code of the demo.

    python3 -m venv venv && venv/bin/pip install numpy safetensors && venv/bin/python golden.py
"""

import json
import pathlib

import numpy as np
from safetensors.numpy import load_file, save_file

HERE = pathlib.Path(__file__).parent
ASSETS = HERE.parent / "assets"
TOKENS = 320
EVERY = 16

config = json.loads((ASSETS / "config.json").read_text())
weights = {name: w.astype(np.float64) for name, w in load_file(ASSETS / "model.safetensors").items()}
heads, kv_heads, dim = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))


def norm(x, gain):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * gain


def rope(x):
    half = dim // 2
    angle = np.arange(len(x))[:, None] * config["rope_theta"] ** (-np.arange(half) / half)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    low, high = x[..., :half], x[..., half:]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)


def attention(h, layer):
    n = len(h)
    q, k, v = (h @ weights[f"{layer}.self_attn.{p}_proj.weight"].T for p in "qkv")
    q, k, v = rope(q.reshape(n, heads, dim)), rope(k.reshape(n, kv_heads, dim)), v.reshape(n, kv_heads, dim)
    k, v = (np.repeat(t, heads // kv_heads, axis=1) for t in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
    scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
    mass = np.exp(scores - scores.max(-1, keepdims=True))
    mass /= mass.sum(-1, keepdims=True)
    out = np.einsum("hqk,khd->qhd", mass, v).reshape(n, heads * dim)
    return out @ weights[f"{layer}.self_attn.o_proj.weight"].T


def mlp(h, layer):
    gate, up = (h @ weights[f"{layer}.mlp.{p}_proj.weight"].T for p in ("gate", "up"))
    return (gate / (1 + np.exp(-gate)) * up) @ weights[f"{layer}.mlp.down_proj.weight"].T


tokens = [256] + list((ASSETS / "text.txt").read_bytes()[: TOKENS - 1])
x = weights["model.embed_tokens.weight"][tokens]
for i in range(config["num_hidden_layers"]):
    layer = f"model.layers.{i}"
    x = x + attention(norm(x, weights[f"{layer}.input_layernorm.weight"]), layer)
    x = x + mlp(norm(x, weights[f"{layer}.post_attention_layernorm.weight"]), layer)
logits = norm(x, weights["model.norm.weight"]) @ weights["model.embed_tokens.weight"].T
save_file({"logits": logits[::EVERY].astype(np.float32)}, HERE / "golden.safetensors")
