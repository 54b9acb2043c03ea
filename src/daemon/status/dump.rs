//! The status as a file, for processes without access to HTTP.

use super::snapshot::Snapshot;
use crate::error::Error;
use std::fs;
use std::path::Path;

/// Write a snapshot atomically: readers of `path` see either the old one or the new one.
pub(crate) fn write(path: &Path, snapshot: &Snapshot) -> Result<(), Error> {
    let failed = |source| Error::File { action: "write the status dump", path: path.into(), source };
    let text = serde_json::to_vec_pretty(snapshot).map_err(|error| failed(error.into()))?;
    replace(path, "write the status dump", &text)
}

/// Replace the file at `path` atomically.
pub(crate) fn replace(path: &Path, action: &'static str, bytes: &[u8]) -> Result<(), Error> {
    let failed = |source| Error::File { action, path: path.into(), source };
    let new = path.with_extension("new");
    fs::write(&new, bytes).map_err(failed)?;
    fs::rename(&new, path).map_err(failed)
}
