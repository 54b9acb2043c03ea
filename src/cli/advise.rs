//! `kvtide advise`: what another size or another policy would buy, by what the ghost caches of a running daemon have seen.

use super::status::model::{self, Curve, Eviction, Space, Status};
use super::status::{client, units};
use crate::config::defaults;
use crate::error::Error;
use crate::output;
use clap::Args;
use kvtide_tiering::evict;
use serde::Serialize;
use std::fmt::Write as _;
use std::process::ExitCode;

/// Two policies that differ by less are not told apart: the ghosts are samples.
const ALIKE: f64 = 0.005;

/// Flags of `kvtide advise`.
#[derive(Debug, Args)]
pub(super) struct AdviseArgs {
    /// Prints JSON: for each space the share of uses that found, or would find, their content
    #[arg(long)]
    json: bool,
    /// Where the daemon serves HTTP
    #[arg(long, value_name = "ADDR", default_value = defaults::HTTP_LISTEN)]
    http: String,
}

/// One size or one policy, and what it hits.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Point {
    what: String,
    bytes: u64,
    hit_ratio: f64,
}

/// One space.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Advised {
    space: u32,
    name: String,
    policy: String,
    follows: String,
    /// Effect of the writes to NVMe.
    writes: Writes,
    /// By policy, at the size that there is.
    policies: Vec<Point>,
    /// By size of all tiers below tier 0, under the policy that is followed.
    sizes: Vec<Point>,
    /// By size of host memory alone: what need not be read from NVMe.
    host: Vec<Point>,
    /// What to do about it.
    advice: Vec<String>,
}

/// Hit ratio now, and with every published block written to NVMe.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Writes {
    /// `tiers.nvme.admission`.
    admission: String,
    /// Share of recent uses that found their content.
    found: Option<f64>,
    /// The same if every published block were written.
    if_all_written: Option<f64>,
    /// Bound on the bytes written a day, if there is one.
    bytes_per_day: Option<u64>,
    /// Estimated bytes a day with every published block written, from the uses of the last hour.
    bytes_per_day_for_all: Option<u64>,
    /// Seconds that the next two cover.
    window_s: f64,
    /// Blocks dropped unwritten because of `bytes_per_day`.
    over_budget_blocks: u64,
    /// Their bytes.
    over_budget_bytes: u64,
    /// Blocks dropped on their way to NVMe within the window.
    unwritten_blocks: u64,
    /// Their bytes.
    unwritten_bytes: u64,
}

impl Writes {
    fn of(space: &Space, status: &Status, hits: Option<f64>) -> Writes {
        let (endurance, budget) = (&space.endurance, &status.write_budget);
        let spent = budget.spaces.get(&space.space).copied().unwrap_or_default();
        let per_day = |hits| {
            let within_us = (budget.window_s * 1e6) as u64;
            evict::bytes_per_day(hits, spent.uses, within_us, space.eviction.content_bytes)
        };
        Writes {
            admission: endurance.admission.clone(),
            found: space.eviction.found,
            if_all_written: hits,
            bytes_per_day: Some(endurance.bytes_per_day).filter(|bytes| *bytes > 0),
            bytes_per_day_for_all: hits.filter(|_| spent.uses > 0).map(per_day),
            window_s: budget.window_s,
            over_budget_blocks: spent.over_budget_blocks,
            over_budget_bytes: spent.over_budget_bytes,
            unwritten_blocks: spent.unwritten_blocks,
            unwritten_bytes: spent.unwritten_bytes,
        }
    }

    /// Hit ratio lost because some blocks are not written.
    fn cost(&self) -> Option<f64> {
        let cost = self.if_all_written? - self.found?;
        let less = self.admission != "all" || self.over_budget_blocks + self.unwritten_blocks > 0;
        (less && cost > ALIKE).then_some(cost)
    }

