//! `kvtide advise`: what another size or another policy would buy, by what the ghost caches of a running daemon have seen.

use super::status::model::{self, Curve, Eviction, Space};
use super::status::{client, units};
use crate::config::defaults;
use crate::error::Error;
use crate::output;
use clap::Args;
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
    /// By policy, at the size that there is.
    policies: Vec<Point>,
    /// By size of all tiers below tier 0, under the policy that is followed.
    sizes: Vec<Point>,
    /// By size of host memory alone: what need not be read from NVMe.
    host: Vec<Point>,
    /// What to do about it.
    advice: Vec<String>,
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
    let advised: Vec<Advised> = status.spaces.iter().map(advised).collect();
    if args.json {
        let text = serde_json::to_string_pretty(&advised);
        return text.map(|text| text + "\n").map_err(|error| Error::system("write the advice as JSON", error));
    }
    Ok(match advised.is_empty() {
        true => "There is no space yet: nothing has been seen.\n".to_owned(),
        false => advised.iter().map(render).collect(),
    })
}

fn advised(space: &Space) -> Advised {
    let Eviction { configured, follow, content_bytes, contents, host, policies, curve } = &space.eviction;
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
    let mut said = Vec::new();
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
    for (title, points) in [("by policy", &of.policies), ("by room", &of.sizes), ("by host memory alone", &of.host)] {
        if points.is_empty() {
            continue;
        }
        let _ = writeln!(text, "  hit ratio {title}");
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
        let advised = advised(&space("lru"));
        assert_eq!(advised.sizes.iter().map(|p| p.what.as_str()).collect::<Vec<_>>(), ["1/4", "1/2", "1x", "2x"]);
        let text = render(&advised);
        assert!(text.contains("\"cost-aware\"`, or \"auto\", would hit more: +10.0 points"), "{text}");
        assert!(text.contains("Twice the room (2.00 GiB) would hit +20.0 points"), "{text}");
        assert!(text.contains("Twice the host memory (512 MiB) would serve +5.0 points"), "{text}");
    }

    #[test]
    fn says_so_when_nothing_was_seen() {
        let mut space = space("auto");
        space.eviction.policies.iter_mut().for_each(|p| p.1 = None);
        assert_eq!(advised(&space).advice, ["Too few uses were seen to say anything."]);
    }
}
