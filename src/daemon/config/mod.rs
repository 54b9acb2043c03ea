//! Configuration: parses TOML and command-line overrides, applies the defaults ([`defaults`]) and validates the result.
//!
//! The daemon's entry point and the command line call it once, before anything starts. It knows no socket, thread or session. An
//! error names the file, the line, the key and the allowed values; a contradiction names both keys.

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
pub use resolve::most_like;
pub use size::Human;
pub use size::{ByteSize, Reserve};

/// Validated configuration of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Socket, directory, log and timeouts.
    pub daemon: Daemon,
    /// Address of metrics and health.
    pub http: Http,
    /// The host tier.
    pub host: HostTier,
    /// The NVMe tier; `None` if no disk is configured.
    pub nvme: Option<NvmeTier>,
    /// End-to-end verification of pages.
    pub sample: IntegritySample,
    /// When pages move between tiers.
    pub edges: Edges,
    /// Which pages of `approx` sequences stay in tier 0.
    pub attention: Attention,
    /// Order and age of eviction.
    pub eviction: Eviction,
    /// Limits of counts, sizes and times.
    pub limits: Limits,
    /// Trust domains: which processes may attach, and their quotas.
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
    /// Log filter: directives of `tracing_subscriber::EnvFilter`.
    pub log: String,
    /// How long a core thread polls after its last work before it sleeps.
    pub spin: Duration,
    /// Time for requests in flight after SIGTERM.
    pub drain: Duration,
    /// Handshake timeout.
    pub handshake: Duration,
    /// Bytes of input that each space's flight recorder keeps; 0 disables it.
    pub recorder_bytes: u64,
}

/// `[http]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http {
    /// Address of metrics and health; `None` disables HTTP. Port 0 picks a free port.
    pub listen: Option<SocketAddr>,
}

/// `[tiers.host]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTier {
    /// Bytes for all spaces together.
    pub capacity_bytes: u64,
    /// Bytes of one slab (one memfd), the unit in which spaces get host memory.
    pub slab_bytes: u64,
    /// True: allocate all of it before the daemon is ready. False: allocate slab by slab when spaces need it.
    pub prefault: bool,
    /// Percent of frames in use above which unreferenced published blocks are evicted: to NVMe, or for good without an NVMe tier.
    pub high_percent: u8,
    /// Percent at which eviction stops.
    pub low_percent: u8,
}

/// `[canary]`: end-to-end verification of a sample of pages, from the engine that stores a page to the engine that loads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntegritySample {
    /// Verify one page in this many; 0 disables it.
    pub one_in: u32,
}

/// `[edges]`: when pages move between tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edges {
    /// Write-back from tier 0; counts the frames of a size class that are free or clean.
    pub tier0_to_host: Cleaning,
    /// Write-back from host memory; counts the frames of a size class that are free or also on NVMe.
    pub host_to_nvme: Cleaning,
    /// Streaming through host memory, if a step reads more than tier 0 and host memory hold.
    pub nvme_to_host: Scan,
    /// Streaming through tier 0, if a step reads more than tier 0 holds.
    pub host_to_tier0: Scan,
}

/// Write-back of pages before their frames are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cleaning {
    /// Percent of free or clean frames below which it starts.
    pub low_percent: u8,
    /// Percent at which it stops.
    pub high_percent: u8,
}

/// Streaming a working set that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Frames of a size class used for streaming. The other frames keep a fixed part of the working set.
    pub frames: u32,
}

/// `[attention]`: which pages of `approx` sequences stay in tier 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    /// Ranking of pages.
    pub policy: Scoring,
    /// True: drop pages that rank too low for good, instead of demoting them.
    pub drop: bool,
    /// First pages that always stay.
    pub sinks: u16,
    /// Last full pages that always stay.
    pub recent: u16,
    /// Percent of the measured bandwidth from host memory that predicted loads may use.
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
    /// Connections in the handshake.
    pub handshakes_max: u32,
    /// Blocks of one space in memory; `None`: as many as fit.
    pub blocks_max: Option<u32>,
    /// Blocks in the index of one space, including blocks that are on NVMe only. The index is in memory.
    pub contents_max: u32,
    /// Bytes of the block tables of one space.
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
    /// Deadline of requests that set none.
    pub request_timeout: Duration,
    /// Longest lease on cached blocks.
    pub lease_max: Duration,
    /// Percent of host memory and NVMe together that the leases of one session may pin, if its shard has other sessions.
    pub lease_percent: u8,
}

/// `[eviction]`: eviction of published blocks that no sequence uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// Order of eviction.
    pub policy: kvtide_tiering::api::Eviction,
    /// Maximum age after the last use; zero: unlimited.
    pub ttl: Duration,
    /// Percent of all blocks up to which blocks of high-priority sequences are evicted last.
    pub high_share_percent: u8,
    /// Tokens a second that an engine computes at the beginning of a sequence; 0: unknown.
    pub recompute_tokens_per_s: u32,
    /// Position at which attention doubles the cost of a token; 0: attention costs nothing.
    pub attention_doubles_at: u32,
    /// A sequence with at most this many remaining tokens is nearly finished; 0 disables this.
    pub ending_tokens: u32,
}

/// `[[domains]]`: a trust domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Name, for logs and the status dump.
    pub name: String,
    /// Uids of processes that belong to this domain.
    pub uids: Vec<u32>,
    /// Token files. A process with such a token belongs to this domain, whatever its uid.
    pub tokens: Vec<PathBuf>,
    /// Bytes of host memory for all its spaces together.
    pub host_bytes: u64,
    /// Bytes of NVMe for all its spaces together; 0 without an NVMe tier.
    pub nvme_bytes: u64,
    /// Maximum number of its sessions.
    pub sessions_max: u32,
}

/// Values from the command line. They take precedence over the file.
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
    /// `--nvme-dir`: directory of the only disk.
    pub nvme_dir: Option<PathBuf>,
    /// `--nvme-bytes`: capacity of that disk.
    pub nvme_bytes: Option<ByteSize>,
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
        self.machine.holds(&config.host)?;
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