    fn advice(&self) -> Option<String> {
        self.cost()?;
        let (found, all) = (self.found? * 100.0, self.if_all_written? * 100.0);
        let needs = self.bytes_per_day_for_all.map_or(String::new(), |day| format!(", at {} a day", units::bytes(day)));
        let mut said = format!(
            "Not everything is written to NVMe: {found:.1} % of uses find their block; with everything written {all:.1} % \
             would{needs}."
        );
        if let Some(day) = self.bytes_per_day {
            let _ = write!(
                said,
                " `bytes_per_day` gives this space {} a day: {} blocks ({}) of the last {} were dropped unwritten for want of more.",
                units::bytes(day),
                self.over_budget_blocks,
                units::bytes(self.over_budget_bytes),
                units::duration(self.window_s),
            );
        }
        if self.unwritten_blocks > 0 {
            let _ = write!(
                said,
                " Stores outran the disks: {} blocks ({}) of the last {} were dropped before they were written.",
                self.unwritten_blocks,
                units::bytes(self.unwritten_bytes),
                units::duration(self.window_s),
            );
        }
        if self.admission != "all" {
            let _ =
                write!(said, " `tiers.nvme.admission = \"{}\"` keeps some back too; \"all\" does not.", self.admission);
        }
        Some(said)
    }
}

