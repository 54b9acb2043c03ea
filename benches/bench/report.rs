//! Figures next to their targets, as text and JSON.

use kvtide_daemon::output;
use std::borrow::Cow;
use std::fmt::Write;

/// Target of a figure.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
}

/// One measured figure.
#[derive(Clone, Debug)]
struct Figure {
    key: Cow<'static, str>,
    what: Cow<'static, str>,
    value: f64,
    /// Decimal places; 0 for counts.
    digits: usize,
    unit: &'static str,
    target: Option<Target>,
}

/// Figures of a benchmark, in the order of measurement.
#[derive(Clone, Debug, Default)]
pub struct Report {
    figures: Vec<Figure>,
    words: Vec<(&'static str, &'static str, String)>,
    /// Figures not measured: key, label, reason.
    missing: Vec<(Cow<'static, str>, Cow<'static, str>, &'static str)>,
    notes: Vec<String>,
}

impl Report {
    /// Add a whole number.
    pub fn count(
        &mut self,
        key: impl Into<Cow<'static, str>>,
        what: impl Into<Cow<'static, str>>,
        value: u64,
        unit: &'static str,
        target: Option<Target>,
    ) {
        self.figures.push(Figure { key: key.into(), what: what.into(), value: value as f64, digits: 0, unit, target });
    }

    /// Add a number with two decimal places.
    pub fn number(
        &mut self,
        key: impl Into<Cow<'static, str>>,
        what: impl Into<Cow<'static, str>>,
        value: f64,
        unit: &'static str,
        target: impl Into<Option<Target>>,
    ) {
        self.figures.push(Figure { key: key.into(), what: what.into(), value, digits: 2, unit, target: target.into() });
    }

    /// Add a number with the given decimal places, with or without a target.
    pub fn fine(
        &mut self,
        key: impl Into<Cow<'static, str>>,
        what: impl Into<Cow<'static, str>>,
        (value, digits): (f64, usize),
        unit: &'static str,
        target: Option<Target>,
    ) {
        self.figures.push(Figure { key: key.into(), what: what.into(), value, digits, unit, target });
    }

    /// Add a text value.
    pub fn words(&mut self, key: &'static str, what: &'static str, words: String) {
        self.words.push((key, what, words));
    }

    /// Add a figure that was not measured, with the reason; `null` in JSON.
    pub fn missing(
        &mut self,
        key: impl Into<Cow<'static, str>>,
        what: impl Into<Cow<'static, str>>,
        why: &'static str,
    ) {
        self.missing.push((key.into(), what.into(), why));
    }

    /// Add a line below the table.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Return one JSON object. A dot in a key makes a nested object.
    pub fn json(&self) -> String {
        let mut object = serde_json::Map::new();
        for figure in &self.figures {
            let value = if figure.digits == 0 {
                serde_json::Value::from(figure.value as u64)
            } else {
                let unit = 10f64.powi(figure.digits.max(3) as i32);
                serde_json::Value::from((figure.value * unit).round() / unit)
            };
            insert(&mut object, &figure.key, value);
        }
        for (key, _, words) in &self.words {
            object.insert((*key).into(), words.as_str().into());
        }
        for (key, _, _) in &self.missing {
            insert(&mut object, key, serde_json::Value::Null);
        }
        output::json_line(&object)
    }

    /// Return all figures as a list of objects with their labels and targets.
    pub(super) fn list(&self) -> serde_json::Value {
        let object = |f: &Figure| {
            let mut object = serde_json::json!({ "key": f.key, "what": f.what, "value": f.value, "unit": f.unit });
            match f.target {
                Some(Target::AtLeast(least)) => object["at_least"] = least.into(),
                Some(Target::AtMost(most)) => object["at_most"] = most.into(),
                None => {}
            }
            object
        };
        self.figures.iter().map(object).collect()
    }

    /// Return a table: figure, target, and whether it is met.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for figure in &self.figures {
            let value = format!("{:.*}", figure.digits, figure.value);
            let (target, met) = match figure.target {
                Some(Target::AtMost(most)) => (format!("≤ {most}"), figure.value <= most),
                Some(Target::AtLeast(least)) => (format!("≥ {least}"), figure.value >= least),
                None => (String::new(), true),
            };
            let verdict = if met { "" } else { "  missed" };
            let line = format!("{:<52} {value:>12} {:<14} {target:<12}{verdict}", figure.what, figure.unit);
            let _ = writeln!(text, "{}", line.trim_end());
        }
        for (_, what, words) in &self.words {
            let _ = writeln!(text, "{what:<52} {words:>12}");
        }
        for (_, what, why) in &self.missing {
            let _ = writeln!(text, "{what:<52} not measured: {why}");
        }
        for note in &self.notes {
            let _ = writeln!(text, "{note}");
        }
        text
    }
}

fn insert(object: &mut serde_json::Map<String, serde_json::Value>, key: &str, value: serde_json::Value) {
    match key.split_once('.') {
        None => object.insert(key.into(), value),
        Some((outer, inner)) => {
            let within = object.entry(outer).or_insert_with(|| serde_json::json!({}));
            within.as_object_mut().and_then(|within| within.insert(inner.into(), value))
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_the_same_to_people_and_programs() {
        let mut report = Report::default();
        report.count("a_ns", "a round trip", 900, "ns", Some(Target::AtMost(2000.0)));
        report.number("ratio", "copies ÷ memcpy", 0.8765, "×", Target::AtLeast(0.9));
        report.count("us.up", "up", 1, "us", None);
        report.count("us.down", "down", 2, "us", None);
        report.missing("gone", "missing figure", "not requested");
        report.missing("us.gone", "nested missing figure", "not requested");
        let json =
            "{\"version\":1,\"a_ns\":900,\"gone\":null,\"ratio\":0.877,\"us\":{\"down\":2,\"gone\":null,\"up\":1}}\n";
        assert_eq!(report.json(), json);
        let table = report.table();
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].contains("≤ 2000") && !lines[0].contains("missed"), "{table}");
        assert!(lines[1].ends_with("missed") && lines[1].contains("0.88"), "{table}");
        assert!(lines.last().unwrap().ends_with("not measured: not requested"), "{table}");
    }
}
