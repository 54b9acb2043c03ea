// The page: asks the daemon every two seconds and writes what it says. Text from outside is only ever set as text.

import { Charts } from "./charts.js";

const EVERY_MS = 2000;
/// Seconds between two points of the charts, as in the daemon.
const STEP_S = 5;
/// Seconds of the present hit rate.
const NOW_S = 60;

const by = (id) => document.getElementById(id);
const element = (name, text, className) => {
  const made = document.createElement(name);
  if (text != null) made.textContent = text;
  if (className) made.className = className;
  return made;
};

const scaled = (value, base, units) => {
  let unit = 0;
  while (value >= base * 0.9995 && unit + 1 < units.length) { value /= base; unit += 1; }
  const digits = unit === 0 && value >= 10 ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return `${Number.isInteger(value) && unit === 0 ? value : value.toFixed(digits)}${units[unit]}`;
};
const format = {
  bytes: (value) => scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"]),
  // A label of an axis with binary steps: no digits that say nothing.
  binary: (value) => {
    const unit = value < 1 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), 5);
    return `${Number((value / 1024 ** unit).toFixed(3))}${[" B", " KiB", " MiB", " GiB", " TiB", " PiB"][unit]}`;
  },
  count: (value) => scaled(value, 1000, ["", "k", "M", "G", "T"]),
  percent: (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : "–"),
  seconds: (value) => {
    const s = Math.abs(value);
    const text = s < 60 ? `${s.toFixed(1)} s` : s < 3600 ? `${(s / 60).toFixed(1)} min` : s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${(s / 86400).toFixed(1)} d`;
    return value < 0 ? `−${text}` : text;
  },
  // A sum of short times; a dash if nothing was measured.
  took: (s) => (s === 0 ? "–" : s < 1 ? `${(s * 1000).toFixed(1)} ms` : format.seconds(s)),
};

const NONE = { asked_tokens: 0, found_tokens: 0, loaded_tokens: { tier0: 0, host: 0, nvme: 0 }, recompute_us: 0, load_us: 0 };
const hitsOf = (some) => ({ ...NONE, ...(some?.hits ?? {}) });
const loaded = (hits) => hits.loaded_tokens.tier0 + hits.loaded_tokens.host + hits.loaded_tokens.nvme;
const sum = (items, of) => items.reduce((all, item) => all + (of(item) ?? 0), 0);
const edge = (edge) => sum(edge?.bytes ?? [], (n) => n);
/// Reasons for which something has failed; others only cost speed or space.
const FAILED = new Set(["disk_out_of_service", "disk_full", "socket_lost"]);
const writtenTo = (disk) => sum(["request_bytes", "superblock_bytes"], (part) => disk.written?.[part]) + sum(["appended_bytes", "compacted_bytes"], (part) => disk.log?.[part]);
const ways = (disk, way, field) => sum(disk.classes ?? [], (c) => c[way]?.[field]);
const failures = (disk) => ways(disk, "reads", "failed") + ways(disk, "writes", "failed") + (disk.checksum_failures ?? 0);
const FULL = ["clean", "dirty", "pinned", "busy", "quarantined"];
const used = (fill) => sum(FULL, (state) => fill?.[state]?.bytes);
const onNvme = (space) => (space.occupancy?.nvme_slots_used ?? 0) * (space.occupancy?.nvme_slot_bytes ?? 0);
const all = (fill) => used(fill) + (fill?.free?.bytes ?? 0);

const token = { get: () => sessionStorage.getItem("token") ?? "", set: (value) => sessionStorage.setItem("token", value) };

async function ask(path, body) {
  const headers = token.get() ? { Authorization: `Bearer ${token.get()}` } : {};
  const options = body ? { method: "POST", body: JSON.stringify(body), headers } : { headers };
  const answer = await fetch(path, { ...options, signal: AbortSignal.timeout(8000) });
  const json = await answer.json().catch(() => ({ error: `the daemon answered with status ${answer.status}` }));
  if (!answer.ok) throw Object.assign(new Error(json.error ?? `status ${answer.status}`), { answered: true, status: answer.status });
  return json;
}

function figures(id, pairs) {
  by(id).replaceChildren(...pairs.map(([name, value]) => {
    const pair = element("div");
    pair.append(element("dt", name), element("dd", value));
    return pair;
  }));
}

// Rows are arrays of cells; a cell is a text, or [text] for a number. What has not changed stays, and with it what a reader has selected.
const shown = new Map();
function table(id, caption, head, rows) {
  const now = JSON.stringify(rows);
  if (shown.get(id) === now) return;
  shown.set(id, now);
  const columns = head.map((name, at) => {
    const cell = element("th", name, rows.some((row) => Array.isArray(row[at])) ? "number" : "");
    cell.scope = "col";
    return cell;
  });
  const header = element("tr");
  header.append(...columns);
  const top = element("thead");
  top.append(header);
  const body = element("tbody");
  for (const row of rows) {
    const line = element("tr");
    line.append(...row.map((cell, at) => {
      if (Array.isArray(cell)) return element("td", cell[0], "number");
      const made = element(at ? "td" : "th", cell, "text");
      if (!at) made.scope = "row";
      return made;
    }));
    body.append(line);
  }
  if (!rows.length) {
    const cell = element("td", "none");
    cell.colSpan = head.length;
    const line = element("tr");
    line.append(cell);
    body.append(line);
  }
  const place = by(id).parentElement;
  place.tabIndex = 0;
  place.setAttribute("role", "region");
  place.setAttribute("aria-label", caption);
  const title = element("caption");
  title.append(element("span", caption));
  by(id).replaceChildren(title, top, body);
  hint(place);
}

// Say that a table goes on to the right.
function hint(place) {
  place.classList.toggle("more", place.scrollWidth > place.clientWidth + 1);
}
new ResizeObserver(() => document.querySelectorAll(".scroll").forEach(hint)).observe(by("main"));

function health(kind, verdict, reasons) {
  const section = by("health");
  if (section.className !== kind) section.className = kind;
  // Only changes are announced to screen readers.
  if (by("verdict").textContent !== verdict) by("verdict").textContent = verdict;
  const title = `${verdict} – kvtide`;
  if (document.title !== title) document.title = title;
  const list = [...by("reasons").children].map((item) => item.textContent);
  if (list.join("\n") !== reasons.join("\n")) by("reasons").replaceChildren(...reasons.map((reason) => element("li", reason)));
}

// `now`: tokens asked for and found in the last minute, if known.
function show(status, now) {
  const spaces = status.spaces ?? [];
  const disks = status.disks ?? [];
  const hits = hitsOf(status);
  by("build").textContent = `kvtided ${status.build?.version ?? ""}, pid ${status.pid}, up ${format.seconds(status.uptime_s)}`;
  const unhealthy = (status.unhealthy ?? []).map((reason) => reason.text);
  const degraded = (status.degraded ?? []).map((reason) => reason.text);
  const failed = (status.degraded ?? []).some((reason) => FAILED.has(reason.reason));
  if (status.drained) degraded.push("an operator drains the daemon: it takes no new sessions");
  const slow = hits.recompute_us > 0 && hits.load_us > hits.recompute_us
    ? [`loading is slower than computing: ${format.took(hits.load_us / 1e6)}, where computing would take ${format.took(hits.recompute_us / 1e6)} by eviction.recompute_tokens_per_s: set it to the prefill speed of your engine`]
    : [];
  const wrong = degraded.length > 0;
  degraded.push(...slow);
  if (unhealthy.length) health("bad", "Unhealthy", [...unhealthy, ...degraded]);
  else if (status.stage !== "serving") health("fair", status.stage === "starting" ? "Starting" : "Shutting down", [status.progress || "", ...degraded].filter(Boolean));
  else if (wrong) health(failed ? "bad" : "fair", "Degraded", degraded);
  else if (slow.length) health("fair", "Slow", degraded);
  else health("good", "Healthy", []);
  const idle = !(status.sessions ?? []).length && status.stage === "serving" && !status.drained;
  by("idle").hidden = !idle;
  if (idle) by("idle").textContent = `No engine is attached. Engines attach at the socket ${status.socket ?? ""}: vLLM with --kv-transfer-config '{"kv_connector": "KvtideConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"socket": "${status.socket ?? ""}"}}'; others: docs/README.md`;

  figures("hits", [
    ["hit rate, last minute", now ? format.percent(now[1], now[0]) : "–"],
    ["hit rate since start", format.percent(hits.found_tokens, hits.asked_tokens)],
    ["tokens asked for", format.count(hits.asked_tokens)],
    ["tokens found", format.count(hits.found_tokens)],
    ["tokens loaded", format.count(loaded(hits))],
    ["loading took", format.took(hits.load_us / 1e6)],
  ]);

  const tier = (name, full, of, inward, outward, tokens) => [name, [format.bytes(full)], [format.bytes(of)], [format.percent(full, of)],
    [format.bytes(inward)], [format.bytes(outward)], [format.count(tokens)]];
  const moved = (name) => sum(spaces, (space) => edge(space.core?.[name]));
  const tier0 = [sum(spaces, (s) => used(s.occupancy?.tier0)), sum(spaces, (s) => all(s.occupancy?.tier0))];
  const host = [sum(spaces, (s) => used(s.occupancy?.host)), status.host?.capacity_bytes ?? 0];
  const nvme = [sum(spaces, (s) => onNvme(s)), sum(disks, (d) => d.capacity_bytes)];
  table("tiers", "Fill, and bytes moved by the spaces that run", ["tier", "used", "capacity", "full", "in", "out", "tokens loaded"], [
    tier("tier 0", ...tier0, moved("host_to_tier0"), moved("tier0_to_host"), hits.loaded_tokens.tier0),
    tier("host memory", ...host, moved("tier0_to_host") + moved("nvme_to_host"), moved("host_to_tier0") + moved("host_to_nvme"), hits.loaded_tokens.host),
    tier("NVMe", ...nvme, moved("host_to_nvme"), moved("nvme_to_host"), hits.loaded_tokens.nvme),
  ]);

  const written = sum(disks, writtenTo);
  figures("nvme", [
    ["errors", String(sum(disks, failures))],
    ["bytes written", format.bytes(written)],
    ["written for each token found", hits.found_tokens ? format.bytes(written / hits.found_tokens) : "–"],
  ]);
  table("disks", "Disks", ["disk", "state", "read", "written", "in flight", "errors", "endurance left"], disks.map((disk) => {
    const endurance = (status.endurance ?? []).find((of) => of.disk === disk.number) ?? {};
    const state = disk.out_of_service != null ? `out of service: ${disk.why_out}` : disk.stalled ? "stalled" : disk.log?.no_room ? "full" : "ready";
    return [`${disk.number} ${disk.dir}`, state, [format.bytes(ways(disk, "reads", "bytes"))], [format.bytes(writtenTo(disk))],
      [`${disk.at_device} of ${disk.depth}`], [String(failures(disk))], [endurance.life_s != null ? format.seconds(endurance.life_s) : "–"]];
  }));

  const core = (name) => sum(spaces, (space) => space.core?.[name]);
  figures("prefetch", [
    ["prefetched pages used", format.count(core("prefetch_used"))],
    ["late", format.count(core("prefetch_late"))],
    ["wasted", format.count(core("prefetch_wasted"))],
    ["blocks dropped", format.count(core("cache_drops"))],
    ["of them NVMe full", format.count(core("nvme_drops"))],
    ["not admitted", format.count(core("refused_dropped"))],
    ["expired", format.count(core("expired"))],
    ["evicted by hand", format.count(core("evicted_by_hand"))],
  ]);

  const sessions = new Map((status.sessions ?? []).map((session) => [session.session, session]));
  const attached = spaces.flatMap((space) => (space.attached ?? []).map((session) => [space, session]));
  table("engines", "Attached engines", ["session", "program", "pid", "space", "shard", "hit rate", "asked for", "found", "loaded"],
    attached.map(([space, session]) => {
      const info = sessions.get(session.session) ?? {};
      const hits = hitsOf(session);
      return [String(session.session), info.program ?? "", [String(info.pid ?? "")], `${space.space} ${space.name}`, [String(info.shard ?? 0)],
        [format.percent(hits.found_tokens, hits.asked_tokens)], [format.count(hits.asked_tokens)], [format.count(hits.found_tokens)], [format.count(loaded(hits))]];
    }));
  table("spaces", "Spaces", ["space", "name", "tenant", "engines", "blocks", "pinned", "hit rate", "found", "host memory", "NVMe"], spaces.map((space) => {
    const hits = hitsOf(space);
    return [String(space.space), space.name, space.domain, [String(space.sessions)], [format.count(space.occupancy?.published ?? 0)],
      [String(space.occupancy?.pinned ?? 0)], [format.percent(hits.found_tokens, hits.asked_tokens)], [format.count(hits.found_tokens)],
      [format.bytes(used(space.occupancy?.host))], [format.bytes(onNvme(space))]];
  }));
  table("tenants", "Tenants", ["tenant", "engines", "blocks", "hit rate", "asked for", "found", "host memory, of its quota", "NVMe, of its quota"],
    (status.tenants ?? []).map((tenant) => {
      const hits = hitsOf(tenant);
      return [tenant.name, [String(tenant.sessions)], [format.count(tenant.blocks)], [format.percent(hits.found_tokens, hits.asked_tokens)],
        [format.count(hits.asked_tokens)], [format.count(hits.found_tokens)], [`${format.bytes(tenant.host_bytes)} of ${format.bytes(tenant.host_bytes_max)}`],
        [`${format.bytes(tenant.nvme_bytes)} of ${format.bytes(tenant.nvme_bytes_max)}`]];
    }));
}

const TIERS = { tier0: "tier 0", host: "host memory", nvme: "NVMe" };

function match(found) {
  const card = element("div", null, "match");
  const title = found.kind === "block" ? `block ${found.hash}` : `${found.kind} ${found.name}`;
  card.append(element("h3", title));
  const line = (text) => card.append(element("p", text));
  if (found.kind === "block") line(`in space ${found.space} ${found.name} (tenant ${found.tenant}), ${found.position} blocks before it`);
  else line(`${format.count(found.blocks)} blocks${found.kind === "space" ? ` of tenant ${found.tenant}` : ""}`);
  line(found.tiers.map((tier) => `${TIERS[tier.tier] ?? tier.tier} ${format.bytes(tier.bytes)}`).join(", "));
  for (const user of found.users) line(`used by session ${user.session}, ${user.program} (pid ${user.pid}), for ${format.seconds(user.since_s)}`);
  if (found.pinned) line(found.ends_pinned || found.kind !== "block" ? "pinned" : "pinned: part of a longer prefix");
  if (found.evicted_next) line(`evicted by ${found.evicted_next}`);
  if (found.kind === "block" && token.get()) {
    const row = element("div", null, "row");
    for (const action of ["pin", "unpin", "evict"]) {
      const button = element("button", action);
      button.type = "button";
      button.addEventListener("click", () => act(action, found));
      row.append(button);
    }
    card.append(row);
  }
  return card;
}

async function act(action, found) {
  if (action === "evict" && !confirm(`Evict block ${found.hash} and all blocks after it?`)) return;
  try {
    const done = await ask(`/v1/cache/${action}`, { space: found.space, hash: found.hash });
    by("acting").textContent = done.text;
  } catch (error) {
    by("acting").textContent = `not done: ${error.message}`;
  }
  await search();
}

async function search() {
  const text = by("text").value.trim();
  try {
    const found = await ask(`/v1/cache/search?q=${encodeURIComponent(text)}`);
    const cards = found.matches.map(match);
    if (!cards.length) cards.push(element("p", `nothing matches${found.near ? `; did you mean ${found.near}?` : ""}`));
    if (found.more) cards.push(element("p", `and ${found.more} more`));
    by("found").replaceChildren(...cards);
  } catch (error) {
    by("found").replaceChildren(element("p", `cannot search: ${error.message}`));
  }
}

// A point of the charts, as the daemon's history has it; latencies come with the history alone.
function pointOf(status) {
  const spaces = status.spaces ?? [];
  const hits = hitsOf(status);
  const core = (name) => sum(spaces, (space) => space.core?.[name]);
  const moved = (name) => sum(spaces, (space) => edge(space.core?.[name]));
  const disks = status.disks ?? [];
  return {
    time_s: Date.now() / 1000 + ahead, asked_tokens: hits.asked_tokens, found_tokens: hits.found_tokens,
    loaded_tier0_tokens: hits.loaded_tokens.tier0, loaded_host_tokens: hits.loaded_tokens.host, loaded_nvme_tokens: hits.loaded_tokens.nvme,
    recompute_us: hits.recompute_us, load_us: hits.load_us,
    tier0_used_bytes: sum(spaces, (s) => used(s.occupancy?.tier0)), tier0_bytes: sum(spaces, (s) => all(s.occupancy?.tier0)),
    host_used_bytes: sum(spaces, (s) => used(s.occupancy?.host)), host_bytes: status.host?.capacity_bytes ?? 0,
    nvme_used_bytes: sum(spaces, onNvme), nvme_bytes: sum(disks, (disk) => disk.capacity_bytes),
    host_to_tier0_bytes: moved("host_to_tier0"), tier0_to_host_bytes: moved("tier0_to_host"), nvme_to_host_bytes: moved("nvme_to_host"),
    host_to_nvme_bytes: moved("host_to_nvme"), lookup_p50_us: -1, lookup_p99_us: -1, load_p50_us: -1, load_p99_us: -1,
    disk_failures: sum(disks, failures), disk_read_bytes: sum(disks, (disk) => ways(disk, "reads", "bytes")), disk_written_bytes: sum(disks, writtenTo),
    prefetch_used: core("prefetch_used"), prefetch_late: core("prefetch_late"), prefetch_wasted: core("prefetch_wasted"),
    evicted_tier0_pages: core("evictions"), evicted_host_pages: core("host_evictions"), dropped_blocks: core("cache_drops"),
    dropped_nvme_full: core("nvme_drops"), dropped_not_admitted: core("refused_dropped"), dropped_expired: core("expired"),
    dropped_by_hand: core("evicted_by_hand"),
  };
}

const charts = new Charts(format);
let heard = null;
let drawn = 0;
let uptime = Infinity;
/// Seconds by which the daemon's clock is ahead of this one.
let ahead = 0;

// Return the status, and the history if it is due: at the start, for a new daemon, and every few points, for the latencies.
async function fetched() {
  const status = await ask("/v1/status");
  const now = Date.now() / 1000;
  // In containers every daemon has the same pid.
  const same = status.uptime_s >= uptime;
  uptime = status.uptime_s;
  if (same && now - drawn < 3 * STEP_S) return [status, null];
  const history = await ask("/v1/history");
  drawn = now;
  return [status, history];
}

function draw(status, history) {
  const now = Date.now() / 1000;
  if (history) {
    ahead = history.now_s - now;
    charts.begin(history.columns);
    draw.at = now;
  } else if (now - (draw.at ?? 0) >= STEP_S) {
    charts.add(pointOf(status));
    draw.at = now;
  }
  show(status, charts.grown(NOW_S, ["asked_tokens", "found_tokens"]));
}

async function look() {
  let found = null;
  try {
    found = await fetched();
    heard = new Date();
  } catch (error) {
    const since = heard ? `; the last answer came at ${heard.toLocaleTimeString()}` : "";
    const text = error.answered ? error.message : `no answer from the daemon${since}`;
    health("bad", [401, 403].includes(error.status) ? "The operator's token is needed" : "No answer", [text]);
  }
  setTimeout(look, EVERY_MS);
  if (found) draw(...found);
  document.documentElement.dataset.ready = "true";
}

by("search").addEventListener("submit", (event) => { event.preventDefault(); search(); });
by("operator").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(by("token").value.trim());
  by("token").value = "";
  by("acting").textContent = token.get() ? "The token is used until this tab is closed." : "No token is used.";
  if (by("found").children.length) search();
});
look();
