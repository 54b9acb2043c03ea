//! Starts of the daemon on a used directory: durability of `stored`, encrypted disks, and failed starts that change no file.

use crate::BOUND;
use crate::nvme::{Dir, Engine, NVME_BYTES, nvme_options};
use kvtide_bench::private_daemon::{Options, PrivateDaemon};
use kvtide_client::SeqId;
use kvtide_wire::entry::Level;
use kvtide_wire::status::Status;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Blocks of a published sequence.
const BLOCKS: u32 = 12;

/// Return the hashes of `count` blocks of one chain.
fn hashes(chain: u64, count: u32) -> Vec<u128> {
    // Spread over all bits, because small numbers also occur elsewhere in a file.
    let spread =
        |index: u128| (u128::from(chain) << 64 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    (1..=u128::from(count)).map(spread).collect()
}

fn start(options: &Options) -> PrivateDaemon {
    PrivateDaemon::start(options).unwrap()
}

fn plain(dir: &Dir) -> Options {
    nvme_options(dir, NVME_BYTES, "", "")
}

/// Write a sequence and publish it at a level.
fn store(engine: &mut Engine, chain: u64, level: Level) -> SeqId {
    let seq = engine.write(BLOCKS).unwrap();
    let reached = engine.channel.publish(seq, 0, 0, &hashes(chain, BLOCKS), level, BOUND).unwrap();
    assert!(reached >= level, "{level:?} requested, {reached:?} reached");
    seq
}

/// Return how many blocks of a chain are found. Read them and compare with the bytes that `writer` wrote.
fn find(engine: &mut Engine, chain: u64, writer: SeqId) -> u32 {
    let seq = engine.channel.create_seq().unwrap();
    let found = engine.channel.attach_prefix(seq, &hashes(chain, BLOCKS), BOUND).unwrap() as u32;
    engine.mapped.insert(seq, writer);
    if found > 0 {
        engine.step(&[(seq, found)], found).unwrap();
    }
    engine.mapped.remove(&seq);
    engine.channel.drop_seq(seq).unwrap();
    found
}

#[test]
fn a_child_that_is_stored_is_found_though_nobody_asked_for_its_parents() {
    let dir = Dir::new();
    let mut daemon = start(&plain(&dir));
    let mut engine = Engine::attach(daemon.socket(), 1);
    let seq = engine.write(BLOCKS).unwrap();
    let hashes = hashes(1, BLOCKS);
    let (above, below) = hashes.split_at(BLOCKS as usize / 2);
    engine.channel.publish(seq, 0, 0, above, Level::Published, BOUND).unwrap();
    let parent = above[above.len() - 1];
    let reached = engine.channel.publish(seq, BLOCKS / 2, parent, below, Level::Stored, BOUND).unwrap();
    assert!(reached >= Level::Stored);
    daemon.signal(Signal::KILL).unwrap();
    drop(engine);
    daemon = start(&plain(&dir));
    assert_eq!(find(&mut Engine::attach(daemon.socket(), 1), 1, seq), BLOCKS, "{}", daemon.log());
}

#[test]
fn more_blocks_than_a_request_holds_are_stored() {
    const MANY: u32 = 300;
    let dir = Dir::new();
    let mut daemon = start(&plain(&dir));
    let mut engine = Engine::attach(daemon.socket(), 1);
    let seq = engine.write(MANY).unwrap();
    let reached = engine.channel.publish(seq, 0, 0, &hashes(1, MANY), Level::Stored, BOUND).unwrap();
    assert!(reached >= Level::Stored);
    daemon.signal(Signal::KILL).unwrap();
    drop(engine);
    daemon = start(&plain(&dir));
    let mut engine = Engine::attach(daemon.socket(), 1);
    let again = engine.channel.create_seq().unwrap();
    assert_eq!(
        engine.channel.attach_prefix(again, &hashes(1, MANY), BOUND).unwrap(),
        MANY as usize,
        "{}",
        daemon.log()
    );
    engine.mapped.insert(again, seq);
    engine.step(&[(again, MANY)], MANY).unwrap();
}

/// Blocks that the write budget refuses wait. The engine sends nothing more; a clean stop writes what has accrued.
#[test]
fn what_waits_for_the_write_budget_is_written_at_a_clean_stop() {
    let dir = Dir::new();
    // The disk's table is the last one in the configuration.
    let config = plain(&dir).config.map(|text| text + "bytes_per_day = \"40GiB\"\n");
    let options = Options { config, ..plain(&dir) };
    let mut daemon = start(&options);
    store(&mut Engine::attach(daemon.socket(), 1), 1, Level::Stored);
    daemon.stop().unwrap();
    // A space with blocks of an earlier run begins with an empty budget.
    let mut daemon = start(&options);
    let mut engine = Engine::attach(daemon.socket(), 1);
    let seq = engine.write(BLOCKS).unwrap();
    let refused = engine.channel.publish(seq, 0, 0, &hashes(2, BLOCKS), Level::Stored, BOUND);
    assert_eq!(refused.map_err(|error| error.status()), Err(Status::OverBudget));
    let until = Instant::now() + BOUND;
    let has_room = |budget: &serde_json::Value| budget["left_bytes"].as_u64() >= Some(u64::from(BLOCKS) * 3 * 4096);
    while !has_room(&daemon.status().unwrap()["spaces"][0]["budget"]) {
        assert!(Instant::now() < until);
    }
    daemon.stop().unwrap();
    daemon = start(&options);
    assert_eq!(find(&mut Engine::attach(daemon.socket(), 1), 2, seq), BLOCKS, "{}", daemon.log());
}

#[test]
fn without_a_disk_nothing_is_stored_and_it_is_said() {
    let daemon = crate::daemon("");
    let mut engine = Engine::attach(daemon.socket(), 1);
    let seq = engine.write(BLOCKS).unwrap();
    for level in [Level::Stored, Level::Durable] {
        let refused = engine.channel.publish(seq, 0, 0, &hashes(1, BLOCKS), level, BOUND);
        assert_eq!(refused.map_err(|error| error.status()), Err(Status::NotAdmitted));
    }
    assert_eq!(find(&mut engine, 1, seq), BLOCKS, "the blocks are findable nevertheless");
}

/// Return every file below a directory, with its bytes and permissions.
fn snapshot(dir: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        if path.is_dir() {
            files.extend(snapshot(&path));
            files.insert(path, (mode, Vec::new()));
        } else {
            files.insert(path.clone(), (mode, fs::read(&path).unwrap()));
        }
    }
    files
}

