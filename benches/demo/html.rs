//! The report: one HTML file with inline SVG, without scripts and without anything that a browser would load.

use std::fmt::Write;

use super::chats::{self, CHATS, DOCUMENTS, MEMORY_CHATS};
use super::outcome::{Bar, NEXT, Outcome};
use super::report::{Results, mib, thousands};

/// Width of a chart in pixels.
const WIDTH: f64 = 640.0;
/// Width of the names at its left.
const NAMES: f64 = 230.0;
/// Height of a bar, and of the space for it.
const BAR: f64 = 18.0;
const ROW: f64 = 28.0;
/// Colours of tier 0, host memory and NVMe that remain distinct with red-green colour blindness (Okabe and Ito 2008), and of
/// computed tokens.
const TIERS: [(&str, &str); 3] = [("tier 0", "#0072b2"), ("host memory", "#e69f00"), ("NVMe", "#009e73")];
const COMPUTED: (&str, &str) = ("computed", "#999999");

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}\
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2rem}svg{max-width:100%;height:auto}\
td,th{padding:.15rem .8rem .15rem 0;text-align:left}.yes{color:#00674b}.no{color:#b00020;font-weight:bold}\
svg text{font:14px system-ui,sans-serif;fill:currentColor}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}.yes{color:#5fd3ac}.no{color:#ff8a80}}";

/// A part of a bar: name, colour and share.
type Share = (&'static str, &'static str, f64);

/// Return the page.
pub(super) fn page(outcome: &Outcome) -> String {
    let mut body = String::new();
    match (&outcome.chats, outcome.chats_skipped) {
        (Some(results), _) => chats_part(&mut body, results),
        (None, Some(flag)) => {
            let _ = writeln!(body, "<p>The chats were skipped because of <code>{}</code>.</p>", escape(flag));
        }
        (None, None) => {}
    }
    if let Some(results) = &outcome.paged {
        paged(&mut body, results);
    }
    let verdict = verdict(outcome.identical(), "All results are identical to those without kvtide.");
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>kvtide demo</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>kvtide demo</h1>\n{verdict}\
         <p>A small trained model on {}, measured in {:.0} s.</p>\n{body}<p>{}</p>\n</body>\n</html>\n",
        escape(outcome.paged.as_ref().and_then(|paged| paged.device.as_deref()).unwrap_or("the CPU")),
        outcome.seconds,
        escape(NEXT),
    )
}

fn paged(body: &mut String, results: &Results) {
    let setup = &results.setup;
    let frames = |count: u32| mib(setup.bytes_of(count.into()));
    let _ = writeln!(
        body,
        "<h2>2. Paged decode</h2>\n<p>A prompt of {} tokens, {} more decoded. The KV needs {}. Tier 0 has {} ({} %), host memory \
         {} ({} %){}.</p>",
        thousands(setup.sizes.prefill as u64),
        thousands(setup.sizes.decode as u64),
        mib(setup.bytes_of(setup.sizes.pages() as u64)),
        frames(setup.tier0_frames),
        setup.percent_of_kv(setup.bytes_of(setup.tier0_frames.into())),
        frames(setup.host_frames),
        setup.percent_of_kv(setup.host_bytes()),
        if setup.nvme.is_some() { ", NVMe the rest" } else { "; there is no NVMe" },
    );
    body.push_str(&verdict(results.identical(), &results.output()));
    let shares = results.found_shares();
    let parts: Vec<_> = TIERS.iter().zip(shares).map(|((name, colour), share)| (*name, *colour, share)).collect();
    body.push_str(&stacked("Where the steps of exact found their pages", &[("all steps", parts)]));
    body.push_str(&bars("Decode, tokens per second (lower quartile of step times)", &results.speeds(), ""));
    for run in &results.inexact {
        let prefetch = run.prefetch();
        let _ = writeln!(
            body,
            "<p>{}: {} pages prefetched; of those judged, {} used, {} not. Same next token as exact: {:.1} %.</p>",
            escape(run.contract()),
            thousands(prefetch.loads),
            thousands(prefetch.used),
            thousands(prefetch.wasted),
            run.same_choice() * 100.0
        );
    }
}

