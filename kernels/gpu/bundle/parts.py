"""The parts of a run, the most important first: if time runs out, the last ones are skipped."""

import json
import shutil
import sys
from dataclasses import dataclass, field

from bundle.probe import SANITIZERS


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


# Groups of `kvtide bench gpu` with their time limits.
BENCHES = (
    ("copies", "copies between HBM and host memory compared with one large pinned copy", 40),
    ("attention", "decode attention compared with device copy bandwidth, and the cost of table, splits and mass", 60),
    ("step", "overhead of a step with all pages resident", 20),
    ("migrate", "decode steps while migrations run", 40),
    ("nvme", "NVMe to HBM, the whole path, compared with the NVMe tier alone", 40),
    ("engines", "two engine processes and a daemon", 40),
)
# Python benches and their requirements besides a device.
SCRIPTS = (
    ("equal", "transformers: tokens with 12.5 % of the KV in HBM equal those with its own cache", 60, ("transformers",)),
    ("attention", "decode attention compared with torch's SDPA over contiguous KV, and FlashInfer", 60, ()),
    ("prefix", "a prefix of 10k tokens from host memory compared with its prefill by torch", 60, ()),
)
# Sanitizer tools, the most useful first; racecheck and initcheck are slow.
SANITIZE = ("memcheck", "racecheck", "synccheck", "initcheck")


def all_parts(here, out, device, tiny):
    """Return the parts. `tiny`: for the stand-in, with sizes that only prove that a part runs."""
    kvtide = "bin/kvtide"
    manifest = json.loads((here / "manifest.json").read_text())
    tests = manifest["tests"]
    demo = [kvtide, "demo", "--device", device, "--json"]
    if tiny:
        demo += ["--prefill", "512", "--decode", "8", "--tier0-percent", "40", "--host-percent", "40"]
    parts = [Part(f"test-{t['name']}", f"tests: {t['name']}", [t["file"], "--color=never"], 90) for t in tests]
    parts.append(Part("demo", "kvtide demo: every logit compared with the all-resident run", demo, 60))
    approx = [*demo, "--contract", "approx:0.25"]
    parts.append(Part("demo-approx", "kvtide demo: a quarter of the pages read, picked by sketches", approx, 60))
    for name, words, limit_s in BENCHES:
        command = [kvtide, "bench", "gpu", "--json", "--only", name, "--device", device, "--dir", str(out)]
        parts.append(Part(f"bench-{name}", words, command, limit_s))
    cuda = () if tiny else ("torch on the device",)
    for name, words, limit_s, needs in SCRIPTS:
        command = [sys.executable, f"benches/{name}.py", "--device", "cpu" if tiny else device]
        parts.append(Part(f"python-{name}", words, command, limit_s, ("device", "torch", "kvtide.torch", *cuda, *needs)))
    sanitizer = shutil.which("compute-sanitizer") or SANITIZERS[0]
    for tool in SANITIZE:
        for test in (t for t in tests if t["sanitize"]):
            command = [sanitizer, "--tool", tool, "--error-exitcode", "99", test["file"], "--test-threads=1"]
            words = f"compute-sanitizer {tool}: {test['name']}"
            parts.append(Part(f"{tool}-{test['name']}", words, command, 60, ("device", "compute-sanitizer"), 20, endless=True))
    return parts
