//! `kvtide purge`: erases a tenant's key from disks that are not in use by a daemon, so that the tenant's encrypted data is
//! unreadable.

use super::confirm::Confirm;
use kvtide_daemon::config::most_like;
use kvtide_daemon::output;
use kvtide_nvme::purge;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

/// Flags of `kvtide purge`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "The disks must not be in use by a daemon; kvtide cache clear --tenant evicts a tenant's blocks from a running one.\n\n\
    Exit status: 0: all data of the tenant is erased; 1: unencrypted slabs still hold data of the tenant, a disk could not be purged, or \
    no disk holds data of the tenant.\n\nExamples:\n  kvtide purge --tenant default --dir /var/lib/kvtide/nvme0 --dry-run\n  \
    kvtide purge --tenant default --dir /var/lib/kvtide/nvme0 --yes"
)]
pub(super) struct PurgeArgs {
    /// Name of the tenant: its name in [[domains]]
    #[arg(long)]
    tenant: String,
    /// Directory or raw device of a disk; repeat for each disk
    #[arg(long, required = true)]
    dir: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    confirm: Confirm,
}

/// Result of a disk.
#[derive(Debug, Serialize)]
struct OfDisk {
    dir: PathBuf,
    keys_erased: u32,
    encrypted_slabs: u32,
    plain_slabs: u32,
    error: Option<String>,
}

/// Purge every disk, even if one fails.
pub(super) fn run(args: &PurgeArgs) -> ExitCode {
    let tenant = &args.tenant;
    let dirs: Vec<String> = args.dir.iter().map(|dir| dir.display().to_string()).collect();
    if let Err(status) = args.confirm.ask(&format!("erase the key of tenant {tenant:?} on {}", dirs.join(", "))) {
        return status;
    }
    let mut disks = Vec::new();
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
                disks.push(OfDisk {
                    dir: dir.clone(),
                    keys_erased: purged.keys,
                    encrypted_slabs: purged.encrypted_slabs,
                    plain_slabs: purged.plain_slabs,
                    error: None,
                });
                known.extend(purged.tenants);
            }
            Err(error) => {
                failed = true;
                output::say(format_args!("kvtide purge: {error}"));
                let error = Some(error.to_string());
                disks.push(OfDisk { dir: dir.clone(), keys_erased: 0, encrypted_slabs: 0, plain_slabs: 0, error });
            }
        }
    }
    if !failed && !known.contains(tenant) {
        failed = true;
        output::say(format_args!("kvtide purge: {}", unknown(tenant, &known)));
    }
    let status = ExitCode::from(if failed || left { output::FAILED } else { 0 });
    if args.json {
        return output::print_json(&serde_json::json!({ "tenant": tenant, "disks": disks }), status);
    }
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