fn chats_part(body: &mut String, results: &chats::Results) {
    let _ = writeln!(
        body,
        "<h2>1. {CHATS} chats about {DOCUMENTS} documents</h2>\n<p>{} questions about documents of {} tokens. All KV needs {}; the \
         engine has {}, enough for {MEMORY_CHATS} chats, and the daemon {} of host memory. A chat lost its KV {} times to another \
         one. The daemon was killed and served again after {:.0} ms.</p>",
        results.planned.0,
        thousands(results.document_tokens as u64),
        mib(results.kv_bytes),
        mib(results.engine_bytes),
        mib(results.host_bytes),
        results.measured.preempted,
        results.restart_s * 1e3,
    );
    body.push_str(&verdict(results.identical(), &results.output()));
    body.push_str(&bars("Time to the first token, median", &results.first_tokens(), " ms"));
    let rows = [("kvtide", &results.measured.cached), ("after kill -9", &results.measured.restarted)];
    let rows: Vec<_> = rows.into_iter().map(|(name, asked)| (name, sources(asked))).collect();
    body.push_str(&stacked("Where the tokens of the prompts came from", &rows));
}

/// Return the parts of a bar: shares of the tokens of the prompts.
fn sources(asked: &[chats::Asked]) -> Vec<Share> {
    let sum = |of: fn(&chats::Asked) -> usize| asked.iter().map(of).sum::<usize>() as f64;
    let all = sum(|asked| asked.prompt).max(1.0);
    let part = |(name, colour), tokens: f64| (name, colour, tokens / all);
    vec![
        part(TIERS[1], sum(|asked| asked.host)),
        part(TIERS[2], sum(|asked| asked.nvme)),
        part(("engine's memory", TIERS[0].1), sum(|asked| asked.own)),
        part(COMPUTED, sum(chats::Asked::computed)),
    ]
}

fn verdict(identical: bool, words: &str) -> String {
    let (class, sign) = if identical { ("yes", "✓") } else { ("no", "✗ DIFFERENT:") };
    format!("<p class=\"{class}\">{sign} {}</p>\n", escape(words))
}

/// Return a chart of bars.
fn bars(title: &str, bars: &[Bar], unit: &str) -> String {
    let most = bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
    let rows: String = bars
        .iter()
        .enumerate()
        .map(|(i, bar)| {
            let (y, width) = (i as f64 * ROW, (WIDTH - NAMES - 110.0) * bar.value / most);
            let name = if bar.note.is_empty() { bar.name.clone() } else { format!("{}, {}", bar.name, bar.note) };
            // Notes with several words stand at the end of the bar, where there is room.
            let (name, note) = if name.len() > 30 { (bar.name.clone(), bar.note.as_str()) } else { (name, "") };
            format!(
                "<text x=\"0\" y=\"{:.0}\">{}</text><rect x=\"{NAMES}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"{BAR}\" \
                 fill=\"{}\"/><text x=\"{:.1}\" y=\"{:.0}\">{:.0}{unit} {}</text>",
                y + 14.0,
                escape(&name),
                TIERS[0].1,
                NAMES + width + 6.0,
                y + 14.0,
                bar.value,
                escape(note),
            )
        })
        .collect();
    svg(title, bars.len() as f64 * ROW, &rows)
}

/// Return a chart of bars that are divided into shares, with a legend.
fn stacked(title: &str, rows: &[(&str, Vec<Share>)]) -> String {
    let mut inside = String::new();
    for (i, (name, parts)) in rows.iter().enumerate() {
        let (y, mut x) = (i as f64 * ROW, NAMES);
        let _ = write!(inside, "<text x=\"0\" y=\"{:.0}\">{}</text>", y + 14.0, escape(name));
        for (part, colour, share) in parts {
            let width = (WIDTH - NAMES) * share;
            let _ = write!(
                inside,
                "<rect x=\"{x:.1}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{colour}\"><title>{}: {:.1} \
                 %</title></rect>",
                escape(part),
                share * 100.0
            );
            x += width;
        }
    }
    let y = rows.len() as f64 * ROW;
    for (row, (_, parts)) in rows.iter().enumerate() {
        let shown = parts.iter().filter(|part| part.2 > 0.0);
        let legend: Vec<String> = shown.map(|(part, _, share)| format!("{part} {:.0} %", share * 100.0)).collect();
        let y = y + row as f64 * 20.0 + 14.0;
        let _ = write!(inside, "<text x=\"{NAMES}\" y=\"{y:.0}\">{}</text>", escape(&legend.join(", ")));
    }
    svg(title, y + rows.len() as f64 * 20.0, &inside)
}

fn svg(title: &str, height: f64, inside: &str) -> String {
    let title = escape(title);
    format!(
        "<h3>{title}</h3>\n<svg viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" role=\"img\" aria-label=\"{title}\">{inside}\
         </svg>\n"
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_outside_are_text() {
        assert_eq!(escape("<b>\"a\" & b"), "&lt;b&gt;&quot;a&quot; &amp; b");
        let page = page(&Outcome { chats_skipped: Some("<script>"), ..Outcome::default() });
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;"), "{page}");
        assert!(page.contains("DIFFERENT"), "nothing that ran is not identical");
    }
}
