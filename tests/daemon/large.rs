//! Drives much larger than those of test machines: sparse files on a tmpfs with a large nominal size.

use crate::blocks::{attach, load, store};
use crate::nvme::total;
use crate::options;
use kvtide_bench::private_daemon::{Options, PrivateDaemon};
use kvtide_wire::entry::Level;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

const DISKS: u64 = 4;
const DISK_BYTES: u64 = 8 << 40;
const SLAB_BYTES: u64 = 16 << 20;

/// Empty drives of 32 TiB take no memory, disk space or time.
#[test]
fn drives_of_32_tib_cost_what_is_stored_on_them() {
    let namespaces = ["--user", "--map-root-user", "--mount"];
    let dir = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size={} none '{}'", DISKS * DISK_BYTES * 2, dir.path().display());
    let tried = Command::new("unshare").args(namespaces).args(["sh", "-c", &mount]).status();
    if !tried.is_ok_and(|status| status.success()) {
        assert!(std::env::var_os("KVTIDE_NO_SKIP").is_none(), "needs user namespaces and tmpfs in them");
        eprintln!("SKIPPED drives_of_32_tib_cost_what_is_stored_on_them: needs user namespaces and tmpfs in them");
        return;
    }
    let wrapper = dir.path().with_extension("sh");
    let (flags, binary) = (namespaces.join(" "), env!("CARGO_BIN_EXE_kvtide"));
    let script = format!(
        "#!/bin/sh\nexec unshare {flags} sh -c '{} && exec \"$0\" \"$@\"' '{binary}' \"$@\"\n",
        mount.replace('\'', "")
    );
    fs::write(&wrapper, script).unwrap();
    fs::set_permissions(&wrapper, Permissions::from_mode(0o700)).unwrap();
    let disk = |number: u64| dir.path().join(number.to_string());
    let disks = (0..DISKS)
        .map(|number| format!("[[tiers.nvme.disks]]\ndir = \"{}\"\ncapacity = {DISK_BYTES}\n", disk(number).display()));
    let config = format!("[tiers.nvme]\nslab = {SLAB_BYTES}\n{}", disks.collect::<String>());
    let options = Options { binary: Some(wrapper.clone()), ..options(&config) };
    let mut daemon = PrivateDaemon::start(&options).unwrap();
    fs::remove_file(&wrapper).unwrap();
    // The daemon's own mount namespace, in which the tmpfs is mounted.
    let root = PathBuf::from(format!("/proc/{}/root", daemon.pid()));
    let allocated = || -> Vec<u64> {
        let file = |number| root.join(disk(number).join("kvtide.store").strip_prefix("/").unwrap());
        (0..DISKS).map(|number| fs::metadata(file(number)).unwrap().blocks() * 512).collect()
    };
    let before = allocated();
    assert!(before.iter().all(|&bytes| bytes < 64 << 20), "{before:?}");
    // 80 MB on NVMe, more than the host memory.
    let (_client, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 256);
    for prefix in 1..=16 {
        store(&mut channel, &mut memory, prefix, 256, Level::Stored);
    }
    for prefix in 1..=16 {
        load(&mut channel, &mut memory, prefix, 256);
    }
    let status = daemon.status().unwrap();
    let regions: Vec<u64> = (0..DISKS).map(|number| total(&status, &format!("/host/disks/{number}/regions"))).collect();
    assert_eq!(regions, [DISK_BYTES / SLAB_BYTES; DISKS as usize], "{status:#}");
    let after = allocated();
    let stored: u64 = after.iter().zip(&before).map(|(after, before)| after - before).sum();
    assert!((64 << 20..512 << 20).contains(&stored), "{before:?} {after:?}");
    let proc = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let anonymous = proc.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    let kib: u64 = anonymous.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 256 << 10, "{kib} KiB of memory outside of the host tier");
}
