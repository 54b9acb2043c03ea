//! Access to KV events, and hostile peers beside well-behaved ones: raw connections to the relay's sockets.
#![allow(clippy::unwrap_used)] // helpers of tests too: a panic there is a failure with a place

use kvtide_relay::config::{Address, Config, Events as Settings};
use kvtide_relay::events::{Counters, Domains, Events, Follower, NoStream};
use kvtide_types::FeedEvent;
use kvtide_wire::hello::SpaceOpened;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const BOUND: Duration = Duration::from_secs(60);
const SPACE: [u8; 32] = [9; 32];
const TOKEN: &str = "router-router-router-router-router";

fn config(domains: &str) -> Config {
    Config::parse(Path::new("relay.toml"), &format!("[store]\nurl = \"file:///s\"\n{domains}")).unwrap()
}

fn domain(name: &str, dir: &Path, events: &str) -> String {
    let shown = dir.display();
    format!(
        "[[domains]]\nname = \"{name}\"\nshared_key_file = \"/k\"\ntoken_file = \"/{name}\"\n[domains.events]\n{events}\n\
         tokens_dir = \"{shown}/tokens-{name}\"\n"
    )
}

fn ipc(dir: &Path, name: &str, uids: &[u32]) -> String {
    let shown = dir.display();
    format!("publish = \"ipc://{shown}/{name}-publish\"\nreplay = \"ipc://{shown}/{name}-replay\"\nuids = {uids:?}\n")
}

fn tcp(rest: &str) -> String {
    // Each takes 16 ports, one for each space.
    let publish = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = publish.local_addr().unwrap().port();
    let far = || {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        (other.local_addr().unwrap().port().abs_diff(port) >= 16).then_some(other)
    };
    let replay = std::iter::repeat_with(far).flatten().next().unwrap().local_addr().unwrap().port();
    format!("publish = \"tcp://127.0.0.1:{port}\"\nreplay = \"tcp://127.0.0.1:{replay}\"\n{rest}\n")
}

fn secret(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    path.display().to_string()
}

/// A domain whose space has one cached block, 1, with tokens.
struct Served {
    events: Events,
    counters: Arc<Counters>,
    settings: Settings,
    follower: Option<Follower>,
    _runtime: Runtime,
    dir: TempDir,
    uid: u32,
}

fn space(page_tokens: u32) -> SpaceOpened {
    SpaceOpened { space: 1, name: "a".into(), fingerprint: SPACE, page_tokens, planes: Vec::new(), shards: 1 }
}

fn stored(hash: u128) -> FeedEvent {
    FeedEvent::Stored { hash, parent: 0, relayed: false }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn served(page_tokens: u32, keys: impl FnOnce(&Path, u32) -> String) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let uid = std::fs::metadata(dir.path()).unwrap().uid();
    let mut config = config(&domain("a", dir.path(), &keys(dir.path(), uid)));
    let settings = config.domains.remove(0).events.unwrap();
    let (runtime, counters) = (runtime(), Arc::new(Counters::default()));
    let events = Events::open(&settings, runtime.handle().clone(), Arc::clone(&counters)).unwrap();
    events.note(&SPACE, vec![1], &vec![7; page_tokens as usize], None).unwrap();
    let follower = events.follow(&space(page_tokens)).ok();
    follower.iter().for_each(|follower| follower.listing(vec![stored(1)]));
    Served { events, counters, settings, follower, _runtime: runtime, dir, uid }
}

