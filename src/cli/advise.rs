//! `kvtide advise`: estimates hit rates for other sizes and policies from the ghost caches of a running daemon.

use super::status::units;
use super::which::Which;
use clap::Args;
use kvtide_daemon::output;
use kvtide_daemon::status::{Curve, Snapshot, SpaceStatus};
use kvtide_tiering::api::Admission;
use kvtide_tiering::evict;
use serde::Serialize;
use std::fmt::Write as _;
use std::process::ExitCode;

/// Differences below this are treated as noise: the ghost caches are samples.
const ALIKE: f64 = 0.005;

/// Flags of `kvtide advise`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  kvtide advise\n  kvtide advise --json")]
pub(super) struct AdviseArgs {
    /// Print JSON: for each space, the share of uses that are or would be hits
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

/// A size or a policy and its estimated hit rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Point {
    what: String,
    bytes: u64,
    hit_ratio: f64,
}

/// Estimates for one space.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Advised {
    space: u32,
    name: String,
    policy: String,
    follows: String,
    /// Effect of NVMe writes.
    writes: Writes,
    /// By policy, at the current capacity.
    policies: Vec<Point>,
    /// By total capacity below tier 0, under the effective policy.
    sizes: Vec<Point>,
    /// By host memory size: uses that need no NVMe read.
    host: Vec<Point>,
    /// Recommendations.
    advice: Vec<String>,
}

/// Current hit rate, and the hit rate with all published blocks written to NVMe.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Writes {
    /// `tiers.nvme.admission`.
    admission: Admission,
    /// Share of recent uses that were hits.
    found: Option<f64>,
    /// Share of recent uses that would be hits with all published blocks written.
    if_all_written: Option<f64>,
    /// Limit of bytes written a day, if any.
    bytes_per_day: Option<u64>,
    /// Estimated bytes written a day with all published blocks written, from the uses of the last hour.
    bytes_per_day_for_all: Option<u64>,
    /// Seconds that the following counters cover.
    window_s: f64,
    /// Blocks dropped unwritten because of `bytes_per_day`.
    over_budget_blocks: u64,
    /// Their bytes.
    over_budget_bytes: u64,
    /// Blocks dropped before they were written to NVMe, within the window.
    unwritten_blocks: u64,
    /// Their bytes.
    unwritten_bytes: u64,
}

impl Writes {
    fn of(space: &SpaceStatus, status: &Snapshot, hits: Option<f64>) -> Writes {
        let (own, budget) = (&space.budget, &status.write_budget);
        let spent = budget.spaces.get(&space.space).copied().unwrap_or_default();
        let per_day = |hits| {
            let within_us = (budget.window_s * 1e6) as u64;
            evict::bytes_per_day(hits, spent.uses, within_us, space.eviction.entry_bytes)
        };
        Writes {
            admission: own.admission,
            found: space.eviction.found,
            if_all_written: hits,
            bytes_per_day: Some(own.bytes_per_day).filter(|bytes| *bytes > 0),
            bytes_per_day_for_all: hits.filter(|_| spent.uses > 0).map(per_day),
            window_s: budget.window_s,
            over_budget_blocks: spent.over_budget_blocks,
            over_budget_bytes: spent.over_budget_bytes,
            unwritten_blocks: spent.unwritten_blocks,
            unwritten_bytes: spent.unwritten_bytes,
        }
    }

    /// Return the hit rate lost because some blocks are not written.
    fn cost(&self) -> Option<f64> {
        let cost = self.if_all_written? - self.found?;
        let less = self.admission != Admission::All || self.over_budget_blocks + self.unwritten_blocks > 0;
        (less && cost > ALIKE).then_some(cost)
    }

    fn advice(&self) -> Option<String> {
        self.cost()?;
        let (found, all) = (self.found? * 100.0, self.if_all_written? * 100.0);
        let needs = self.bytes_per_day_for_all;
        let needs = needs.map_or(String::new(), |day| format!("; needs {} of writes a day", units::bytes(day)));
        let mut said = format!("Hit rate: {found:.1} % now; {all:.1} % with all blocks written to NVMe{needs}.");
        if let Some(day) = self.bytes_per_day {
            let _ = write!(
                said,
                " `bytes_per_day` limits this space to {} a day: {} blocks ({}) dropped unwritten in the last {}.",
                units::bytes(day),
                self.over_budget_blocks,
                units::bytes(self.over_budget_bytes),
                units::duration(self.window_s),
            );
        }
        if self.unwritten_blocks > 0 {
            let _ = write!(
                said,
                " Stores exceeded the disks' write rate: {} blocks ({}) dropped unwritten in the last {}.",
                self.unwritten_blocks,
                units::bytes(self.unwritten_bytes),
                units::duration(self.window_s),
            );
        }
        if self.admission != Admission::All {
            let _ = write!(
                said,
                " `tiers.nvme.admission = \"{}\"` does not write all blocks; \"all\" does.",
                self.admission
            );
        }
        Some(said)
    }
}

