//! `kvtide purge`: erases a tenant's key from disks that no daemon serves, and with it what the tenant stored encrypted.

use crate::config::most_like;
use crate::io::purge;
use crate::output;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit status if something of the tenant is left.
const LEFT: u8 = 1;
/// Exit status if a disk could not be purged, or no disk knows the tenant.
const FAILED: u8 = 2;

/// What `kvtide purge` takes.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0: nothing of the tenant is left; 1: slabs that were never encrypted still hold what it stored; 2: a \
    disk could not be purged, or no disk holds anything of such a tenant."
)]
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
    let mut known = BTreeSet::new();
    let mut text = String::new();
    for dir in &args.dir {
        let name = dir.display();
        match purge(dir, tenant) {
            Ok(purged) => {
                text += &match purged.keys {
                    0 => format!("{name}: there is no key of {tenant:?}\n"),
                    _ => format!(
                        "{name}: the key of {tenant:?} is erased; {} encrypted slabs cannot be read any more\n",
                        purged.encrypted_slabs
                    ),
                };
                if purged.plain_slabs > 0 {
                    left = true;
                    output::say(format_args!(
                        "kvtide purge: {name}: {} slabs of {tenant:?} are not encrypted and still hold what it stored",
                        purged.plain_slabs
                    ));
                }
                known.extend(purged.tenants);
            }
            Err(error) => {
                failed = true;
                output::say(format_args!("kvtide purge: {error}"));
            }
        }
    }
    if !failed && !known.contains(tenant) {
        failed = true;
        output::say(format_args!("kvtide purge: {}", unknown(tenant, &known)));
    }
    let status = match (failed, left) {
        (true, _) => ExitCode::from(FAILED),
        (_, true) => ExitCode::from(LEFT),
        _ => ExitCode::SUCCESS,
    };
    output::print(&text, status)
}

/// Error text for a tenant that no disk knows.
fn unknown(tenant: &str, known: &BTreeSet<String>) -> String {
    let names: Vec<String> = known.iter().map(|name| format!("{name:?}")).collect();
    let hint = match (most_like(tenant, known.iter().map(String::as_str)), &names[..]) {
        (Some(name), _) => format!("did you mean {name:?}?"),
        (None, []) => "they hold nothing of any tenant".to_owned(),
        (None, names) => format!("they hold something of {}", names.join(", ")),
    };
    format!("no disk named here holds anything of a tenant {tenant:?}; {hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_tenant_is_told_what_is_near_or_what_exists() {
        let known = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert!(unknown("tenant-x", &known(&["tenant-a", "zebra"])).ends_with("did you mean \"tenant-a\"?"));
        assert!(
            unknown("y", &known(&["tenant-a", "zebra"])).ends_with("they hold something of \"tenant-a\", \"zebra\"")
        );
        assert!(unknown("y", &known(&[])).ends_with("they hold nothing of any tenant"));
    }
}
