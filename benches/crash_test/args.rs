//! Flags of `kvtide crash-test`.

use std::path::PathBuf;

/// Kill a daemon under load with SIGKILL at random moments, restart it at once, and read back all blocks that it reported stored.
/// Create a new directory below DIR, and remove it unless an error is found.
///
/// Exit status: 0 if all bytes were correct and no stored block was lost, 1 if not, 2 if the test could not finish.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Parent of the disk's directory; its file system determines which writes a kill can tear
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Number of kills
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    /// Seed of contents, load and kill times (default: random). Thread scheduling still differs between runs
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,
    /// Codec of the NVMe tier, as in the configuration
    #[arg(long, value_name = "CODEC", default_value = "none")]
    pub codec: String,
    /// Encrypt the NVMe tier with a new key
    #[arg(long)]
    pub encrypted: bool,
    /// Print one JSON object on stdout at the end, and everything else on stderr
    #[arg(long)]
    pub json: bool,
}
