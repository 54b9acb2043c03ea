// Charts of the last hour. Each has a title with its present values above it, so that nothing is only in the picture.

const COLORS = ["--accent", "--good", "--fair", "--bad", "--soft", "--text"];
/// Points kept, as in the daemon.
const POINTS = 720;
/// Seconds that the time axis shows at least.
const SHOWN_S = 300;

/// Steps between two labels of an axis of bytes: powers of two, so that labels are whole KiB, MiB and GiB.
const BINARY = Array.from({ length: 60 }, (_, power) => 2 ** power);
/// The same of other axes: 1, 2 and 5 times powers of ten.
const DECIMAL = Array.from({ length: 18 }, (_, at) => [1, 2, 5].map((n) => n * 10 ** (at - 3))).flat();

// Labels that differ: as many digits as the step between them needs.
const labels = (write) => (_, values, axis, space, step) => values.map((value) => {
  if (write) return write(value);
  const [by, unit] = step >= 1e9 ? [1e9, "G"] : step >= 1e6 ? [1e6, "M"] : step >= 1e3 ? [1e3, "k"] : [1, ""];
  return `${Number((value / by).toPrecision(6))}${unit}`;
});

const color = (index) => getComputedStyle(document.documentElement).getPropertyValue(COLORS[index % COLORS.length]).trim();

// Each chart: the figure's id, its title, how a value is written, its lines, and what its axis has of its own. A line's `of` takes a point and the one before it
// (null for the first), and returns a number or null.
const rate = (name, by = 1) => (now, before) => {
  if (before?.[name] == null || now.time_s <= before.time_s || now[name] < before[name]) return null;
  return (now[name] - before[name]) / (now.time_s - before.time_s) / by;
};
const level = (used, all) => (now) => (now[all] > 0 ? (100 * now[used]) / now[all] : null);
const latency = (name, by = 1) => (now) => (now[name] > 0 ? now[name] / by : null);