/// Print the estimates.
pub(super) fn run(args: &AdviseArgs) -> ExitCode {
    let status = match args.which.status() {
        Ok((_, status, _)) => status,
        Err(error) => return output::failed(&error),
    };
    let advised: Vec<Advised> = status.spaces.iter().map(|space| advised(space, &status)).collect();
    if args.json {
        return output::print_json(&serde_json::json!({ "spaces": advised }), ExitCode::SUCCESS);
    }
    let text = match advised.is_empty() {
        true => "No data: no engine has attached.\n".to_owned(),
        false => advised.iter().map(render).collect(),
    };
    output::print(&text, ExitCode::SUCCESS)
}

fn advised(space: &SpaceStatus, status: &Snapshot) -> Advised {
    let evict::Advice { configured, follow, entry_bytes, entries, host, policies, curve, .. } = &space.eviction;
    let point = |what: String, entries: u64, hits: Option<f64>| {
        hits.map(|hit_ratio| Point { what, bytes: entries * entry_bytes, hit_ratio })
    };
    let by_policy: Vec<Point> =
        policies.iter().filter_map(|(name, hits)| point(name.to_string(), *entries, *hits)).collect();
    let now = by_policy.iter().find(|p| p.what == follow.name()).map(|p| p.hit_ratio);
    let times = |c: &Curve, of: u64| {
        if c.entries >= of { format!("{}x", c.entries / of.max(1)) } else { format!("1/{}", of / c.entries.max(1)) }
    };
    let sizes_of = |curve: &[Curve], of: u64| -> Vec<Point> {
        let there = curve.iter().filter(|c| c.entries > 0 && of > 0);
        there.filter_map(|c| point(times(c, of), c.entries, c.hits)).collect()
    };
    // The first four are sizes of all tiers, the others of host memory.
    let (all, of_host) = curve.split_at(curve.len().min(4));
    let mut sizes = sizes_of(all, *entries);
    sizes.extend(point("1x".into(), *entries, now));
    sizes.sort_by_key(|p| p.bytes);
    let mut advised = Advised {
        space: space.space,
        name: space.name.clone(),
        policy: configured.to_string(),
        follows: follow.to_string(),
        writes: Writes::of(space, status, now),
        policies: by_policy,
        sizes,
        host: sizes_of(of_host, *host),
        advice: Vec::new(),
    };
    advised.advice = advice(&advised, now);
    advised
}

fn advice(of: &Advised, now: Option<f64>) -> Vec<String> {
    let Some(now) = now else { return vec!["Not enough samples for an estimate.".to_owned()] };
    let points = |share: f64| format!("{:+.1} points", share * 100.0);
    let mut said = Vec::from_iter(of.writes.advice());
    if of.writes.cost().is_some() {
        said.push("The estimates below assume that all blocks are written.".to_owned());
    }
    if let Some(best) = of.policies.iter().max_by(|a, b| a.hit_ratio.total_cmp(&b.hit_ratio)) {
        said.push(match best.hit_ratio - now {
            more if more > ALIKE && of.policy != "auto" => {
                format!("`eviction.policy = \"{}\"` or \"auto\": {} of hit rate.", best.what, points(more))
            }
            _ => "No policy gains more than 0.5 points.".to_owned(),
        });
    }
    if let Some(double) = of.sizes.iter().find(|p| p.what == "2x") {
        let more = double.hit_ratio - now;
        said.push(match more > ALIKE {
            true => format!("Twice the capacity ({}): {} of hit rate.", units::bytes(double.bytes), points(more)),
            false => "Twice the capacity gains at most 0.5 points.".to_owned(),
        });
    }
    if let [one, two] = &of.host[..] {
        let (bytes, more) = (units::bytes(two.bytes), points(two.hit_ratio - one.hit_ratio));
        said.push(format!("Twice the host memory ({bytes}): {more} of hits without NVMe reads."));
    }
    said
}

