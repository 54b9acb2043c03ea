//! Configuration: parses TOML and command-line overrides, applies the defaults and validates the result.
//!
//! `table.rs` declares every key in a row; `section.rs` says what follows from a row, `resolve.rs` has the rules about several keys.
//! The daemon's entry point and the command line call it once, before anything starts. It knows no socket, thread or session. An
//! error names the file, the line, the key and the allowed values; a contradiction names both keys.

mod check;
pub mod constants;
mod error;
mod kinds;
mod machine;
mod nvme;
mod origin;
mod reference;
mod reload;
mod resolve;
mod room;
mod section;
mod table;
mod words;

use std::path::PathBuf;

pub use check::{Finding, Section, Severity, why_open};
pub use error::ConfigError;
pub use kvtide_types::{Admission, ByteSize, Capacity, Codec, FeatureUse, Human, IoEngine, Reserve};
pub use machine::{CgroupLimit, Machine};
pub use nvme::{KeyKind, KeySource, Place};
pub use reference::{Key, keys, manual, reference};
pub use reload::Change;
pub use resolve::most_like;
pub use section::{Effect, Setting};
pub use table::{
    Attention, Config, Daemon, Disk, Domain, Edges, Encryption, Eviction, HostScan, HostTier, Http, IntegritySample,
    Limits, NvmeTier, Tier0Scan, Tiers,
};

/// Values from the command line. They take precedence over the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--socket`.
    pub socket: Option<PathBuf>,
    /// `--dir`.
    pub dir: Option<PathBuf>,
    /// `--host-bytes`.
    pub host_bytes: Option<Capacity>,
    /// `--slab-bytes`.
    pub slab_bytes: Option<ByteSize>,
    /// `--scan-frames`.
    pub scan_frames: Option<u32>,
    /// `--nvme-dir`: directory of the only disk.
    pub nvme_dir: Option<PathBuf>,
    /// `--nvme-bytes`: capacity of that disk.
    pub nvme_bytes: Option<Capacity>,
    /// `--remove-dir`: the directories are removed with the daemon, so nothing need stay free beside the disk.
    pub remove_dir: bool,
    /// `--http`.
    pub http: Option<String>,
}

/// Source of a configuration, for reloads.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file; `None`: the defaults.
    pub file: Option<PathBuf>,
    /// Values from the command line.
    pub overrides: Overrides,
    /// The machine, which determines some defaults. A reload does not measure it again.
    pub machine: Machine,
}

impl Source {
    /// Create a source and measure this machine.
    ///
    /// # Errors
    /// The memory of the machine cannot be determined.
    pub fn new(file: Option<PathBuf>, overrides: Overrides) -> Result<Source, ConfigError> {
        Ok(Source { file, overrides, machine: Machine::look()? })
    }

    /// Create the source of a file of another machine, which is not known.
    #[must_use]
    pub fn of_other_machine(file: Option<PathBuf>) -> Source {
        Source { file, overrides: Overrides::default(), machine: Machine::assumed() }
    }

    /// Return its name for error messages.
    #[must_use]
    pub fn name(&self) -> String {
        self.file.as_ref().map_or_else(|| "(no file)".to_owned(), |file| file.display().to_string())
    }

    /// Read and validate it, including its host tier against the memory of this machine.
    ///
    /// # Errors
    /// Those of [`Source::parse`], or the host tier exceeds the memory of the machine or the limit of the daemon's cgroup.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let config = self.parse()?;
        self.machine.holds(&config.tiers.host)?;
        Ok(config)
    }

    /// Read and validate it without checking that this machine has enough memory.
    ///
    /// # Errors
    /// An unreadable file, a syntax error, an unknown key, a value out of range, or a contradiction.
    pub fn parse(&self) -> Result<Config, ConfigError> {
        let text = match &self.file {
            None => String::new(),
            Some(path) => std::fs::read_to_string(path).map_err(|source| ConfigError::File {
                action: "read the configuration",
                path: path.clone(),
                source,
            })?,
        };
        Config::parse(&self.name(), &text, &self.overrides, &self.machine)
    }
}

impl Config {
    /// Return the NVMe tier, if there is a disk.
    #[must_use]
    pub fn nvme(&self) -> Option<&NvmeTier> {
        Some(&self.tiers.nvme).filter(|nvme| !nvme.disks.is_empty())
    }

    /// Return all settings, in the order of the reference.
    #[must_use]
    pub fn settings(&self) -> Vec<Setting> {
        let mut all = Vec::new();
        section::Section::settings(self, "", &mut all);
        all
    }

    /// Parse and validate the text of a file. `file` is its name in errors; `machine` determines some defaults.
    ///
    /// # Errors
    /// A syntax error, an unknown key, a value out of range, or a contradiction.
    pub fn parse(file: &str, text: &str, overrides: &Overrides, machine: &Machine) -> Result<Config, ConfigError> {
        let raw = toml::from_str(text).map_err(|error| resolve::syntax(file, text, &error))?;
        resolve::resolve(file, text, raw, overrides, machine)
    }
}

#[cfg(test)]
mod tests;