fn until(what: &str, is: impl Fn() -> bool) {
    let deadline = Instant::now() + BOUND;
    while !is() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

fn value(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// A client without a library.
struct Raw(Box<dyn Stream>);

fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    assert!(body.len() < 256);
    [&[flags, body.len() as u8], body].concat()
}

fn command(name: &str, rest: &[u8]) -> Vec<u8> {
    frame(4, &[&[name.len() as u8], name.as_bytes(), rest].concat())
}

fn greeting(mechanism: &str) -> Vec<u8> {
    let mut greeting = vec![0; 64];
    (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xff, 0x7f, 3, 1);
    greeting[12..12 + mechanism.len()].copy_from_slice(mechanism.as_bytes());
    greeting
}

fn metadata(socket: &str) -> Vec<u8> {
    [b"\x0bSocket-Type", &(socket.len() as u32).to_be_bytes()[..], socket.as_bytes()].concat()
}

impl Raw {
    fn connect(address: &Address) -> Raw {
        match address {
            Address::Ipc(path) => {
                let stream = UnixStream::connect(path).unwrap();
                stream.set_read_timeout(Some(BOUND)).unwrap();
                Raw(Box::new(stream))
            }
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).unwrap();
                stream.set_read_timeout(Some(BOUND)).unwrap();
                Raw(Box::new(stream))
            }
        }
    }

    /// Send bytes. The other side may have closed the connection.
    fn send(&mut self, bytes: &[u8]) -> &mut Raw {
        let _ = self.0.write_all(bytes);
        self
    }

    /// Connect and shake hands without a mechanism; `None`: it was refused.
    fn open(address: &Address, socket: &str) -> Option<Raw> {
        let mut raw = Raw::connect(address);
        raw.send(&greeting("NULL")).send(&command("READY", &metadata(socket)));
        raw.greeted()?;
        raw.is_command("READY").then_some(raw)
    }

    /// Shake hands with a token.
    fn open_plain(address: &Address, socket: &str, token: &str) -> Option<Raw> {
        let mut raw = Raw::connect(address);
        raw.send(&greeting("PLAIN"));
        raw.send(&command("HELLO", &[b"\x02me", &[token.len() as u8][..], token.as_bytes()].concat()));
        raw.greeted()?;
        if !raw.is_command("WELCOME") {
            return None;
        }
        raw.send(&command("INITIATE", &metadata(socket)));
        raw.is_command("READY").then_some(raw)
    }

    fn greeted(&mut self) -> Option<()> {
        let mut bytes = [0; 64];
        self.0.read_exact(&mut bytes).ok()?;
        assert_eq!((bytes[0], bytes[9], bytes[10]), (0xff, 0x7f, 3));
        Some(())
    }

    /// Receive a frame: its flags and body.
    fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut head = [0; 2];
        self.0.read_exact(&mut head).ok()?;
        let mut length = u64::from(head[1]);
        if head[0] & 2 != 0 {
            let mut rest = [0; 8];
            rest[0] = head[1];
            self.0.read_exact(&mut rest[1..]).ok()?;
            length = u64::from_be_bytes(rest);
        }
        let mut body = vec![0; length as usize];
        self.0.read_exact(&mut body).ok()?;
        Some((head[0], body))
    }

    fn is_command(&mut self, name: &str) -> bool {
        self.frame().is_some_and(|(flags, body)| flags & 4 != 0 && body[1..].starts_with(name.as_bytes()))
    }

    fn message(&mut self) -> Option<Vec<Vec<u8>>> {
        let mut frames = Vec::new();
        loop {
            let (flags, body) = self.frame()?;
            frames.push(body);
            if flags & 1 == 0 {
                return Some(frames);
            }
        }
    }

    /// Read until the server closes the connection; return its bytes.
    fn end(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => rest,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
                rest
            }
        }
    }

    fn subscribe(&mut self) -> &mut Raw {
        self.send(&command("SUBSCRIBE", b""))
    }

    /// Receive batches until one satisfies a condition.
    fn until(&mut self, is: impl Fn(&[u8]) -> bool) -> u64 {
        loop {
            let [_, number, batch] = &self.message().unwrap()[..] else { panic!("three frames") };
            if is(batch) {
                return u64::from_be_bytes(number[..].try_into().unwrap());
            }
        }
    }

    /// Ask for a replay; return its batches.
    fn replay(&mut self, first: u64) -> Vec<(u64, Vec<u8>)> {
        self.send(&frame(1, b"")).send(&frame(0, &first.to_be_bytes()));
        let mut all = Vec::new();
        loop {
            let [empty, _, number, batch] = &self.message().unwrap()[..] else { panic!("four frames") };
            assert!(empty.is_empty());
            if batch.is_empty() {
                return all;
            }
            all.push((u64::from_be_bytes(number[..].try_into().unwrap()), batch.clone()));
        }
    }
}

impl Served {
    fn publish(&self) -> Address {
        self.settings.publish.of_space(0)
    }

    fn replay(&self) -> Address {
        self.settings.replay.of_space(0)
    }

    fn both(&self) -> [Address; 2] {
        [self.publish(), self.replay()]
    }

    /// A router without a token gets an empty batch, and block 1 by a replay.
    fn serves(&self) {
        Raw::open(&self.publish(), "SUB").expect("served").subscribe().until(|_| true);
        let all = Raw::open(&self.replay(), "DEALER").expect("served").replay(0);
        assert!(all.iter().any(|(_, batch)| has(batch, "BlockStored")), "{all:?}");
    }
}

fn has(batch: &[u8], text: &str) -> bool {
    batch.windows(text.len()).any(|part| part == text.as_bytes())
}