/// Prints what a daemon's ghosts say. 0, or 1 if no daemon answers.
pub(super) fn run(args: &AdviseArgs) -> ExitCode {
    match show(args) {
        Ok(text) => output::print(&text, ExitCode::SUCCESS),
        Err(error) => {
            output::say(format_args!("kvtide: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn show(args: &AdviseArgs) -> Result<String, Error> {
    let text = client::get(&args.http, client::STATUS)?;
    let status = model::parse(&args.http, &text)?;
    let advised: Vec<Advised> = status.spaces.iter().map(|space| advised(space, &status)).collect();
    if args.json {
        let text = serde_json::to_string_pretty(&advised);
        return text.map(|text| text + "\n").map_err(|error| Error::system("write the advice as JSON", error));
    }
    Ok(match advised.is_empty() {
        true => "There is no space yet: nothing has been seen.\n".to_owned(),
        false => advised.iter().map(render).collect(),
    })
}

fn advised(space: &Space, status: &Status) -> Advised {
    let Eviction { configured, follow, content_bytes, contents, host, policies, curve, .. } = &space.eviction;
    let point = |what: String, contents: u64, hits: Option<f64>| {
        hits.map(|hit_ratio| Point { what, bytes: contents * content_bytes, hit_ratio })
    };
    let by_policy: Vec<Point> =
        policies.iter().filter_map(|(name, hits)| point(name.clone(), *contents, *hits)).collect();
    let now = by_policy.iter().find(|p| p.what == *follow).map(|p| p.hit_ratio);
    let times = |c: &Curve, of: u64| {
        if c.contents >= of { format!("{}x", c.contents / of.max(1)) } else { format!("1/{}", of / c.contents.max(1)) }
    };
    let sizes_of = |curve: &[Curve], of: u64| -> Vec<Point> {
        let there = curve.iter().filter(|c| c.contents > 0 && of > 0);
        there.filter_map(|c| point(times(c, of), c.contents, c.hits)).collect()
    };
    // The first four are sizes of everything, the others of host memory.
    let (all, of_host) = curve.split_at(curve.len().min(4));
    let mut sizes = sizes_of(all, *contents);
    sizes.extend(point("1x".into(), *contents, now));
    sizes.sort_by_key(|p| p.bytes);
    let mut advised = Advised {
        space: space.space,
        name: space.name.clone(),
        policy: configured.clone(),
        follows: follow.clone(),
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
    let Some(now) = now else { return vec!["Too few uses were seen to say anything.".to_owned()] };
    let points = |share: f64| format!("{:+.1} points", share * 100.0);
    let mut said = Vec::from_iter(of.writes.advice());
    if of.writes.cost().is_some() {
        said.push("What follows holds once everything is written.".to_owned());
    }
    if let Some(best) = of.policies.iter().max_by(|a, b| a.hit_ratio.total_cmp(&b.hit_ratio)) {
        said.push(match best.hit_ratio - now {
            more if more > ALIKE && of.policy != "auto" => {
                format!("`eviction.policy = \"{}\"`, or \"auto\", would hit more: {}.", best.what, points(more))
            }
            _ => "No other policy would hit notably more.".to_owned(),
        });
    }
    if let Some(double) = of.sizes.iter().find(|p| p.what == "2x") {
        let more = double.hit_ratio - now;
        said.push(match more > ALIKE {
            true => format!("Twice the room ({}) would hit {}.", units::bytes(double.bytes), points(more)),
            false => "Twice the room would hit little more.".to_owned(),
        });
    }
    if let [one, two] = &of.host[..] {
        let (bytes, more) = (units::bytes(two.bytes), points(two.hit_ratio - one.hit_ratio));
        said.push(format!("Twice the host memory ({bytes}) would serve {more} of uses without NVMe."));
    }
    said
}

fn render(of: &Advised) -> String {
    let mut text = format!("space {} ({}): policy {}", of.space, of.name, of.policy);
    if of.policy != of.follows {
        let _ = write!(text, ", follows {}", of.follows);
    }
    text.push('\n');
    if let Some(found) = of.writes.found {
        let _ = writeln!(text, "  found now, of recent uses{:>15.1} %", found * 100.0);
    }
    let title = if of.writes.cost().is_some() { "  hit ratio if everything were written" } else { "  hit ratio" };
    for (by, points) in [("by policy", &of.policies), ("by room", &of.sizes), ("by host memory alone", &of.host)] {
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
    use super::super::status::model::{Spent, WriteBudget};
    use super::*;

    fn space(policy: &str) -> Space {
        let status = format!(
            r#"{{"space": 3, "name": "llama", "eviction": {{"configured": "{policy}", "follow": "lru", "content_bytes": 1048576,
                "contents": 1024, "host": 256, "policies": [["lru", 0.2], ["s3-fifo", 0.25], ["arc", 0.21], ["cost-aware", 0.3]],
                "curve": [{{"contents": 256, "hits": 0.1}}, {{"contents": 512, "hits": 0.15}}, {{"contents": 2048, "hits": 0.4}},
                {{"contents": 4096, "hits": null}}, {{"contents": 256, "hits": 0.1}}, {{"contents": 512, "hits": 0.15}}]}}}}"#
        );
        serde_json::from_str(&status).unwrap()
    }

    #[test]
    fn says_what_would_hit_more() {
        let advised = advised(&space("lru"), &Status::default());
        assert_eq!(advised.sizes.iter().map(|p| p.what.as_str()).collect::<Vec<_>>(), ["1/4", "1/2", "1x", "2x"]);
        let text = render(&advised);
        assert!(text.contains("\"cost-aware\"`, or \"auto\", would hit more: +10.0 points"), "{text}");
        assert!(text.contains("Twice the room (2.00 GiB) would hit +20.0 points"), "{text}");
        assert!(text.contains("Twice the host memory (512 MiB) would serve +5.0 points"), "{text}");
    }

    /// With a budget in force: the hit rate under it, the hit rate without it, and the budget that reaches that.
    #[test]
    fn says_what_the_write_budget_costs() {
        let mut space = space("lru");
        space.eviction.policies[0].1 = Some(0.84);
        space.eviction.found = Some(0.21);
        (space.endurance.admission, space.endurance.bytes_per_day) = ("all".into(), 100 << 30);
        let spent =
            Spent { uses: 10_000, over_budget_blocks: 3_517, over_budget_bytes: 3_517 << 20, ..Spent::default() };
        let write_budget = WriteBudget { window_s: 3600.0, spaces: [(3, spent)].into(), ..WriteBudget::default() };
        let status = Status { write_budget, ..Status::default() };
        let told = advised(&space, &status);
        // 1,600 blocks of 1 MiB an hour are computed anew, and half as many are allowed for bursts.
        assert_eq!(told.writes.bytes_per_day_for_all, Some((36 * 1600) << 20));
        let text = render(&told);
        for part in [
            "found now, of recent uses           21.0 %",
            "21.0 % of uses find their block; with everything written 84.0 % would, at 56.2 GiB a day",
            "gives this space 100 GiB a day: 3517 blocks (3.43 GiB) of the last 1 h 0 min were dropped unwritten",
            "hit ratio if everything were written by room",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        // No advice if the hit rate equals the advised one, or if the budget lost nothing.
        space.eviction.found = Some(0.838);
        assert_eq!(advised(&space, &status).writes.advice(), None);
        space.eviction.found = Some(0.5);
        assert_eq!(advised(&space, &Status::default()).writes.advice(), None);
        space.endurance.admission = "second-touch".into();
        let text = advised(&space, &Status::default()).writes.advice().unwrap();
        assert!(text.contains("`tiers.nvme.admission = \"second-touch\"` keeps some back too"), "{text}");
    }

    #[test]
    fn says_so_when_nothing_was_seen() {
        let mut space = space("auto");
        space.eviction.policies.iter_mut().for_each(|p| p.1 = None);
        assert_eq!(advised(&space, &Status::default()).advice, ["Too few uses were seen to say anything."]);
    }
}