/// Start a daemon that must fail with each text of `said` in its error and change no byte below `dir`.
fn refused(what: &str, dir: &Dir, options: &Options, said: &[&str]) {
    let before = snapshot(dir.path());
    let error = match PrivateDaemon::start(options) {
        Ok(daemon) => panic!("{what}: the daemon started: {}", daemon.log()),
        Err(error) => error.to_string(),
    };
    for words in said {
        assert!(error.contains(words), "{what}: {words:?} is not in: {error}");
    }
    let after = snapshot(dir.path());
    assert!(before.keys().eq(after.keys()), "{what}: files were created or deleted: {:?}", after.keys());
    for (path, was) in &before {
        assert!(after[path] == *was, "{what}: {} was changed", path.display());
    }
}

/// Create a directory with a store that has a published sequence; return both.
fn stored(options: impl Fn(&Dir) -> Options) -> (Dir, SeqId) {
    let dir = Dir::new();
    let mut daemon = start(&options(&dir));
    let writer = store(&mut Engine::attach(daemon.socket(), 1), 1, Level::Stored);
    assert!(daemon.stop().unwrap().success(), "{}", daemon.log());
    (dir, writer)
}

/// Check that the store's blocks are still found.
fn still_there(dir: &Dir, options: &Options, writer: SeqId) {
    let daemon = start(options);
    let found = find(&mut Engine::attach(daemon.socket(), 1), 1, writer);
    assert_eq!(found, BLOCKS, "{}: {}", dir.path().display(), daemon.log());
}

#[test]
fn a_second_daemon_on_a_directory_is_refused_and_touches_nothing() {
    let dir = Dir::new();
    let daemon = start(&plain(&dir));
    let mut engine = Engine::attach(daemon.socket(), 1);
    let writer = store(&mut engine, 1, Level::Durable);
    // The first daemon still holds its lock while it is stopped, so every change to the file comes from the second one.
    daemon.signal(Signal::STOP).unwrap();
    refused("a second daemon", &dir, &plain(&dir), &["kvtide.store", "in use"]);
    daemon.signal(Signal::CONT).unwrap();
    assert_eq!(find(&mut engine, 1, writer), BLOCKS);
}