fn anyone(_: &Path, _: u32) -> String {
    tcp("anyone = true")
}

fn own(dir: &Path, uid: u32) -> String {
    ipc(dir, "a", &[uid])
}

#[test]
fn claims_and_silence_of_peers_leave_the_sockets_serving() {
    for keys in [anyone, own] {
        let served = served(2, keys);
        let huge = |flags: u8| [greeting("NULL"), vec![flags], (1u64 << 62).to_be_bytes().to_vec()].concat();
        let ready = |socket: &str| [greeting("NULL"), command("READY", &metadata(socket))].concat();
        for address in served.both() {
            let socket = if address == served.publish() { "SUB" } else { "DEALER" };
            let open = |rest: &[u8]| [&ready(socket), rest].concat();
            let long = |flags: u8, bytes: u64| [&[flags][..], &bytes.to_be_bytes()].concat();
            let attacks = [
                huge(2),
                huge(3),
                huge(6),
                open(&long(2, 1 << 62)),
                open(&long(6, u64::MAX)),
                open(&long(3, 4097)),
                open(&[0x80, 0]),
                open(&command("ERROR", b"\0")),
                ready("PULL"),
                greeting("CURVE"),
                b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            ];
            for (at, attack) in attacks.iter().enumerate() {
                let before = value(&served.counters.refused);
                Raw::connect(&address).send(attack).end();
                until(&format!("attack {at} is counted"), || value(&served.counters.refused) > before);
            }
            // Those that go are not refusals.
            let before = value(&served.counters.refused);
            for cut in [0, 1, 63, 64, 70] {
                Raw::connect(&address).send(&ready(socket)[..cut]);
            }
            let silent: Vec<Raw> = (0..100).map(|_| Raw::connect(&address)).collect();
            served.serves();
            // Most had to give way; the others end after a while, without a word from them.
            let ends: Vec<Vec<u8>> = silent.into_iter().map(|mut raw| raw.end()).collect();
            assert!(
                ends.iter().any(|end| has(end, "no handshake")) && ends.iter().any(|end| has(end, "other connections"))
            );
            until("they are counted", || value(&served.counters.refused) >= before + 100);
        }
        served.serves();
    }
}

#[test]
fn a_user_that_is_not_named_gets_nothing() {
    let served = served(2, |dir, uid| ipc(dir, "a", &[uid + 1, uid + 2]));
    for (at, address) in served.both().iter().enumerate() {
        // More than there are places: strangers take none.
        for _ in 0..100 {
            let mut raw = Raw::connect(address);
            raw.send(&greeting("NULL"));
            assert_eq!(raw.end(), b"", "not even a greeting");
        }
        until("they are counted", || value(&served.counters.refused) == 100 * (at as u64 + 1));
        let Address::Ipc(path) = address else { panic!("{address}") };
        assert_eq!(std::fs::metadata(path).unwrap().mode() & 0o777, 0o660);
    }
    let strict = self::served(2, |dir, uid| own(dir, uid) + "mode = \"0600\"");
    let Address::Ipc(path) = strict.publish() else { panic!("a path") };
    assert_eq!(std::fs::metadata(path).unwrap().mode() & 0o777, 0o600);
    strict.serves();
}

#[test]
fn a_directory_that_others_can_write_to_gets_no_sockets() {
    let served = served(2, |dir, uid| {
        std::fs::set_permissions(dir, PermissionsExt::from_mode(0o1777)).unwrap();
        own(dir, uid)
    });
    assert!(served.follower.is_none());
    assert_eq!(served.events.follow(&space(2)).err(), Some(NoStream::Refused));
    std::fs::set_permissions(served.dir.path(), PermissionsExt::from_mode(0o770)).unwrap();
    let follower = served.events.follow(&space(2)).unwrap();
    follower.listing(vec![stored(1)]);
    served.serves();
}

#[test]
fn over_tcp_the_token_decides() {
    let served = served(2, |dir, _| tcp(&format!("token_file = \"{}\"", secret(dir, "router", TOKEN))));
    for (address, socket) in served.both().iter().zip(["SUB", "DEALER"]) {
        let before = value(&served.counters.refused);
        for wrong in ["", "short", &TOKEN[1..], &format!("{TOKEN}x"), &TOKEN.to_uppercase()] {
            assert!(Raw::open_plain(address, socket, wrong).is_none(), "{wrong}");
        }
        assert!(Raw::open(address, socket).is_none(), "without a token");
        let mut raw = Raw::connect(address);
        raw.send(&greeting("PLAIN")).send(&command("INITIATE", &metadata(socket)));
        assert!(!raw.end().windows(5).any(|part| part == b"READY"), "the password cannot be left out");
        until("all are counted", || value(&served.counters.refused) == before + 7);
    }
    let open = |address: Address, socket| Raw::open_plain(&address, socket, TOKEN).expect("the token is right");
    open(served.publish(), "SUB").subscribe().until(|_| true);
    assert!(!open(served.replay(), "REQ").replay(0).is_empty());
}

