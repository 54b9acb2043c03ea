//! Figures of a device. Those of the CPU stand-in are reported, but not as measurements.

use std::fmt::Write;

use kvtide_daemon::output;
use serde_json::{Map, Value};

use super::super::report::{Report, Target};

/// Device name prefix of the stand-in driver.
const STAND_IN: &str = "kvtide CPU stand-in";

/// Figures of one run on one device.
pub(super) struct Figures {
    /// Name of the device.
    device: String,
    /// Driver, and other conditions of the run.
    on: Vec<(&'static str, Value)>,
    report: Report,
}

impl Figures {
    pub(super) fn new(device: String) -> Figures {
        Figures { device, on: vec![], report: Report::default() }
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
        self.report.fine(key.into(), what.into(), (value.0, 3), value.1, Some(target));
    }

    /// Add a number without a target.
    pub(super) fn plain(&mut self, key: impl Into<String>, what: impl Into<String>, value: f64, unit: &'static str) {
        self.report.fine(key.into(), what.into(), (value, 3), unit, None);
    }

    /// Return all figures as one JSON object in one line.
    pub(super) fn json(&self) -> String {
        let mut object = Map::new();
        object.insert("device".into(), self.device.clone().into());
        object.insert("measured".into(), (!self.tiny()).into());
        object.extend(self.on.iter().map(|(key, value)| ((*key).to_string(), value.clone())));
        object.insert("figures".into(), self.report.list());
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
        let figures = self.report.table();
        // On the stand-in no target is missed.
        text + &if self.tiny() { figures.replace("  missed", "") } else { figures }
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
