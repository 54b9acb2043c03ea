"""The daemon's web page in a real browser: `cargo xtask e2e web [--json] [--shots DIR] [--case NAME]`.

Chromium of the system is driven by Playwright. Each case has a daemon of its own; engines are processes of this program (`--engine`),
so that they can be killed.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

PACKAGE = Path(__file__).parents[1]
sys.path.insert(0, os.fspath(PACKAGE / "tests"))
sys.path.insert(0, os.fspath(PACKAGE))

from e2e.daemons import Daemon  # noqa: E402

#: Milliseconds that an assertion about the page may wait: many of its rounds.
WAIT_MS = 30_000
#: Tokens of a block, as `engine.space` has it.
TOKENS = 16
HOSTILE = "<img src=x onerror=alert(1)>"
SECRET = "0123456789abcdef0123456789abcdef"
#: Keeps the texts that a chart draws, which are on a canvas.
LABELS = """
    const { fillText, clearRect } = CanvasRenderingContext2D.prototype;
    CanvasRenderingContext2D.prototype.clearRect = function (...all) { this.canvas.labels = []; clearRect.apply(this, all); };
    CanvasRenderingContext2D.prototype.fillText = function (text, ...all) {
      (this.canvas.labels ??= []).push(text); fillText.call(this, text, ...all);
    };
