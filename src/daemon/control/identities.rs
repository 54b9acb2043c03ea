//! Identities of engines: descriptions of the fingerprints of each space name, sent by the engines that attached with them.
//!
//! An engine with a fingerprint without blocks gets the identity of the last engine of its name with blocks, and can log the
//! difference. The daemon does not interpret identities. They are kept in a file, because blocks on NVMe outlive the daemon too.

use crate::config::{Config, Place};
use crate::error::Error;
use crate::host::OtherSpace;
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use kvtide_format::log::SpaceKey;
use kvtide_wire::hello::IDENTITY_BYTES_MAX;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Name of the file.
const FILE: &str = "identities.json";
/// Maximum identities of a domain; the ones not used for the longest time are dropped.
const DOMAIN_MAX: usize = 64;

/// How long the shutdown waits for the file: a disk that does not respond must not hold it up.
const END: Duration = Duration::from_secs(5);

/// Identity of the last engine with a fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    domain: String,
    name: String,
    /// Key of its space.
    space: [u8; 32],
    identity: String,
}

/// The identities, with the thread that writes them to the file.
#[derive(Debug)]
pub(super) struct Identities {
    /// In order of use, the last one last.
    entries: Vec<Entry>,
    /// `None` without an NVMe tier: no block outlives the daemon.
    file: Option<FileThread>,
}

impl Identities {
    /// Read the identities of the configuration's domains from the file, and start the thread that writes it. A file that cannot be
    /// read is replaced: nothing but a message depends on it.
    pub fn start(config: &Config) -> Result<Identities, Error> {
        let Some(path) = path(config) else { return Ok(Identities { entries: Vec::new(), file: None }) };
        let mut entries = read(&path).unwrap_or_else(|error| {
            tracing::warn!("{error}; engines cannot log differences from earlier engines");
            Vec::new()
        });
        entries.retain(|entry| config.domains.iter().any(|domain| domain.name == entry.domain));
        Ok(Identities { entries, file: Some(FileThread::start(path)?) })
    }

    /// Return the other spaces of this name, the last used first.
    pub fn others(&self, domain: &str, name: &str, space: SpaceKey) -> Vec<OtherSpace> {
        let of_name = |entry: &&Entry| entry.domain == domain && entry.name == name && entry.space != space.0;
        let other = |entry: &Entry| OtherSpace { stored: SpaceKey(entry.space), identity: entry.identity.clone() };
        self.entries.iter().rev().filter(of_name).map(other).collect()
    }

    /// Keep the identity of an engine that attaches.
    pub fn keep(&mut self, domain: &str, name: &str, space: SpaceKey, identity: &str) {
        let entry = Entry { domain: domain.into(), name: name.into(), space: space.0, identity: identity.into() };
        if self.entries.last() == Some(&entry) {
            return;
        }
        self.entries.retain(|known| (&*known.domain, &*known.name, known.space) != (domain, name, space.0));
        self.entries.push(entry);
        let mut of_domain = self.entries.iter().filter(|entry| entry.domain == domain);
        if of_domain.clone().count() > DOMAIN_MAX
            && let Some(oldest) = of_domain.next().cloned()
        {
            self.entries.retain(|entry| *entry != oldest);
        }
        if let Some(file) = &self.file {
            file.write(&self.entries);
        }
    }

    /// Write the file a last time, and stop.
    pub fn end(self) {
        if let Some(file) = self.file {
            file.end();
        }
    }
}

/// Return the file's path: in the first directory of the NVMe tier; with raw devices alone, in the daemon's directory.
fn path(config: &Config) -> Option<PathBuf> {
    let disks = &config.nvme()?.disks;
    let dir = disks.iter().find_map(|disk| match disk.place() {
        Place::Dir(dir) => Some(dir),
        Place::Device(_) => None,
    });
    Some(dir.unwrap_or(&config.daemon.dir).join(FILE))
}

/// Read the file; no entries if there is none.
fn read(path: &Path) -> Result<Vec<Entry>, Error> {
    let failed = |source| Error::File { action: "read the identities of engines", path: path.into(), source };
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        file => file.map_err(failed)?,
    };
    let mut text = Vec::new();
    // Of some hundred domains, with every character escaped.
    file.take((256 * DOMAIN_MAX * 6 * IDENTITY_BYTES_MAX) as u64).read_to_end(&mut text).map_err(failed)?;
    serde_json::from_slice(&text).map_err(|error| failed(error.into()))
}

/// Replace the file. Only the daemon's user can read it.
fn write(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let new = path.with_extension("new");
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?.write_all(text)?;
    fs::rename(&new, path)
}

/// The thread that writes the file: the control thread must not wait for a disk.
#[derive(Debug)]
struct FileThread {
    /// Text to be written; a newer one replaces it.
    next: Arc<Mutex<Option<Vec<u8>>>>,
    wake: Sender<()>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
    thread: JoinHandle<()>,
}