#[test]
fn a_token_that_is_no_password_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let check = |token: &str| {
        let keys = tcp(&format!("token_file = \"{}\"", secret(dir.path(), "router", token)));
        let config = config(&domain("a", dir.path(), &keys));
        Events::check(config.domains[0].events.as_ref().unwrap()).map_err(|error| error.to_string())
    };
    assert_eq!(check(&"x".repeat(255)), Ok(()));
    assert!(check(&"x".repeat(256)).unwrap_err().contains("255 at most"));
    assert!(check("short").is_err());
}

/// Both domains have the same model, and block 1.
#[test]
fn a_domain_has_events_and_tokens_of_its_own() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), runtime());
    let uid = std::fs::metadata(dir.path()).unwrap().uid();
    let of = |name| domain(name, dir.path(), &ipc(dir.path(), name, &[uid]));
    let config = config(&(of("a") + &of("b")));
    let domains = Domains::open(&config, runtime.handle()).unwrap();
    let [a, b] = [0, 1].map(|at| Arc::clone(domains.of(at).unwrap()));
    assert!(domains.of(2).is_none() && domains.on().eq([0, 1]));
    a.note(&SPACE, vec![1], &[1111, 1111], None).unwrap();
    let followers = [&a, &b].map(|events| events.follow(&space(2)).unwrap());
    followers.iter().for_each(|follower| follower.listing(vec![stored(1), stored(2)]));
    let address = |at: usize| config.domains[at].events.as_ref().unwrap().replay.of_space(0);
    let mut router = Raw::open(&address(0), "DEALER").unwrap();
    until("a router of a gets a's block", || domains.counters.events.load(Ordering::Relaxed) >= 3);
    b.note(&SPACE, vec![2], &[2222, 2222], None).unwrap();
    until("a router of b gets b's block", || domains.counters.events.load(Ordering::Relaxed) >= 4);
    let token = |number: u16| [&[0xcd][..], &number.to_be_bytes()].concat();
    let tells =
        |all: &[(u64, Vec<u8>)], number| all.iter().any(|(_, b)| b.windows(3).any(|part| part == token(number)));
    let of_a = router.replay(0);
    let of_b = Raw::open(&address(1), "DEALER").unwrap().replay(0);
    assert_eq!([tells(&of_a, 1111), tells(&of_a, 2222)], [true, false]);
    assert_eq!([tells(&of_b, 1111), tells(&of_b, 2222)], [false, true]);
    assert_eq!((a.figures().0, b.figures().0, domains.figures().0), (1, 1, 2));
}

#[test]
fn a_slow_subscriber_loses_batches_and_gets_them_by_a_replay() {
    const PAGE: u32 = 1024;
    const BLOCKS: u128 = 64;
    let served = served(PAGE, own);
    let hashes: Vec<u128> = (1..=BLOCKS).collect();
    served.events.note(&SPACE, hashes.clone(), &vec![70_000; (PAGE as usize) * hashes.len()], None).unwrap();
    let mut slow = Raw::open(&served.publish(), "SUB").unwrap();
    let first = slow.subscribe().until(|_| true);
    let follower = served.follower.as_ref().unwrap();
    // About 36 MiB, more than its queue and less than what can be replayed.
    let mut rounds = 0;
    while value(&served.counters.lost) == 0 {
        let before = value(&served.counters.events);
        hashes.iter().for_each(|hash| follower.event(FeedEvent::Removed { hash: *hash }));
        hashes.iter().for_each(|hash| follower.event(stored(*hash)));
        until("a round is published", || value(&served.counters.events) > before + BLOCKS as u64);
        rounds += 1;
        assert!(rounds < 1000, "its queue has a bound");
    }
    served.serves();
    // It reads again, and finds the gap.
    let mut last = first;
    let gap = loop {
        let number = slow.until(|_| true);
        if number > last + 1 {
            break last + 1..number;
        }
        last = number;
    };
    let replayed = Raw::open(&served.replay(), "DEALER").unwrap().replay(gap.start);
    let numbers: Vec<u64> = replayed.iter().map(|(number, _)| *number).filter(|number| gap.contains(number)).collect();
    assert!(!numbers.is_empty() && numbers[0] == gap.start, "{gap:?}: {numbers:?}");
}