fn render(of: &Advised) -> String {
    let mut text = format!("space {} ({}): policy {}", of.space, of.name, of.policy);
    if of.policy != of.follows {
        let _ = write!(text, ", in effect {}", of.follows);
    }
    text.push('\n');
    if let Some(found) = of.writes.found {
        let _ = writeln!(text, "  current hit rate{:>18.1} %", found * 100.0);
    }
    let title =
        if of.writes.cost().is_some() { "  estimated hit rate, all blocks written," } else { "  estimated hit rate" };
    for (by, points) in [("by policy", &of.policies), ("by capacity", &of.sizes), ("by host memory", &of.host)] {
        if points.is_empty() {
            continue;
        }
        let _ = writeln!(text, "{title} {by}");
        for Point { what, bytes, hit_ratio } in points {
            let _ = writeln!(text, "    {what:<12}{:>12}{:>8.1} %", units::bytes(*bytes), hit_ratio * 100.0);
        }
    }
    for line in &of.advice {
        let _ = writeln!(text, "  {line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_daemon::status::{Spent, WriteBudget};

    fn space(policy: &str) -> SpaceStatus {
        let status = format!(
            r#"{{"space": 3, "name": "llama", "eviction": {{"configured": "{policy}", "follow": "lru", "entry_bytes": 1048576,
                "entries": 1024, "host": 256, "policies": [["lru", 0.2], ["s3-fifo", 0.25], ["arc", 0.21], ["cost-aware", 0.3]],
                "curve": [{{"entries": 256, "hits": 0.1}}, {{"entries": 512, "hits": 0.15}}, {{"entries": 2048, "hits": 0.4}},
                {{"entries": 4096, "hits": null}}, {{"entries": 256, "hits": 0.1}}, {{"entries": 512, "hits": 0.15}}]}}}}"#
        );
        serde_json::from_str(&status).unwrap()
    }

    #[test]
    fn says_what_would_hit_more() {
        let advised = advised(&space("lru"), &Snapshot::default());
        assert_eq!(advised.sizes.iter().map(|p| p.what.as_str()).collect::<Vec<_>>(), ["1/4", "1/2", "1x", "2x"]);
        let text = render(&advised);
        assert!(text.contains("\"cost-aware\"` or \"auto\": +10.0 points of hit rate."), "{text}");
        assert!(text.contains("Twice the capacity (2.00 GiB): +20.0 points of hit rate."), "{text}");
        assert!(text.contains("Twice the host memory (512 MiB): +5.0 points of hits without NVMe reads."), "{text}");
    }

    /// With a budget in force: the hit rate under it, the hit rate without it, and the budget that reaches the latter.
    #[test]
    fn says_what_the_write_budget_costs() {
        let mut space = space("lru");
        space.eviction.policies[0].1 = Some(0.84);
        space.eviction.found = Some(0.21);
        (space.budget.admission, space.budget.bytes_per_day) = (Admission::All, 100 << 30);
        let spent =
            Spent { uses: 10_000, over_budget_blocks: 3_517, over_budget_bytes: 3_517 << 20, ..Spent::default() };
        let write_budget = WriteBudget { window_s: 3600.0, spaces: [(3, spent)].into(), ..WriteBudget::default() };
        let status = Snapshot { write_budget, ..Snapshot::default() };
        let told = advised(&space, &status);
        // 1,600 blocks of 1 MiB an hour are computed again; half as many are added for bursts.
        assert_eq!(told.writes.bytes_per_day_for_all, Some((36 * 1600) << 20));
        let text = render(&told);
        for part in [
            "current hit rate              21.0 %",
            "Hit rate: 21.0 % now; 84.0 % with all blocks written to NVMe; needs 56.2 GiB of writes a day.",
            "limits this space to 100 GiB a day: 3517 blocks (3.43 GiB) dropped unwritten in the last 1 h 0 min.",
            "estimated hit rate, all blocks written, by capacity",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        // No advice if the hit rate equals the advised one, or if the budget lost nothing.
        space.eviction.found = Some(0.838);
        assert_eq!(advised(&space, &status).writes.advice(), None);
        space.eviction.found = Some(0.5);
        assert_eq!(advised(&space, &Snapshot::default()).writes.advice(), None);
        space.budget.admission = Admission::SecondTouch;
        let text = advised(&space, &Snapshot::default()).writes.advice().unwrap();
        assert!(
            text.contains("`tiers.nvme.admission = \"second-touch\"` does not write all blocks; \"all\" does."),
            "{text}"
        );
    }

    #[test]
    fn says_so_when_nothing_was_seen() {
        let mut space = space("auto");
        space.eviction.policies.iter_mut().for_each(|p| p.1 = None);
        assert_eq!(advised(&space, &Snapshot::default()).advice, ["Not enough samples for an estimate."]);
    }
}
