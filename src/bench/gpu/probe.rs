//! What driver and devices there are, and what works on each.

use super::super::BenchError;
use kvtide_client::cuda::Driver;

/// For people, or as one JSON object.
///
/// # Errors
/// There is no driver, or none that can be used: what is needed is in the error.
pub fn probe(json: bool) -> Result<String, BenchError> {
    let report = Driver::probe()?.report();
    Ok(if json { format!("{}\n", report.to_json().trim_end()) } else { report.to_string() })
}
