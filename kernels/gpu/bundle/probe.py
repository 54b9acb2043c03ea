"""Probe of the machine before anything runs, each feature with a real call."""

import shutil
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

LIMIT_S = 60
PYTHON = """
import json, sys
found = {"python": sys.version.split()[0]}
for name in ("torch", "transformers", "flashinfer", "numpy", "kvtide.torch"):
    try:
        module = __import__(name, fromlist=["x"])
        found[name] = str(getattr(module, "__version__", "present"))
    except Exception as error:
        found[name + " missing"] = f"{type(error).__name__}: {error}"[:300]
if "torch" in found:
    import torch
    found["torch's CUDA"] = str(torch.version.cuda)
    if torch.cuda.is_available():
        found["torch's device"] = torch.cuda.get_device_name(0)
print(json.dumps(found))
"""
# Usual paths in a toolkit or an image, if it is not on the PATH.
SANITIZERS = ("/usr/local/cuda/bin/compute-sanitizer", "/opt/nvidia/compute-sanitizer/compute-sanitizer")


@dataclass
class Found:
    """Result of the probe: text for the report, and features that parts may need."""

    words: dict = field(default_factory=dict)
    features: set = field(default_factory=set)
    gpu: dict = field(default_factory=dict)

    def has(self, need):
        return need in self.features


def look(runner):
    found = Found()
    probe = runner.run("probe", ["bin/kvtide", "bench", "gpu", "--probe", "--json"], LIMIT_S)
    found.gpu = probe.objects[-1] if probe.objects else {}
    if probe.passed() and found.gpu.get("devices"):
        found.features.add("device")
    else:
        found.words["kvtide's probe"] = f"{probe.word()}: {probe.tail[-1500:]}"
    unpack(runner)
    python = runner.run("probe-python", [sys.executable, "-c", PYTHON], LIMIT_S)
    seen = python.objects[-1] if python.objects else {"python": f"{python.word()}: {python.tail[-500:]}"}
    found.words |= seen
    found.features |= {name for name in ("torch", "transformers", "flashinfer", "kvtide.torch") if name in seen}
    if "torch's device" in seen:
        found.features.add("torch on the device")
    sanitizer = shutil.which("compute-sanitizer") or next((s for s in SANITIZERS if Path(s).exists()), None)
    if sanitizer:
        found.features.add("compute-sanitizer")
        found.words["compute-sanitizer"] = sanitizer
    smi = shutil.which("nvidia-smi")
    if smi:
        query = ["--query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu", "--format=csv,noheader"]
        found.words["nvidia-smi"] = runner.run("nvidia-smi", [smi, *query], LIMIT_S).out.strip()
    return found


def unpack(runner):
    """Unpack the wheel, without an installer and without an installation folder."""
    for wheel in sorted((runner.here / "wheel").glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(runner.logs.parent / "site")
