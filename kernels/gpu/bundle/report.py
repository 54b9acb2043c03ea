"""The report: JSON for programs and Markdown for people."""

import datetime
import json
import re

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
    "attention_sdpa": "decode attention: PyTorch SDPA's time over contiguous KV ÷ ours, the worst shape",
    "attention_flashinfer": "decode attention: FlashInfer's time ÷ ours, the worst shape",
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
    """Collects the probe's results and the results of parts."""

    def __init__(self, here, out, stand_in):
        self.out = out
        self.stand_in = stand_in
        self.manifest = json.loads((here / "manifest.json").read_text())
        self.began = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
        self.gpu, self.words, self.parts, self.figures = {}, {}, [], []

    def found(self, found):
        self.gpu, self.words = found.gpu, found.words

    def skipped(self, part, why):
        self.parts.append({"name": part.name, "words": part.words, "status": "not run", "why": why, "seconds": 0})

    def ended(self, part, ended):
        row = {"name": part.name, "words": part.words, "status": ended.word(), "seconds": round(ended.seconds, 1)}
        row["ok"] = ended.passed() or (part.endless and ended.status is None)
        row["said"] = told(ended)
        if not row["ok"]:
            row["tail"] = ended.tail
            row["command"] = " ".join(str(word) for word in ended.command)
        for said in ended.objects:
            for figure in said.get("figures", []):
                self.figures.append(figure | {"part": part.name})
        others = [o for o in ended.objects if "figures" not in o]
        if others:
            row["objects"] = others
        self.parts.append(row)

    def passed(self):
        return all(part.get("ok", True) for part in self.parts)

    def object(self):
        return {
            "kvtide": self.manifest["commit"],
            "date": self.began.isoformat(),
            "measured": not self.stand_in,
            "device": self.gpu,
            "found": self.words,
            "figures": self.figures,
            "missing": self.missing(),
            "parts": self.parts,
        }

    def missing(self):
        told_keys = {figure["key"] for figure in self.figures}
        return [key for key in EXPECTED if key not in told_keys]

    def write(self):
        (self.out / "report.json").write_text(json.dumps(self.object(), indent=1, ensure_ascii=False) + "\n")
        (self.out / "report.md").write_text(self.text())

    def text(self):
        lines = ["# kvtide on a GPU", ""]
        if self.stand_in:
            lines += ["**Run on the CPU stand-in: it proves that everything runs. No figure here is a measurement.**", ""]
        lines += ["| | |", "| --- | --- |", f"| date | {self.began.isoformat()} |"]
        lines += [f"| kvtide | {self.manifest['commit']}, built {self.manifest['built']} |"]
        lines += [f"| {cell(key)} | {cell(value)} |" for key, value in [*flat(self.gpu), *self.words.items()]]
        lines += ["", "## Figures", "", "| figure | value | target | |", "| --- | --- | --- | --- |"]
        for figure in self.figures:
            target, met = judge(figure, measured=not self.stand_in)
            value = f"{figure['value']:.4g} {figure.get('unit', '')}".strip()
            lines.append(f"| {cell(figure['what'])} | {value} | {target} | {met} |")
        lines += [f"| {cell(EXPECTED[key])} | not measured | | |" for key in self.missing()]
        lines += ["", "## Parts", "", "| part | content | result | s | |", "| --- | --- | --- | --- | --- |"]
        for part in self.parts:
            said = part.get("why") or part.get("said", "")
            row = [part["name"], part["words"], part["status"], part["seconds"], said]
            lines.append("| " + " | ".join(cell(word) for word in row) + " |")
        for part in self.parts:
            if part.get("tail"):
                lines += ["", f"### {part['name']}", "", f"`{part['command']}`", "", "```", part["tail"], "```"]
        return "\n".join(lines) + "\n"


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
