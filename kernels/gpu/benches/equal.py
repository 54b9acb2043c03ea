"""transformers with 12.5 % of the KV in tier 0: its tokens beside those of transformers' own cache at equal precision.

The comparison is that of the package's example (decode.py beside this file), over the demo's trained model, in both 16-bit formats.
Exit status 1 if a token differs.
"""

import argparse
import os
from dataclasses import asdict
from pathlib import Path

import torch

from common import figure, tell
from decode import compare

HERE = Path(__file__).resolve().parent
SHARE = 0.125
FULL = {"prompt_tokens": 1536, "new_tokens": 128}
TINY = {"prompt_tokens": 512, "new_tokens": 32}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    device = torch.device(parser.parse_args().device)
    sizes = FULL if device.type == "cuda" else TINY
    daemon = str(Path(os.environ.get("KVTIDE_BIN", "bin"), "kvtided").resolve())
    figures, different = [], 0
    for dtype, name in ((torch.float16, "f16"), (torch.bfloat16, "bf16")):
        result = compare(str(HERE.parent / "model"), device=str(device), dtype=dtype, share=SHARE, kvtided=daemon, **sizes)
        found = asdict(result)
        what = f"transformers, {name}, {result.share_in_tier0:.3f} of the KV in tier 0: {result.new_tokens} tokens, those that differ"
        wrong = 0 if result.equal else result.new_tokens - (result.first_difference or 0)
        different += wrong
        figures.append(figure(f"equal_{name}_different", what, wrong, "tokens", at_most=0))
        for key in ("share_in_tier0", "margin_least", "passes", "bytes_host_to_tier0", "seconds_kvtide", "seconds_transformers"):
            figures.append(figure(f"equal_{name}_{key}", f"transformers, {name}: {key.replace('_', ' ')}", found[key]))
    tell(device, figures)
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
