//! Orders of operators to the control thread.

use crate::output::path_as_text;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

/// Maximum orders that wait.
pub(crate) const ORDERS: usize = 16;

/// An order.
#[derive(Debug)]
pub(crate) enum Order {
    /// Reload the configuration; answered with the changes, or why nothing changed.
    Reload(oneshot::Sender<Result<Vec<String>, String>>),
    /// Purge a tenant.
    Purge(Purge),
}

/// A purge of a tenant. The control thread ends the tenant's spaces, then passes it to the host thread.
#[derive(Debug)]
pub(crate) struct Purge {
    /// The tenant.
    pub tenant: String,
    /// Receives its events; closed when the purge is over.
    pub events: UnboundedSender<PurgeEvent>,
}

/// An event of a purge.
#[derive(Debug)]
pub(crate) enum PurgeEvent {
    /// It cannot begin; the last event.
    Refused(String),
    /// The tenant's spaces have ended; the disks erase its keys.
    SpacesEnded,
    /// A disk has finished: its number and result.
    Disk(u32, PurgedDisk),
}

impl Purge {
    /// Report an event. The client may have disconnected.
    pub fn tell(&self, event: PurgeEvent) {
        let _ = self.events.send(event);
    }
}

/// Result of a purge on a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PurgedDisk {
    /// Directory or device.
    #[serde(serialize_with = "path_as_text")]
    pub disk: PathBuf,
    /// Keys erased and flushed.
    pub keys_erased: u32,
    /// Encrypted slabs of the tenant: unreadable now.
    pub encrypted_slabs: u32,
    /// Slabs of the tenant that are not encrypted: their bytes are still there.
    pub plain_slabs: u32,
    /// New slabs are not encrypted, so that free space may hold bytes of tenants.
    pub not_encrypted: bool,
    /// Why the disk could not be purged.
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::PurgedDisk;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_result_about_a_path_that_is_no_text_is_printed() {
        let disk = PurgedDisk { disk: OsStr::from_bytes(b"/data/\xff").into(), ..PurgedDisk::default() };
        assert_eq!(serde_json::to_value(&disk).unwrap()["disk"], "/data/\u{fffd}");
    }
}
