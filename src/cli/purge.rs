//! `kvtide purge`: erases a tenant's key from disks that are not in use by a daemon, so that the tenant's encrypted data is
//! unreadable.

use kvtide_daemon::config::most_like;
use kvtide_daemon::output;
use kvtide_nvme::purge;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit status if unencrypted data of the tenant remains.
const LEFT: u8 = 1;
/// Exit status if a disk could not be purged, or no disk holds data of the tenant.
const FAILED: u8 = 2;

/// Flags of `kvtide purge`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0: all data of the tenant is erased; 1: unencrypted slabs still hold data of the tenant; \
    2: a disk could not be purged, or no disk holds data of the tenant."
)]
pub(super) struct PurgeArgs {
    /// Name of the tenant: its name in [[domains]]
    #[arg(long)]
    tenant: String,
    /// Directory or raw device of a disk; repeat for each disk
    #[arg(long, required = true)]
    dir: Vec<PathBuf>,
}

/// Purge every disk, even if one fails.
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
                    0 => format!("{name}: no key found for tenant {tenant:?}\n"),
                    _ => format!(
                        "{name}: key of tenant {tenant:?} erased; {} encrypted slabs are now unreadable\n",
                        purged.encrypted_slabs
                    ),
                };
                if purged.plain_slabs > 0 {
                    left = true;
                    output::say(format_args!(
                        "kvtide purge: {name}: {} slabs of tenant {tenant:?} are not encrypted and still hold its data",
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

/// Return the error text for a tenant that is on none of the disks.
fn unknown(tenant: &str, known: &BTreeSet<String>) -> String {
    let names: Vec<String> = known.iter().map(|name| format!("{name:?}")).collect();
    let hint = match (most_like(tenant, known.iter().map(String::as_str)), &names[..]) {
        (Some(name), _) => format!("did you mean {name:?}?"),
        (None, []) => "they hold no tenant's data".to_owned(),
        (None, names) => format!("they hold data of {}", names.join(", ")),
    };
    format!("none of the given disks holds data of tenant {tenant:?}; {hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_tenant_is_told_what_is_near_or_what_exists() {
        let known = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert!(unknown("tenant-x", &known(&["tenant-a", "zebra"])).ends_with("did you mean \"tenant-a\"?"));
        assert!(unknown("y", &known(&["tenant-a", "zebra"])).ends_with("they hold data of \"tenant-a\", \"zebra\""));
        assert!(unknown("y", &known(&[])).ends_with("they hold no tenant's data"));
    }
}