"""
#: Labels of the value axis of each chart.
AXES = """() => Object.fromEntries([...document.querySelectorAll("figure")].map((figure) =>
    [figure.id, figure.querySelector("canvas").labels.filter((label) => label && !/^[0-9]+:[0-9]+$/.test(label))]))"""
SIZES = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 320, "height": 640}}


def engine(socket: str, name: str) -> None:
    """Be an engine: store a prefix of 20 blocks, look 40 up and load 20, three times; then say so and stay attached."""
    import engine as blocks  # noqa: PLC0415 (the browser's process needs no kvtide)

    import kvtide  # noqa: PLC0415

    with kvtide.attach(socket, blocks.space(name)) as session:
        tensors, channel = blocks.Tensors(), session.channel()
        session.set_blocks(blocks.BLOCKS, tensors.pieces(), keep=tensors)
        tensors.store(channel, 1, 20)
        for _ in range(3):
            channel.lookup(blocks.hashes(1, 40))
            with channel.lease(blocks.hashes(1, 20)[-1], 20, 60.0) as lease:
                channel.load(lease, 0, range(20))
        print("loaded", flush=True)
        sys.stdin.read()


class Run:
    """What the cases share."""

    def __init__(self, browser: Browser, kvtided: Path, scratch: Path, shots: Path | None) -> None:
        self.browser, self._kvtided, self.scratch, self._shots = browser, kvtided, scratch, shots
        self.figures: dict[str, float] = {}

    @contextmanager
    def daemon(self, name: str, *, config: str = "", tmpfs_mib: int = 0) -> Iterator[Daemon]:
        """Start a daemon; with `tmpfs_mib` its NVMe directory is a file system of its own, of that size, which only it sees."""
        directory, program = self.scratch / name, self._kvtided
        if tmpfs_mib:
            mount = f"mkdir -p {directory}/nvme && mount -t tmpfs -o size={tmpfs_mib}m none {directory}/nvme"
            program = self.scratch / "in-a-namespace"
            program.write_text(
                f"#!/bin/sh\nexec unshare --user --map-root-user --mount sh -c '{mount} && exec \"$0\" \"$@\"' '{self._kvtided}' \"$@\"\n"
            )
            program.chmod(0o700)
        with Daemon(program, directory, host_mib=64, nvme_mib=64, config=config) as daemon:
            yield daemon

    @contextmanager
    def engine(self, daemon: Daemon, name: str) -> Iterator[subprocess.Popen[str]]:
        """Start an engine and wait until it has loaded its blocks."""
        command = [sys.executable, "-s", os.fspath(Path(__file__)), "--engine", os.fspath(daemon.socket), name]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdin is not None
        try:
            ready, _, _ = select.select([process.stdout], [], [], WAIT_MS / 1000)
            assert ready and process.stdout.readline() == "loaded\n", "the engine ended early, or hangs"
            yield process
        finally:
            process.stdin.close()
            process.wait(timeout=30)
            process.stdout.close()

    @contextmanager
    def page(self, daemon: Daemon, size: str = "desktop", scheme: str = "light") -> Iterator[Page]:
        """Open the page and wait until it has shown a status. Errors and violations of the policy fail the case."""
        context = self.browser.new_context(viewport=SIZES[size], color_scheme=scheme)  # type: ignore[arg-type]
        page, wrong = context.new_page(), []
        page.set_default_timeout(WAIT_MS)
        page.add_init_script(LABELS)
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()) if dialog.type == "alert" else dialog.accept())
        page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
        page.goto(address(daemon))
        page.wait_for_selector("html[data-ready=true]", state="attached")
        try:
            yield page
            assert not wrong, wrong
        finally:
            context.close()

    def shot(self, page: Page, name: str) -> None:
        if self._shots is not None:
            page.wait_for_timeout(300)  # only for the eye: the charts' last frame
            page.screenshot(path=self._shots / f"{name}.png", full_page=True)


def address(daemon: Daemon) -> str:
    return f"http://127.0.0.1:{daemon.port}/"


def status(daemon: Daemon) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address(daemon)}v1/status", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def row(page: Page, table: str, text: str) -> Any:
    return page.locator(f"#{table} tbody tr", has_text=text)


def figure(page: Page, name: str) -> Any:
    return page.locator("dl.figures div", has=page.get_by_text(name, exact=True)).locator("dd").first


def empty(run: Run) -> None:
    """A daemon without engines: the page says so. Its size, and the time to its first paint."""
    with run.daemon("empty") as daemon, run.page(daemon) as page:
        expect(page.locator("#verdict")).to_have_text("Healthy")
        expect(page.locator("#engines tbody")).to_have_text("none")
        expect(page.locator("#idle")).to_contain_text(f"Engines attach at the socket {daemon.socket}: vLLM with --kv-transfer-config")
        expect(page).to_have_title("Healthy – kvtide")
        assert page.locator("section h2").nth(1).text_content() == "Search", "the search is before all figures"
        paint = page.evaluate("performance.getEntriesByName('first-paint')[0].startTime")
        files = page.evaluate(
            "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
            ".filter((entry) => !entry.name.includes('/v1/')).map((entry) => entry.decodedBodySize)"
        )
        sent = sum(files)
        assert len(files) == 6, "the page and its five files"
        run.figures |= {"first_paint_ms": round(paint, 1), "bytes": sent}
        assert sent <= 150 << 10, f"{sent} bytes"
        run.shot(page, "empty")


def loaded(run: Run) -> None:
    """Under load the page's figures equal the status and the metrics; the engine disappears when it is killed."""
    with run.daemon("loaded") as daemon, run.engine(daemon, "llama-70b") as process, run.page(daemon) as page:
        asked, found = 3 * 40 * TOKENS, 3 * 20 * TOKENS
        expect(figure(page, "hit rate since start")).to_have_text("50.0 %")
        expect(page.locator("#idle")).to_be_hidden()
        expect(figure(page, "tokens asked for")).to_have_text("1.92k")
        expect(figure(page, "tokens found")).to_have_text(str(found))
        hits, metrics = status(daemon)["hits"], daemon.metrics()
        assert (hits["asked_tokens"], hits["found_tokens"], hits["loaded_tokens"]["host"]) == (asked, found, found), hits
        assert metrics["kvtide_asked_tokens_total"] == asked and metrics["kvtide_found_tokens_total"] == found
        assert metrics["kvtide_loaded_tokens_total"] == found
        expect(row(page, "spaces", "llama-70b")).to_contain_text("50.0 %")
        expect(row(page, "tenants", "default")).to_contain_text("1.92k")
        expect(row(page, "engines", "python")).to_contain_text(str(process.pid))
        with run.engine(daemon, "mixtral"):
            # The chart's next point.
            expect(page.locator("#chart-tokens figcaption")).to_have_text(re.compile(r"asked for [1-9].*found [1-9].*host memory [1-9]"))
            expect(figure(page, "hit rate, last minute")).to_have_text("50.0 %")
            expect(page.locator("#chart-lookup figcaption")).to_have_text(re.compile(r"at most .*p50 ≤ \d+, .*p99 ≤ \d+"))
            axes = page.evaluate(AXES)
            assert all(len(set(labels)) == len(labels) > 1 for labels in axes.values()), axes
            assert all(re.fullmatch(r"\d+ ([KMG]i)?B", label) for label in axes["chart-moved"] + axes["chart-disk"]), axes
            above = page.evaluate("[...document.querySelectorAll('figure')].every((figure) => figure.firstElementChild.tagName === 'FIGCAPTION')")
            assert above, "a title is below its chart"
            run.shot(page, "loaded")
        process.send_signal(signal.SIGKILL)
        expect(page.locator("#engines tbody")).to_have_text("none")


