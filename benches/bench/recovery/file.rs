//! An unnamed file opened with `O_DIRECT`, which ends with its descriptor.

use super::BenchError;
use kvtide_format::log::Storage;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Memory for its transfers must be aligned, as the log's is.
#[derive(Debug)]
pub(super) struct Direct(File);

impl Direct {
    /// Create the file in `dir`.
    pub fn new(dir: &Path, bytes: u64) -> Result<Direct, BenchError> {
        let failed = |tried: &str| {
            let tried = format!("{tried} in {}", dir.display());
            move |source: io::Error| BenchError::System { tried, source }
        };
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::DIRECT | OFlags::CLOEXEC;
        let opened = rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(opened.map_err(|errno| failed("create a file with O_DIRECT")(errno.into()))?);
        file.set_len(bytes).map_err(failed("set the size of the file"))?;
        Ok(Direct(file))
    }
}

impl Storage for Direct {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(into, offset)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }
}
