//! Figures of a device. Those of the CPU stand-in are reported, but not as measurements.

use std::fmt::Write;

use kvtide_daemon::output;
use serde_json::{Map, Value, json};

use super::super::report::Target;

/// Device name prefix of the stand-in driver.
const STAND_IN: &str = "kvtide CPU stand-in";

/// One figure.
struct Figure {
    key: String,
    what: String,
    value: f64,
    unit: &'static str,
    target: Option<Target>,
}

/// Figures of one run on one device.
pub(super) struct Figures {
    /// Name of the device.
    device: String,
    /// Driver, and other conditions of the run.
    on: Vec<(&'static str, Value)>,
    figures: Vec<Figure>,
}

impl Figures {
    pub(super) fn new(device: String) -> Figures {
        Figures { device, on: vec![], figures: vec![] }
    }

    /// Return true for small test sizes that only check that everything runs.
    pub(super) fn tiny(&self) -> bool {
        self.device.starts_with(STAND_IN)
    }

    /// Add a condition of the run.
    pub(super) fn on(&mut self, key: &'static str, value: impl Into<Value>) {
        self.on.push((key, value.into()));
    }

    /// Add a number with a target.
    pub(super) fn judged(
        &mut self,
        key: impl Into<String>,
        what: impl Into<String>,
        value: (f64, &'static str),
        target: Target,
    ) {
        let ((value, unit), target) = (value, Some(target));
        self.figures.push(Figure { key: key.into(), what: what.into(), value, unit, target });
    }

    /// Add a number without a target.
    pub(super) fn plain(&mut self, key: impl Into<String>, what: impl Into<String>, value: f64, unit: &'static str) {
        self.figures.push(Figure { key: key.into(), what: what.into(), value, unit, target: None });
    }

    /// Return all figures as one JSON object in one line.
    pub(super) fn json(&self) -> String {
        let figures: Vec<Value> = self
            .figures
            .iter()
            .map(|f| {
                let mut figure = json!({ "key": f.key, "what": f.what, "value": f.value, "unit": f.unit });
                let limit = match f.target {
                    Some(Target::AtLeast(least)) => Some(("at_least", least)),
                    Some(Target::AtMost(most)) => Some(("at_most", most)),
                    None => None,
                };
                if let (Some((name, limit)), Some(figure)) = (limit, figure.as_object_mut()) {
                    figure.insert(name.to_string(), limit.into());
                }
                figure
            })
            .collect();
        let mut object = Map::new();
        object.insert("device".into(), self.device.clone().into());
        object.insert("measured".into(), (!self.tiny()).into());
        object.extend(self.on.iter().map(|(key, value)| ((*key).to_string(), value.clone())));
        object.insert("figures".into(), figures.into());
        output::json_line(&object)
    }

    /// Return a table: figure, target, and whether it is met.
    pub(super) fn table(&self) -> String {
        let mut text = format!("{}\n", self.device);
        for (key, value) in &self.on {
            let _ = writeln!(text, "{key}: {}", value.as_str().map_or_else(|| value.to_string(), str::to_string));
        }
        if self.tiny() {
            text.push_str("no GPU: functional check only, figures are not measurements\n");
        }
        for f in &self.figures {
            let (target, met) = match f.target {
                Some(Target::AtMost(most)) => (format!("≤ {most}"), f.value <= most),
                Some(Target::AtLeast(least)) => (format!("≥ {least}"), f.value >= least),
                None => (String::new(), true),
            };
            let verdict = if met || self.tiny() { "" } else { "  missed" };
            let line = format!("{:<72} {:>12.3} {:<6} {target:<9}{verdict}", f.what, f.value, f.unit);
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(device: &str) -> Figures {
        let mut figures = Figures::new(device.to_string());
        figures.on("driver", "CUDA 12.8");
        figures.judged("copy", "copies", (0.5, "x"), Target::AtLeast(0.9));
        figures.plain("rate", "rate", 55.0, "GB/s");
        figures
    }

    #[test]
    fn a_gpu_is_measured_and_judged() {
        let figures = figures("NVIDIA H200");
        let object: Value = serde_json::from_str(&figures.json()).expect("one object");
        assert_eq!((&object["measured"], &object["driver"]), (&true.into(), &"CUDA 12.8".into()));
        assert_eq!((&object["figures"][0]["at_least"], &object["figures"][1]["value"]), (&0.9.into(), &55.0.into()));
        assert!(figures.table().contains("missed"));
    }

    #[test]
    fn the_stand_in_is_neither() {
        let figures = figures("kvtide CPU stand-in 0");
        let object: Value = serde_json::from_str(&figures.json()).expect("one object");
        assert_eq!(object["measured"], false);
        assert!(!figures.table().contains("missed") && figures.table().contains("figures are not measurements"));
    }
}
