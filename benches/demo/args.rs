//! Flags of `kvtide demo`.

use std::path::PathBuf;
use std::str::FromStr;

use kvtide_client::{Contract, DeviceChoice};

use super::chats::DOCUMENT_TOKENS_MAX;

/// Tier 0 in percent of the pages by default: a little more than an approximate step reads.
const TIER0_PERCENT: u32 = 30;
/// Tokens of the prompt by default.
const PREFILL: u32 = 1536;
/// Tokens that are decoded by default.
const DECODE: u32 = 192;
/// Time that an approximate step waits for selected pages by default.
const MAX_STALL_US: u32 = 2000;

/// Device of tier 0 and attention.
#[derive(Clone, Debug)]
pub struct Device {
    /// The flag's text.
    pub text: String,
    /// The parsed choice.
    pub choice: DeviceChoice,
}

impl FromStr for Device {
    type Err = <DeviceChoice as FromStr>::Err;

    fn from_str(text: &str) -> Result<Device, Self::Err> {
        Ok(Device { text: text.into(), choice: text.parse()? })
    }
}

impl Device {
    /// Return true if it is host memory.
    #[must_use]
    pub fn is_host(&self) -> bool {
        matches!(self.choice, DeviceChoice::Cpu)
    }
}

impl Args {
    /// Return the time that an approximate step waits for selected pages, in microseconds.
    #[must_use]
    pub fn stall_us(&self) -> u32 {
        self.max_stall_us.unwrap_or(if self.device.is_host() { MAX_STALL_US } else { 0 })
    }

    /// Return true if paged decode runs.
    #[must_use]
    pub fn runs_paged(&self) -> bool {
        self.parts.is_empty() || self.parts.contains(&Part::Paged)
    }

    /// Return the flag because of which the chats are skipped, if any.
    #[must_use]
    pub fn chats_skipped(&self) -> Option<&'static str> {
        if !self.parts.is_empty() {
            return (!self.parts.contains(&Part::Chats)).then_some("--parts");
        }
        let set = [
            (!self.device.is_host(), "--device"),
            (self.two_tiers, "--two-tiers"),
            (self.tier0_percent != TIER0_PERCENT, "--tier0-percent"),
            (self.host_percent.is_some(), "--host-percent"),
            (self.prefill != PREFILL, "--prefill"),
            (self.decode != DECODE, "--decode"),
            (self.host_windows > 0, "--host-windows"),
            (self.text.is_some(), "--text"),
            (!self.contracts.is_empty(), "--contract"),
            (self.max_stall_us.is_some(), "--max-stall-us"),
        ];
        set.into_iter().find(|(set, _)| *set).map(|(_, flag)| flag)
    }

    /// Return the requested contracts other than `exact`, without duplicates.
    #[must_use]
    pub fn inexact(&self) -> Vec<Contract> {
        let standard = [Contract::Approx { permille: 250 }];
        let asked = match self.contracts.is_empty() {
            true if self.device.is_host() => &standard[..],
            _ => &self.contracts,
        };
        let mut contracts = Vec::new();
        for contract in asked.iter().filter(|contract| **contract != Contract::Exact) {
            if !contracts.contains(contract) {
                contracts.push(*contract);
            }
        }
        contracts
    }
}

/// A part of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Paged decode: the KV of one sequence in three tiers.
    Paged,
    /// Eight chats about long documents.
    Chats,
}

/// Show in a minute what kvtide does, with a small trained model, and compare every result with a run without kvtide.
///
/// 1. Chats about long documents, in an engine with too little memory. The daemon is killed in between.
///
/// 2. Paged decode: most of a sequence's KV is outside tier 0.
///
/// A private daemon and an engine process are started, and removed at the end.
///
/// Exit status: 0 if every result was identical, 1 if not, 2 if the demo could not finish.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Parts to run (default: both; only `paged` if a flag sets its sizes or its device)
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    pub parts: Vec<Part>,
    /// Write the results with charts to this HTML file
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Print progress, the decoded text, and tables with bytes against the optimum, stalls and contracts
    #[arg(long)]
    pub details: bool,
    /// Print one JSON object on stdout at the end, and everything else on stderr. Rates are of the lower quartile of decode steps,
    /// which other load on the machine affects least
    #[arg(long)]
    pub json: bool,
    /// Parent of the private daemons' temporary directories (default: the system's temporary directory)
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Parent of the NVMe tier's temporary directory (default: the private daemon's directory)
    #[arg(long, value_name = "DIR", conflicts_with = "two_tiers")]
    pub nvme_dir: Option<PathBuf>,
    /// Size of tier 0 in percent of all KV pages
    #[arg(long, value_name = "PERCENT", default_value_t = TIER0_PERCENT, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub tier0_percent: u32,
    /// Size of the host tier in percent of all KV pages (default: 30; with --two-tiers: all pages outside tier 0, plus a frame for
    /// each tier-0 frame used for streaming or for blocks that are being filled)
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub host_percent: Option<u32>,
    /// Disable the NVMe tier
    #[arg(long)]
    pub two_tiers: bool,
    /// Tokens to prefill, including begin of text
    #[arg(long, value_name = "N", default_value_t = PREFILL, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub prefill: u32,
    /// Tokens to decode
    #[arg(long, value_name = "N", default_value_t = DECODE, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub decode: u32,
    /// Device of tier 0 and attention: `cpu`, `cuda`, `cuda:N` or `cuda:GPU-<uuid>`. On a GPU, pages are in half precision,
    /// kvtide's kernels read them through the page table, and the reference is a run of the same kernels with all pages resident
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: Device,
    /// Number of mapped frames: streamed pages that are read directly in host memory instead of being copied to tier 0
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub host_windows: u32,
    /// Text to prefill (default: the built-in text)
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
    /// Reading contracts to compare with a small tier 0: `exact` (always included), `approx:SHARE` (reads this share of each
    /// plane's pages) (default: exact,approx:0.25; on a GPU: exact)
    #[arg(long = "contract", value_name = "CONTRACT", value_delimiter = ',')]
    pub contracts: Vec<Contract>,
    /// Time in microseconds that an approximate step waits in a plane for selected pages; 0: it reads the next best pages that are
    /// in tier 0 instead (default: 2000; on a GPU: 0)
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub max_stall_us: Option<u32>,
    /// Tokens of a document of the chats
    #[arg(long, value_name = "N", default_value_t = 768, value_parser = clap::value_parser!(u32).range(64..=DOCUMENT_TOKENS_MAX as i64))]
    pub document: u32,
    /// Tokens of an answer of the chats
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub answer: u32,
    /// Flip one bit of a block that the chats load from the cache: the demo must report a difference and exit with status 1
    #[arg(long)]
    pub flip_bit: bool,
}