impl FileThread {
    fn start(path: PathBuf) -> Result<FileThread, Error> {
        let next = Arc::new(Mutex::new(None));
        let (wake, woken) = bounded(1);
        let (running, ended) = bounded(0);
        let texts = Arc::clone(&next);
        let thread = std::thread::Builder::new().name("kvtide-identity".into());
        let thread = thread.spawn(move || {
            run(&path, &texts, &woken);
            drop::<Sender<()>>(running); // also after a panic
        });
        let thread = thread.map_err(|e| Error::system("start the thread that writes the identities of engines", e))?;
        Ok(FileThread { next, wake, ended, thread })
    }

    fn write(&self, entries: &[Entry]) {
        let Ok(text) = serde_json::to_vec(entries) else { return };
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        // If the queue is full, the thread has not taken the text before this one yet.
        let _ = self.wake.try_send(());
    }

    fn end(self) {
        drop(self.wake);
        if self.ended.recv_timeout(END) == Err(RecvTimeoutError::Timeout) {
            return tracing::warn!(
                "the identities of engines are not written after {END:?}: the disk does not respond"
            );
        }
        if self.thread.join().is_err() {
            tracing::error!("the thread that writes the identities of engines panicked");
        }
    }
}

fn run(path: &Path, texts: &Mutex<Option<Vec<u8>>>, woken: &Receiver<()>) {
    let mut failed = false;
    for () in woken {
        let Some(text) = texts.lock().unwrap_or_else(PoisonError::into_inner).take() else { continue };
        let result = write(path, &text);
        match &result {
            Err(error) if !failed => tracing::warn!(
                "cannot write {}: {error}; after a restart engines cannot log differences from earlier engines",
                path.display()
            ),
            _ => {}
        }
        failed = result.is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Machine, Overrides};
    use tempfile::tempdir;

    const A: SpaceKey = SpaceKey([1; 32]);
    const B: SpaceKey = SpaceKey([2; 32]);

    /// A disk in the directory `dir`, and two domains.
    fn config(dir: &Path) -> Config {
        let disk = format!("[[tiers.nvme.disks]]\ndir = \"{}\"\ncapacity = \"1GiB\"\n", dir.display());
        let text = format!("[[domains]]\nname = \"one\"\nuids = [1]\n[[domains]]\nname = \"two\"\nuids = [2]\n{disk}");
        Config::parse("", &text, &Overrides::default(), &Machine::look().unwrap()).unwrap()
    }

    fn found(identities: &Identities, domain: &str, name: &str, space: SpaceKey) -> Vec<String> {
        identities.others(domain, name, space).into_iter().map(|other| other.identity).collect()
    }

    #[test]
    fn others_of_a_name_and_domain_are_found_after_a_restart_the_last_used_first() {
        let dir = tempdir().unwrap();
        let config = config(dir.path());
        let mut identities = Identities::start(&config).unwrap();
        identities.keep("one", "m", A, "first a");
        identities.keep("one", "m", B, "b");
        identities.keep("one", "m", A, "a");
        identities.keep("one", "n", A, "of another name");
        identities.keep("two", "m", SpaceKey([3; 32]), "of another domain");
        identities.end();
        let identities = Identities::start(&config).unwrap();
        assert_eq!(found(&identities, "one", "m", B), ["a"]);
        assert_eq!(found(&identities, "one", "m", A), ["b"]);
        assert_eq!(found(&identities, "one", "m", SpaceKey([9; 32])), ["a", "b"]);
        assert!(found(&identities, "two", "n", B).is_empty());
        identities.end();
    }

    #[test]
    fn a_domain_keeps_its_last_identities_and_not_at_the_cost_of_others() {
        let dir = tempdir().unwrap();
        let mut identities = Identities::start(&config(dir.path())).unwrap();
        identities.keep("two", "m", A, "other domain");
        for n in 0..=DOMAIN_MAX as u8 {
            identities.keep("one", "m", SpaceKey([n; 32]), &n.to_string());
        }
        let all = found(&identities, "one", "m", SpaceKey([255; 32]));
        assert_eq!((all.len(), &*all[0], &*all[DOMAIN_MAX - 1]), (DOMAIN_MAX, "64", "1"));
        assert_eq!(found(&identities, "two", "m", B), ["other domain"]);
        identities.end();
    }

    #[test]
    fn a_damaged_file_is_replaced() {
        let dir = tempdir().unwrap();
        let config = config(dir.path());
        fs::write(dir.path().join(FILE), "no JSON").unwrap();
        let mut identities = Identities::start(&config).unwrap();
        identities.keep("one", "m", A, "a");
        identities.end();
        let identities = Identities::start(&config).unwrap();
        assert_eq!(found(&identities, "one", "m", B), ["a"]);
        identities.end();
    }
}
