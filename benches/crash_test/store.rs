//! Directory of the run: the disk's directory, the key, and starting of daemons on it.

use super::error::CrashError;
use super::plan::{Phase, Plan};
use crate::private_daemon::{Options, PrivateDaemon};
use kvtide_daemon::output;
use kvtide_types::random::Random;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A store used by consecutive daemons. Removed on drop, unless it is kept for inspection.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    config: String,
    keep: bool,
}

impl Store {
    /// Create the directory of a phase.
    pub fn new(plan: &Plan, phase: Phase) -> Result<Store, CrashError> {
        let name = format!("kvtide-crash-{}-{}", std::process::id(), phase.name());
        let parent = std::path::absolute(&plan.dir).map_err(|e| failed("find", &plan.dir, e))?;
        let dir = parent.join(name);
        DirBuilder::new().mode(0o700).create(&dir).map_err(|e| failed("create", &dir, e))?;
        let store = Store { config: plan.config(phase, &dir.join("disk"), &dir.join("key")), dir, keep: false };
        if plan.encrypted {
            store.make_key(&mut Random::new(plan.seed))?;
        }
        Ok(store)
    }

    /// Write a key for this run.
    fn make_key(&self, random: &mut Random) -> Result<(), CrashError> {
        let path = self.dir.join("key");
        let key: Vec<u8> = (0..4).flat_map(|_| random.next().to_le_bytes()).collect();
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(&key)).map_err(|e| failed("write", &path, e))
    }

    /// Start a daemon on the store without waiting for it.
    pub fn launch(&self) -> Result<PrivateDaemon, CrashError> {
        Ok(PrivateDaemon::launch(&Options { config: Some(self.config.clone()), ..Options::default() })?)
    }

    /// Keep the store, and return its directory.
    pub fn keep(&mut self) -> &Path {
        self.keep = true;
        &self.dir
    }
}

fn failed(tried: &'static str, path: &Path, source: std::io::Error) -> CrashError {
    CrashError::File { tried, path: path.to_owned(), source }
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            output::say(format_args!("kvtide crash-test: cannot remove {}: {error}", self.dir.display()));
        }
    }
}
