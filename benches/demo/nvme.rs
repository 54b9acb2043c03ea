//! NVMe figures of the tiered run, from the daemon's status before and after it.

use serde::Serialize;
use serde_json::Value;

use super::error::DemoError;

/// Figures of the tiered run, including prefill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// I/O mode of the disk.
    pub io_mode: String,
    /// Pages needed by steps that were only on NVMe.
    #[serde(skip)]
    pub pages_found: u64,
    /// Bytes of the pages read.
    #[serde(skip)]
    pub page_bytes_read: u64,
    /// Bytes of the pages written.
    #[serde(skip)]
    pub page_bytes_written: u64,
    /// Bytes read from the disk: those of the pages, and of the sectors they share.
    pub bytes_read: u64,
    /// Bytes written to the disk.
    pub bytes_written: u64,
    /// Pages read with a wrong checksum.
    pub checksum_failures: u64,
}

impl Figures {
    /// Compute from the daemon's status at the begin of the run, and from two consecutive ones at its end. The daemon's threads
    /// report one after another; the second status ensures that the disks have counted everything that the space has.
    ///
    /// # Errors
    /// The status lacks the space or a value.
    pub fn between(begin: &Value, [first, end]: [&Value; 2], space: &str) -> Result<Figures, DemoError> {
        let spaces = first["spaces"].as_array().into_iter().flatten();
        let core = spaces.filter(|candidate| candidate["name"] == space).map(|space| &space["core"]).next_back();
        let core = core.ok_or_else(|| DemoError::Status(format!("space {space}")))?;
        let grown = |path: &str| Ok::<u64, DemoError>(sum(end, path)?.saturating_sub(sum(begin, path)?));
        let mode = end.pointer("/disks/0/mode").and_then(Value::as_str);
        Ok(Figures {
            io_mode: mode.ok_or_else(|| DemoError::Status("/disks/0/mode".into()))?.to_owned(),
            pages_found: sum(core, "/found_nvme")?,
            page_bytes_read: sum(core, "/nvme_to_host/bytes")?,
            page_bytes_written: sum(core, "/host_to_nvme/bytes")?,
            bytes_read: grown("/disks/*/classes/*/reads/bytes")?,
            bytes_written: grown("/disks/*/classes/*/writes/bytes")?,
            checksum_failures: grown("/disks/*/checksum_failures")?,
        })
    }
}

/// Return the number at a path, or the sum of the list there; `*` matches every element of a list.
fn sum(value: &Value, path: &str) -> Result<u64, DemoError> {
    let lacks = || DemoError::Status(path.to_owned());
    if let Some((list, rest)) = path.split_once("/*") {
        let elements = value.pointer(list).and_then(Value::as_array).ok_or_else(lacks)?;
        return elements.iter().map(|element| sum(element, rest)).sum();
    }
    match value.pointer(path).ok_or_else(lacks)? {
        Value::Array(numbers) => numbers.iter().map(|number| number.as_u64().ok_or_else(lacks)).sum(),
        number => number.as_u64().ok_or_else(lacks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn figures_are_differences_and_a_missing_one_is_named() {
        let status = |bytes: u64| {
            let class = json!({"reads": {"bytes": bytes}, "writes": {"bytes": 2 * bytes}});
            let core = json!({"found_nvme": 3, "nvme_to_host": {"bytes": [1, 2]}, "host_to_nvme": {"bytes": [4, 5]}});
            json!({
                "spaces": [{"name": "other", "core": {}}, {"name": "mine", "core": core}],
                "disks": [{"mode": "threads", "checksum_failures": 0, "classes": [class, class]}],
            })
        };
        let figures = Figures::between(&status(10), [&status(20), &status(25)], "mine").unwrap();
        assert_eq!((figures.bytes_read, figures.bytes_written), (30, 60));
        assert_eq!((figures.page_bytes_read, figures.page_bytes_written, figures.pages_found), (3, 9, 3));
        let error = Figures::between(&status(1), [&status(1), &status(1)], "other").unwrap_err();
        assert_eq!(error.to_string(), "the daemon's status has no /found_nvme");
        assert!(
            Figures::between(&status(1), [&status(1), &status(1)], "none")
                .unwrap_err()
                .to_string()
                .contains("space none")
        );
    }
}
