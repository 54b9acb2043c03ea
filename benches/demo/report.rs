//! Results of the demo, as a table and as JSON.

use std::fmt::Write;

use serde::Serialize;

use super::console::is_stand_in;
use super::contracts::{self, Inexact};
use super::engine::{Counters, Measured};
use super::nvme::Figures;
use super::setup::Setup;

/// Everything measured in one demo.
#[derive(Clone, Debug)]
pub struct Results {
    /// Sizes.
    pub setup: Setup,
    /// Name of the device that held tier 0, if any.
    pub device: Option<String>,
    /// Run over a plain array.
    pub plain: Measured,
    /// Run over kvtide with everything in tier 0.
    pub resident: Measured,
    /// Run over kvtide with the small tier 0.
    pub tiered: Measured,
    /// NVMe figures of that run, if there is an NVMe tier.
    pub nvme: Option<Figures>,
    /// Runs with the small tier 0 and contracts other than exact.
    pub inexact: Vec<Inexact>,
}

/// Figures by tier.
#[derive(Clone, Copy, Debug, Serialize)]
struct ByTier {
    tier0: u64,
    host: u64,
    nvme: u64,
}

/// Bytes by edge.
#[derive(Clone, Copy, Debug, Serialize)]
struct ByEdge {
    host_to_tier0: u64,
    tier0_to_host: u64,
    nvme_to_host: u64,
    host_to_nvme: u64,
}

/// The object printed by `--json`. Rates are of the lower quartile of decode steps; the steps of the plain array and of the
/// resident run alternated. Counters are of the tiered run including prefill; stalls are of its decode steps. Figures of missing
/// tiers are 0.
#[derive(Debug, Serialize)]
pub(super) struct Object {
    bit_identical: bool,
    /// Reference of the comparison: `plain`, or `resident` on a device.
    reference: &'static str,
    /// Name of the device, if any.
    device: Option<String>,
    /// The device is the CPU stand-in for a GPU, so times are not meaningful.
    device_is_stand_in: bool,
    /// On a device: maximum distance of the resident run's half-precision logits from those of the plain array.
    distance_from_plain: Option<f32>,
    tokens_per_s: f64,
    tokens_per_s_resident: f64,
    tokens_per_s_plain: f64,
    pages_found: ByTier,
    bytes_moved: ByEdge,
    bytes_optimum: ByEdge,
    stall_us_per_token: f64,
    prefill_tokens: usize,
    decode_tokens: usize,
    logits_compared: u64,
    tier0_frames: u32,
    host_windows: u32,
    /// Pages mapped for reading in host memory.
    pages_shown_in_place: u64,
    host_frames: u32,
    nvme_configured: bool,
    /// Bytes of the pages read from NVMe divided by the optimum; null if the optimum is 0.
    nvme_read_ratio: Option<f64>,
    /// Figures of the disk; null without an NVMe tier.
    nvme: Option<Figures>,
    /// Runs with the small tier 0 and contracts other than exact.
    contracts: Vec<contracts::Object>,
}

impl Results {
    /// Return true if every logit of both kvtide runs is bit-identical to the plain array's. On a device: if those of the small
    /// tier 0 are bit-identical to the resident run's.
    #[must_use]
    pub fn identical(&self) -> bool {
        let logits = self.setup.logits();
        if self.device.is_some() {
            return self.tiered.comparison.identical(logits);
        }
        self.resident.comparison.identical(logits) && self.tiered.comparison.identical(logits)
    }

    /// Return the pages found by the agent below tier 0 that came from NVMe. The daemon counts pages that it must load for a step;
    /// the agent counts pages that are missing when the step reaches them. Pages loaded in between count as tier 0 for the agent.
    fn found_nvme(&self, counters: &Counters) -> u64 {
        self.nvme.as_ref().map_or(0, |nvme| nvme.pages_found).min(counters.pages_below)
    }

    /// Return the pages that the steps of the tiered run found in tier 0, host memory and NVMe.
    pub(super) fn found(&self) -> [u64; 3] {
        let counters = self.tiered.prefill + self.tiered.decode;
        let nvme = self.found_nvme(&counters);
        [counters.pages_tier0, counters.pages_below - nvme, nvme]
    }

