//! A metric family, its samples, and their encoding.

use crate::status::Snapshot;
use kvtide_rt::histogram::{BUCKETS, Histogram};
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use std::fmt;

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Never decreases; the encoder appends `_total` to the name.
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
    labels: Labels,
    value: Value,
}

#[derive(Debug)]
enum Value {
    Whole(u64),
    Real(f64),
    Spread { sum: f64, count: u64, buckets: Vec<(f64, u64)> },
}

impl Samples {
    /// Add an integer sample.
    pub fn whole(&mut self, labels: &[(&'static str, &str)], value: u64) {
        self.0.push(Sample { labels: Labels::new(labels), value: Value::Whole(value) });
    }

    /// Add a floating-point sample.
    pub fn real(&mut self, labels: &[(&'static str, &str)], value: f64) {
        self.0.push(Sample { labels: Labels::new(labels), value: Value::Real(value) });
    }

    /// Add a histogram. Its buckets are powers of two in microseconds; the exported bounds are in seconds.
    pub fn spread(&mut self, labels: &[(&'static str, &str)], histogram: &Histogram) {
        let bound = |power: usize| match power + 1 < BUCKETS {
            true => (1u64 << power) as f64 * 1e-6,
            false => f64::MAX, // the encoder writes +Inf
        };
        let buckets = histogram.buckets.iter().enumerate().map(|(power, count)| (bound(power), *count)).collect();
        let (sum, count) = (histogram.sum_us as f64 * 1e-6, histogram.buckets.iter().sum());
        self.0.push(Sample { labels: Labels::new(labels), value: Value::Spread { sum, count, buckets } });
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

    /// Write the description and the samples, unless there are no samples.
    pub fn encode(&self, snapshot: &Snapshot, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut samples = Samples::default();
        (self.samples)(snapshot, &mut samples);
        if samples.0.is_empty() {
            return Ok(());
        }
        let kind = match self.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        };
        let mut encoder = encoder.encode_descriptor(self.name, self.help, None, kind)?;
        for Sample { labels, value } in &samples.0 {
            match labels.0.is_empty() {
                true => self.lines(&mut encoder, value)?,
                false => self.lines(&mut encoder.encode_family(labels)?, value)?,
            }
        }
        Ok(())
    }

    fn lines(&self, encoder: &mut MetricEncoder<'_>, value: &Value) -> fmt::Result {
        match (self.kind, value) {
            (Kind::Counter, Value::Whole(value)) => encoder.encode_counter::<NoLabelSet, _, u64>(value, None),
            (Kind::Counter, Value::Real(value)) => encoder.encode_counter::<NoLabelSet, _, u64>(value, None),
            (_, Value::Whole(value)) => encoder.encode_gauge(value),
            (_, Value::Real(value)) => encoder.encode_gauge(value),
            (_, Value::Spread { sum, count, buckets }) => {
                encoder.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)
            }
        }
    }
}

/// Labels with escaped values. Engines choose the names of spaces, and the encoder does not escape.
#[derive(Debug)]
struct Labels(Vec<(&'static str, String)>);

impl Labels {
    fn new(labels: &[(&'static str, &str)]) -> Labels {
        Labels(labels.iter().map(|(name, value)| (*name, escape(value))).collect())
    }
}

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        self.0.as_slice().encode(encoder)
    }
}

/// Escape a label value for the text format.
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

    #[test]
    fn a_name_that_an_engine_chose_cannot_forge_a_line() {
        assert_eq!(escape("llama \"7b\"\nkvtide_up 1\r\\"), "llama \\\"7b\\\"\\nkvtide_up 1\u{fffd}\\\\");
    }
}
