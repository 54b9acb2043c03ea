//! What may be configured: TOML and command-line overrides, checked, with every default in one place ([`defaults`]).
//!
//! The daemon's entry function and the command line call it, once, before anything starts. It knows no socket, thread or
//! session. An error names the file, the line, the key and what is allowed; a contradiction names both sides.

mod check;
pub mod defaults;
mod error;
mod keys;
mod machine;
mod nvme;
mod raw;
mod reload;
mod resolve;
mod size;
mod sourced;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use check::{Finding, Judges, Section, Severity};
pub use error::ConfigError;
pub use keys::{Effect, Setting};
pub use kvtide_tiering::api::Scoring;
pub use machine::{CgroupLimit, Machine};
pub use nvme::{Admission, Codec, Demand, Discard, Disk, Encryption, ErrorRate, IoEngine, KeySource, NvmeTier, Place};
pub use reload::Change;
pub(crate) use resolve::most_like;
pub(crate) use size::Human;
pub use size::{ByteSize, Reserve};

/// Everything the daemon was told, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where and how it listens.
    pub daemon: Daemon,
    /// Metrics and health.
    pub http: Http,
    /// The host tier.
    pub host: HostTier,
    /// The NVMe tier; `None`: there is none.
    pub nvme: Option<NvmeTier>,
    /// How much of what is read is compared with what was stored.
    pub canary: Canary,
    /// When pages move from one tier to the next.
    pub edges: Edges,
    /// Which pages of sequences that are read in part stay in tier 0.
    pub attention: Attention,
    /// Which published content is given up, and when.
    pub eviction: Eviction,
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
    /// What is logged: directives of `tracing_subscriber::EnvFilter`.
    pub log: String,
    /// How long a core thread polls after its last work before it sleeps.
    pub spin: Duration,
    /// How long work in flight may take after SIGTERM.
    pub drain: Duration,
    /// How long a peer may take to say hello.
    pub handshake: Duration,
    /// Bytes of input that each space's flight recorder keeps; 0: it is off.
    pub recorder_bytes: u64,
}

/// `[http]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http {
    /// Where metrics and health are served; `None`: nowhere. Port 0 is any free one.
    pub listen: Option<SocketAddr>,
}

/// `[tiers.host]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTier {
    /// Bytes over all spaces.
    pub capacity_bytes: u64,
    /// Bytes of one slab (one memfd): the unit in which spaces get host memory.
    pub slab_bytes: u64,
    /// Whether all of it is taken before the daemon is ready, and not slab by slab when spaces ask.
    pub prefault: bool,
    /// Percent of frames in use at which unreferenced published blocks start to leave host memory: for NVMe, or for good where
    /// there is none.
    pub high_percent: u8,
    /// Percent at which that stops.
    pub low_percent: u8,
}

/// `[canary]`: a sample of pages whose bytes are followed from the engine that stored them to the one that reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Canary {
    /// One page of so many is in the sample; 0: none is.
    pub one_in: u32,
}

/// `[edges]`: when pages move from one tier to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edges {
    /// Of a tier-0 class's frames, those that are free or clean.
    pub tier0_to_host: Cleaning,
    /// Of a class's host frames, those that are free or also on NVMe.
    pub host_to_nvme: Cleaning,
    /// Through host memory, when tier 0 and host together hold less than a step reads.
    pub nvme_to_host: Scan,
    /// Through tier 0, when it holds less than a step reads.
    pub host_to_tier0: Scan,
}

/// Writing pages down before their frames are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cleaning {
    /// Percent of frames free or clean below which it starts.
    pub low_percent: u8,
    /// Percent at which it stops.
    pub high_percent: u8,
}

/// Streaming a working set that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Frames of a class that it streams through; the rest keeps a fixed part.
    pub frames: u32,
}

