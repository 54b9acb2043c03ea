"""The report: JSON for programs and Markdown for people."""

import datetime
import gzip
import io
import json
import os
import re
import tarfile
import traceback

from bundle.process import clipped

# Every promised figure by the key under which a bench reports it, so that a missing one is noticed.
EXPECTED = {
    "copy_scattered_64k_to_device": "host → HBM, 64 KiB pages scattered on both sides ÷ one large pinned copy",
    "copy_scattered_64k_to_host": "HBM → host, 64 KiB pages scattered on both sides ÷ one large pinned copy",
    "copy_contiguous_2m_to_device": "host → HBM, contiguous 2 MiB blocks ÷ one large pinned copy",
    "copy_contiguous_2m_to_host": "HBM → host, contiguous 2 MiB blocks ÷ one large pinned copy",
    "copy_fragments_to_device": "host → HBM, engine layout, fragments of 4 to 16 KiB ÷ one large pinned copy",
    "copy_fragments_to_host": "HBM → host, engine layout, fragments of 4 to 16 KiB ÷ one large pinned copy",
    "attention_1x16k": "decode attention ÷ device copy bandwidth, batch 1 at 16k, the worse group",
    "attention_1x128k": "decode attention ÷ device copy bandwidth, batch 1 at 128k, the worse group",
    "attention_8x16k": "decode attention ÷ device copy bandwidth, batch 8 at 16k, the worse group",
    "attention_64x4k": "decode attention ÷ device copy bandwidth, batch 64 at 4k, the worse group",
    "attention_64x4k_ragged": "decode attention ÷ device copy bandwidth, batch 64 of 512 to 7,680 tokens, the worse group",
    "attention_sdpa": "decode attention: PyTorch SDPA's time over contiguous KV ÷ ours, the worst shape",
    "attention_flashinfer": "decode attention: FlashInfer's time ÷ ours, the worst shape",
    "prefill_flash_attention_3": "prefill: FlashAttention-3's time on kvtide's pages ÷ ours",
    "prefill_flashinfer": "prefill: FlashInfer's time on kvtide's pages ÷ ours",
    "mla_flash_mla": "MLA decode, 128 heads: FlashMLA's time on kvtide's pages ÷ ours",
    "mla_flashinfer": "MLA decode, 128 heads: FlashInfer's time on kvtide's pages ÷ ours",
    "overhead_table": "table indirection: time ÷ time without",
    "overhead_splits": "fixed splits: time ÷ that of the best splits",
    "overhead_mass": "mass export: time ÷ time without",
    "step_added_us": "a step with everything resident: microseconds added",
    "migrate_p50": "decode step while migrations run ÷ without, p50",
    "migrate_p99": "decode step while migrations run ÷ without, p99",
    "nvme_path": "NVMe → HBM, whole path ÷ the NVMe tier alone",
    "prefix_load": "prefix of 10k tokens of an 8B-shaped model from host memory ÷ its prefill by torch",
    "error_bf16": "relative error against f64, bf16, the worst",
    "error_f16": "relative error against f64, f16, the worst",
}


