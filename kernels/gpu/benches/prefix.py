"""A prefix of 10k tokens of an 8B-shaped model: its load from host memory by kvtide compared with its prefill by torch.

The model has the shape of Llama 3.1 8B and random weights, so its computation costs the same as the real one's. The load
is `kvtide bench gpu --only prefix`: a session with all planes of that shape, with pages loaded from host memory through the whole path.
"""

import argparse
import math
import statistics

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from common import figure, kvtide, seconds, tell

# Llama 3.1 8B (its config.json), and a small model for the CPU.
LLAMA_8B = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14336, "tokens": 10_000}
TINY = {"layers": 2, "hidden": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn": 512, "tokens": 256}
TARGET = 0.12


class Model:
    """Weights and the forward pass of a prompt."""

    def __init__(self, shape, device):
        self.shape = shape
        hidden, width = shape["hidden"], shape["head_dim"]
        rows = {
            "qkv": ((shape["heads"] + 2 * shape["kv_heads"]) * width, hidden),
            "out": (hidden, shape["heads"] * width),
            "gate_up": (2 * shape["ffn"], hidden),
            "down": (hidden, shape["ffn"]),
        }
        self.layers = [{name: weight(size, device) for name, size in rows.items()} for _ in range(shape["layers"])]
        angles = torch.arange(shape["tokens"], device=device)[:, None] / 500_000 ** (
            torch.arange(0, width, 2, device=device) / width
        )
        self.cos, self.sin = (f(angles).to(torch.bfloat16) for f in (torch.cos, torch.sin))

    def rotate(self, x):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), dim=-1)

    def prefill(self, x):
        """Return the hidden states of all tokens. Keys and values of every layer are computed too, as a prefill must."""
        s = self.shape
        for layer in self.layers:
            qkv = linear(rms_norm(x, x.shape[-1:]), layer["qkv"]).unflatten(-1, (-1, s["head_dim"])).transpose(0, 1)
            q, k, v = qkv.split((s["heads"], s["kv_heads"], s["kv_heads"]))
            out = scaled_dot_product_attention(self.rotate(q)[None], self.rotate(k)[None], v[None], is_causal=True, enable_gqa=True)
            x = x + linear(out[0].transpose(0, 1).flatten(1), layer["out"])
            gate, up = linear(rms_norm(x, x.shape[-1:]), layer["gate_up"]).chunk(2, dim=-1)
            x = x + linear(silu(gate) * up, layer["down"])
        return x


def weight(size, device):
    return torch.randn(size, device=device, dtype=torch.bfloat16) / math.sqrt(size[1])


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    device = torch.device(parser.parse_args().device)
    shape = LLAMA_8B if device.type == "cuda" else TINY
    loads = [kvtide("prefix", device)]
    model = Model(shape, device)
    prompt = torch.randn(shape["tokens"], shape["hidden"], device=device, dtype=torch.bfloat16)
    prefill = seconds(device, lambda: model.prefill(prompt), 5)
    del model
    loads.append(kvtide("prefix", device))
    load = statistics.mean(l["prefix_load_ms"] for l in loads) / 1e3
    tell(
        device,
        [
            figure("prefix_prefill_ms", f"prefill of {shape['tokens']} tokens by torch {torch.__version__}", prefill * 1e3, "ms"),
            figure("prefix_load", "prefix of 10k tokens from host memory ÷ its prefill by torch", load / prefill, "x", at_most=TARGET),
        ],
    )


if __name__ == "__main__":
    main()
