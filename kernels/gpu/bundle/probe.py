"""Features of the machine that parts need, each found by a real call."""

import shutil
from pathlib import Path

KVTIDE = ("bench", "gpu", "--probe", "--json")
# The link's current values are those of a GPU that may be idle.
SMI = (
    "--query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max,"
    "persistence_mode,clocks.sm,clocks.mem,temperature.gpu",
    "--format=csv",
)
PYTHON = """
import json, sys
found = {"python": sys.version.split()[0]}
for name in ("torch", "transformers", "flashinfer", "flash_attn_interface", "flash_mla", "numpy", "kvtide.torch"):
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
PYTHON_FINDS = ("torch", "transformers", "flashinfer", "kvtide.torch", "torch on the device")
# Usual paths in a toolkit or an image, if it is not on the PATH.
SANITIZERS = ("/usr/local/cuda/bin/compute-sanitizer", "/opt/nvidia/compute-sanitizer/compute-sanitizer")
# Node of the first GPU: exists if the driver is loaded.
NODE = Path("/dev/nvidia0")


class Found:
    """Features that parts may need, and the text about them in the report."""

    def __init__(self, stand_in):
        self.stand_in = stand_in
        self.words, self.features, self.gpu = {}, set(), {}
        sanitizer = shutil.which("compute-sanitizer") or next((s for s in SANITIZERS if Path(s).exists()), None)
        if sanitizer:
            self.features.add("compute-sanitizer")
            self.words["compute-sanitizer"] = sanitizer
        if shutil.which("nvidia-smi"):
            self.features.add("nvidia-smi")

    def missing(self, needs):
        return [need for need in needs if need not in self.features]

    def learn(self, name, ended):
        """Take what a part found."""
        said = ended.objects[-1] if ended.objects else {}
        if name == "probe":
            self.gpu = said
            if ended.passed() and said.get("devices"):
                self.features.add("device")
            elif NODE.exists() and not self.stand_in:
                # A trial that hangs or crashes says nothing about the other features.
                self.features.add("device")
                self.words["kvtide's probe"] = f"{ended.word()}; parts run anyway, because {NODE} exists"
        elif name == "probe-python":
            self.words |= said or {"python": f"{ended.word()}: {ended.tail[-500:]}"}
            self.features |= {name for name in PYTHON_FINDS if name in said}
            if "torch's device" in said:
                self.features.add("torch on the device")
        elif name == "nvidia-smi" and ended.passed():
            self.words |= table(ended.out)


def table(text):
    """Return the rows of nvidia-smi's CSV by its headings."""
    lines = [line.split(", ") for line in text.strip().splitlines()]
    rows = enumerate(lines[1:]) if lines else ()
    return {f"nvidia-smi {at}: {name}": value for at, row in rows for name, value in zip(lines[0], row)}