class Report:
    """Results of the probe and of the parts, in a folder and in one archive that is written anew after each part.

    The archive is complete at any time, because a machine may be taken away in the middle of a run, and some bring back few files.
    """

    def __init__(self, work, archive, stand_in):
        self.work, self.archive, self.stand_in = work, archive, stand_in
        self.manifest = {}
        self.began = now()
        self.gpu, self.words, self.machine = {}, {}, {}
        self.rows = {}  # by the part's name, in the order of the run
        self.stopped = ""  # why the run ended early

    def load(self):
        """Take the results of an earlier run of the same build, and its logs. Return whether there was one."""
        path = self.work / "report.json"
        if not path.exists() and self.archive.exists():
            with tarfile.open(self.archive) as archive:
                archive.extractall(self.work, filter="data")
        try:
            old = json.loads(path.read_text())
            if (old["kvtide"], old["measured"]) != (self.manifest.get("commit"), not self.stand_in):
                return False
            self.gpu, self.words, self.machine = old["device"], old["found"], old["machine"]
            rows = {row["name"]: row for row in old["parts"]}
        except (OSError, ValueError, LookupError, TypeError):
            return False
        self.rows = rows
        return True

    def planned(self, parts):
        """Add a row for each part, so that parts that never ran are listed."""
        for part in parts:
            self.row(part, status="not run", why="the run ended before")

    def running(self, part):
        self.row(part, status="running")

    def skipped(self, part, why):
        self.row(part, status="not run", why=why)

    def ended(self, part, ended, kernel_log):
        row = self.row(part, status=ended.word(), seconds=round(ended.seconds, 1))
        row["ok"] = ended.passed() or (part.endless and ended.status is None)
        row["said"] = told(ended)
        if not row["ok"]:
            row |= {"command": " ".join(str(word) for word in ended.command), "tail": ended.tail, "threads": ended.threads}
        if kernel_log:
            row["kernel_log"] = kernel_log
        row["figures"] = [figure for said in ended.objects for figure in said.get("figures", [])]
        row["objects"] = [said for said in ended.objects if "figures" not in said]

    def ended_early(self, why):
        self.stopped = why
        for row in self.rows.values():
            if row["status"] == "running":
                row |= {"status": "stopped", "ok": False}

    def row(self, part, **values):
        """Replace the row of a part, at its place in the order."""
        row = {"name": part.name, "words": part.words, "date": now(), "seconds": 0} | values
        self.rows[part.name] = row
        return row

    def passed(self):
        return not self.stopped and all(row.get("ok", True) for row in self.rows.values())

    def figures(self):
        return [figure | {"part": name} for name, row in self.rows.items() for figure in row.get("figures", [])]

    def object(self):
        return {
            "kvtide": self.manifest.get("commit"),
            "date": self.began,
            "measured": not self.stand_in,
            "stopped": self.stopped,
            "device": self.gpu,
            "found": self.words,
            "machine": self.machine,
            "figures": self.figures(),
            "missing": self.missing(),
            "parts": list(self.rows.values()),
        }

    def missing(self):
        told_keys = {figure.get("key") for figure in self.figures()}
        return [key for key in EXPECTED if key not in told_keys]

    def write(self):
        files = {"report.json": json.dumps(self.object(), indent=1, ensure_ascii=False) + "\n", "report.md": self.safe_text()}
        contents = {name: text.encode(errors="replace") for name, text in files.items()}
        logs = {f"logs/{log.name}": clipped(log) for log in sorted((self.work / "logs").glob("*"))}
        replace(self.archive, archived(contents | {name: content for name, content in logs.items() if content}))
        for name, content in contents.items():
            replace(self.work / name, content)

    def safe_text(self):
        """Return the text; an unexpected value in a figure must not cost the report."""
        try:
            return self.text()
        except Exception:
            why = f"The text could not be made; report.json has everything.\n\n```\n{traceback.format_exc()}```\n"
            return f"# kvtide on a GPU\n\n{why}"

    def text(self):
        lines = ["# kvtide on a GPU", ""]
        if self.stand_in:
            lines += ["**Run on the CPU stand-in: it proves that everything runs. No figure here is a measurement.**", ""]
        if self.stopped:
            lines += ["**The run ended early:**", "", "```", self.stopped, "```", ""]
        lines += ["| | |", "| --- | --- |", f"| date | {self.began} |"]
        lines += [f"| kvtide | {self.manifest.get('commit')}, built {self.manifest.get('built')} |"]
        facts = [*flat(self.gpu), *self.machine.items(), *self.words.items()]
        lines += [f"| {cell(key)} | {cell(value)} |" for key, value in facts]
        lines += ["", "## Figures", "", "| figure | value | target | |", "| --- | --- | --- | --- |"]
        for figure in self.figures():
            target, met = judge(figure, measured=not self.stand_in)
            lines.append(f"| {cell(figure['what'])} | {number(figure)} | {target} | {met} |")
        lines += [f"| {cell(EXPECTED[key])} | not measured | | |" for key in self.missing()]
        lines += ["", "## Parts", "", "| part | content | result | s | |", "| --- | --- | --- | --- | --- |"]
        for row in self.rows.values():
            said = row.get("why") or row.get("said", "")
            cells = [row["name"], row["words"], row["status"], row["seconds"], said]
            lines.append("| " + " | ".join(cell(word) for word in cells) + " |")
        for row in self.rows.values():
            lines += details(row)
        return "\n".join(lines) + "\n"


def details(row):
    """Return what explains a failed part."""
    lines = []
    if row.get("tail"):
        lines += ["", f"`{row['command']}`", "", "```", row["tail"], "```"]
    if row.get("kernel_log"):
        lines += ["", "Kernel log:", "", "```", *row["kernel_log"], "```"]
    if row.get("threads"):
        lines += ["", "Threads before they were killed (process/thread, name, state, wait channel, kernel stack):", "", "```"]
        for thread in row["threads"]:
            stack = " < ".join(frame.partition("+")[0] for frame in thread["stack"])
            where = f"{thread['state']} {thread['wchan']}"
            lines.append(f"{thread['pid']}/{thread['tid']} {thread['name']} {where} {stack}".rstrip())
        lines.append("```")
    return ["", f"### {row['name']}", *lines] if lines else []


def replace(path, content):
    """Write a file so that a reader sees the old content or the new one, also after a crash of this process."""
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def archived(contents):
    """Return a compressed archive of files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), 6)


def now():
    return datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0).isoformat()


def number(figure):
    value = figure["value"]
    return f"{value:.4g} {figure.get('unit', '')}".strip() if isinstance(value, (int, float)) else f"{value}"


def told(ended):
    """Return the summary line of a test executable or a bench."""
    results = re.findall(r"^test result: .*?;.*?;", ended.out, re.MULTILINE)
    return results[-1].rstrip(";") if results else ""


def judge(figure, measured):
    """Return the target as text, and whether it is met. A figure of the stand-in is never judged."""
    least, most = figure.get("at_least"), figure.get("at_most")
    if least is None and most is None:
        return "", ""
    target = f"≥ {least}" if least is not None else f"≤ {most}"
    if not measured:
        return target, "not a measurement"
    if not isinstance(figure["value"], (int, float)):
        return target, "no number"
    met = figure["value"] >= least if least is not None else figure["value"] <= most
    return target, "met" if met else "**missed**"


def flat(value, name=""):
    """Return the rows of a nested object, with names joined by blanks."""
    if isinstance(value, dict):
        return [row for key, inner in value.items() for row in flat(inner, f"{name} {key}".strip())]
    if isinstance(value, list):
        return [row for i, inner in enumerate(value) for row in flat(inner, f"{name} {i}".strip())]
    return [(name, value)]


def cell(word):
    return str(word).replace("|", "\\|").replace("\n", " ")[:400]
