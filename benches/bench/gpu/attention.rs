//! Decode attention relative to the device's copy bandwidth, and the cost of page tables, splits and mass export.

use super::super::BenchError;
use super::super::report::Target;
use super::Place;
use super::figures::Figures;
use kvtide_client::cuda::measure::{Attended, Case, Size, attention, error_against_f64};
use kvtide_client::cuda::reference::Element;

/// A batch, its name in the report, and the minimum share of the bandwidth, if there is a target.
type Shape = (Case, &'static str, Option<f64>);
const SHAPES: [Shape; 7] = [
    (equal(1, 16 << 10), "1x16k", Some(0.6)),
    (equal(1, 128 << 10), "1x128k", Some(0.85)),
    (equal(8, 16 << 10), "8x16k", Some(0.85)),
    (equal(64, 4 << 10), "64x4k", Some(0.9)),
    (Case { ragged: true, ..equal(64, 4 << 10) }, "64x4k_ragged", Some(0.9)),
    (Case { kv_heads: 1, ..equal(1, 128 << 10) }, "1x128k_1head", None),
    (Case { kv_heads: 2, ..equal(4, 16 << 10) }, "4x16k_2heads", None),
];
const SHAPES_TINY: [Shape; 3] = [
    (equal(1, 256), "1x256", Some(0.0)),
    (Case { ragged: true, ..equal(2, 128) }, "2x128_ragged", Some(0.0)),
    (Case { kv_heads: 1, ..equal(1, 256) }, "1x256_1head", None),
];
const GROUPS: [u32; 2] = [4, 8];

/// KV heads of most batches.
const KV_HEADS: u32 = 8;

/// Return a batch of rows of the same length.
const fn equal(rows: u32, tokens: u32) -> Case {
    Case { rows, tokens, kv_heads: KV_HEADS, group: 0, ragged: false }
}
/// Targets: time with the page table, with fixed splits, with mass export ÷ time without.
const OVERHEAD_TABLE: Target = Target::AtMost(1.02);
const OVERHEAD: Target = Target::AtMost(1.03);
/// Maximum relative error against f64.
const ERRORS: [(Element, f64); 2] = [(Element::Bf16, 1e-2), (Element::F16, 2e-3)];

pub(super) fn measure(place: &Place, figures: &mut Figures) -> Result<(), BenchError> {
    let size = place.size(figures);
    let shapes = if size == Size::Full { &SHAPES[..] } else { &SHAPES_TINY };
    let mut all = vec![];
    for &(case, name, target) in shapes {
        let mut worst = f64::INFINITY;
        for group in GROUPS {
            let attended = attention(&place.device, Case { group, ..case }, size)?;
            worst = worst.min(share(&attended));
            one(&attended, figures);
            all.push(attended);
        }
        let what = format!("decode attention ÷ device copy bandwidth, {name}, worst group");
        let key = format!("attention_{name}");
        match target {
            Some(target) => figures.judged(key, what, (worst, "x"), Target::AtLeast(target)),
            None => figures.plain(key, what, worst, "x"),
        }
    }
    let mut worst = |key: &str, what: &str, target: Target, ratio: fn(&Attended) -> f64| {
        let most = all.iter().map(ratio).fold(f64::NEG_INFINITY, f64::max);
        figures.judged(key, what, (most, "x"), target);
    };
    worst("overhead_table", "page table: time ÷ time without, worst", OVERHEAD_TABLE, |a| {
        a.seconds / a.seconds_without_table
    });
    worst("overhead_splits", "fixed splits: time ÷ time with best splits, worst", OVERHEAD, |a| {
        a.seconds / a.best_splits.1
    });
    worst("overhead_mass", "mass export: time ÷ time without, worst", OVERHEAD, |a| a.seconds_with_mass / a.seconds);
    for (element, most) in ERRORS {
        let error = error_against_f64(&place.device, element, size)?;
        let what = format!("relative error against f64, {}, ragged batch", element.name());
        figures.judged(format!("error_{}", element.name()), what, (error, ""), Target::AtMost(most));
    }
    Ok(())
}

/// Return the rate of reading keys and values, divided by the read and write rate of a device-internal copy.
fn share(attended: &Attended) -> f64 {
    attended.bytes as f64 / attended.seconds / attended.copy_bytes_per_s
}

/// Add the figures of one shape and group.
fn one(attended: &Attended, figures: &mut Figures) {
    let Case { rows, tokens, kv_heads, group, ragged } = attended.case;
    let (suffix, mean) = if ragged { ("_ragged", " on average") } else { ("", "") };
    let heads = if kv_heads == KV_HEADS { String::new() } else { format!("_h{kv_heads}") };
    let key = format!("{rows}x{tokens}{suffix}{heads}_g{group}");
    let words = format!("{rows} × {tokens} tokens{mean}, {kv_heads} KV heads, group size {group}");
    let mut tell = |name: &str, what: &str, value: f64, unit| {
        figures.plain(format!("attention_{name}_{key}"), format!("decode attention, {words}: {what}"), value, unit);
    };
    tell("us", "time", attended.seconds * 1e6, "us");
    tell("gb_s", "keys and values read", attended.bytes as f64 / attended.seconds / 1e9, "GB/s");
    tell("copy_gb_s", "device-internal copy, read + written", attended.copy_bytes_per_s / 1e9, "GB/s");
    tell("share", "share of the copy bandwidth", share(attended), "x");
    tell("table", "time ÷ time without page table", attended.seconds / attended.seconds_without_table, "x");
    tell("mass", "time with mass export ÷ time without", attended.seconds_with_mass / attended.seconds, "x");
    tell("splits", "time ÷ time with best splits", attended.seconds / attended.best_splits.1, "x");
    tell("best_splits", "best splits", f64::from(attended.best_splits.0), "tokens");
}
