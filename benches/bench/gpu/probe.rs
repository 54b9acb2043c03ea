//! Report of the driver, the devices, and their capabilities.

use super::super::BenchError;
use kvtide_client::cuda::Driver;

/// Return the report as text or as one JSON object.
///
/// # Errors
/// There is no usable driver; the error names the requirements.
pub fn probe(json: bool) -> Result<String, BenchError> {
    let report = Driver::probe()?.report();
    Ok(if json { format!("{}\n", report.to_json().trim_end()) } else { report.to_string() })
}
