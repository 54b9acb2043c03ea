"""A bundle of shell scripts in place of the binaries, in a temporary folder."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent

KVTIDE = """#!/bin/sh
case "$*" in
*--probe*) echo '{"driver": "fake", "devices": [{"name": "fake"}]}' ;;
*"--only copies"*) echo '{"figures": [{"key": "copy_scattered_64k_to_host", "what": "copies", "value": '"$(cat value)"'}]}' ;;
*"--only attention"*) echo '{"figures": [{"key": "attention_1x16k", "what": "attention", "value": 0.75}]}' ;;
esac
"""

# A thread with a name and a child in a session of its own, which wait for ever and ignore SIGTERM.
HANGS = f"""#!{sys.executable}
import ctypes, signal, subprocess, threading, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def waits():
    ctypes.CDLL(None).prctl(15, b"kvt-stuck", 0, 0, 0)  # PR_SET_NAME
    time.sleep(600)
threading.Thread(target=waits, daemon=True).start()
child = subprocess.Popen(["sleep", "601"], start_new_session=True)
open("child", "w").write(str(child.pid))
print("test copies_hang ... ", end="", flush=True)
time.sleep(600)
"""

PASSES = """#!/bin/sh
echo "connections $CUDA_DEVICE_MAX_CONNECTIONS, arguments $*"
echo "test result: ok. 1 passed; 0 failed; 0 ignored"
"""

# Fails if the child of the part before still runs.
ALONE = """#!/bin/sh
! kill -0 "$(cat child)"
"""

FAILS = """#!/bin/sh
echo "assertion failed" >&2
exit 101
"""

CRASHES = """#!/bin/sh
kill -SEGV $$
"""


class Bundle:
    """Its tests are scripts by name. `out` is the output folder."""

    def __init__(self, **tests):
        self.folder = tempfile.TemporaryDirectory()
        self.here = Path(self.folder.name) / "gpu-bundle"
        self.out = Path(self.folder.name) / "out"
        self.out.mkdir()
        shutil.copytree(SOURCES / "bundle", self.here / "bundle", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(SOURCES / "run.py", self.here)
        self.script("bin/kvtide", KVTIDE)
        for name, text in tests.items():
            self.script(f"tests/{name}", text)
        listed = [{"name": name, "file": f"tests/{name}", "sanitize": False} for name in tests]
        self.manifest({"commit": "c0ffee", "built": "today", "tests": listed})
        self.value(0.5)
        # The real modules take seconds to import.
        for name in ("torch", "transformers", "flashinfer", "numpy"):
            self.write(f"modules/{name}.py", "raise ImportError('not in this test')\n")

    def write(self, name, text):
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def script(self, name, text):
        self.write(name, text).chmod(0o755)

    def manifest(self, value):
        self.write("manifest.json", json.dumps(value))

    def value(self, value):
        """Set the figure that the bench of copies reports."""
        self.write("value", str(value))

    def start(self, *arguments, out=True):
        environment = dict(os.environ) | {"PYTHONPATH": str(self.here / "modules")}
        environment.pop("OUT", None)
        if out:
            environment["OUT"] = str(self.out)
        command = [sys.executable, "run.py", "--stand-in", "fake.so", *arguments]
        return subprocess.Popen(command, cwd=self.here, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, *arguments, out=True):
        """Run everything and return the exit status; the output is in `said`."""
        process = self.start(*arguments, out=out)
        self.said = process.communicate(timeout=120)[0].decode()
        return process.returncode

    def files(self, archive=None):
        """Return the text of each file in the archive."""
        with tarfile.open(archive or self.out / "report.tgz") as opened:
            return {entry.name: opened.extractfile(entry).read().decode() for entry in opened}

    def report(self, archive=None):
        return json.loads(self.files(archive)["report.json"])

    def row(self, name, archive=None):
        return next(row for row in self.report(archive)["parts"] if row["name"] == name)

    def wait_until_running(self, name):
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if (self.out / "report.tgz").exists() and self.row(name)["status"] == "running":
                return
            time.sleep(0.05)
        raise AssertionError(f"{name} did not start")
