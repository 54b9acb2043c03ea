//! Relays: they watch the open spaces, follow the cache, read blocks by their hashes, and keep no space alive.

use crate::blocks::{Memory, PAGE_BYTES, attach, hashes, store};
use crate::{BOUND, daemon, sessions, until_status};
use kvtide_bench::private_daemon::PrivateDaemon;
use kvtide_client::{Channel, Client, Error, Options, SpaceChange, SpaceSpec, Watch};
use kvtide_types::{FeedEvent, hash_hex};
use kvtide_wire::entry::Level;
use kvtide_wire::geometry::classes;
use kvtide_wire::hello::{RelayState, SpaceOpened};
use kvtide_wire::os::socket::{Received, Socket};
use kvtide_wire::status::Status;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Return a domain that lets this user's processes be engines and relays.
pub fn with_relays(domain: &str) -> String {
    let uid = rustix::process::geteuid().as_raw();
    format!("[[domains]]\nname = \"{domain}\"\nuids = [{uid}]\nrelay_uids = [{uid}]\n")
}

/// A relay that is attached to a space.
struct Relay {
    client: Client,
    channel: Channel,
    next: u64,
    cached: BTreeSet<u128>,
}

fn relay_options(socket: &Path, space: &SpaceOpened) -> Options {
    let SpaceOpened { fingerprint, page_tokens, shards, .. } = *space;
    let (name, planes) = (space.name.clone(), space.planes.clone());
    let frames = vec![0; classes(&planes).len()];
    let spec = SpaceSpec { name, fingerprint, page_tokens, planes, shards, shard: 0 };
    Options { relay: true, ..Options::new(socket.into(), spec, frames) }
}

impl Relay {
    fn attach(socket: &Path, space: &SpaceOpened) -> Result<Relay, Error> {
        let client = Client::attach(relay_options(socket, space))?;
        client.allocate_blocks(8)?;
        let channel = client.channel(0)?;
        Ok(Relay { client, channel, next: 0, cached: BTreeSet::new() })
    }

    /// Read the next events, at least one of them, and return them.
    fn read(&mut self) -> Vec<FeedEvent> {
        let part = self.channel.follow(self.next, BOUND).unwrap();
        assert!(!part.events.is_empty(), "nothing happened");
        self.next = part.next;
        for event in &part.events {
            match *event {
                FeedEvent::Gap => self.list(),
                FeedEvent::Stored { hash, .. } => _ = self.cached.insert(hash),
                FeedEvent::Removed { hash } => _ = self.cached.remove(&hash),
                FeedEvent::Recorded { .. } | FeedEvent::Used { .. } => {}
            }
        }
        part.events
    }

    fn list(&mut self) {
        self.cached.clear();
        let mut cursor = 0;
        loop {
            let part = self.channel.list_blocks(cursor, BOUND).unwrap();
            self.cached.extend(part.events.iter().filter_map(|event| match event {
                FeedEvent::Stored { hash, .. } => Some(hash),
                _ => None,
            }));
            cursor = part.next;
            if cursor == 0 {
                return;
            }
        }
    }
}

fn watch(daemon: &PrivateDaemon) -> (Watch, Vec<SpaceOpened>) {
    Watch::connect(daemon.socket(), None, BOUND).unwrap()
}

fn next(watch: &Watch) -> SpaceChange {
    watch.next(BOUND).unwrap().expect("a change within the time")
}

/// Return domain and text of the relays in a status.
fn told(status: &serde_json::Value) -> Vec<(&str, &str)> {
    let relays = status["relays"].as_array().unwrap().iter();
    relays.map(|relay| (relay["domain"].as_str().unwrap(), relay["text"].as_str().unwrap())).collect()
}

