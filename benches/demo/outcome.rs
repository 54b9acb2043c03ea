//! Results of the whole demo: the summary, the JSON object and the verdict.

use std::fmt::Write;
use std::path::Path;

use kvtide_daemon::output;
use serde::Serialize;

use super::chats::{self, CHATS, DOCUMENTS, MEMORY_CHATS, first_token_s};
use super::report::{self, Results, mib, thousands};

/// First line of the output.
pub(super) const TITLE: &str =
    "kvtide demo: a small trained model with a private daemon; results are compared with those without\n";
/// What a reader can do next.
pub(super) const NEXT: &str = "Next: use it with your own engine: docs/quickstart/vllm.md";
/// Characters of the longest bar.
const BAR: usize = 34;

/// Results of the parts that ran.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub paged: Option<Results>,
    pub chats: Option<chats::Results>,
    /// The flag because of which the chats did not run.
    pub chats_skipped: Option<&'static str>,
    /// Time of the whole demo.
    pub seconds: f64,
}

/// The object printed by `--json`.
#[derive(Serialize)]
struct Object<'a> {
    /// Every comparison of every part that ran held.
    identical: bool,
    seconds: f64,
    #[serde(flatten)]
    paged: Option<report::Object>,
    chats: Option<&'a chats::Results>,
}

/// A named figure with a bar.
pub(super) struct Bar {
    pub name: String,
    pub value: f64,
    pub note: String,
}

impl Outcome {
    /// Return true if at least one part ran and all results of all parts were identical to those without kvtide.
    pub fn identical(&self) -> bool {
        let paged = self.paged.as_ref().map(Results::identical);
        let chats = self.chats.as_ref().map(chats::Results::identical);
        paged.or(chats).is_some() && paged.unwrap_or(true) && chats.unwrap_or(true)
    }

    /// Return the JSON object in one line.
    pub fn json(&self) -> String {
        output::json_line(&Object {
            identical: self.identical(),
            seconds: self.seconds,
            paged: self.paged.as_ref().map(Results::object),
            chats: self.chats.as_ref(),
        })
    }

    /// Return the summary of paged decode.
    pub fn paged_text(&self) -> String {
        let Some(results) = &self.paged else { return String::new() };
        let setup = &results.setup;
        let mut text = format!(
            "\n2. Paged decode: a prompt of {} tokens, {} more decoded, part of the KV outside tier 0\n",
            thousands(setup.sizes.prefill as u64),
            thousands(setup.sizes.decode as u64)
        );
        let pages = setup.sizes.pages() as u64;
        let rest = if setup.nvme.is_some() { ", NVMe the rest" } else { ", no NVMe" };
        let _ = writeln!(
            text,
            "   KV           {} needed; tier 0: {} ({} %), host memory: {} ({} %){rest}",
            mib(setup.bytes_of(pages)),
            mib(setup.bytes_of(setup.tier0_frames.into())),
            setup.percent_of_kv(setup.bytes_of(setup.tier0_frames.into())),
            mib(setup.host_bytes()),
            setup.percent_of_kv(setup.host_bytes()),
        );
        let shares = results.found_shares();
        let _ = writeln!(
            text,
            "   pages found  [{}] tier 0 {:.0} %, host {:.0} %, NVMe {:.0} %",
            tiers(shares),
            shares[0] * 100.0,
            shares[1] * 100.0,
            shares[2] * 100.0
        );
        let _ = writeln!(text, "   output       {}", results.output());
        push_bars(&mut text, "tokens/s", &results.speeds(), |value| format!("{value:.0}"));
        for run in &results.inexact {
            let used = run.prefetch().used_share().map_or_else(
                || "no page was prefetched".into(),
                |used| {
                    let loads = thousands(run.prefetch().loads);
                    format!("{loads} pages prefetched, {:.0} % of those judged used", used * 100.0)
                },
            );
            let same = run.same_choice() * 100.0;
            let _ = writeln!(text, "   {:<12} {used}; same next token as exact: {same:.1} %", run.contract());
        }
        text
    }

    /// Return the summary of the chats.
    pub fn chats_text(&self) -> String {
        let Some(results) = &self.chats else {
            return match self.chats_skipped {
                Some(flag) => format!("\n1. Chats: skipped because of {flag}; run `kvtide demo --parts chats`\n"),
                None => String::new(),
            };
        };
        let mut text = format!(
            "\n1. {CHATS} chats, {} questions about {DOCUMENTS} documents of {} tokens; the engine has room for {MEMORY_CHATS} chats\n",
            results.planned.0,
            thousands(results.document_tokens as u64),
        );
        let _ = writeln!(
            text,
            "   KV           {} needed; engine: {}, host memory: {}; a chat lost its KV {} times",
            mib(results.kv_bytes),
            mib(results.engine_bytes),
            mib(results.host_bytes),
            results.measured.preempted
        );
        push_bars(&mut text, "first token", &results.first_tokens(), |value| format!("{value:.0} ms"));
        for (name, asked) in [("hits", &results.measured.cached), ("after kill", &results.measured.restarted)] {
            let _ = writeln!(text, "   {name:<12} {}", chats::hits(asked));
        }
        let _ = writeln!(text, "   output       {}", results.output());
        text
    }

