//! The status as a file, for processes without access to HTTP.

use super::snapshot::Snapshot;
use crate::error::Error;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Write a snapshot atomically: readers of `path` see either the old one or the new one.
pub(crate) fn write(path: &Path, snapshot: &Snapshot) -> Result<(), Error> {
    let failed = |source| Error::File { action: "write the status dump", path: path.into(), source };
    let text = serde_json::to_vec_pretty(snapshot).map_err(|error| failed(error.into()))?;
    replace(path, "write the status dump", &text)
}

/// Replace the file at `path` atomically. The new file is created, so a link at its temporary name is replaced and never followed.
pub(crate) fn replace(path: &Path, action: &'static str, bytes: &[u8]) -> Result<(), Error> {
    let failed = |source| Error::File { action, path: path.into(), source };
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    File::create_new(&new).and_then(|mut file| file.write_all(bytes)).map_err(failed)?;
    fs::rename(&new, path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, victim) = (dir.path().join("status.json"), dir.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, path.with_extension("new")).unwrap();
        replace(&path, "write the status dump", b"new").unwrap();
        assert_eq!((fs::read(&path).unwrap(), fs::read(&victim).unwrap()), (b"new".to_vec(), b"precious".to_vec()));
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
    }
}