    /// Return the part of the JSON object about this run.
    pub(super) fn object(&self) -> Object {
        let counters = self.tiered.prefill + self.tiered.decode;
        let (sizes, frames) = (&self.setup.sizes, self.setup.tier0_frames);
        let (nvme_moved, nvme_optimum) = (self.nvme_moved(), self.nvme_optimum());
        let [tier0, host, nvme] = self.found();
        Object {
            bit_identical: self.identical(),
            reference: if self.device.is_some() { "resident" } else { "plain" },
            device: self.device.clone(),
            device_is_stand_in: self.device.as_deref().is_some_and(is_stand_in),
            distance_from_plain: self.resident.distance,
            tokens_per_s: 1.0 / self.tiered.step_s,
            tokens_per_s_resident: 1.0 / self.resident.step_s,
            tokens_per_s_plain: 1.0 / self.plain_step(),
            pages_found: ByTier { tier0, host, nvme },
            bytes_moved: ByEdge {
                host_to_tier0: counters.bytes_host_to_tier0,
                tier0_to_host: counters.bytes_tier0_to_host,
                nvme_to_host: nvme_moved.0,
                host_to_nvme: nvme_moved.1,
            },
            bytes_optimum: ByEdge {
                host_to_tier0: sizes.optimum_host_to_tier0(frames),
                tier0_to_host: sizes.optimum_tier0_to_host(frames),
                nvme_to_host: nvme_optimum.0,
                host_to_nvme: nvme_optimum.1,
            },
            stall_us_per_token: self.stall_us(&self.tiered),
            prefill_tokens: sizes.prefill,
            decode_tokens: sizes.decode,
            logits_compared: self.resident.comparison.compared + self.tiered.comparison.compared,
            tier0_frames: frames,
            host_windows: self.setup.host_windows,
            pages_shown_in_place: counters.pages_in_place,
            host_frames: self.setup.host_frames,
            nvme_configured: self.nvme.is_some(),
            nvme_read_ratio: (nvme_optimum.0 > 0).then(|| nvme_moved.0 as f64 / nvme_optimum.0 as f64),
            nvme: self.nvme.clone(),
            contracts: self.inexact.iter().map(Inexact::object).collect(),
        }
    }

