//! `kvtide purge`: erases a tenant's key from disks that no daemon serves, and with it what the tenant stored encrypted.

use crate::io::purge;
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit status if something of the tenant is left.
const LEFT: u8 = 1;
/// Exit status if a disk could not be purged.
const FAILED: u8 = 2;

/// What `kvtide purge` takes.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PurgeArgs {
    /// The tenant: the name of its [[domains]] entry
    #[arg(long)]
    tenant: String,
    /// Directory, or raw device, of a disk; may be given for each
    #[arg(long, required = true)]
    dir: Vec<PathBuf>,
}

/// Purges every disk, also if one fails.
pub(super) fn run(args: &PurgeArgs) -> ExitCode {
    let tenant = &args.tenant;
    let (mut left, mut failed) = (false, false);
    for dir in &args.dir {
        let name = dir.display();
        match purge(dir, tenant) {
            Ok(purged) => {
                match purged.keys {
                    0 => println!("{name}: there is no key of {tenant:?}"),
                    _ => println!(
                        "{name}: the key of {tenant:?} is erased; {} encrypted slabs cannot be read any more",
                        purged.encrypted_slabs
                    ),
                }
                if purged.plain_slabs > 0 {
                    left = true;
                    eprintln!(
                        "kvtide purge: {name}: {} slabs of {tenant:?} are not encrypted and still hold what it stored",
                        purged.plain_slabs
                    );
                }
            }
            Err(error) => {
                failed = true;
                eprintln!("kvtide purge: {error}");
            }
        }
    }
    match (failed, left) {
        (true, _) => ExitCode::from(FAILED),
        (_, true) => ExitCode::from(LEFT),
        _ => ExitCode::SUCCESS,
    }
}
