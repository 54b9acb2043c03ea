//! `kvtide purge`: erases a tenant's key, so that the tenant's encrypted data is unreadable: through the running daemon, or on disks that
//! no daemon uses.

use super::confirm::Confirm;
use super::waiting::Waiting;
use super::which::Which;
use kvtide_daemon::config::most_like;
use kvtide_daemon::error::Error;
use kvtide_daemon::http::operate::{Purged, PurgedDisk};
use kvtide_daemon::output;
use kvtide_nvme::purge;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Maximum time of a purge through the daemon: a space ends after a minute if its disk is unresponsive.
const LIMIT: Duration = Duration::from_secs(120);

/// Flags of `kvtide purge`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Through the daemon: the blocks of the tenant in host memory and on all its disks are gone afterwards. Engines of the \
    tenant must not be attached. With --disk: on these disks, while no daemon uses them.\n\n\
    Exit status: 0: all data of the tenant is erased; 1: engines of the tenant are attached, a disk is not encrypted or could not be purged, \
    or the tenant is unknown; 2: wrong usage, or no terminal to ask at; 3: no daemon answers.\n\nExamples:\n  kvtide purge --tenant default --dry-run\n  \
    kvtide purge --tenant default --disk /var/lib/kvtide/nvme0 --yes"
)]
pub(super) struct PurgeArgs {
    /// Name of the tenant: its name in [[domains]]
    #[arg(long, value_name = "NAME")]
    tenant: String,
    /// Directory or raw device of a disk that no daemon uses; repeat for each disk
    #[arg(long, value_name = "PATH", conflicts_with = "Which")]
    disk: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    which: Which,
}

/// Purge through the daemon, or every disk named, even if one fails.
pub(super) fn run(args: &PurgeArgs) -> ExitCode {
    if let Some(dir) = args.which.dir().filter(|dir| dir.join(kvtide_format::STORE_FILE).exists()) {
        output::say(format_args!("kvtide purge: {} is a disk: name it by --disk", dir.display()));
        return ExitCode::from(output::USAGE);
    }
    let result = if args.disk.is_empty() { through_daemon(args) } else { Ok(on_disks(args)) };
    result.unwrap_or_else(|error| output::failed(&error))
}

fn through_daemon(args: &PurgeArgs) -> Result<ExitCode, Error> {
    let tenant = &args.tenant;
    let (address, status, _) = args.which.status()?;
    let disks = match status.disks.len() {
        1 => "1 disk".to_owned(),
        count => format!("{count} disks"),
    };
    let names = || status.tenants.iter().map(|tenant| tenant.name.as_str());
    let known = match (names().any(|name| name == tenant), most_like(tenant, names())) {
        (true, _) => String::new(),
        (false, Some(near)) => format!(" (not a configured tenant; did you mean {near:?}?)"),
        (false, None) => " (not a configured tenant)".to_owned(),
    };
    let what =
        format!("erase all blocks of tenant {tenant:?}{known} and its key on {disks}, through the daemon at {address}");
    if let Err(status) = args.confirm.ask(&what) {
        return Ok(status);
    }
    let body = serde_json::json!({ "tenant": tenant }).to_string();
    let (began, mut waiting) = (Instant::now(), Waiting::new());
    let purged = loop {
        let purged: Purged = args.which.read("/v1/purge", Some(&body))?;
        let left = LIMIT.saturating_sub(began.elapsed());
        if !purged.pending || left.is_zero() {
            break purged;
        }
        waiting.tell("waiting for the tenant's spaces to end, and for the disks", Some(left));
    };
    drop(waiting);
    if purged.pending {
        output::say(format_args!("kvtide purge: not over after {} s; purge again for the result", LIMIT.as_secs()));
    }
    Ok(told(args, &purged, purged.pending))
}

fn on_disks(args: &PurgeArgs) -> ExitCode {
    let tenant = &args.tenant;
    let names: Vec<String> = args.disk.iter().map(|disk| disk.display().to_string()).collect();
    if let Err(status) = args.confirm.ask(&format!("erase the key of tenant {tenant:?} on {}", names.join(", "))) {
        return status;
    }
    let mut known = BTreeSet::new();
    let disks: Vec<PurgedDisk> = args.disk.iter().map(|disk| on_disk(disk, tenant, &mut known)).collect();
    let is_unknown = !known.contains(tenant) && disks.iter().all(|disk| disk.error.is_none());
    if is_unknown {
        output::say(format_args!("kvtide purge: {}", unknown(tenant, &known)));
    }
    told(args, &Purged { tenant: tenant.clone(), disks, pending: false }, is_unknown)
}

fn on_disk(place: &Path, tenant: &str, known: &mut BTreeSet<String>) -> PurgedDisk {
    let disk = place.to_owned();
    match purge(place, tenant) {
        Ok(purged) => {
            known.extend(purged.tenants);
            PurgedDisk {
                disk,
                keys_erased: purged.keys,
                encrypted_slabs: purged.encrypted_slabs,
                plain_slabs: purged.plain_slabs,
                ..PurgedDisk::default()
            }
        }
        Err(error) => PurgedDisk { disk, error: Some(error.to_string()), ..PurgedDisk::default() },
    }
}

/// Print the result.
fn told(args: &PurgeArgs, purged: &Purged, has_failed: bool) -> ExitCode {
    let Purged { tenant, disks, .. } = purged;
    let mut text = String::new();
    for disk in disks {
        let (name, slabs) = (disk.disk.display(), disk.encrypted_slabs);
        let _ = match (&disk.error, disk.keys_erased) {
            (Some(error), _) => {
                output::say(format_args!("kvtide purge: {}", output::about(&name.to_string(), error)));
                Ok(())
            }
            (None, 0) => writeln!(text, "{name}: no key found for tenant {tenant:?}"),
            (None, _) => {
                writeln!(text, "{name}: key of tenant {tenant:?} erased; {slabs} encrypted slabs are now unreadable")
            }
        };
        if disk.plain_slabs > 0 {
            output::say(format_args!(
                "kvtide purge: {name}: {} slabs of tenant {tenant:?} are not encrypted and still hold its data",
                disk.plain_slabs
            ));
        } else if disk.not_encrypted {
            output::say(format_args!(
                "kvtide purge: {name}: it is not encrypted: bytes of tenant {tenant:?} may stay there until they are overwritten"
            ));
        }
    }
    if disks.is_empty() && !has_failed {
        let _ = writeln!(text, "no block of tenant {tenant:?} is in memory any more; the daemon has no disks");
    }
    let is_incomplete = disks.iter().any(|disk| disk.plain_slabs > 0 || disk.not_encrypted || disk.error.is_some());
    let status = ExitCode::from(if has_failed || is_incomplete { output::FAILED } else { 0 });
    if args.json {
        return output::print_json(purged, status);
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
