"""The parts of a run, the most important first: if time runs out, the last ones are skipped."""

import json
import shutil
import sys
from dataclasses import dataclass, field

from bundle import probe


@dataclass
class Part:
    """A command. Limits are in seconds."""

    name: str
    words: str
    command: list
    limit_s: float
    needs: tuple = ("device",)
    least_s: float = 5
    environment: dict = field(default_factory=dict)
    endless: bool = False  # may run out of time; its checks until then count
    finds: tuple = ()  # features that it may find: it runs before any chosen part that needs one of them


# Time limits. Importing torch alone can take a minute on a fresh machine.
PROBE_S, SMI_S, TEST_S, DEMO_S, SANITIZER_S = 45, 15, 40, 40, 60
TORCH_S = 120

# Benches of `kvtide bench gpu`, with time limits and arguments. The copies and attention are first: most figures are theirs.
BENCHES = (
    ("copies", "copies between HBM and host memory compared with one large pinned copy", 40, ("--only", "copies")),
    (
        "attention",
        "decode attention compared with device copy bandwidth, and the cost of table, splits and mass",
        60,
        ("--only", "attention"),
    ),
    ("step", "overhead of a step with all pages resident", 20, ("--only", "step")),
    ("migrate", "decode steps while migrations run", 40, ("--only", "migrate")),
    ("nvme", "NVMe to HBM, the whole path, compared with the NVMe tier alone", 40, ("--only", "nvme")),
    ("prefix", "load of a prefix of 10k tokens of an 8B-shaped model from host memory", 30, ("--only", "prefix")),
    ("engines", "two engine processes and a daemon", 40, ("--only", "engines")),
)
# Python benches, their time limits and their requirements besides a device.
SCRIPTS = (
    ("attention", "decode attention compared with torch's SDPA over contiguous KV, and FlashInfer", 150, ()),
    ("prefix", "a prefix of 10k tokens from host memory compared with its prefill by torch", TORCH_S, ()),
    ("equal", "transformers: tokens with 12.5 % of the KV in HBM equal those with its own cache", 150, ("transformers",)),
    ("libraries", "FlashAttention-3, FlashMLA and FlashInfer on kvtide's pages compared with kvtide's kernels", TORCH_S, ()),
)
# Sanitizer tools, the most useful first; racecheck and initcheck are slow.
SANITIZE = ("memcheck", "racecheck", "synccheck", "initcheck")


def all_parts(here, work, device, tiny):
    """Return the parts. `tiny`: for the stand-in, with sizes that only prove that a part runs."""
    kvtide = "bin/kvtide"
    tests = json.loads((here / "manifest.json").read_text())["tests"]
    smi = shutil.which("nvidia-smi") or "nvidia-smi"
    parts = [
        Part("probe", "kvtide's probe: each feature of each device", [kvtide, *probe.KVTIDE], PROBE_S, (), finds=("device",)),
        Part("nvidia-smi", "driver, PCIe link and clocks", [smi, *probe.SMI], SMI_S, ("nvidia-smi",)),
    ]
    for name, words, limit_s, more in BENCHES:
        command = [kvtide, "bench", "gpu", "--json", *more, "--device", device, "--dir", str(work)]
        parts.append(Part(f"bench-{name}", words, command, limit_s))
    demo = [kvtide, "demo", "--device", device, "--json"]
    if tiny:
        demo += ["--prefill", "512", "--decode", "8", "--tier0-percent", "40", "--host-percent", "40"]
    parts.append(Part("demo", "kvtide demo: every logit compared with the all-resident run", demo, DEMO_S))
    approx = [*demo, "--contract", "approx:0.25"]
    parts.append(Part("demo-approx", "kvtide demo: a quarter of the pages read, picked by sketches", approx, DEMO_S))
    for test in tests:
        # One at a time: the log then names the test that hangs, and no other test disturbs it.
        command = [test["file"], "--color=never", "--test-threads=1"]
        parts.append(Part(f"test-{test['name']}", f"tests: {test['name']}", command, TEST_S))
    command = [sys.executable, "-c", probe.PYTHON]
    parts.append(Part("probe-python", "torch, transformers and FlashInfer", command, TORCH_S, (), finds=probe.PYTHON_FINDS))
    cuda = () if tiny else ("torch on the device",)
    for name, words, limit_s, needs in SCRIPTS:
        command = [sys.executable, f"benches/{name}.py", "--device", "cpu" if tiny else device]
        parts.append(Part(f"python-{name}", words, command, limit_s, ("device", "torch", "kvtide.torch", *cuda, *needs)))
    sanitizer = shutil.which("compute-sanitizer") or probe.SANITIZERS[0]
    for tool in SANITIZE:
        for test in (t for t in tests if t["sanitize"]):
            command = [sanitizer, "--tool", tool, "--error-exitcode", "99", test["file"], "--test-threads=1"]
            words = f"compute-sanitizer {tool}: {test['name']}"
            parts.append(
                Part(f"{tool}-{test['name']}", words, command, SANITIZER_S, ("device", "compute-sanitizer"), 20, endless=True)
            )
    return parts


class Unknown(Exception):
    """No part has this name."""


def chosen(parts, only):
    """Return the named parts, preceded by the probes of the features that they need. Return all parts if no name is given."""
    if not only:
        return parts
    names = [part.name for part in parts]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise Unknown(f"no part {', '.join(unknown)}; the parts are {', '.join(names)}")
    needs = {need for part in parts if part.name in only for need in part.needs}
    return [part for part in parts if part.name in only or needs.intersection(part.finds)]