/// `[attention]`: which pages of sequences that are read in part (`approx`) stay in tier 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    /// How pages are ranked.
    pub policy: Scoring,
    /// What ranks too low is given up for good, not only demoted.
    pub drop: bool,
    /// First pages that stay whatever their rank.
    pub sinks: u16,
    /// Last full pages that stay whatever their rank.
    pub recent: u16,
    /// Percent of the measured bandwidth from host memory that predictions may use.
    pub bandwidth_percent: u8,
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
    /// Blocks of one space in memory; nothing: as many as its tiers hold.
    pub blocks_max: Option<u32>,
    /// Blocks that one space can find, those on NVMe alone included: its index stays in memory.
    pub contents_max: u32,
    /// Bytes that the tables of one space's blocks may take.
    pub tables_bytes_max: u64,
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
    /// Longest lease on cached blocks.
    pub lease_max: Duration,
    /// Percent of what host memory and NVMe hold that one session may hold alone by leases, where its shard has other sessions.
    pub lease_percent: u8,
}

/// `[eviction]`: published content that no sequence uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// In which order it goes.
    pub policy: kvtide_tiering::api::Eviction,
    /// How long after its last use it goes in any case; zero: never.
    pub ttl: Duration,
    /// Percent of it that contents of sequences of high priority may be before they go like others.
    pub high_share_percent: u8,
    /// Tokens a second that an engine computes at the beginning of a sequence; 0: unknown.
    pub recompute_tokens_per_s: u32,
    /// Position at which attention takes a token as long as all else; 0: it takes nothing.
    pub attention_doubles_at: u32,
    /// A sequence with at most so many tokens to come is nearly finished; 0: none ever is.
    pub ending_tokens: u32,
}

/// `[[domains]]`: a trust domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Name, in logs and in the status dump.
    pub name: String,
    /// Users whose processes attach to this domain.
    pub uids: Vec<u32>,
    /// Files of tokens with which any user's process attaches to it.
    pub tokens: Vec<PathBuf>,
    /// Host memory that its spaces may hold together.
    pub host_bytes: u64,
    /// NVMe space that its spaces may hold together; 0 where there is no NVMe tier.
    pub nvme_bytes: u64,
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
    /// `--nvme-dir`: this directory is the only disk.
    pub nvme_dir: Option<PathBuf>,
    /// `--nvme-bytes`: its capacity.
    pub nvme_bytes: Option<ByteSize>,
    /// `--http`.
    pub http: Option<String>,
}

/// Where a configuration comes from, so that it can be read again.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file; `None`: the defaults hold.
    pub file: Option<PathBuf>,
    /// What the command line says.
    pub overrides: Overrides,
    /// What the file leaves open follows from this. It stays the same when the file is read again.
    pub machine: Machine,
}

impl Source {
    /// This file, on this machine.
    ///
    /// # Errors
    /// It cannot be told what the machine has.
    pub fn new(file: Option<PathBuf>, overrides: Overrides) -> Result<Source, ConfigError> {
        Ok(Source { file, overrides, machine: Machine::look()? })
    }

    /// Its name, in errors.
    #[must_use]
    pub fn name(&self) -> String {
        self.file.as_ref().map_or_else(|| "(no file)".to_owned(), |file| file.display().to_string())
    }

    /// Reads it.
    ///
    /// # Errors
    /// Those of [`Source::parse`]; more memory than the machine, or the daemon's cgroup, has.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let config = self.parse()?;
        self.machine.holds(&config.host)?;
        Ok(config)
    }

    /// Reads it, whether or not this machine has what it asks for.
    ///
    /// # Errors
    /// An unreadable file, a syntax error, an unknown key, a value out of range, a contradiction.
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
    /// Checks the text of a file; `file` is its name in errors, `machine` decides what the text leaves open.
    ///
    /// # Errors
    /// A syntax error, an unknown key, a value out of range, a contradiction.
    pub fn parse(file: &str, text: &str, overrides: &Overrides, machine: &Machine) -> Result<Config, ConfigError> {
        let raw = toml::from_str(text).map_err(|error| resolve::syntax(file, text, &error))?;
        resolve::resolve(file, text, raw, overrides, machine)
    }
}

#[cfg(test)]
mod tests;
