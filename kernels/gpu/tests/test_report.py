"""The report survives strange values and failed writes; the kernel log is read in its own format."""

import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from fake import SOURCES, Bundle

sys.path.insert(0, str(SOURCES))
from bundle import machine, parts, report
from bundle.process import Ended

PART = parts.Part("bench-copies", "copies", ["x"], 1)


def ended(**figure):
    said = [{"figures": [{"key": "k", "what": "w"} | figure]}]
    return Ended(["x"], 1.0, 0, "", "", "", said)


class Report(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.archive = self.folder / "out.tgz"
        (self.folder / "logs").mkdir()
        self.report = report.Report(self.folder, self.archive, stand_in=None)

    def test_a_reader_sees_a_whole_archive(self):
        self.report.write()
        before = self.archive.read_bytes()
        with open(self.archive, "rb") as reader:
            self.report.ended(PART, ended(value=1.0), [])
            self.report.write()
            self.assertEqual(reader.read(), before)
        self.assertNotEqual(self.archive.read_bytes(), before)

    def test_a_write_that_fails_keeps_the_old_archive(self):
        self.report.write()
        before = self.archive.read_bytes()
        self.report.ended(PART, ended(value=1.0), [])
        with mock.patch("os.replace", side_effect=OSError("disk full")), self.assertRaises(OSError):
            self.report.write()
        self.assertEqual(self.archive.read_bytes(), before)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["logs", "out.tgz", "report.json", "report.md"])

    def test_a_value_that_is_no_number(self):
        self.report.ended(PART, ended(value=None, at_least=0.9), [])
        self.assertIn("| w | None | ≥ 0.9 | no number |", self.report.text())

    def test_a_figure_without_a_value_does_not_cost_the_report(self):
        self.report.ended(PART, ended(), [])
        self.report.write()
        files = Bundle.files(None, self.archive)
        self.assertIn("KeyError", files["report.md"])
        self.assertIn('"key": "k"', files["report.json"])

    def test_a_long_log_is_clipped(self):
        (self.folder / "logs" / "a.out").write_bytes(b"begin" + b"." * (8 << 20) + b"end")
        self.report.write()
        log = Bundle.files(None, self.archive)["logs/a.out"]
        self.assertTrue(log.startswith("begin") and log.endswith("end") and "bytes left out" in log)
        self.assertLess(len(log), 2 << 20)

    def test_lines_of_the_kernel_log_are_in_the_row(self):
        self.report.ended(PART, ended(value=1.0), ["NVRM: Xid 31"])
        self.assertIn("NVRM: Xid 31", self.report.text())


class KernelLog(unittest.TestCase):
    def test_each_line_is_told_once(self):
        with tempfile.NamedTemporaryFile("w") as file:
            log = machine.KernelLog(file.name)
            file.write("4,100,5000000,-;NVRM: Xid (PCI:0000:01:00): 31, pid=7\n SUBSYSTEM=pci\n6,101,6000000,-;eth0: up\n")
            file.flush()
            self.assertEqual(log.new(), ["[5.000] NVRM: Xid (PCI:0000:01:00): 31, pid=7"])
            self.assertEqual(log.new(), [])

    def test_a_log_that_cannot_be_read_is_named(self):
        log = machine.KernelLog("/nonexistent/kmsg")
        with mock.patch("subprocess.run", side_effect=FileNotFoundError):
            self.assertEqual(log.new(), [])
        self.assertIn("/nonexistent/kmsg", log.why)
        self.assertIn("dmesg", log.why)


class Machine(unittest.TestCase):
    def test_the_link_of_a_gpu(self):
        with tempfile.TemporaryDirectory() as folder:
            gpu, bridge = Path(folder, "0000:01:00.0"), Path(folder, "0000:00:01.0")
            values = {"vendor": "0x10de", "class": "0x030200", "numa_node": "1"}
            link = {"current_link_speed": "2.5 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}
            width = {"current_link_width": "16", "max_link_width": "16"}
            for device, own in ((gpu, {}), (bridge, {"vendor": "0x8086"})):
                device.mkdir()
                for name, value in (values | link | width | own).items():
                    (device / name).write_text(value + "\n")
            with mock.patch.object(machine, "PCI", Path(folder)):
                found = {name: value for name, value in machine.facts().items() if name.startswith("GPU")}
        words = "link 2.5 GT/s PCIe x16, at most 32.0 GT/s PCIe x16; NUMA node 1"
        self.assertEqual(found, {"GPU 0000:01:00.0": words})

    def test_huge_pages_and_libc(self):
        found = machine.facts()
        self.assertIn("libc", found)
        if Path("/sys/kernel/mm/transparent_hugepage/enabled").exists():
            self.assertIn(found["transparent huge pages, enabled"], ("always", "madvise", "never"))


if __name__ == "__main__":
    unittest.main()
