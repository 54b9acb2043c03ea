"""Facts about the machine from the kernel: settings, the kernel log, and the threads of a process that hangs."""

import os
import platform
import re
import resource
import subprocess
from pathlib import Path

PCI = Path("/sys/bus/pci/devices")
NVIDIA = "0x10de"
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
# Lines of the kernel log that explain a failed part.
RELEVANT = re.compile(r"NVRM|Xid|out of memory|oom-kill|segfault|general protection|hung_task|blocked for more than", re.IGNORECASE)
# Limits of what one part adds to the report.
LINES_MAX = 60
THREADS_MAX = 400


def facts():
    """Return the settings on which figures depend. A setting that cannot be read is left out."""
    found = {
        "kernel": f"{platform.system()} {platform.release()}",
        "libc": os.confstr("CS_GNU_LIBC_VERSION") or " ".join(platform.libc_ver()),
        "processor": first(r"model name\s*:\s*(.*)", read("/proc/cpuinfo")),
        "usable cores": str(len(os.sched_getaffinity(0))),
        "NUMA nodes": read("/sys/devices/system/node/online"),
        "memory": first(r"MemTotal:\s*(.*)", read("/proc/meminfo")),
        "locked memory limit": limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        "NVIDIA driver": first(r"NVRM version:\s*(.*)", read("/proc/driver/nvidia/version")),
    }
    for name in ("enabled", "defrag", "shmem_enabled"):
        found[f"transparent huge pages, {name}"] = first(r"\[(\w+)\]", read(HUGE_PAGES / name))
    for device in sorted(PCI.glob("*")):
        # Class 3 is display; the same vendor makes bridges and sound devices.
        if read(device / "vendor") == NVIDIA and read(device / "class").startswith("0x03"):
            found[f"GPU {device.name}"] = link(device)
    return {name: value for name, value in found.items() if value}


def link(device):
    """Return the PCIe link of a device. An idle GPU lowers its current speed, so the maximum is given too."""
    names = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width", "numa_node")
    speed, width, speed_max, width_max, node = (read(device / name) or "unknown" for name in names)
    return f"link {speed} x{width}, at most {speed_max} x{width_max}; NUMA node {node}"


class KernelLog:
    """The kernel log from now on: `new` returns the lines about devices, memory and crashes since the last call."""

    def __init__(self, path="/dev/kmsg"):
        self.file, self.why = None, ""
        self.seen: set = set()
        try:
            self.file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            self.why = f"{path}: {error.strerror}"

    def new(self):
        lines = self.from_dmesg() if self.file is None else self.from_file(self.file)
        return [line for line in lines if RELEVANT.search(line)][-LINES_MAX:]

    def from_file(self, file):
        lines: list = []
        while True:
            try:
                record = os.read(file, 8192)  # one record per call
            except BrokenPipeError:
                continue  # the kernel dropped records that were not read
            except OSError:
                record = b""  # EAGAIN: no more
            if not record:
                return lines
            # "priority,sequence,microseconds,flags;text", then indented lines of properties.
            for line in record.decode(errors="replace").splitlines():
                head, _, text = line.partition(";")
                if text:
                    time = head.split(",")[2:3]
                    lines.append(f"[{int(time[0]) / 1e6:.3f}] {text}" if time and time[0].isdigit() else text)

    def from_dmesg(self):
        try:
            ended = subprocess.run(["dmesg"], capture_output=True, timeout=5, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            self.why = f"{self.why.partition('; ')[0]}; dmesg: {type(error).__name__}"
            return []
        lines = ended.stdout.decode(errors="replace").splitlines()
        fresh = [line for line in lines if line not in self.seen]
        self.seen.update(fresh)
        return fresh


def descendants(pid):
    """Return the processes that descend from a process, without itself."""
    children: dict = {}
    for folder in Path("/proc").glob("[0-9]*"):
        # The name before the last bracket may contain blanks and brackets.
        fields = read(folder / "stat").rpartition(")")[2].split()
        if len(fields) > 1:
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, left = [], [pid]
    while left:
        below = sorted(children.get(left.pop(), []))
        found += below
        left += below
    return found


def threads(pids):
    """Return where each thread of these processes waits, as far as the kernel tells: the stack needs root."""
    found: list = []
    for pid in pids:
        command = read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
        for task in sorted(Path(f"/proc/{pid}/task").glob("[0-9]*"), key=lambda path: int(path.name)):
            if len(found) == THREADS_MAX:
                return found
            state = read(task / "stat").rpartition(")")[2].split()[:1]
            found.append(
                {
                    "pid": pid,
                    "tid": int(task.name),
                    "command": command[:200],
                    "name": read(task / "comm"),
                    "state": "".join(state),
                    "wchan": read(task / "wchan"),
                    "syscall": read(task / "syscall"),
                    "stack": [re.sub(r"^\[<.*?>\] ", "", line) for line in read(task / "stack").splitlines()],
                }
            )
    return found


def read(path):
    """Return the text of a file of the kernel; empty if it cannot be read, as a thread may end meanwhile."""
    try:
        return Path(path).read_bytes().decode(errors="replace").strip()
    except OSError:
        return ""


def first(pattern, text):
    found = re.search(pattern, text)
    return found.group(1).strip() if found else ""


def limit(count):
    return "unlimited" if count == resource.RLIM_INFINITY else f"{count >> 10} KiB"