def full_disk(run: Run) -> None:
    """The NVMe tier's file system is full: the health line is red and says why, until there is room again."""
    with run.daemon("no-room", tmpfs_mib=96) as daemon, run.page(daemon) as page:
        expect(page.locator("#verdict")).to_have_text("Healthy")
        filler = daemon.nvme_from_outside / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(1 << 16)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
        with run.engine(daemon, "llama"):
            expect(page.locator("#health")).to_have_class("bad")
            expect(page.locator("#verdict")).to_have_text("Degraded")
            expect(page).to_have_title("Degraded – kvtide")
            expect(page.locator("#reasons")).to_contain_text("the file system is full")
            expect(page.locator("#disks tbody tr td").first).to_have_text("full")
            run.shot(page, "disk-full")
            filler.unlink()
            expect(page.locator("#verdict")).to_have_text("Healthy")


def lost_disk(run: Run) -> None:
    """A deleted store, and an unresponsive daemon."""
    with run.daemon("lost") as daemon, run.engine(daemon, "llama"), run.page(daemon) as page:
        expect(page.locator("#verdict")).to_have_text("Healthy")
        store = next(daemon.nvme.rglob("kvtide.store"))
        store.unlink()
        expect(page.locator("#verdict")).not_to_have_text("Healthy", timeout=WAIT_MS)
        expect(page.locator("#reasons")).to_contain_text("out of service")
        expect(row(page, "disks", "out of service")).to_have_count(1)
        run.shot(page, "disk-lost")
        daemon.freeze()
        expect(page.locator("#health")).to_have_class(re.compile("bad"))
        expect(page.locator("#reasons")).to_contain_text("no answer from the daemon; the last answer came at")
        run.shot(page, "no-answer")
        daemon.thaw()
        expect(page.locator("#verdict")).to_have_text("Degraded")


def hostile(run: Run) -> None:
    """Names that engines chose are shown as text."""
    with run.daemon("hostile") as daemon, run.engine(daemon, HOSTILE), run.page(daemon) as page:
        expect(row(page, "spaces", HOSTILE)).to_have_count(1)
        page.get_by_label("Hash of a block").fill("img")
        page.get_by_role("button", name="Search").click()
        expect(page.locator("#found h3")).to_have_text(f"space {HOSTILE}")
        assert page.locator("img").count() == 0
        run.shot(page, "hostile")


