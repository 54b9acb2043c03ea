//! Two tenants with the same model and the same prompts: nothing that one has shows in what the other finds, gets, or causes.

use crate::blocks::{attach_as, hashes, load, store};
use crate::tokens::Files;
use crate::{BOUND, daemon};
use kvtide_client::Channel;
use kvtide_daemon::cli::private_daemon::PrivateDaemon;
use kvtide_wire::entry::Level;
use kvtide_wire::status::Status;
use std::time::Duration;

/// Blocks of the prefix that both have, and planes of one.
const BLOCKS: u32 = 48;
const PLANES: u64 = 3;

/// A number of a tenant's only space: of what its only session has done.
fn counted(daemon: &mut PrivateDaemon, tenant: &str, path: &str) -> u64 {
    let status = daemon.status().unwrap();
    let spaces: Vec<_> = status["spaces"].as_array().unwrap().iter().filter(|s| s["domain"] == tenant).collect();
    assert_eq!(spaces.len(), 1, "{status:#}");
    spaces[0].pointer(path).and_then(serde_json::Value::as_u64).unwrap_or_else(|| panic!("no {path}: {status:#}"))
}

const REQUESTS: &str = "/attached/0/requests";
const JOBS: &str = "/attached/0/jobs";

/// What a tenant is told of the other's prompts, and of prompts that nobody has: how much is found, and what a lease says.
fn ask(channel: &mut Channel) -> Vec<(u32, u32, Status)> {
    let of = |prefix| {
        let chain = hashes(prefix, BLOCKS);
        [1, 2, 17, BLOCKS].map(|blocks| (chain[..blocks as usize].to_vec(), blocks))
    };
    let mut told = Vec::new();
    for (chain, blocks) in [1, 77].into_iter().flat_map(of) {
        let found = channel.lookup(&chain, BOUND).unwrap();
        let lease = channel.lease(chain[chain.len() - 1], blocks, Duration::from_secs(60), BOUND);
        told.push((found.blocks, found.in_host_permille, lease.err().map_or(Status::Ok, |error| error.status())));
    }
    told
}

#[test]
fn a_tenant_finds_nothing_of_anothers_and_its_look_ups_do_the_same_work() {
    let files = Files::new("apart");
    let mut daemon = daemon(&files.config());
    let (_a, mut a, mut memory_a) = attach_as(daemon.socket(), Some(files.0.join("a")), (1, 0), 64);
    let (_b, mut b, mut memory_b) = attach_as(daemon.socket(), Some(files.0.join("b")), (1, 0), 64);
    let work = |daemon: &mut PrivateDaemon, b: &mut Channel| {
        let before = [REQUESTS, JOBS].map(|path| counted(daemon, "tenant-b", path));
        let told = ask(b);
        let after = [REQUESTS, JOBS].map(|path| counted(daemon, "tenant-b", path));
        (told, [0, 1].map(|i| after[i] - before[i]))
    };
    let nobody = work(&mut daemon, &mut b);
    assert!(nobody.0.iter().all(|told| *told == (0, 0, Status::NotFound)), "{nobody:?}");
    assert!(nobody.1[0] >= 16 && nobody.1[1] == 0, "a message for each question, and no copy: {nobody:?}");
    store(&mut a, &mut memory_a, 1, BLOCKS, Level::Published);
    assert_eq!(work(&mut daemon, &mut b), nobody, "what the other has cached changes neither answers nor work");
    // What the other has cached saves this one no copy either.
    let jobs = counted(&mut daemon, "tenant-b", JOBS);
    store(&mut b, &mut memory_b, 1, BLOCKS / 2, Level::Published);
    assert_eq!(counted(&mut daemon, "tenant-b", JOBS) - jobs, u64::from(BLOCKS / 2) * PLANES);
    assert_eq!(b.lookup(&hashes(1, BLOCKS), BOUND).unwrap().blocks, BLOCKS / 2, "its own");
    load(&mut b, &mut memory_b, 1, BLOCKS / 2);
    assert_eq!(a.lookup(&hashes(1, BLOCKS), BOUND).unwrap().blocks, BLOCKS);
    load(&mut a, &mut memory_a, 1, BLOCKS);
}

/// An engine keeps its users apart by what it puts before their hashes: the index knows whole hashes alone.
#[test]
fn users_with_other_salts_share_nothing_within_a_tenant() {
    let salted = |salt: u128| -> Vec<u128> {
        let step = |above: &mut u128, block: u128| {
            *above = (*above ^ block).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).rotate_left(61) | 1;
            Some(*above)
        };
        (1..=u128::from(BLOCKS)).scan(salt, step).collect()
    };
    let (one, other) = (salted(11), salted(12));
    let daemon = daemon("");
    let (_client, mut channel, _memory) = attach_as(daemon.socket(), None, (1, 0), 64);
    let own: Vec<u32> = (0..BLOCKS).collect();
    let copied = channel.store((0, 0), &one, &own, Level::Published, BOUND).unwrap();
    assert_eq!(copied.status, Status::Ok);
    assert_eq!(channel.lookup(&one, BOUND).unwrap().blocks, BLOCKS);
    assert_eq!(channel.lookup(&other, BOUND).unwrap().blocks, 0);
    // Nor does a chain that begins with another salt go on in the one that is cached.
    let mixed = [&other[..1], &one[1..]].concat();
    assert_eq!(channel.lookup(&mixed[..1], BOUND).unwrap().blocks, 0);
    let copied = channel.store((1, other[0]), &other[1..3], &[0, 1], Level::Published, BOUND).unwrap();
    assert_eq!((copied.status, copied.failed), (Status::NotAdmitted, vec![0, 1]), "what it stands on is not cached");
}
