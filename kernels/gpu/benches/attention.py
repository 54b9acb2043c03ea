"""Decode attention: PyTorch's SDPA over contiguous KV, and FlashInfer's paged decode where it can be imported, beside kvtide's.

kvtide's times are those of `kvtide bench gpu --only attention`, run before and after its peers in the same minute: the mean of both.
SDPA gets its best backend, and CUDA graphs, so that its launches from Python cost it nothing. Inputs are random, and rotate among
sets that together are larger than the cache.
"""

import argparse

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from common import figure, kvtide, seconds, tell

KV_HEADS, HEAD_DIM = 8, 128
# Rows and tokens of the promised figures. Groups of queries share a KV head.
SHAPES = ((1, 16 << 10), (1, 128 << 10), (8, 16 << 10), (64, 4 << 10))
GROUPS = (4, 8)
TINY = ((1, 256), (2, 128))
# Larger together than the last-level cache of any GPU, so that each call reads its KV from memory.
ROTATED_BYTES = 512 << 20
BACKENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
REPEATS = 30


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    device = torch.device(parser.parse_args().device)
    real = device.type == "cuda"
    before = kvtide("attention", device)
    peers = {(shape, group): peer(device, *shape, group) for shape in (SHAPES if real else TINY) for group in GROUPS}
    after = kvtide("attention", device)
    figures = []
    for name, target, key in (("sdpa", 1.2, "attention_sdpa"), ("flashinfer", 0.95, "attention_flashinfer")):
        ratios = []
        for ((rows, tokens), group), times in peers.items():
            if name not in times:
                continue
            label = f"{rows}x{tokens}_g{group}"
            figures.append(figure(f"{name}_us_{label}", f"{times[name + ' by']}: {label}", times[name] * 1e6, "us"))
            ours = f"attention_us_{label}"
            if ours in before and ours in after:
                ratios.append(times[name] * 1e6 * 2 / (before[ours] + after[ours]))
                figures.append(figure(f"{key}_{label}", f"{name}'s time ÷ kvtide's: {label}", ratios[-1], "x"))
        if ratios:
            figures.append(figure(key, f"decode attention: {name}'s time ÷ ours, the worst", min(ratios), "x", target))
    tell(device, figures)


def peer(device, rows, tokens, group):
    """Return the seconds of each peer for one shape, and the backend that computed it."""
    set_bytes = rows * tokens * KV_HEADS * HEAD_DIM * 2 * 2
    sets = max(2, -(-ROTATED_BYTES // set_bytes)) if device.type == "cuda" else 1
    kv = [torch.randn(2, rows, KV_HEADS, tokens, HEAD_DIM, device=device, dtype=torch.bfloat16) for _ in range(sets)]
    query = torch.randn(rows, KV_HEADS * group, 1, HEAD_DIM, device=device, dtype=torch.bfloat16)
    times = {}
    for name in BACKENDS:
        backend = getattr(SDPBackend, name, None)
        if backend is None:
            continue
        try:
            with sdpa_kernel(backend):
                took = rotated(device, kv, lambda k, v: scaled_dot_product_attention(query, k, v, enable_gqa=True))
        except RuntimeError:
            continue  # this backend does not support this shape
        if took < times.get("sdpa", float("inf")):
            times |= {"sdpa": took, "sdpa by": f"SDPA ({name.lower()})"}
    times |= flashinfer(device, kv, query)
    return times


def rotated(device, kv, attend):
    """Return the seconds of one call, over sets in turn, captured in one graph on a GPU."""

    def all_sets():
        for keys, values in kv:
            attend(keys, values)

    if device.type != "cuda":
        return seconds(device, all_sets, 3) / len(kv)
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        all_sets()  # first outside the capture, because lazy loading and allocation must not be captured
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        all_sets()
    return seconds(device, graph.replay, REPEATS) / len(kv)


def flashinfer(device, kv, query):
    """Do the same with FlashInfer over pages of 16 tokens, if it can be imported."""
    try:
        import flashinfer
    except ImportError:
        return {}
    if device.type != "cuda":
        return {}
    page, (_, rows, heads, tokens, dim) = 16, kv[0].shape
    pages = [s.unflatten(3, (tokens // page, page)).permute(1, 3, 0, 2, 4, 5).flatten(0, 1).contiguous() for s in kv]
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(torch.empty(256 << 20, dtype=torch.uint8, device=device), "HND")
    per_row = tokens // page
    integers = {"dtype": torch.int32, "device": device}
    wrapper.plan(
        torch.arange(0, rows + 1, **integers) * per_row,
        torch.arange(rows * per_row, **integers),
        torch.full((rows,), page, **integers),
        query.shape[1],
        heads,
        dim,
        page,
        data_type=torch.bfloat16,
        q_data_type=torch.bfloat16,
    )
    flat = query.squeeze(2)
    took = seconds(device, lambda: [wrapper.run(flat, each) for each in pages], REPEATS) / len(pages)
    return {"flashinfer": took, "flashinfer by": f"FlashInfer {flashinfer.__version__}"}


if __name__ == "__main__":
    main()
