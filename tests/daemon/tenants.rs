//! Two tenants with the same model and prompts: one tenant's cache does not affect the other's hits, answers or work.

use crate::blocks::{attach_as, hashes, load, store};
use crate::tokens::Files;
use crate::{BOUND, daemon, until_status};
use kvtide_bench::private_daemon::PrivateDaemon;
use kvtide_client::{Channel, Client, Options, SpaceSpec};
use kvtide_wire::entry::Level;
use kvtide_wire::geometry::Plane;
use kvtide_wire::status::Status;
use std::time::Duration;

/// Blocks of the shared prefix, and planes of a block.
const BLOCKS: u32 = 48;
const PLANES: u64 = 3;

/// Return a counter of the only session in a tenant's only space.
fn counted(daemon: &mut PrivateDaemon, tenant: &str, path: &str) -> u64 {
    let status = daemon.status().unwrap();
    let spaces: Vec<_> = status["spaces"].as_array().unwrap().iter().filter(|s| s["domain"] == tenant).collect();
    assert_eq!(spaces.len(), 1, "{status:#}");
    spaces[0].pointer(path).and_then(serde_json::Value::as_u64).unwrap_or_else(|| panic!("no {path}: {status:#}"))
}

const REQUESTS: &str = "/attached/0/requests";
const JOBS: &str = "/attached/0/jobs";

/// Look up and lease the other tenant's prompts, and prompts that are not cached. Return hits, permille in host memory, and the
/// lease's status.
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
    let files = Files::new();
    let mut daemon = daemon(&files.config());
    let (_a, mut a, mut memory_a) = attach_as(daemon.socket(), Some(files.path("a")), (1, 0), 64);
    let (_b, mut b, mut memory_b) = attach_as(daemon.socket(), Some(files.path("b")), (1, 0), 64);
    let work = |daemon: &mut PrivateDaemon, b: &mut Channel| {
        let before = [REQUESTS, JOBS].map(|path| counted(daemon, "tenant-b", path));
        let told = ask(b);
        let after = [REQUESTS, JOBS].map(|path| counted(daemon, "tenant-b", path));
        (told, [0, 1].map(|i| after[i] - before[i]))
    };
    let nobody = work(&mut daemon, &mut b);
    assert!(nobody.0.iter().all(|told| *told == (0, 0, Status::NotFound)), "{nobody:?}");
    assert!(nobody.1[0] >= 16 && nobody.1[1] == 0, "one request per call, and no copy: {nobody:?}");
    store(&mut a, &mut memory_a, 1, BLOCKS, Level::Published);
    assert_eq!(work(&mut daemon, &mut b), nobody, "the other tenant's cache changes neither answers nor work");
    // Blocks cached by the other tenant save no copies either.
    let jobs = counted(&mut daemon, "tenant-b", JOBS);
    store(&mut b, &mut memory_b, 1, BLOCKS / 2, Level::Published);
    assert_eq!(counted(&mut daemon, "tenant-b", JOBS) - jobs, u64::from(BLOCKS / 2) * PLANES);
    assert_eq!(b.lookup(&hashes(1, BLOCKS), BOUND).unwrap().blocks, BLOCKS / 2, "its own blocks");
    load(&mut b, &mut memory_b, 1, BLOCKS / 2);
    assert_eq!(a.lookup(&hashes(1, BLOCKS), BOUND).unwrap().blocks, BLOCKS);
    load(&mut a, &mut memory_a, 1, BLOCKS);
}

/// An engine separates its users by a salt in their hashes. The index only compares whole hashes.
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
    // A chain that begins with another salt cannot continue in the cached chain.
    let mixed = [&other[..1], &one[1..]].concat();
    assert_eq!(channel.lookup(&mixed[..1], BOUND).unwrap().blocks, 0);
    let copied = channel.store((1, other[0]), &other[1..3], &[0, 1], Level::Published, BOUND).unwrap();
    assert_eq!((copied.status, copied.failed), (Status::NotAdmitted, vec![0, 1]), "the parent is not cached");
}

/// A tenant with a session for each of many models cannot end the idle space of another, nor take all spaces.
#[test]
fn many_models_of_a_tenant_leave_the_spaces_of_another() {
    let files = Files::new();
    let mut daemon = daemon(&format!("{}[limits]\nspaces_max = 6\n", files.config()));
    let token = |name: &str| Some(files.path(name));
    let (client, mut b, mut memory) = attach_as(daemon.socket(), token("b"), (1, 0), 16);
    store(&mut b, &mut memory, 1, 16, Level::Published);
    drop((b, client, memory));
    until_status(&mut daemon, "the session has left", |status| {
        status["sessions"].as_array().is_some_and(Vec::is_empty)
    });
    let attach = |model: u8| {
        let space = SpaceSpec::new("many", [model; 32], 16, vec![Plane::full(4096)]);
        Client::attach(Options { token_file: token("a"), ..Options::new(daemon.socket().into(), space, vec![0]) })
    };
    let engines: Vec<_> = (100..116).map(attach).collect();
    let refused: Vec<_> = engines.iter().filter_map(|engine| engine.as_ref().err()).map(ToString::to_string).collect();
    // Six spaces, three domains: two of the others' four are kept for each.
    assert_eq!(refused.len(), 14, "{refused:?}");
    assert!(refused.iter().all(|why| why.contains("this domain has 2 of 6 spaces")), "{refused:?}");
    let (_client, mut b, mut memory) = attach_as(daemon.socket(), token("b"), (1, 0), 16);
    assert_eq!(b.lookup(&hashes(1, 16), BOUND).unwrap().blocks, 16);
    load(&mut b, &mut memory, 1, 16);
}