    /// Return the table.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = Table::default();
        let runs = [&self.plain, &self.resident, &self.tiered];
        let over_kvtide =
            |figure: &dyn Fn(&Measured) -> String| ["".to_owned(), figure(&self.resident), figure(&self.tiered)];
        let total = |figure: fn(&Counters) -> u64| over_kvtide(&|m| thousands(figure(&(m.prefill + m.decode))));
        let moved = |figure: fn(&Counters) -> u64| over_kvtide(&|m| mib(figure(&(m.prefill + m.decode))));
        let small = format!("tier 0 at {} %", self.setup.tier0_percent);
        table.row("", ["plain array".into(), "all resident".into(), small]);
        let prefill = self.setup.sizes.prefill as f64;
        table.row("prefill, tokens/s", runs.map(|m| format!("{:.0}", prefill / m.prefill_s)));
        table.row("decode, s", runs.map(|m| format!("{:.2}", m.decode_s)));
        let steps = [self.plain_step(), self.resident.step_s, self.tiered.step_s];
        table.row("decode, tokens/s (quartile)", steps.map(|s| format!("{:.1}", 1.0 / s)));
        let ratio = |step: f64| format!("{:+.1} %", (self.plain_step() / step - 1.0) * 100.0);
        table.row("  relative to plain array", ["".into(), ratio(steps[1]), ratio(steps[2])]);
        table.row("stall per decoded token, us", over_kvtide(&|m| format!("{:.1}", self.stall_us(m))));
        table.row("messages before decode steps", over_kvtide(&|m| thousands(m.decode.messages_before_steps)));
        table.row("pages found in tier 0", total(|c| c.pages_tier0));
        table.row("  below tier 0", total(|c| c.pages_below));
        let nvme = |figure: &dyn Fn(&Figures) -> String| match &self.nvme {
            Some(figures) => ["".to_owned(), "".to_owned(), figure(figures)],
            None => ["".to_owned(), "none".to_owned(), "none".to_owned()],
        };
        table.row(
            "    of these only on NVMe",
            nvme(&|_| thousands(self.found_nvme(&(self.tiered.prefill + self.tiered.decode)))),
        );
        if self.setup.host_windows > 0 {
            table.row("pages read in host memory", total(|c| c.pages_in_place));
        }
        table.row("moved host -> tier 0", moved(|c| c.bytes_host_to_tier0));
        let (sizes, frames) = (&self.setup.sizes, self.setup.tier0_frames);
        let totals = self.tiered.prefill + self.tiered.decode;
        table.optimum(totals.bytes_host_to_tier0, sizes.optimum_host_to_tier0(frames));
        table.row("moved tier 0 -> host", moved(|c| c.bytes_tier0_to_host));
        table.optimum(totals.bytes_tier0_to_host, sizes.optimum_tier0_to_host(frames));
        table.row("moved nvme -> host", nvme(&|figures| mib(figures.page_bytes_read)));
        if self.nvme.is_some() {
            table.optimum(self.nvme_moved().0, self.nvme_optimum().0);
        }
        table.row("moved host -> nvme", nvme(&|figures| mib(figures.page_bytes_written)));
        if self.nvme.is_some() {
            table.optimum(self.nvme_moved().1, self.nvme_optimum().1);
        }
        table.row("NVMe I/O mode", nvme(&|figures| figures.io_mode.clone()));
        let logits = self.setup.logits();
        let verdict = |m: &Measured| match m.comparison.identical(logits) {
            true => format!("all {}", thousands(m.comparison.compared)),
            false => format!("{} of {} differ", thousands(m.comparison.different), thousands(logits as u64)),
        };
        match self.resident.distance {
            None => {
                table.row("bit-identical logits", ["reference".into(), verdict(&self.resident), verdict(&self.tiered)]);
            }
            Some(distance) => {
                table.row("max. distance from plain array", ["".into(), format!("{distance:.3}"), "".into()]);
                table.row("bit-identical logits", ["".into(), "reference".into(), verdict(&self.tiered)]);
            }
        }
        table.text
    }

    /// Return the comparison of contracts, empty if there is only exact.
    #[must_use]
    pub fn contracts(&self) -> String {
        match contracts::table(&self.tiered, self.setup.sizes.decode, &self.inexact) {
            table if table.is_empty() => table,
            table => format!("{table}\n"),
        }
    }

    /// Return the final line in words.
    #[must_use]
    pub fn verdict(&self) -> String {
        for (name, measured) in [("all resident", &self.resident), ("the small tier 0", &self.tiered)] {
            if let Some(first) = &measured.comparison.first {
                return format!(
                    "NOT IDENTICAL: with {name}, position {}, token {}: {:e} instead of {:e}",
                    first.position, first.token, first.found, first.expected
                );
            }
        }
        let count = thousands(self.resident.comparison.compared + self.tiered.comparison.compared);
        match self.identical() {
            true if self.device.is_some() => {
                let device = self.device.as_deref().unwrap_or_default();
                let real = if is_stand_in(device) { " (no GPU: CPU stand-in)" } else { "" };
                format!(
                    "All {count} logits with the small tier 0 on {device}{real} are bit-identical to the resident run."
                )
            }
            true => format!("All {count} logits of both kvtide runs are bit-identical to the plain array."),
            false => format!("INCOMPLETE: only {count} logits were compared."),
        }
    }

    /// Return the plain array's step time, measured in alternation with the resident run if possible.
    fn plain_step(&self) -> f64 {
        self.resident.plain_step_s.unwrap_or(self.plain.step_s)
    }

    /// Return the bytes of pages read from NVMe and written to it.
    fn nvme_moved(&self) -> (u64, u64) {
        self.nvme.as_ref().map_or((0, 0), |nvme| (nvme.page_bytes_read, nvme.page_bytes_written))
    }

    /// Return the minimum of these.
    fn nvme_optimum(&self) -> (u64, u64) {
        if self.nvme.is_none() {
            return (0, 0);
        }
        let Setup { sizes, tier0_frames, host_frames, .. } = self.setup;
        (sizes.optimum_nvme_to_host(tier0_frames, host_frames), sizes.optimum_host_to_nvme(tier0_frames, host_frames))
    }

    fn stall_us(&self, measured: &Measured) -> f64 {
        measured.decode.stall_ns as f64 / 1e3 / self.setup.sizes.decode as f64
    }
}

/// Rows of a name and three figures.
#[derive(Default)]
struct Table {
    text: String,
}

impl Table {
    fn row(&mut self, name: &str, figures: [String; 3]) {
        let [a, b, c] = figures;
        let line = format!("{name:<31} {a:>13} {b:>15} {c:>20}");
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{}", line.trim_end());
    }

    fn optimum(&mut self, moved: u64, optimum: u64) {
        let ratio = if optimum == 0 { String::new() } else { format!(" (x{:.2})", moved as f64 / optimum as f64) };
        self.row("  optimum", ["".into(), "0.0 MiB".into(), format!("{}{ratio}", mib(optimum))]);
    }
}

/// Format bytes in MiB.
pub(super) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Format with a comma after each third digit from the right.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            ["0", "999", "1,000", "1,234,567"],
            [0, 999, 1000, 1_234_567].map(thousands).each_ref().map(|s| &s[..])
        );
        assert_eq!(mib(360 * 32768), "11.2 MiB");
    }
}