#[test]
fn the_status_shows_what_relays_tell_while_they_watch() {
    let mut daemon = daemon(&with_relays("a"));
    let state = |text: &str| RelayState { since_s: 1_700_000_000, text: text.into() };
    let (silent, (tells, _)) = (watch(&daemon), watch(&daemon));
    tells.tell(&state("store s3://b/ is in use")).unwrap();
    tells.tell(&state("store s3://b/ is NOT USED: no\nanswer")).unwrap();
    until_status(&mut daemon, "both are shown", |status| {
        let mut told = told(status);
        told.sort_unstable();
        told == [("a", ""), ("a", "store s3://b/ is NOT USED: no\u{fffd}answer")]
    });
    let socket = daemon.socket().to_str().unwrap();
    let shown = Command::new(env!("CARGO_BIN_EXE_kvtide")).args(["status", "--socket", socket]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let (pid, uid) = (std::process::id(), rustix::process::geteuid().as_raw());
    let line = format!("relay      domain a  pid {pid} uid {uid}: store s3://b/ is NOT USED: no\u{fffd}answer (since ");
    assert!(shown.contains(&line), "{line} is not in:\n{shown}");
    drop((silent, tells));
    until_status(&mut daemon, "none is left", |status| told(status).is_empty());
}

#[test]
fn a_relay_that_tells_nonsense_or_too_much_is_disconnected() {
    let mut daemon = daemon(&with_relays("a"));
    let state = RelayState { since_s: 1, text: "fine".into() }.encode();
    let mut control = state.clone();
    *control.last_mut().unwrap() = 0x1b;
    let many = vec![state.clone(); 100];
    for messages in [vec![b"nonsense".to_vec()], vec![state, control], vec![vec![0; 4096]], many] {
        let socket = Socket::connect(daemon.socket()).unwrap();
        socket.send(&kvtide_wire::hello::Watch { token: None }.encode(), &[]).unwrap();
        let mut bytes = [0; 4096];
        assert!(socket.receive_within(&mut bytes, 0, BOUND).is_ok(), "the list of spaces, which is empty");
        // A send fails once it is disconnected.
        messages.iter().for_each(|message| _ = socket.send(message, &[]));
        assert!(socket.receive_within(&mut bytes, 0, BOUND).is_err());
        assert!(matches!(socket.receive(&mut bytes, 0), Ok(Received::Closed)), "it is disconnected");
        until_status(&mut daemon, "no relay is left", |status| told(status).is_empty());
    }
}

/// Start a daemon with an engine that has stored a prefix, and a relay that knows it.
fn relayed(rest: &str) -> (PrivateDaemon, (Client, Channel, Memory), Relay, Watch) {
    let daemon = daemon(&format!("{rest}\n{}", with_relays("a")));
    let mut engine = attach(daemon.socket(), 1, 0, 8);
    store(&mut engine.1, &mut engine.2, 1, 4, Level::Published);
    let (watch, open) = watch(&daemon);
    let mut relay = Relay::attach(daemon.socket(), &open[0]).unwrap();
    assert_eq!(relay.read(), [FeedEvent::Gap]);
    assert_eq!(relay.cached, hashes(1, 4).into_iter().collect());
    (daemon, engine, relay, watch)
}

#[test]
fn relays_are_off_unless_a_domain_names_them() {
    let daemon = daemon("");
    let (_client, mut channel, _memory) = attach(daemon.socket(), 1, 0, 8);
    let error = Watch::connect(daemon.socket(), None, BOUND).unwrap_err();
    assert_eq!(error.status(), Status::Permission);
    assert!(error.to_string().contains("relay_uids") && error.to_string().contains("[[domains]]"), "{error}");
    let space = SpaceOpened {
        space: 1,
        name: "blocks".into(),
        fingerprint: [9; 32],
        page_tokens: 16,
        planes: PAGE_BYTES.map(kvtide_wire::geometry::Plane::full).to_vec(),
        shards: 1,
    };
    assert_eq!(Relay::attach(daemon.socket(), &space).err().unwrap().status(), Status::Permission);
    // A hash is what a tenant's salts rely on: an engine gets none.
    for status in [
        channel.follow(0, BOUND).unwrap_err().status(),
        channel.list_blocks(0, BOUND).unwrap_err().status(),
        channel.load_hashed(&[1], &[0], BOUND).unwrap_err().status(),
    ] {
        assert_eq!(status, Status::Permission);
    }
}

#[test]
fn a_relay_hears_of_spaces_and_attaches_to_what_engines_have_opened() {
    let daemon = daemon(&with_relays("a"));
    let (watch, open) = watch(&daemon);
    assert!(open.is_empty());
    let engine = attach(daemon.socket(), 1, 0, 8);
    let SpaceChange::Opened(space) = next(&watch) else { panic!("a space has opened") };
    assert_eq!((space.name.as_str(), space.fingerprint, space.shards), ("blocks", [9; 32], 1));
    assert_eq!(space.planes.iter().map(|plane| plane.page_bytes).collect::<Vec<_>>(), PAGE_BYTES);
    let unknown = SpaceOpened { fingerprint: [8; 32], ..space.clone() };
    let error = Relay::attach(daemon.socket(), &unknown).err().unwrap();
    assert_eq!(error.status(), Status::NotFound, "no engine has opened it");
    // Two for one shard: one that copies, and `kvtide events`.
    let relays = [(); 2].map(|()| Relay::attach(daemon.socket(), &space).unwrap());
    assert_eq!(Relay::attach(daemon.socket(), &space).err().unwrap().status(), Status::Limit);
    drop((relays, engine));
    assert_eq!(next(&watch), SpaceChange::Closed(space.space));
}

#[test]
fn a_local_space_is_told_to_nobody() {
    let daemon = daemon(&with_relays("a"));
    let (watch, _) = watch(&daemon);
    let space = SpaceSpec::new("local", [5; 32], 16, PAGE_BYTES.map(kvtide_wire::geometry::Plane::full).to_vec());
    let options = Options::new(daemon.socket().into(), space.clone(), vec![0, 0]);
    let _local = Client::attach(Options { local: true, ..options }).unwrap();
    let _other = attach(daemon.socket(), 1, 0, 8);
    let SpaceChange::Opened(told) = next(&watch) else { panic!("a space has opened") };
    assert_eq!(told.fingerprint, [9; 32], "the local one is skipped");
    let local = SpaceOpened { fingerprint: [5; 32], ..told };
    assert_eq!(Relay::attach(daemon.socket(), &local).err().unwrap().status(), Status::NotFound);
}

#[test]
fn a_relay_follows_what_is_cached_and_reads_it_by_hash() {
    let (daemon, (_client, mut channel, mut memory), mut relay, _watch) = relayed("");
    store(&mut channel, &mut memory, 2, 2, Level::Published);
    let h = hashes(2, 2);
    let mut told = relay.read();
    while told.len() < 2 {
        told.extend(relay.read());
    }
    let stored = |hash, parent| FeedEvent::Stored { hash, parent, relayed: false };
    assert_eq!(told, [stored(h[0], 0), stored(h[1], h[0])]);
    let wanted = [hashes(1, 4)[2], 77, h[1]];
    let copied = relay.channel.load_hashed(&wanted, &[3, 4, 5], BOUND).unwrap();
    assert_eq!((copied.status, copied.failed), (Status::NotFound, vec![1]));
    for (block, (prefix, index)) in [(3, (1, 2)), (5, (2, 1))] {
        // As the engine wrote it, plane after plane.
        memory.write(0, prefix, index);
        let mut bytes = Vec::new();
        memory.each(0, |_, byte| bytes.push(*byte));
        let mut read = Vec::new();
        for plane in 0..PAGE_BYTES.len() as u16 {
            relay.client.with_block(block, plane, |page| read.extend_from_slice(page)).unwrap();
        }
        assert!(read == bytes, "block {index} of prefix {prefix}");
    }
    // Blocks of a relay are marked.
    let brought = relay.channel.store((0, 0), &[99], &[3], Level::Published, BOUND).unwrap();
    assert_eq!(brought.status, Status::Ok);
    assert_eq!(relay.read(), [FeedEvent::Stored { hash: 99, parent: 0, relayed: true }]);
    drop(daemon);
    assert_eq!(
        relay.channel.follow(relay.next, BOUND).unwrap_err().status(),
        Status::Daemon,
        "a wait ends with the daemon"
    );
}

#[test]
fn a_relay_counts_for_no_limit_and_keeps_no_space() {
    let (mut daemon, engine, mut relay, watch) =
        relayed("[limits]\nspace_sessions_max = 1\nsessions_max = 1\nspaces_max = 1");
    assert_eq!(sessions(&daemon.status().unwrap()), (2, 0));
    assert!(daemon.status().unwrap()["sessions"].as_array().unwrap().iter().any(|session| session["relay"] == true));
    drop(engine);
    // Its blocks keep the space until another model needs the place.
    assert_eq!(relay.channel.list_blocks(0, BOUND).unwrap().events.len(), 4);
    until_status(&mut daemon, "the engine has left", |status| sessions(status).0 == 1);
    // The control thread hears a little later that the space can be retired.
    let space = SpaceSpec::new("other", [7; 32], 16, vec![kvtide_wire::geometry::Plane::full(4096)]);
    let deadline = Instant::now() + BOUND;
    let other = loop {
        match Client::attach(Options::new(daemon.socket().into(), space.clone(), vec![0])) {
            Ok(client) => break client,
            Err(error) => assert!(error.status() == Status::Limit && Instant::now() < deadline, "{error}"),
        }
    };
    let SpaceChange::Opened(space) = next(&watch) else { panic!("the other space opens") };
    assert_eq!(space.fingerprint, [7; 32]);
    assert_eq!(next(&watch), SpaceChange::Closed(1));
    assert_eq!(relay.channel.follow(relay.next, BOUND).unwrap_err().status(), Status::Daemon, "its space has closed");
    drop(other);
}

#[test]
fn a_space_that_is_empty_closes_though_a_relay_follows_it() {
    let (mut daemon, engine, mut relay, watch) = relayed("");
    let evicted = Command::new(env!("CARGO_BIN_EXE_kvtide"))
        .args(["cache", "clear", "--space", "1", "--yes", "--socket", daemon.socket().to_str().unwrap()])
        .output()
        .unwrap();
    assert!(evicted.status.success(), "{evicted:?}");
    while !relay.cached.is_empty() {
        relay.read();
    }
    drop(engine);
    assert_eq!(next(&watch), SpaceChange::Closed(1));
    until_status(&mut daemon, "no space is left", |status| status["spaces"].as_array().unwrap().is_empty());
}

#[test]
fn a_relay_that_waits_puts_no_end_off() {
    let (daemon, engine, mut relay, watch) = relayed("[daemon]\ndrain_ms = 600000");
    // It would wait as long as the daemon lets it; without an end it gets no event, which is no error.
    let waiting = std::thread::spawn(move || relay.channel.follow(relay.next, BOUND).unwrap_err().status());
    drop(engine);
    daemon.signal(Signal::TERM).unwrap();
    assert_eq!(waiting.join().unwrap(), Status::Daemon);
    while let Ok(change) = watch.next(BOUND) {
        assert!(change.is_some(), "the daemon has ended");
    }
}

#[test]
fn the_tool_prints_what_is_cached_and_what_changes() {
    let (daemon, (_client, mut channel, mut memory), relay, _watch) = relayed("");
    drop(relay);
    let socket = daemon.socket().to_str().unwrap();
    let told = Command::new(env!("CARGO_BIN_EXE_kvtide")).args(["events", "--socket", socket]).output().unwrap();
    let lines = |bytes: &[u8]| -> Vec<serde_json::Value> {
        std::str::from_utf8(bytes).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let all = lines(&told.stdout);
    assert_eq!((told.status.code(), all.len()), (Some(0), 5), "{told:?}");
    assert_eq!(
        (&all[0]["event"], &all[0]["name"], &all[0]["version"]),
        (&"space_opened".into(), &"blocks".into(), &1.into())
    );
    assert_eq!((&all[4]["event"], all[1]["parent"].is_null()), (&"stored".into(), true));
    // Output that cannot be written is an error, a reader that closes early is none.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let (reader, pipe) = std::io::pipe().unwrap();
    drop(reader);
    for (out, code) in [(std::process::Stdio::from(full), 1), (pipe.into(), 0)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide"));
        let ended = command.args(["events", "--socket", socket]).stdout(out).status().unwrap();
        assert_eq!(ended.code(), Some(code));
    }
    let http = Command::new(env!("CARGO_BIN_EXE_kvtide")).args(["events", "--http", "127.0.0.1:1"]).output().unwrap();
    assert_eq!(http.status.code(), Some(2), "events do not come over HTTP");
    let mut follows = Command::new(env!("CARGO_BIN_EXE_kvtide"))
        .args(["events", "--follow", "--socket", socket])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = std::io::BufRead::lines(std::io::BufReader::new(follows.stdout.take().unwrap()));
    let mut line = || -> serde_json::Value { serde_json::from_str(&out.next().unwrap().unwrap()).unwrap() };
    let first: Vec<_> = (0..6).map(|_| line()["event"].clone()).collect();
    assert_eq!(first[..3], ["space_opened", "gap", "stored"]);
    store(&mut channel, &mut memory, 3, 1, Level::Published);
    let stored = line();
    assert_eq!((&stored["event"], &stored["hash"]), (&"stored".into(), &hash_hex(hashes(3, 1)[0]).into()));
    drop(daemon);
    assert_eq!(follows.wait().unwrap().code(), Some(3), "the daemon is gone");
}