#[test]
fn a_user_has_its_share_of_the_places() {
    for (others, share) in [(0, 64), (1, 32)] {
        let served = served(2, |dir, uid| ipc(dir, "a", &(uid..=uid + others).collect::<Vec<_>>()));
        for (address, socket) in served.both().iter().zip(["SUB", "DEALER"]) {
            let mut all: Vec<Raw> = (0..share).map(|_| Raw::open(address, socket).expect("a place")).collect();
            let mut more = Raw::connect(address);
            more.send(&greeting("NULL")).send(&command("READY", &metadata(socket)));
            let said = more.end();
            assert!(said.windows(7).any(|part| part == b"maximum"), "{said:?}");
            // A place that is left is free for another.
            all.pop();
            let deadline = Instant::now() + BOUND;
            while Raw::open(address, socket).is_none() {
                assert!(Instant::now() < deadline, "the place is free again");
            }
        }
        assert_eq!(served.uid, std::fs::metadata(served.dir.path()).unwrap().uid());
    }
}

#[test]
fn pings_are_answered_and_a_peer_that_promised_to_ping_and_does_not_is_gone() {
    let served = served(2, anyone);
    for (address, socket) in served.both().iter().zip(["SUB", "DEALER"]) {
        let mut raw = Raw::open(address, socket).unwrap();
        raw.send(&command("PING", b"\0\0abc"));
        assert_eq!(raw.frame().unwrap(), (4, b"\x04PONGabc".to_vec()));
        // Without subscriptions there is nothing but the answer.
        raw.send(&command("PING", b"\0\x01"));
        assert_eq!(raw.frame().unwrap(), (4, b"\x04PONG".to_vec()));
        assert_eq!(raw.end(), b"");
    }
}

#[test]
fn a_subscriber_gets_the_topics_that_it_wants() {
    let served = served(2, |dir, uid| own(dir, uid) + "topic = \"kv@{space}\"");
    let mut raw = Raw::open(&served.publish(), "SUB").unwrap();
    raw.send(&command("SUBSCRIBE", b"other")).send(&frame(0, b"\x01kv@b"));
    raw.send(&command("PING", b"\0\0"));
    assert!(raw.is_command("PONG"), "the topics are known");
    let counted = value(&served.counters.events);
    served.follower.as_ref().unwrap().listing(vec![stored(1)]);
    until("it is published", || value(&served.counters.events) >= counted + 2);
    raw.send(&frame(0, b"\x01kv@"));
    assert_eq!(raw.message().unwrap()[0], b"kv@a", "the first message is one that came after");
    raw.send(&frame(0, b"\0kv@")).send(&command("PING", b"\0\0z"));
    while raw.frame().unwrap() != (4, b"\x04PONGz".to_vec()) {}
    for topic in 0..64u8 {
        raw.send(&command("SUBSCRIBE", &[b'x', topic]));
    }
    assert_eq!(raw.end(), b"", "66 topics are too many");
}

#[test]
fn check_warns_of_events_for_anyone() {
    let dir = tempfile::tempdir().unwrap();
    let key = secret(dir.path(), "key", &"0123456789abcdef".repeat(4));
    let check = |events: &str| {
        let file = dir.path().join("relay.toml");
        let text = domain("a", dir.path(), events).replace("\"/k\"", &format!("{key:?}"));
        std::fs::write(&file, format!("[store]\nurl = \"file://{}\"\n{text}", dir.path().display())).unwrap();
        let checked = std::process::Command::new(env!("CARGO_BIN_EXE_kvtide-relay"))
            .args(["--check", "--config"])
            .arg(&file)
            .output()
            .unwrap();
        (checked.status.success(), String::from_utf8(checked.stderr).unwrap())
    };
    let (good, said) = check(&tcp("anyone = true"));
    assert!(good && said.contains("WARN") && said.contains("anyone = true: every user"), "{said}");
    let (good, said) = check(&ipc(dir.path(), "a", &[1]));
    assert!(good && !said.contains("WARN"), "{said}");
    let (good, said) = check(&tcp(""));
    assert!(!good && said.contains("set token_file"), "{said}");
    let (good, said) = check(&tcp("token_file = \"/nonexistent\""));
    assert!(!good && said.contains("/nonexistent"), "{said}");
}
