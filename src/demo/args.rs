//! Flags of `kvtide demo`.

use std::path::PathBuf;
use std::str::FromStr;

use kvtide_client::{Contract, DeviceChoice};

/// Where tier 0 is and attention is computed.
#[derive(Clone, Debug)]
pub struct Device {
    /// As it was given.
    pub text: String,
    /// What that means.
    pub choice: DeviceChoice,
}

impl FromStr for Device {
    type Err = <DeviceChoice as FromStr>::Err;

    fn from_str(text: &str) -> Result<Device, Self::Err> {
        Ok(Device { text: text.into(), choice: text.parse()? })
    }
}

impl Device {
    /// Whether that is the host's own memory.
    #[must_use]
    pub fn is_host(&self) -> bool {
        matches!(self.choice, DeviceChoice::Cpu)
    }
}

impl Args {
    /// The contracts beside exact, each once.
    #[must_use]
    pub fn inexact(&self) -> Vec<Contract> {
        let standard = [Contract::Approx { permille: 250 }, Contract::Bounded { ppm: 10_000 }];
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

/// Decodes a trained model over real text with most of its KV outside tier 0, and checks every logit bit for bit against a
/// run over a plain array. Starts a private daemon and an engine process, and removes both at its end.
///
/// By default a tenth of the KV is in tier 0, three tenths are in host memory, and the rest is on disk.
///
/// Exit status: 0 if every logit was bit-identical, 1 if not, 2 if the demo could not run to its end.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Size of tier 0 in percent of all KV pages
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub tier0_percent: u32,
    /// Size of the host tier in percent of all KV pages; by default 30, and with --two-tiers what tier 0 leaves, and a frame
    /// for each tier-0 frame that pages stream through or that is still being filled
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub host_percent: Option<u32>,
    /// Where the NVMe tier's temporary directory is made, on any file system; by default in the private daemon's
    #[arg(long, value_name = "DIR", conflicts_with = "two_tiers")]
    pub nvme_dir: Option<PathBuf>,
    /// Without an NVMe tier
    #[arg(long)]
    pub two_tiers: bool,
    /// Where the private daemon's temporary directory is made; by default the system's
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Tokens to prefill, begin of text included
    #[arg(long, value_name = "N", default_value_t = 3584, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub prefill: u32,
    /// Tokens to decode
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub decode: u32,
    /// Where tier 0 is and attention is computed: `cpu`, `cuda`, `cuda:N` or `cuda:GPU-<uuid>`. On a device pages are in half
    /// precision, our kernels read them through the page table, and what every bit is compared with is the run of the same
    /// kernels in which everything is resident
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: Device,
    /// Window frames: so many pages that stream through are read where they are in host memory, instead of being copied to tier 0
    /// first
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub host_windows: u32,
    /// Text to prefill from; by default the one that comes with the demo
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
    /// Reading contracts that the small tier 0 decodes by, side by side at the end: `exact`, which is always among them,
    /// `approx:SHARE`, which reads that share of each plane's pages, and `bounded:SHARE`, which skips pages that digests prove to
    /// hold at most that share of each query head's attention. By default exact,approx:0.25,bounded:0.01; on a device exact alone, and
    /// not bounded
    #[arg(long = "contract", value_name = "CONTRACT", value_delimiter = ',')]
    pub contracts: Vec<Contract>,
    /// Prints one JSON object on standard output at the end; the rest goes to standard error. Rates are those of
    /// the lower quartile of decode steps, which what else the machine does disturbs least
    #[arg(long)]
    pub json: bool,
}
