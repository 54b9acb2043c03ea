"""Whole runs: the content of the report when parts pass, fail, crash or hang, and when the run itself ends early."""

import os
import signal
import time
import unittest

from fake import ALONE, CRASHES, FAILS, HANGS, PASSES, Bundle

# Of 40 s for a test: long enough to start an interpreter on a busy machine.
SHORT = ("--scale", "0.08")
# A test that keeps the archive as it is while it runs.
LOOKS = """#!/bin/sh
cp "$OUT/report.tgz" seen.tgz
"""


class Run(unittest.TestCase):
    def bundle(self, **tests):
        bundle = Bundle(**tests)
        self.addCleanup(bundle.folder.cleanup)
        return bundle

    def running(self, bundle, *arguments):
        """Start a run, which is killed at the end of the test if it still runs."""
        process = bundle.start(*arguments)
        self.addCleanup(process.wait)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        return process

    def test_everything_passes(self):
        bundle = self.bundle(first=PASSES)
        self.assertEqual(bundle.run(), 0)
        report, files = bundle.report(), bundle.files()
        self.assertEqual(os.listdir(bundle.out), ["report.tgz"])
        self.assertLessEqual({"report.json", "report.md", "logs/test-first.out"}, files.keys())
        self.assertIn("connections 32, arguments --color=never --test-threads=1", files["logs/test-first.out"])
        self.assertEqual([figure["value"] for figure in report["figures"]], [0.5, 0.75])
        self.assertIn("libc", report["machine"])
        self.assertIn("kernel log before the run", report["machine"])
        self.assertEqual((report["stopped"], bundle.row("python-equal")["status"]), ("", "not run"))

    def test_without_an_output_folder_the_archive_is_beside_the_report(self):
        bundle = self.bundle()
        self.assertEqual(bundle.run(out=False), 0)
        self.assertEqual(bundle.report(bundle.here / "report.tgz")["kvtide"], "c0ffee")

    def test_without_a_device_nothing_runs(self):
        bundle = self.bundle(first=PASSES)
        bundle.script("bin/kvtide", "#!/bin/sh\necho no driver >&2\nexit 1\n")
        self.assertEqual(bundle.run(), 2)
        self.assertEqual(bundle.row("test-first")["why"], "needs device")
        self.assertIn("no driver", bundle.row("probe")["tail"])

    def test_failures_do_not_stop_the_others(self):
        bundle = self.bundle(first=FAILS, second=CRASHES, third=PASSES)
        self.assertEqual(bundle.run(), 1)
        self.assertEqual(bundle.row("test-first")["status"], "failed with status 101")
        self.assertIn("assertion failed", bundle.row("test-first")["tail"])
        self.assertEqual(bundle.row("test-second")["status"], "ended by SIGSEGV")
        self.assertEqual(bundle.row("test-third")["status"], "passed")

    def test_the_archive_is_written_after_each_part(self):
        bundle = self.bundle(first=FAILS, second=LOOKS, third=PASSES)
        bundle.run()
        seen = bundle.here / "seen.tgz"
        self.assertEqual(bundle.row("test-first", seen)["status"], "failed with status 101")
        self.assertEqual(bundle.row("test-second", seen)["status"], "running")
        self.assertEqual(bundle.row("test-third", seen)["why"], "the run ended before")

    def test_a_part_that_hangs_is_recorded_and_killed(self):
        bundle = self.bundle(first=HANGS, second=ALONE)
        self.assertEqual(bundle.run(*SHORT), 1)
        row = bundle.row("test-first")
        self.assertTrue(row["status"].startswith("timed out after"), row["status"])
        self.assertIn("copies_hang", row["tail"])
        threads = {thread["name"]: thread for thread in row["threads"]}
        self.assertLessEqual({"kvt-stuck", "sleep"}, threads.keys())
        self.assertNotEqual(threads["kvt-stuck"]["tid"], threads["kvt-stuck"]["pid"])
        self.assertTrue(threads["sleep"]["wchan"])
        if os.geteuid() == 0:
            self.assertTrue(any("nanosleep" in frame for frame in threads["sleep"]["stack"]), threads["sleep"])
        self.assertIn("kvt-stuck", bundle.files()["report.md"])
        self.assertEqual(bundle.row("test-second")["status"], "passed")

    def test_the_whole_run_has_a_deadline(self):
        bundle = self.bundle(first=HANGS, second=PASSES, third=PASSES)
        began = time.monotonic()
        self.assertEqual(bundle.run("--budget", "16"), 1)
        self.assertLess(time.monotonic() - began, 16 + 4)  # the rest is for the start of the interpreter
        self.assertTrue(bundle.row("test-first")["status"].startswith("timed out after"))
        for name in ("test-second", "test-third"):
            self.assertEqual((bundle.row(name)["status"], bundle.row(name)["why"]), ("not run", "no time left"))
        self.assertIn("no time left", bundle.files()["report.md"])

    def test_a_stopped_run_reports_the_part_that_ran(self):
        bundle = self.bundle(first=PASSES, second=HANGS, third=PASSES)
        process = self.running(bundle)
        bundle.wait_until_running("test-second")
        time.sleep(1)  # until it has its threads
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(30), 3)
        self.assertEqual(bundle.report()["stopped"], "stopped by SIGTERM")
        self.assertEqual(bundle.row("test-first")["status"], "passed")
        row = bundle.row("test-second")
        self.assertEqual(row["status"], "stopped by SIGTERM")
        self.assertIn("kvt-stuck", [thread["name"] for thread in row["threads"]])
        self.assertEqual(bundle.row("test-third")["status"], "not run")

    def test_a_killed_run_leaves_the_results_so_far(self):
        bundle = self.bundle(first=PASSES, second="#!/bin/sh\nexec sleep 60\n")
        process = self.running(bundle)
        bundle.wait_until_running("test-second")
        process.kill()
        process.wait(30)
        self.assertEqual((bundle.row("test-first")["status"], len(bundle.report()["figures"])), ("passed", 2))

    def test_an_error_of_the_script_is_reported(self):
        bundle = self.bundle()
        bundle.manifest({"commit": "c0ffee", "built": "today", "tests": [{"name": "no file"}]})
        self.assertEqual(bundle.run(), 3)
        self.assertIn("KeyError: 'file'", bundle.report()["stopped"])
        self.assertIn("KeyError", bundle.files()["report.md"])

    def test_a_report_that_cannot_be_written_stops_no_part(self):
        bundle = self.bundle(first="#!/bin/sh\ntouch ran\n")
        (bundle.out / "report.tgz").mkdir()
        self.assertEqual(bundle.run(), 3)
        self.assertIn("could not be written", bundle.said)
        self.assertTrue((bundle.here / "ran").exists())

    def test_parts_can_be_repeated(self):
        bundle = self.bundle(first=FAILS)
        bundle.run()
        bundle.value(0.9)
        self.assertEqual(bundle.run("--only", "bench-copies"), 1, "the failure of the first run counts still")
        values = {figure["key"]: figure["value"] for figure in bundle.report()["figures"]}
        self.assertEqual(values, {"copy_scattered_64k_to_host": 0.9, "attention_1x16k": 0.75})
        self.assertEqual(bundle.row("test-first")["status"], "failed with status 101")
        self.assertIn("logs/test-first.err", bundle.files())
        order = [row["name"] for row in bundle.report()["parts"]]

        # The archive suffices, in a folder without the earlier report.
        for path in sorted((bundle.here / "report").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        bundle.script("tests/first", PASSES)
        self.assertEqual(bundle.run("--only", "test-first"), 0)
        self.assertEqual(len(bundle.report()["figures"]), 2)
        self.assertEqual([row["name"] for row in bundle.report()["parts"]], order)

    def test_parts_that_run_one_by_one_are_listed_in_the_usual_order(self):
        bundle = self.bundle(first=PASSES)
        bundle.run("--only", "test-first")
        bundle.run("--only", "bench-copies")
        names = [row["name"] for row in bundle.report()["parts"]]
        self.assertLess(names.index("bench-copies"), names.index("test-first"))
        self.assertEqual((bundle.row("test-first")["status"], bundle.row("bench-step")["status"]), ("passed", "not run"))

    def test_results_of_another_build_are_not_mixed(self):
        bundle = self.bundle()
        bundle.run()
        bundle.manifest({"commit": "decaf", "built": "today", "tests": []})
        bundle.run("--only", "bench-copies")
        self.assertEqual([figure["key"] for figure in bundle.report()["figures"]], ["copy_scattered_64k_to_host"])

    def test_a_wrong_name_changes_nothing(self):
        bundle = self.bundle()
        bundle.run()
        before = (bundle.out / "report.tgz").read_bytes()
        self.assertEqual(bundle.run("--only", "bench-walk"), 2)
        self.assertIn("bench-copies", bundle.said)
        self.assertEqual((bundle.out / "report.tgz").read_bytes(), before)


if __name__ == "__main__":
    unittest.main()
