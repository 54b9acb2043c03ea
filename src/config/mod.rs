//! What may be configured: TOML and command-line overrides, checked, with every default in one place ([`defaults`]).
//!
//! The daemon's entry function and the command line call it, once, before anything starts. It knows no socket, thread or
//! session. An error names the file, the line, the key and what is allowed; a contradiction names both sides.

pub mod defaults;
mod raw;
mod resolve;
mod size;
mod sourced;

use crate::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use size::ByteSize;

/// Everything the daemon was told, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where and how it listens.
    pub daemon: Daemon,
    /// The host tier.
    pub host: HostTier,
    /// Policy of engines' tier 0.
    pub tier0: Tier0,
    /// Bounds.
    pub limits: Limits,
    /// Who may attach.
    pub domains: Vec<Domain>,
}

/// `[daemon]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    /// Path of the SEQPACKET socket.
    pub socket: PathBuf,
    /// Permission bits of the socket.
    pub socket_mode: u32,
    /// Directory of the status dump.
    pub dir: PathBuf,
    /// How long a core thread polls after its last work before it sleeps.
    pub spin: Duration,
    /// How long work in flight may take after SIGTERM.
    pub drain: Duration,
    /// How long a peer may take to say hello.
    pub handshake: Duration,
    /// Bytes of input that each space's flight recorder keeps; 0: it is off.
    pub recorder_bytes: u64,
}

/// `[tiers.host]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTier {
    /// Bytes over all spaces.
    pub capacity_bytes: u64,
    /// Bytes of one slab (one memfd): the unit in which spaces get host memory.
    pub slab_bytes: u64,
    /// Percent of frames in use at which unreferenced published blocks start to be dropped.
    pub high_percent: u8,
    /// Percent at which dropping stops.
    pub low_percent: u8,
}

/// `[tiers.tier0]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier0 {
    /// Percent of frames free or clean below which cleaning starts.
    pub clean_low_percent: u8,
    /// Percent at which cleaning stops.
    pub clean_high_percent: u8,
    /// Frames of a class that a cyclic scan streams through.
    pub scan_frames: u32,
}

/// `[limits]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Spaces of the daemon.
    pub spaces_max: u32,
    /// Sessions of the daemon.
    pub sessions_max: u32,
    /// Sessions of one space.
    pub space_sessions_max: u16,
    /// Peers that have connected and not yet said hello.
    pub handshakes_max: u32,
    /// Blocks of one space.
    pub blocks_max: u32,
    /// Sequences of one session.
    pub seqs_max: u32,
    /// Blocks of one sequence.
    pub seq_blocks_max: u32,
    /// Lanes of one session.
    pub lanes_max: u16,
    /// Channels of one session.
    pub channels_max: u16,
    /// Tier-0 frames of one session, over all size classes.
    pub tier0_frames_max: u32,
    /// Requests in flight of one channel.
    pub depth_max: u16,
    /// Jobs in flight to one session.
    pub jobs_max: u32,
    /// Deadline of requests that bring none.
    pub request_timeout: Duration,
}

/// `[[domains]]`: a trust domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Name, in logs and in the status dump.
    pub name: String,
    /// Users whose processes attach to this domain.
    pub uids: Vec<u32>,
    /// Host memory that its spaces may hold together.
    pub host_bytes: u64,
    /// Sessions that it may have.
    pub sessions_max: u32,
}

/// What the command line says; it wins over the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--socket`.
    pub socket: Option<PathBuf>,
    /// `--dir`.
    pub dir: Option<PathBuf>,
    /// `--host-bytes`.
    pub host_bytes: Option<ByteSize>,
    /// `--slab-bytes`.
    pub slab_bytes: Option<ByteSize>,
    /// `--scan-frames`.
    pub scan_frames: Option<u32>,
}

impl Config {
    /// The defaults, with what the command line says.
    ///
    /// # Errors
    /// An override out of range, or one that contradicts another value.
    pub fn without_file(overrides: &Overrides) -> Result<Config, Error> {
        Config::parse("(no file)", "", overrides)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// An unreadable file, a syntax error, an unknown key, a value out of range, a contradiction.
    pub fn load(path: &Path, overrides: &Overrides) -> Result<Config, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::File {
            action: "read the configuration",
            path: path.into(),
            source,
        })?;
        Config::parse(&path.display().to_string(), &text, overrides)
    }

    /// Checks the text of a file; `file` is its name in errors.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(file: &str, text: &str, overrides: &Overrides) -> Result<Config, Error> {
        let raw = toml::from_str(text).map_err(|error| resolve::syntax(file, text, &error))?;
        resolve::resolve(file, text, raw, overrides)
    }
}

#[cfg(test)]
mod tests;