    /// Return the last lines.
    pub fn last_text(&self, report: Option<&Path>) -> String {
        let verdict = match self.identical() {
            true => "All results are identical.",
            false => "NOT IDENTICAL: see above.",
        };
        let report = report.map_or_else(
            || "more: --details, charts: --report FILE.html".to_owned(),
            |path| format!("report: {}", path.display()),
        );
        format!("\n{verdict} {:.0} s; {report}\n{NEXT}\n", self.seconds)
    }
}

impl chats::Results {
    /// Return the median times to the first token, in milliseconds.
    pub(super) fn first_tokens(&self) -> Vec<Bar> {
        let chats::Measured { without, cached, restarted, .. } = &self.measured;
        let bar = |name: &str, asked: &[chats::Asked], note| Bar {
            name: name.into(),
            value: first_token_s(asked) * 1e3,
            note,
        };
        let back = format!("daemon back in {:.0} ms", self.restart_s * 1e3);
        vec![
            bar("no cache", without, "whole prompt".into()),
            bar("kvtide", cached, String::new()),
            bar("after kill -9", restarted, back),
        ]
    }

    /// Return the result of the comparison in words.
    pub(super) fn output(&self) -> String {
        let chats::Measured { tokens, tokens_different, logits, .. } = &self.measured;
        let (tokens, logit_count) = (thousands(*tokens as u64), thousands(logits.compared));
        match (self.identical(), &logits.first) {
            (true, _) => {
                format!("identical: yes; {tokens} tokens, and {logit_count} logits bit for bit, as without a cache")
            }
            (false, Some(first)) => format!(
                "identical: NO; {tokens_different} of {tokens} tokens differ, first logit at position {}: {:e}, not {:e}",
                first.position, first.found, first.expected
            ),
            (false, None) => format!("identical: NO; only {tokens} tokens and {logit_count} logits were compared"),
        }
    }
}

impl Results {
    /// Return the shares of pages found in tier 0, host memory and NVMe, over all steps of `exact`.
    pub(super) fn found_shares(&self) -> [f64; 3] {
        let found = self.found();
        let all = found.iter().sum::<u64>().max(1) as f64;
        found.map(|pages| pages as f64 / all)
    }

    /// Return the decoded tokens per second.
    pub(super) fn speeds(&self) -> Vec<Bar> {
        let bar = |name: &str, value: f64, note: &str| Bar { name: name.into(), value, note: note.into() };
        let mut bars = vec![
            bar("all resident", 1.0 / self.resident.step_s, "all KV in tier 0"),
            bar("exact", 1.0 / self.tiered.step_s, ""),
        ];
        for run in &self.inexact {
            let (without, with) = run.tokens_per_s();
            bars.extend(without.map(|rate| bar(run.contract(), rate, "without prefetch")));
            bars.push(bar(run.contract(), with, "with prefetch"));
        }
        bars
    }

    /// Return the result of the comparison in words.
    pub(super) fn output(&self) -> String {
        let count = thousands(self.resident.comparison.compared + self.tiered.comparison.compared);
        match self.identical() {
            true => format!("identical: yes; {count} logits of exact, bit for bit, as without kvtide"),
            false => format!("identical: NO; {}", self.verdict()),
        }
    }
}

/// Return a bar of tiers: `0` for tier 0, `h` for host memory, `n` for NVMe. A tier with any page has at least one character.
fn tiers(shares: [f64; 3]) -> String {
    let mut counts = shares.map(|share| if share > 0.0 { ((share * BAR as f64).round() as usize).max(1) } else { 0 });
    let largest = if counts[0] >= counts[1].max(counts[2]) { 0 } else { 1 + usize::from(counts[2] > counts[1]) };
    let others: usize = (0..3).filter(|tier| *tier != largest).map(|tier| counts[tier]).sum();
    counts[largest] = BAR.saturating_sub(others);
    ["0", "h", "n"].iter().zip(counts).map(|(tier, count)| tier.repeat(count)).collect()
}

/// Append a line per bar; the first begins with the title.
fn push_bars(text: &mut String, title: &str, bars: &[Bar], show: impl Fn(f64) -> String) {
    let most = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    for (i, Bar { name, value, note }) in bars.iter().enumerate() {
        let title = if i == 0 { title } else { "" };
        let length = if most > 0.0 { ((value / most * BAR as f64).round() as usize).clamp(1, BAR) } else { 1 };
        let line = format!("   {title:<12} {name:<14} {:>7}  {} {note}", show(*value), "#".repeat(length));
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_of_tiers_is_whole_and_hides_no_tier() {
        assert_eq!(tiers([1.0, 0.0, 0.0]), "0".repeat(BAR));
        for shares in [[0.998, 0.001, 0.001], [0.3, 0.3, 0.4], [0.0, 0.999, 0.001]] {
            let bar = tiers(shares);
            assert_eq!(bar.len(), BAR);
            for (tier, share) in ["0", "h", "n"].iter().zip(shares) {
                assert_eq!(bar.contains(tier), share > 0.0, "{bar}");
            }
        }
    }

    #[test]
    fn the_longest_bar_leaves_room_for_its_note() {
        let bar = |note: &str| Bar { name: "after kill -9".into(), value: 12_345.0, note: note.into() };
        let mut text = String::new();
        push_bars(&mut text, "first token", &[bar("daemon back in 1,234 ms"), bar("without prefetch")], |v| {
            format!("{v} ms")
        });
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    }

    #[test]
    fn nothing_that_ran_is_not_identical() {
        assert!(!Outcome::default().identical());
        assert!(Outcome::default().last_text(None).contains("NOT IDENTICAL"));
    }
}