#[test]
fn a_tier_that_does_not_fit_is_refused_with_what_does() {
    let (dir, writer) = stored(plain);
    refused("too large", &dir, &nvme_options(&dir, 1 << 46, "", ""), &["capacity", "GiB", "free"]);
    still_there(&dir, &plain(&dir), writer);
    let empty = Dir::new();
    fs::create_dir(empty.path().join("disk")).unwrap();
    fs::set_permissions(empty.path().join("disk"), Permissions::from_mode(0o700)).unwrap();
    refused("too large for an empty directory", &empty, &nvme_options(&empty, 1 << 46, "", ""), &["at most"]);
}

#[test]
fn files_that_are_not_ours_are_refused_and_left_alone() {
    let (dir, writer) = stored(plain);
    let (disk, file) = (dir.path().join("disk"), dir.store());
    let with_mode = |path: &Path, mode: u32, said: &[&str]| {
        let was = fs::metadata(path).unwrap().permissions();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        refused("open to others", &dir, &plain(&dir), said);
        fs::set_permissions(path, was).unwrap();
    };
    with_mode(&disk, 0o755, &["is accessible to other users"]);
    with_mode(&file, 0o644, &["is accessible to other users"]);
    // Overwrite both superblock signatures: a foreign file with the store's name.
    let changed = File::options().read(true).write(true).open(&file).unwrap();
    let mut ours = [[0; 8]; 2];
    let at = [0, 4096];
    for (bytes, at) in ours.iter_mut().zip(at) {
        changed.read_exact_at(bytes, at).unwrap();
        changed.write_all_at(b"foreign!", at).unwrap();
    }
    refused("a foreign file", &dir, &plain(&dir), &["kvtide.store", "was not changed"]);
    for (bytes, at) in ours.iter().zip(at) {
        changed.write_all_at(bytes, at).unwrap();
    }
    still_there(&dir, &plain(&dir), writer);
}

#[test]
fn a_configuration_that_is_wrong_is_refused_before_the_disk_is_looked_at() {
    let (dir, writer) = stored(plain);
    let tiers = [
        ("codec = \"zip\"", "codec"),
        ("slab = 1000", "slab"),
        ("admission = \"some\"", "admission"),
        ("no_such_key = 1", "no_such_key"),
        ("low_percent = 95\nhigh_percent = 90", "low_percent"),
        ("depth = \"few\"", "depth"),
    ];
    for (tier, said) in tiers {
        refused(tier, &dir, &nvme_options(&dir, NVME_BYTES, tier, ""), &[said, "kvtided.toml"]);
    }
    still_there(&dir, &plain(&dir), writer);
}

/// Return a master key; `more` selects the key.
fn key_bytes(more: u8) -> Vec<u8> {
    (0..32).map(|n| n * 7 + more).collect()
}

/// Return the options of a daemon that encrypts its disk with the key in the directory.
fn encrypted(dir: &Dir) -> Options {
    let key = dir.path().join("key");
    if !key.exists() {
        fs::write(&key, key_bytes(1)).unwrap();
        fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    }
    let text = format!("[tiers.nvme.encryption]\nkey = \"file\"\npath = {key:?}\n");
    nvme_options(dir, NVME_BYTES, "", &text)
}

#[test]
fn a_wrong_key_is_refused_and_the_right_one_still_opens_the_store() {
    let (dir, writer) = stored(encrypted);
    let key = dir.path().join("key");
    let text = fs::read(dir.store()).unwrap();
    let hash = hashes(1, 1)[0].to_le_bytes();
    assert!(!text.windows(16).any(|bytes| bytes == hash), "the file contains a hash in plain text");
    fs::write(&key, key_bytes(2)).unwrap();
    refused("another key", &dir, &encrypted(&dir), &["Configure that key"]);
    fs::write(&key, &key_bytes(1)[1..]).unwrap();
    refused("half a key", &dir, &encrypted(&dir), &["expected 32 bytes"]);
    fs::write(&key, key_bytes(1)).unwrap();
    fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    refused("a key that others can read", &dir, &encrypted(&dir), &["cannot use the key", "mode 0644"]);
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    refused("no key", &dir, &plain(&dir), &["no key is configured"]);
    fs::rename(&key, dir.path().join("elsewhere")).unwrap();
    let gone =
        nvme_options(&dir, NVME_BYTES, "", &format!("[tiers.nvme.encryption]\nkey = \"file\"\npath = {key:?}\n"));
    refused("a key that is not there", &dir, &gone, &["cannot read the key"]);
    fs::rename(dir.path().join("elsewhere"), &key).unwrap();
    still_there(&dir, &encrypted(&dir), writer);
}
