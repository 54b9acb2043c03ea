//! Transfers between host and NVMe.

use serde::{Deserialize, Serialize};

/// Direction of a transfer between host and NVMe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum IoKind {
    /// NVMe to host.
    Read,
    /// Host to NVMe.
    Write,
}

/// Urgency of a transfer. A more urgent transfer overtakes the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum IoClass {
    /// A request or a lane waits for it.
    Demand,
    /// Expected to be needed.
    Prefetch,
    /// Write-back.
    WriteBack,
}