export class Charts {
  constructor(format) {
    this.columns = {};
    this.binary = format.binary;
    this.charts = [
      ["chart-tokens", "Tokens a second", format.count, [
        ["asked for", rate("asked_tokens")], ["found", rate("found_tokens")], ["loaded from host memory", rate("loaded_host_tokens")],
        ["from NVMe", rate("loaded_nvme_tokens")], ["from tier 0", rate("loaded_tier0_tokens")]]],
      ["chart-saved", "Time of loading, seconds a second", (v) => v.toFixed(2), [
        ["measured", rate("load_us", 1e6)], ["computing instead, by eviction.recompute_tokens_per_s", rate("recompute_us", 1e6)]]],
      ["chart-fill", "Fill, %", (v) => `${v.toFixed(0)} %`, [
        ["tier 0", level("tier0_used_bytes", "tier0_bytes")], ["host memory", level("host_used_bytes", "host_bytes")],
        ["NVMe", level("nvme_used_bytes", "nvme_bytes")]], { most: 100 }],
      ["chart-moved", "Bytes moved a second", format.bytes, [
        ["host to tier 0", rate("host_to_tier0_bytes")], ["tier 0 to host", rate("tier0_to_host_bytes")],
        ["NVMe to host", rate("nvme_to_host_bytes")], ["host to NVMe", rate("host_to_nvme_bytes")]], { bytes: true }],
      ["chart-lookup", "Lookups, at most (bounds of histogram buckets), µs", (v) => `≤ ${v.toFixed(0)}`, [["p50", latency("lookup_p50_us")], ["p99", latency("lookup_p99_us")]]],
      ["chart-load", "Loads, at most (bounds of histogram buckets), ms", (v) => `≤ ${Number(v.toPrecision(3))}`, [["p50", latency("load_p50_us", 1000)], ["p99", latency("load_p99_us", 1000)]]],
      ["chart-disk", "NVMe, bytes a second", format.bytes, [["read", rate("disk_read_bytes")], ["written", rate("disk_written_bytes")]], { bytes: true }],
      ["chart-errors", "NVMe errors a second", format.count, [["errors", rate("disk_failures")]]],
      ["chart-prefetch", "Prefetched pages a second", format.count, [
        ["used", rate("prefetch_used")], ["late", rate("prefetch_late")], ["wasted", rate("prefetch_wasted")]]],
      ["chart-evicted", "Evictions a second", format.count, [
        ["pages from tier 0", rate("evicted_tier0_pages")], ["pages from host memory", rate("evicted_host_pages")],
        ["blocks", rate("dropped_blocks")], ["of them for lack of NVMe", rate("dropped_nvme_full")],
        ["not admitted", rate("dropped_not_admitted")], ["expired", rate("dropped_expired")], ["by hand", rate("dropped_by_hand")]]],
    ].map(([id, title, write, lines, axis = {}]) => ({ figure: document.getElementById(id), title, write, lines, axis, plot: null }));
    new ResizeObserver(() => this.size()).observe(document.getElementById("main"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.again());
  }

  // Take the daemon's columns.
  begin(columns) {
    this.columns = columns;
    this.draw();
  }

  // Add a point of the status, shaped as a point of the history.
  add(point) {
    for (const [name, values] of Object.entries(this.columns)) {
      values.push(point[name] ?? values[values.length - 1] ?? 0);
      if (values.length > POINTS) values.shift();
    }
    this.draw();
  }

  // Return what some columns grew by in the last `seconds`; null if nothing that old is known of this daemon.
  grown(seconds, names) {
    const times = this.columns.time_s ?? [];
    const first = times.findIndex((time) => time >= times[times.length - 1] - seconds);
    if (first < 0 || first === times.length - 1) return null;
    return names.map((name) => this.columns[name][times.length - 1] - this.columns[name][first]);
  }

  points() {
    const names = Object.keys(this.columns);
    const times = this.columns.time_s ?? [];
    return times.map((_, at) => Object.fromEntries(names.map((name) => [name, this.columns[name][at]])));
  }

  draw() {
    const points = this.points();
    // Of a single point uPlot would show the years around it.
    if (points.length === 1) points.unshift({ time_s: points[0].time_s - SHOWN_S });
    const times = points.map((point) => point.time_s);
    for (const chart of this.charts) {
      const lines = chart.lines.map(([, of]) => points.map((point, at) => of(point, at ? points[at - 1] : null)));
      const data = [times, ...lines];
      if (chart.plot) chart.plot.setData(data);
      else if (times.length) this.create(chart, data);
      this.caption(chart, lines);
    }
  }

  create(chart, data) {
    const place = document.createElement("div");
    place.setAttribute("aria-hidden", "true");
    chart.figure.replaceChildren(document.createElement("figcaption"), place);
    const axis = { stroke: color(4), grid: { stroke: "rgba(128,128,128,.2)" }, ticks: { show: false } };
    const series = chart.lines.map(([label], at) => ({
      label, stroke: color(at), width: 1.5, spanGaps: false, points: { size: 5 }, value: (_, v) => (v == null ? "–" : chart.write(v)),
    }));
    const options = {
      width: Math.max(chart.figure.clientWidth, 200), height: 180, cursor: { drag: { x: false, y: false } }, legend: { show: false },
      scales: { x: { range: (_, low, high) => [Math.min(low ?? high, high - SHOWN_S), high] }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), chart.axis.most ?? (high > 0 ? high * 1.1 : chart.axis.bytes ? 1024 : 1)] } },
      axes: [{ ...axis, size: 28, values: (_, times) => times.map((time) => new Date(time * 1000).toTimeString().slice(0, 5)) },
        { ...axis, size: 70, incrs: chart.axis.bytes ? BINARY : DECIMAL, values: labels(chart.axis.bytes ? this.binary : null) }],
      series: [{}, ...series],
    };
    chart.plot = new uPlot(options, data, place);
  }

  caption(chart, lines) {
    const caption = chart.figure.querySelector("figcaption");
    if (!caption) return;
    const title = document.createElement("strong");
    title.textContent = chart.title;
    const now = chart.lines.flatMap(([label], at) => {
      const known = lines[at].filter((value) => value != null);
      const key = document.createElement("span");
      key.textContent = " ■ ";
      key.style.color = color(at);
      key.setAttribute("aria-hidden", "true");
      return [at ? "," : ":", key, `${label} ${known.length ? chart.write(known[known.length - 1]) : "–"}`];
    });
    caption.replaceChildren(title, ...now);
  }

  size() {
    for (const { plot, figure } of this.charts) plot?.setSize({ width: Math.max(figure.clientWidth, 200), height: 180 });
  }

  // Colors have changed.
  again() {
    for (const chart of this.charts) {
      chart.plot?.destroy();
      chart.plot = null;
    }
    this.draw();
  }
}
