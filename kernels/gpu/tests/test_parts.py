"""The order of the parts, their limits, and which of them run."""

import sys
import unittest
from pathlib import Path
from unittest import mock

from fake import SOURCES, Bundle

sys.path.insert(0, str(SOURCES))
from bundle import parts, probe
from bundle.process import Ended

TESTS = [{"name": "attention", "file": "tests/a", "sanitize": True}, {"name": "copy", "file": "tests/c", "sanitize": True}]


class Parts(unittest.TestCase):
    def setUp(self):
        bundle = Bundle()
        self.addCleanup(bundle.folder.cleanup)
        bundle.manifest({"tests": TESTS})
        self.parts = parts.all_parts(bundle.here, Path("work"), "cuda:0", tiny=False)

    def test_the_most_important_parts_are_first(self):
        names = [part.name for part in self.parts]
        self.assertEqual(names[:4], ["probe", "nvidia-smi", "bench-copies", "bench-attention"])
        kinds = [name.partition("-")[0] for name in names[2:]]
        order = [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] != kind]
        self.assertEqual(order, ["bench", "demo", "test", "probe", "python", "memcheck", "racecheck", "synccheck", "initcheck"])

    def test_limits(self):
        for part in self.parts:
            kind = part.name.partition("-")[0]
            if kind == "test":
                self.assertLessEqual(part.limit_s, 40, part.name)
            if kind == "python" or part.name == "probe-python":
                self.assertTrue(120 <= part.limit_s <= 150, part.name)

    def test_one_test_at_a_time(self):
        executables = [part for part in self.parts if "tests/a" in part.command]
        self.assertEqual(len(executables), 5)  # itself, and under four tools
        for part in executables:
            self.assertIn("--test-threads=1", part.command)

    def test_chosen_parts_bring_the_probes_that_they_need(self):
        def names(only):
            return [part.name for part in parts.chosen(self.parts, only)]

        self.assertEqual(names(["bench-step"]), ["probe", "bench-step"])
        self.assertEqual(names(["python-prefix"]), ["probe", "probe-python", "python-prefix"])
        self.assertEqual(names(["probe-python"]), ["probe-python"])
        self.assertEqual(names(None), [part.name for part in self.parts])
        with self.assertRaisesRegex(parts.Unknown, "no part bench-walk"):
            names(["bench-walk"])

    def test_parts_run_after_a_probe_that_hangs_if_there_is_a_gpu(self):
        hung = Ended(["kvtide"], 45.0, None, "timed out after 45 s", "", "")
        for node, stand_in, missing in (("/dev/null", None, []), ("/dev/null", "sim", ["device"]), ("/none", None, ["device"])):
            found = probe.Found(stand_in)
            with mock.patch.object(probe, "NODE", Path(node)):
                found.learn("probe", hung)
            self.assertEqual(found.missing(("device",)), missing, (node, stand_in))


if __name__ == "__main__":
    unittest.main()
