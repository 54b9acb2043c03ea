//! A directory for the files of a benchmark, and bytes to fill them with.

use super::BenchError;
use super::nvme::failed;
use kvtide_types::random::Random;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

/// A directory that is removed on drop.
#[derive(Debug)]
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(path: PathBuf) -> Result<Folder, BenchError> {
        // A daemon rejects a directory that other users can read.
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|e| failed(format!("create {}", path.display()), e))?;
        let path = path.canonicalize().map_err(|e| failed(format!("find {}", path.display()), e))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Errors are ignored: the file is left over, as after a killed benchmark.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Return incompressible bytes.
pub(super) fn noise(bytes: usize) -> Vec<u8> {
    let mut random = Random::new(1);
    let words = std::iter::repeat_with(move || random.next());
    words.flat_map(u64::to_le_bytes).take(bytes).collect()
}
