//! Temporary files in a directory store. The crate `object_store` writes a run to `NAME#1`, or to the next number that is free, and renames
//! it. The temporary file of a relay that is killed meanwhile stays.

use crate::name::is_tag;
use std::fs::{DirEntry, ReadDir};
use std::io;
use std::path::Path;
use std::time::Duration;

/// Age from which a temporary file has no writer. A write takes seconds at most; the margin is for directories that hang, and for clocks of
/// other machines.
const AGE_MIN: Duration = Duration::from_secs(3600);
/// Entries of directories that are read without a pause, and the pause. A directory of a million files then takes 100 s.
const ENTRIES: usize = 1000;
const PAUSE: Duration = Duration::from_millis(100);

/// Remove old temporary files of runs, a limited number of entries at a time. Return how many were removed.
///
/// # Errors
/// A directory cannot be read, or a file cannot be removed. What follows it is left for the next call.
pub async fn remove(root: &Path) -> io::Result<u64> {
    let root = root.to_owned();
    let mut walk = tokio::task::spawn_blocking(move || Walk::begin(&root)).await??;
    loop {
        walk = tokio::task::spawn_blocking(move || walk.step().map(|()| walk)).await??;
        if walk.open.is_empty() {
            return Ok(walk.removed);
        }
        // PACE: engines wait for other requests to the same directory.
        tokio::time::sleep(PAUSE).await;
    }
}

/// A walk through the directories of runs.
struct Walk {
    /// The directories that are being read, from the root on.
    open: Vec<ReadDir>,
    removed: u64,
}

impl Walk {
    fn begin(root: &Path) -> io::Result<Walk> {
        Ok(Walk { open: vec![std::fs::read_dir(root)?], removed: 0 })
    }

    /// Read the next entries.
    fn step(&mut self) -> io::Result<()> {
        for _ in 0..ENTRIES {
            let Some(last) = self.open.last_mut() else { break };
            match last.next() {
                Some(entry) => self.visit(&entry?)?,
                None => drop(self.open.pop()),
            }
        }
        Ok(())
    }

    /// Enter a directory of runs, or remove an old temporary file. The names of others differ in form: see [`RunName`](crate::name::RunName).
    fn visit(&mut self, entry: &DirEntry) -> io::Result<()> {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { return Ok(()) };
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let depth = self.open.len();
        let is_known = match depth {
            1 => name == "v1",
            2 | 3 => is_tag(name),
            4 => is_number(name),
            _ => name.split_once('#').is_some_and(|(run, number)| is_tag(run) && is_number(number)),
        };
        let result = match entry.file_type()? {
            kind if is_known && depth < 5 && kind.is_dir() => self.enter(entry),
            kind if is_known && depth == 5 && kind.is_file() => self.remove_if_old(entry),
            _ => return Ok(()),
        };
        match result {
            // Its writer, or another relay, has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", entry.path().display()))),
            Ok(()) => Ok(()),
        }
    }

    fn enter(&mut self, entry: &DirEntry) -> io::Result<()> {
        self.open.push(std::fs::read_dir(entry.path())?);
        Ok(())
    }

    /// Two relays may find the same file at once. If a third one begins a write under its name between their removals, that write fails, which
    /// costs one run.
    fn remove_if_old(&mut self, entry: &DirEntry) -> io::Result<()> {
        // A time in the future is an error of `elapsed`, and young.
        if entry.metadata()?.modified()?.elapsed().is_ok_and(|age| age >= AGE_MIN) {
            std::fs::remove_file(entry.path())?;
            self.removed += 1;
        }
        Ok(())
    }
}
