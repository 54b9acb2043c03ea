//! A metric family, its samples, and their text.

use super::format::Format;
use crate::status::Snapshot;
use kvtide_rt::histogram::Histogram;
use std::fmt::Write;

/// Exported bucket bounds, as powers of two of a microsecond: 16 µs, 64 µs, ..., 4.2 s. A bound doubles the exponent of
/// [`Histogram`]'s buckets, because each bound is a series.
const BOUNDS: [usize; 10] = [4, 6, 8, 10, 12, 14, 16, 18, 20, 22];

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Never decreases; its samples have `_total` at the end of the name.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// Counts by upper bound in seconds.
    Histogram,
}

/// Metric family: a name, and a function that produces its samples.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    /// Name without `_total`.
    pub name: &'static str,
    /// Help text: one sentence.
    pub help: &'static str,
    /// Kind of the metric.
    pub kind: Kind,
    /// Function that adds the samples of a snapshot. A family without samples is not exported.
    pub samples: fn(&Snapshot, &mut Samples),
}

/// Samples of one family.
#[derive(Debug, Default)]
pub(super) struct Samples(Vec<Sample>);

#[derive(Debug)]
struct Sample {
    /// Labels as text, without braces.
    labels: String,
    value: Value,
}

#[derive(Clone, Copy, Debug)]
enum Value {
    Whole(u64),
    Real(f64),
    Spread(Histogram),
}