def operator(run: Run) -> None:
    """A block is found by its hash; with the token it is pinned, unpinned and evicted, by keyboard."""
    token = run.scratch / "operator.token"
    token.write_text(SECRET)
    token.chmod(0o600)
    config = f'\n[http]\ntoken_file = "{token}"\n'
    with run.daemon("operator", config=config) as daemon, run.engine(daemon, "llama"), run.page(daemon) as page:
        text = page.get_by_label("Hash of a block")
        text.focus()
        page.keyboard.type((1 << 64 | 5).to_bytes(16, "little").hex())
        page.keyboard.press("Enter")
        expect(page.locator("#found")).to_contain_text("cannot search: the operator's token is needed")
        page.get_by_label("Token of").fill(SECRET)
        page.keyboard.press("Enter")
        expect(page.locator("#found h3")).to_contain_text("block 0500")
        expect(page.locator("#found")).to_contain_text("4 blocks before it")
        page.get_by_role("button", name="pin", exact=True).press("Enter")
        expect(page.locator("#acting")).to_contain_text("and the 4 before it are pinned")
        page.get_by_role("button", name="evict").press("Enter")
        expect(page.locator("#acting")).to_contain_text("it is pinned: unpin it first")
        page.get_by_role("button", name="unpin").press("Enter")
        expect(page.locator("#acting")).to_contain_text("is unpinned")
        run.shot(page, "operator")
        page.get_by_role("button", name="evict").press("Enter")
        expect(page.locator("#acting")).to_contain_text("and 15 blocks after it")
        expect(page.locator("#found")).to_contain_text("nothing matches")


def narrow(run: Run) -> None:
    """On a phone nothing is wider than the screen; dark; each chart has a caption."""
    with run.daemon("narrow") as daemon, run.engine(daemon, "llama-with-a-name-that-is-rather-long"):
        with run.page(daemon, "phone", "dark") as page:
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= SIZES["phone"]["width"], f"{width} pixels wide"
            expect(page.locator("figure figcaption")).to_have_count(page.locator("figure").count())
            wider = page.evaluate("[...document.querySelectorAll('.scroll')].filter((place) => place.scrollWidth > place.clientWidth + 1).length")
            assert wider > 3, f"{wider} tables scroll"
            expect(page.locator(".scroll.more")).to_have_count(wider)
            run.shot(page, "phone-dark")
        with run.page(daemon, "desktop", "dark") as page:
            run.shot(page, "dark")


def slow(run: Run) -> None:
    """Loading that takes longer than computing, by the configuration, is a warning."""
    config = "\n[eviction]\nrecompute_tokens_per_s = 10000000\n"
    with run.daemon("slow", config=config) as daemon, run.engine(daemon, "llama"), run.page(daemon) as page:
        expect(page.locator("#verdict")).to_have_text("Slow")
        expect(page.locator("#health")).to_have_class("fair")
        expect(page.locator("#reasons")).to_contain_text("set it to the prefill speed of your engine")
        run.shot(page, "slow")


CASES: dict[str, Callable[[Run], None]] = {case.__name__: case for case in (empty, loaded, full_disk, lost_disk, slow, hostile, operator, narrow)}


def main() -> int:
    if sys.argv[1:2] == ["--engine"]:
        engine(*sys.argv[2:4])
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kvtided", type=Path, required=True)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--shots", type=Path)
    args = parser.parse_args()
    if args.shots is not None:
        args.shots.mkdir(parents=True, exist_ok=True)
    results = []
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as driver:
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=flags)
        expect.set_options(timeout=WAIT_MS)
        run = Run(browser, args.kvtided, Path(scratch), args.shots)
        for name, case in CASES.items():
            if args.case not in (None, name):
                continue
            began, error = time.monotonic(), ""
            try:
                case(run)
            except Exception:  # noqa: BLE001 (each case is reported)
                error = traceback.format_exc()
            results.append({"name": name, "ok": not error})
            print(f"{name}: {error or 'ok'} ({time.monotonic() - began:.1f} s)", file=sys.stderr)
        browser.close()
    if args.json:
        print(json.dumps({"version": 1, "cases": results, **run.figures}))
    return 0 if all(result["ok"] for result in results) else 1


sys.exit(main())
