//! `kvtide why` and the causes of misses, by what really happens: a full host tier, a write budget, a restart, another model.

use crate::blocks::{attach, attach_model, hashes, store};
use crate::http::{get, metric};
use crate::nvme::{Dir, NVME_BYTES, nvme_options};
use crate::operate::{hex, kvtide, told};
use crate::{BOUND, options};
use kvtide_bench::private_daemon::{Options, PrivateDaemon};
use kvtide_wire::entry::Level;
use std::net::SocketAddr;
use std::path::Path;

/// Blocks of each prefix.
const BLOCKS: u32 = 16;

/// Ask for one block; return the cause that the `at`th space gives, and the text.
fn why(socket: &Path, hash: &str, status: i32, at: usize) -> (String, String) {
    let json = told(socket, &["why", hash], status);
    let cause = json["spaces"][at]["blocks"][0]["missing"]["cause"].as_str().unwrap_or_default().to_owned();
    (cause, String::from_utf8(kvtide(socket, &["why", hash]).stdout).unwrap())
}

#[test]
fn a_block_that_host_memory_and_the_write_budget_left_no_room_for_says_so() {
    for (disk, cause, parts) in [
        (
            "bytes_per_day = \"4KiB\"\n",
            "over_budget",
            ["the write budget had kept it from NVMe", "raise bytes_per_day of tiers.nvme.disks"],
        ),
        ("", "not_admitted", ["tiers.nvme.admission had kept it from NVMe", "set tiers.nvme.admission = \"all\""]),
    ] {
        let dir = Dir::new();
        let tier = if disk.is_empty() { "admission = \"second-touch\"" } else { "" };
        let options = nvme_options(&dir, NVME_BYTES, tier, "");
        let config = options.config.map(|text| text + disk);
        let mut daemon =
            PrivateDaemon::start(&Options { config, http: Some("127.0.0.1:0".into()), ..options }).unwrap();
        let (_client, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 32);
        // Several times what host memory holds.
        (1..=40).for_each(|prefix| store(&mut channel, &mut memory, prefix, BLOCKS, Level::Published));
        assert!(channel.lookup(&hashes(1, BLOCKS), BOUND).unwrap().blocks < BLOCKS);
        let (found, text) = why(daemon.socket(), &hex(1, BLOCKS.into()), 1, 0);
        assert_eq!(found, cause, "{text}");
        for part in [&["evicted from host memory"][..], &parts].concat() {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        let address: SocketAddr = daemon.status().unwrap()["http"].as_str().unwrap().parse().unwrap();
        let page = get(address, "/metrics").2;
        let misses = |cause: &str| metric(&page, "kvtide_tenant_lookup_misses_total", &[&format!("cause=\"{cause}\"")]);
        assert_eq!((misses(cause), misses("never_stored")), (Some(1.0), Some(0.0)), "{page}");
    }
}

#[test]
fn a_block_that_was_only_in_memory_is_unknown_after_a_restart() {
    let dir = Dir::new();
    let options = nvme_options(&dir, NVME_BYTES, "admission = \"second-touch\"", "");
    let mut daemon = PrivateDaemon::start(&options).unwrap();
    let (client, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 32);
    store(&mut channel, &mut memory, 1, 4, Level::Published);
    store(&mut channel, &mut memory, 2, 4, Level::Stored);
    drop((client, channel));
    daemon.stop().unwrap();
    let mut daemon = PrivateDaemon::start(&options).unwrap();
    // Without an engine no space runs, and the disk cannot be searched.
    let (_, text) = why(daemon.socket(), &hex(2, 4), 1, 0);
    assert!(text.contains("no space runs") && text.contains("of spaces that do not run"), "{text}");
    let (_client, _channel, _memory) = attach(daemon.socket(), 1, 0, 32);
    let text = why(daemon.socket(), &hex(2, 4), 0, 0).1;
    assert!(text.contains("  1          nvme\n"), "{text}");
    let text = why(daemon.socket(), &hex(1, 4), 1, 0).1;
    assert!(text.contains("no engine has stored these blocks") && text.contains("do not survive"), "{text}");
    daemon.stop().unwrap();
}

#[test]
fn a_block_of_another_model_is_found_there_and_the_difference_is_named() {
    let daemon = PrivateDaemon::start(&options("")).unwrap();
    let (_one, mut channel, mut memory) = attach_model(daemon.socket(), None, (1, 0), 1, 32);
    store(&mut channel, &mut memory, 1, 4, Level::Published);
    let (_two, mut second, _others) = attach_model(daemon.socket(), None, (1, 0), 2, 32);
    assert_eq!(second.lookup(&hashes(1, 4), BOUND).unwrap().blocks, 0);
    let (_, text) = why(daemon.socket(), &hex(1, 4), 0, 0);
    assert!(text.starts_with("space 1 blocks  (tenant default)\n  prefix     1 of 1 blocks are cached\n"), "{text}");
    let second = "space 2 blocks  (tenant default)\n  prefix     0 of 1 blocks are cached\n  1          not cached: no engine has stored it";
    let differs = "  engine     differs from that of space 1 in:\n             model: 2, not 1\n";
    assert!(text.contains(second) && text.contains(differs) && !text.contains("dtype"), "{text}");
}

#[test]
fn a_store_whose_parent_is_not_cached_says_so() {
    let daemon = PrivateDaemon::start(&options("")).unwrap();
    let (_client, mut channel, _memory) = attach(daemon.socket(), 1, 0, 32);
    let copied = channel.store((1, hashes(1, 1)[0]), &hashes(1, 3)[1..], &[1, 2], Level::Published, BOUND).unwrap();
    assert_eq!(copied.failed.len(), 2);
    let (cause, text) = why(daemon.socket(), &hex(1, 3), 1, 0);
    assert!(cause == "store_no_parent" && text.contains("found the block before it gone"), "{text}");
}
