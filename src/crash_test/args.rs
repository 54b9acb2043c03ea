//! Flags of `kvtide crash-test`.

use std::path::PathBuf;

/// Kills a loaded daemon with SIGKILL at random moments, starts it again at once, and reads back through the client everything
/// that it had reported stored. Makes a directory of its own in DIR, and removes it unless something was wrong.
///
/// Exit status: 0 if every byte was right and everything stored was there, 1 if not, 2 if it could not run to its end.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where the disk's directory is made; the file system decides what a kill can tear
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Kills
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    /// Seed of contents, load and moments of the kills; by default another one each time. What threads do between them differs
    /// from run to run
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,
    /// Codec of the NVMe tier, as in the configuration
    #[arg(long, value_name = "CODEC", default_value = "none")]
    pub codec: String,
    /// Encrypts the NVMe tier, with a key made for the run
    #[arg(long)]
    pub encrypted: bool,
    /// Prints one JSON object on standard output at the end; the rest goes to standard error
    #[arg(long)]
    pub json: bool,
}
