//! Flags of `kvtide demo`.

use std::path::PathBuf;
use std::str::FromStr;

use kvtide_client::{Contract, DeviceChoice};

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

/// Decode a trained model over real text with most of its KV outside tier 0, and check every logit bit for bit against a run over a
/// plain array. Start a private daemon and an engine process, and remove both at the end.
///
/// By default 10 % of the KV is in tier 0, 30 % in host memory, and the rest on disk.
///
/// Exit status: 0 if all logits were bit-identical, 1 if not, 2 if the demo could not finish.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Size of tier 0 in percent of all KV pages
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub tier0_percent: u32,
    /// Size of the host tier in percent of all KV pages (default: 30; with --two-tiers: all pages outside tier 0, plus a frame for
    /// each tier-0 frame used for streaming or for blocks that are being filled)
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub host_percent: Option<u32>,
    /// Parent of the NVMe tier's temporary directory (default: the private daemon's directory)
    #[arg(long, value_name = "DIR", conflicts_with = "two_tiers")]
    pub nvme_dir: Option<PathBuf>,
    /// Disable the NVMe tier
    #[arg(long)]
    pub two_tiers: bool,
    /// Parent of the private daemon's temporary directory (default: the system's temporary directory)
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Tokens to prefill, including begin of text
    #[arg(long, value_name = "N", default_value_t = 3584, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub prefill: u32,
    /// Tokens to decode
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=8192))]
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
    /// Print one JSON object on stdout at the end, and everything else on stderr. Rates are of the lower quartile of decode steps,
    /// which other load on the machine affects least
    #[arg(long)]
    pub json: bool,
}