impl Samples {
    /// Add an integer sample.
    pub fn whole(&mut self, labels: &[(&'static str, &str)], value: u64) {
        self.add(labels, Value::Whole(value));
    }

    /// Add a floating-point sample.
    pub fn real(&mut self, labels: &[(&'static str, &str)], value: f64) {
        self.add(labels, Value::Real(value));
    }

    /// Add a histogram of durations.
    pub fn spread(&mut self, labels: &[(&'static str, &str)], histogram: &Histogram) {
        self.add(labels, Value::Spread(*histogram));
    }

    fn add(&mut self, labels: &[(&'static str, &str)], value: Value) {
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
        self.0.push(Sample { labels: labels.join(","), value });
    }
}

impl Family {
    /// Define a counter.
    pub const fn counter(name: &'static str, help: &'static str, samples: fn(&Snapshot, &mut Samples)) -> Family {
        Family { name, help, kind: Kind::Counter, samples }
    }

    /// Define a gauge.
    pub const fn gauge(name: &'static str, help: &'static str, samples: fn(&Snapshot, &mut Samples)) -> Family {
        Family { name, help, kind: Kind::Gauge, samples }
    }

    /// Define a histogram of seconds.
    pub const fn histogram(name: &'static str, help: &'static str, samples: fn(&Snapshot, &mut Samples)) -> Family {
        Family { name, help, kind: Kind::Histogram, samples }
    }

    /// Append the description and the samples to a page, unless there are no samples.
    pub fn write(&self, snapshot: &Snapshot, format: Format, page: &mut String) {
        let mut samples = Samples::default();
        (self.samples)(snapshot, &mut samples);
        if samples.0.is_empty() {
            return;
        }
        let (kind, described, suffix) = match self.kind {
            Kind::Counter => ("counter", format.counter_suffix(), "_total"),
            Kind::Gauge => ("gauge", "", ""),
            Kind::Histogram => ("histogram", "", ""),
        };
        let name = self.name;
        page.push_str(&format!("# HELP {name}{described} {}\n", format.help(self.help)));
        page.push_str(&format!("# TYPE {name}{described} {kind}\n"));
        for Sample { labels, value } in &samples.0 {
            match value {
                Value::Whole(value) => line(page, (name, suffix), labels, value),
                Value::Real(value) => line(page, (name, suffix), labels, &number(*value)),
                Value::Spread(histogram) => spread(page, name, labels, histogram),
            }
        }
    }
}

/// Append one sample.
fn line(page: &mut String, (name, suffix): (&str, &str), labels: &str, value: &dyn std::fmt::Display) {
    let (open, close) = if labels.is_empty() { ("", "") } else { ("{", "}") };
    // Writing to a string does not fail.
    let _ = writeln!(page, "{name}{suffix}{open}{labels}{close} {value}");
}

/// Append the samples of a histogram.
fn spread(page: &mut String, name: &str, labels: &str, histogram: &Histogram) {
    let comma = if labels.is_empty() { "" } else { "," };
    let count: u64 = histogram.buckets.iter().sum();
    for power in BOUNDS {
        let below: u64 = histogram.buckets[..=power].iter().sum();
        let bound = number((1u64 << power) as f64 / 1e6);
        line(page, (name, "_bucket"), &format!("{labels}{comma}le=\"{bound}\""), &below);
    }
    line(page, (name, "_bucket"), &format!("{labels}{comma}le=\"+Inf\""), &count);
    line(page, (name, "_sum"), labels, &number(histogram.sum_us as f64 / 1e6));
    line(page, (name, "_count"), labels, &count);
}

/// Return a number as both formats write it.
fn number(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".into(),
        f64::NEG_INFINITY => "-Inf".into(),
        value => value.to_string(),
    }
}

/// Escape a label value. Engines choose the names of spaces.
fn escape(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '\\' => escaped.push_str("\\\\"),
            '"' => escaped.push_str("\\\""),
            '\n' => escaped.push_str("\\n"),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(family: Family, format: Format) -> String {
        let mut page = String::new();
        family.write(&Snapshot::empty(), format, &mut page);
        page
    }

    #[test]
    fn a_name_that_an_engine_chose_cannot_forge_a_line() {
        assert_eq!(escape("llama \"7b\"\nkvtide_up 1\r\\"), "llama \\\"7b\\\"\\nkvtide_up 1\u{fffd}\\\\");
    }

    #[test]
    fn a_counter_is_described_by_the_rules_of_each_format() {
        let family = Family::counter("kvtide_a", "Things, or \"others\".", |_, samples| {
            samples.whole(&[("x", "1"), ("y", "a\"b")], 7);
            samples.real(&[], 0.5);
        });
        let samples = "kvtide_a_total{x=\"1\",y=\"a\\\"b\"} 7\nkvtide_a_total 0.5\n";
        assert_eq!(
            written(family, Format::Prometheus),
            format!("# HELP kvtide_a_total Things, or \"others\".\n# TYPE kvtide_a_total counter\n{samples}")
        );
        assert_eq!(
            written(family, Format::OpenMetrics),
            format!("# HELP kvtide_a Things, or \\\"others\\\".\n# TYPE kvtide_a counter\n{samples}")
        );
    }

    #[test]
    fn a_gauge_may_have_any_value_and_a_family_without_samples_is_left_out() {
        let gauge = Family::gauge("kvtide_b", "B.", |_, samples| {
            [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.25].into_iter().for_each(|value| samples.real(&[], value));
        });
        for format in [Format::Prometheus, Format::OpenMetrics] {
            let text = "# HELP kvtide_b B.\n# TYPE kvtide_b gauge\nkvtide_b NaN\nkvtide_b +Inf\nkvtide_b -Inf\nkvtide_b -0.25\n";
            assert_eq!(written(gauge, format), text);
            assert_eq!(written(Family::gauge("kvtide_c", "C.", |_, _| {}), format), "");
        }
    }

    #[test]
    fn buckets_are_cumulative_and_end_with_all() {
        let family = Family::histogram("kvtide_d_seconds", "D.", |_, samples| {
            let mut histogram = Histogram::default();
            [0, 15, 16, 63, 64, 4_194_303, 4_194_304, 60_000_000].into_iter().for_each(|us| histogram.add(us));
            samples.spread(&[("x", "1")], &histogram);
        });
        let text = written(family, Format::Prometheus);
        let counts = [2, 4, 5, 5, 5, 5, 5, 5, 5, 6, 8].map(|count: u64| count.to_string());
        let bounds = "0.000016 0.000064 0.000256 0.001024 0.004096 0.016384 0.065536 0.262144 1.048576 4.194304 +Inf";
        let mut lines: Vec<String> = bounds
            .split(' ')
            .zip(counts)
            .map(|(bound, count)| format!("kvtide_d_seconds_bucket{{x=\"1\",le=\"{bound}\"}} {count}"))
            .collect();
        lines.push("kvtide_d_seconds_sum{x=\"1\"} 68.388765".into());
        lines.push("kvtide_d_seconds_count{x=\"1\"} 8".into());
        assert_eq!(text.lines().skip(2).collect::<Vec<_>>(), lines);
    }
}
