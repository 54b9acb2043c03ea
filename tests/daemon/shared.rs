//! Daemons that share blocks through relays and a store.

use crate::blocks::{Memory, attach, attach_model, hashes, load, store};
use crate::nvme::Dir;
use crate::relay::with_relays;
use crate::{BOUND, daemon, options, sessions, until, until_status};
use kvtide_bench::private_daemon::{Options as DaemonOptions, PrivateDaemon};
use kvtide_client::{Channel, Client};
use kvtide_relay::config::Config;
use kvtide_relay::relay::Relay;
use kvtide_types::hash_hex;
use kvtide_wire::entry::Level;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Return the configuration of a relay of a daemon, with a store in a directory.
pub fn configuration(dir: &Dir, socket: &Path, rest: &str) -> String {
    let store = dir.path().join("store");
    std::fs::create_dir_all(&store).unwrap();
    let secret = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        path
    };
    let (key, operator) = (secret("key", &"0123456789abcdef".repeat(4)), secret("operator", OPERATOR));
    format!(
        "[daemon]\nsocket = \"{}\"\n[[domains]]\nname = \"a\"\nshared_key_file = \"{}\"\n[store]\nurl = \"file://{}\"\n\
         [http]\nlisten = \"127.0.0.1:0\"\ntoken_file = \"{}\"\n{rest}\n",
        socket.display(),
        key.display(),
        store.display(),
        operator.display()
    )
}

fn relay(dir: &Dir, daemon: &PrivateDaemon, rest: &str) -> Relay {
    let text = configuration(dir, daemon.socket(), rest);
    Relay::start(Config::parse(Path::new("relay.toml"), &text).unwrap(), Path::new("relay.toml")).unwrap()
}

/// The operator's token of these relays.
const OPERATOR: &str = "operator-operator-operator-operator";

/// Send a request with the operator's token; return the status and the body.
fn http(address: SocketAddr, request: &str, body: &str) -> (u16, String) {
    exchange(address, request, &format!("authorization: Bearer {OPERATOR}\r\n"), body)
}

/// Send a request with more headers; return the status and the body.
fn exchange(address: SocketAddr, request: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    let length = body.len();
    let head = format!("{request} HTTP/1.0\r\n{headers}content-length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn metric(address: SocketAddr, name: &str) -> u64 {
    let (_, text) = http(address, "GET /metrics", "");
    let line = text.lines().find(|line| line.split([' ', '{']).next() == Some(&format!("kvtide_relay_{name}")));
    line.unwrap_or_else(|| panic!("{name} is not in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
}

/// Return all metrics of a relay of a daemon.
pub fn metrics_of_a_relay(daemon: &PrivateDaemon) -> String {
    let dir = Dir::new();
    let relay = relay(&dir, daemon, "");
    http(relay.listen(), "GET /metrics", "").1
}

/// Wait until a metric has a value.
pub fn until_metric(address: SocketAddr, name: &str, least: u64) {
    let what = || format!("{name} stays below {least}: {}", http(address, "GET /metrics", "").1);
    until(what, || metric(address, name) >= least);
}

/// Wait until a relay serves this number of spaces, and has listed their blocks.
pub fn until_served(address: SocketAddr, spaces: usize) {
    until_metric(address, "spaces", spaces as u64);
    until_metric(address, "feed_gaps_total", spaces as u64);
}

fn recall(address: SocketAddr, hashes: &[u128], wait: Duration) -> (u16, String) {
    let hashes: Vec<String> = hashes.iter().map(|hash| format!("\"{}\"", hash_hex(*hash))).collect();
    let (fingerprint, wait) = ("09".repeat(32), wait.as_millis());
    let ask = format!("{{\"fingerprint\":\"{fingerprint}\",\"hashes\":[{}],\"wait_ms\":{wait}}}", hashes.join(","));
    http(address, "POST /v1/recall", &ask)
}

pub type Engine = (Client, Channel, Memory);

/// Start a daemon with an engine of `blocks` blocks of its own.
fn machine(blocks: u32) -> (PrivateDaemon, Engine) {
    let daemon = daemon(&with_relays("a"));
    let engine = attach(daemon.socket(), 1, 0, blocks);
    (daemon, engine)
}

pub fn found((_, channel, _): &mut Engine, prefix: u128, blocks: u32) -> u32 {
    channel.lookup(&hashes(prefix, blocks), BOUND).unwrap().blocks
}

#[test]
fn what_one_machine_has_used_twice_is_a_hit_on_another_also_when_the_first_is_gone() {
    const BLOCKS: u32 = 40;
    let dir = Dir::new();
    let (first, mut engine) = machine(BLOCKS);
    let relay_there = relay(&dir, &first, "");
    until_served(relay_there.listen(), 1);
    store(&mut engine.1, &mut engine.2, 1, BLOCKS, Level::Published);
    store(&mut engine.1, &mut engine.2, 2, BLOCKS, Level::Published);
    load(&mut engine.1, &mut engine.2, 1, BLOCKS);
    until_metric(relay_there.listen(), "blocks_out_total", BLOCKS.into());
    let dump = |dir: &Path| -> String {
        let mut all = String::new();
        let mut dirs = vec![dir.to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let entry = entry.unwrap();
                all += &format!("{}\n", entry.path().display());
                if entry.file_type().unwrap().is_dir() {
                    dirs.push(entry.path());
                }
            }
        }
        all
    };
    let names = dump(&dir.path().join("store"));
    assert!(!names.contains(&hash_hex(hashes(1, 1)[0])) && !names.contains(&"09".repeat(16)), "{names}");
    drop((relay_there, engine, first));
    let (second, mut engine) = machine(BLOCKS);
    let relay_here = relay(&dir, &second, "");
    assert_eq!(found(&mut engine, 1, BLOCKS), 0);
    until_served(relay_here.listen(), 1);
    let (status, answer) = recall(relay_here.listen(), &hashes(1, BLOCKS), BOUND);
    assert_eq!((status, answer.as_str()), (200, "{\"done\":true,\"blocks\":40}"));
    assert_eq!(found(&mut engine, 1, BLOCKS), BLOCKS);
    load(&mut engine.1, &mut engine.2, 1, BLOCKS); // compares every byte
    // The other prefix was used once.
    let (_, answer) = recall(relay_here.listen(), &hashes(2, BLOCKS), BOUND);
    assert_eq!(answer, "{\"done\":true,\"blocks\":0}");
    assert_eq!(metric(relay_here.listen(), "blocks_in_total"), u64::from(BLOCKS));
    assert_eq!(metric(relay_here.listen(), "blocks_out_total"), 0, "what came from the store does not go back");
}

/// Another relay has written a shorter prefix, or a longer one: its tails are other runs.
#[test]
fn prefixes_of_other_lengths_share_all_blocks_they_have_in_common() {
    let dir = Dir::new();
    let (first, mut engine) = machine(64);
    let there = relay(&dir, &first, "[copy_out]\nwhen = \"stored\"");
    until_served(there.listen(), 1);
    store(&mut engine.1, &mut engine.2, 1, 13, Level::Published);
    until_metric(there.listen(), "blocks_out_total", 13);
    let (second, mut other) = machine(64);
    let here = relay(&dir, &second, "[copy_out]\nwhen = \"never\"");
    until_served(here.listen(), 1);
    // Runs end after 8, 12 and 13 blocks; a reader that knows fewer hashes than a run has cannot name it.
    for (asked, brought) in [(7, 0), (11, 8), (20, 13), (13, 13)] {
        let (_, answer) = recall(here.listen(), &hashes(1, asked), BOUND);
        assert_eq!(answer, format!("{{\"done\":true,\"blocks\":{brought}}}"), "{asked} blocks asked for");
        assert_eq!(found(&mut other, 1, asked), brought);
    }
    load(&mut other.1, &mut other.2, 1, 13);
}

#[test]
fn several_shards_are_shared_and_a_block_counts_when_all_are_there() {
    let dir = Dir::new();
    let machine = || {
        let daemon = daemon(&with_relays("a"));
        let shards = [0, 1].map(|shard| attach(daemon.socket(), 2, shard, 16));
        (daemon, shards)
    };
    let (first, mut shards) = machine();
    let there = relay(&dir, &first, "[copy_out]\nwhen = \"stored\"");
    until_served(there.listen(), 1);
    for (_, channel, memory) in &mut shards {
        store(channel, memory, 5, 8, Level::Published);
    }
    until_metric(there.listen(), "blocks_out_total", 8);
    let (second, mut others) = machine();
    let here = relay(&dir, &second, "[copy_out]\nwhen = \"stored\"");
    until_served(here.listen(), 1);
    assert_eq!(recall(here.listen(), &hashes(5, 8), BOUND).1, "{\"done\":true,\"blocks\":8}");
    for (_, channel, memory) in &mut others {
        load(channel, memory, 5, 8);
        store(channel, memory, 6, 8, Level::Published);
    }
    until_metric(here.listen(), "blocks_out_total", 8);
    assert_eq!(metric(here.listen(), "blocks_there_total"), 0, "what came from the store does not go back");
}

#[test]
fn bytes_that_were_changed_in_the_store_are_a_miss() {
    let dir = Dir::new();
    let (first, mut engine) = machine(8);
    let there = relay(&dir, &first, "[copy_out]\nwhen = \"stored\"");
    until_served(there.listen(), 1);
    store(&mut engine.1, &mut engine.2, 1, 8, Level::Published);
    until_metric(there.listen(), "blocks_out_total", 8);
    let mut dirs = vec![dir.path().join("store")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let mut bytes = std::fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let (second, mut other) = machine(8);
    let here = relay(&dir, &second, "");
    until_served(here.listen(), 1);
    assert_eq!(recall(here.listen(), &hashes(1, 8), BOUND).1, "{\"done\":true,\"blocks\":0}");
    assert_eq!((found(&mut other, 1, 8), metric(here.listen(), "store_bad_runs_total")), (0, 1));
}

#[test]
fn recalls_that_make_no_sense_are_told_so() {
    let dir = Dir::new();
    let (first, _engine) = machine(8);
    let relay = relay(&dir, &first, "");
    until_served(relay.listen(), 1);
    let ask = |body: &str| http(relay.listen(), "POST /v1/recall", body);
    for (body, status, part) in [
        ("", 400, "JSON"),
        ("{\"fingerprint\":\"09\",\"hashes\":[]}", 400, "64 hexadecimal digits"),
        (&format!("{{\"fingerprint\":\"{}\",\"hashes\":[]}}", "09".repeat(32)), 400, "at least one"),
        (&format!("{{\"fingerprint\":\"{}\",\"hashes\":[\"1\"]}}", "09".repeat(32)), 400, "32 hexadecimal digits"),
        (&format!("{{\"fingerprint\":\"{}\",\"hashes\":[\"{}\"]}}", "08".repeat(32), hash_hex(5)), 404, "fingerprint"),
    ] {
        let (found, text) = ask(body);
        assert!(found == status && text.contains(part), "{body}: {found} {text}");
    }
    assert_eq!(http(relay.listen(), "GET /healthz", ""), (200, "ok\n".into()));
}

/// What names or reveals blocks needs the operator's token; metrics and health do not. A web page cannot ask in a browser's name.
#[test]
fn recalls_and_notes_need_the_operators_token() {
    let dir = Dir::new();
    let (first, _engine) = machine(8);
    let with = relay(&dir, &first, "");
    until_served(with.listen(), 1);
    let ask = format!("{{\"fingerprint\":\"{}\",\"hashes\":[\"{}\"]}}", "09".repeat(32), hash_hex(5));
    let (wrong, right) = ("authorization: Bearer wrong\r\n", format!("authorization: Bearer {OPERATOR}\r\n"));
    for path in ["/v1/recall", "/v1/note"] {
        for (headers, status, part) in [
            ("", 401, "Authorization: Bearer TOKEN"),
            (wrong, 401, "[http] token_file"),
            (&format!("{right}host: evil.example\r\n"), 421, "evil.example"),
        ] {
            // The refusal does not wait for the body.
            let (found, text) = exchange(with.listen(), &format!("POST {path}"), headers, "");
            assert!(found == status && text.contains(part), "{path} {headers}: {found} {text}");
        }
    }
    assert_eq!(metric(with.listen(), "http_refused_total"), 6);
    assert_eq!(exchange(with.listen(), "POST /v1/recall", &right, &ask).0, 200);
    assert_eq!(exchange(with.listen(), "GET /metrics", "host: evil.example\r\n", "").0, 421);
    for path in ["GET /metrics", "GET /healthz"] {
        assert_eq!(exchange(with.listen(), path, "host: localhost\r\n", "").0, 200, "{path}");
    }
    let text = configuration(&dir, first.socket(), "");
    let token = text.lines().find(|line| line.starts_with("token_file")).unwrap();
    let parse = |text: &str| Config::parse(Path::new("relay.toml"), text).unwrap();
    let without = Relay::start(parse(&text.replace(token, "")), Path::new("relay.toml")).unwrap();
    let (status, text_of) = exchange(without.listen(), "POST /v1/recall", &right, &ask);
    assert!(status == 403 && text_of.contains("set [http] token_file"), "{status} {text_of}");
    std::fs::set_permissions(dir.path().join("operator"), PermissionsExt::from_mode(0o644)).unwrap();
    let error = Relay::check(&parse(&text), Path::new("relay.toml")).unwrap_err().to_string();
    assert!(error.contains("mode 0644 gives access") && error.contains("operator"), "{error}");
}

/// Silent connections and unfinished bodies are bounded: they neither stay for good nor keep others out.
#[test]
fn silent_clients_of_a_relay_are_closed_and_keep_nobody_out() {
    const SILENT: usize = 200;
    let dir = Dir::new();
    let (first, _engine) = machine(8);
    let relay = relay(&dir, &first, "");
    let mut silent: Vec<TcpStream> = (0..SILENT).map(|_| TcpStream::connect(relay.listen()).unwrap()).collect();
    assert_eq!(http(relay.listen(), "GET /healthz", "").0, 200);
    // 128 may stay for a while.
    assert!(metric(relay.listen(), "http_dropped_connections_total") >= SILENT as u64 - 128);
    for stream in &mut silent {
        stream.set_read_timeout(Some(BOUND)).unwrap();
        let end = stream.read(&mut [0; 16]);
        assert!(
            end.as_ref().map_or_else(|e| e.kind() == std::io::ErrorKind::ConnectionReset, |count| *count == 0),
            "{end:?}"
        );
    }
    let body = |length: usize| {
        let mut stream = TcpStream::connect(relay.listen()).unwrap();
        stream.set_read_timeout(Some(BOUND)).unwrap();
        let head = "POST /v1/recall HTTP/1.1\r\nhost: k\r\nauthorization: Bearer";
        stream.write_all(format!("{head} {OPERATOR}\r\ncontent-length: {length}\r\n\r\n{{").as_bytes()).unwrap();
        stream
    };
    // Two of them take the whole budget, and the third waits as long as they do.
    for (mut unfinished, statuses) in [20 << 20; 3].map(body).into_iter().map(|body| (body, ["408", "503"])) {
        let mut answer = String::new();
        unfinished.read_to_string(&mut answer).unwrap();
        assert!(statuses.iter().any(|status| answer.starts_with(&format!("HTTP/1.1 {status} "))), "{answer}");
    }
    let mut large = String::new();
    body(21 << 20).read_to_string(&mut large).unwrap();
    assert!(large.starts_with("HTTP/1.1 413 ") && large.contains("the maximum is 20971520"), "{large}");
}

/// Whatever the umask is, no other user can read what the program stores in a directory.
#[test]
fn files_of_a_store_are_private() {
    let dir = Dir::new();
    let (daemon, mut engine) = machine(8);
    let (_child, address) = program(&dir, &daemon, "[copy_out]\nwhen = \"stored\"");
    until_served(address, 1);
    store(&mut engine.1, &mut engine.2, 1, 8, Level::Published);
    until_metric(address, "blocks_out_total", 8);
    let (mut dirs, mut files) = (vec![dir.path().join("store")], 0);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            let mode = std::fs::metadata(&entry).unwrap().permissions().mode() & 0o777;
            let expected = if entry.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(mode, expected, "{}: mode {mode:o}", entry.display());
            if entry.is_dir() { dirs.push(entry) } else { files += 1 }
        }
    }
    assert!(files > 0, "no run is stored");
}

/// A store of an unknown kind is named by `--check`, before a relay starts with it.
#[test]
fn a_check_names_a_store_that_cannot_be_opened() {
    let dir = Dir::new();
    let good = configuration(&dir, Path::new("/run/kvtide/kvtide.sock"), "");
    let check = |text: &str| {
        let file = dir.path().join("checked.toml");
        std::fs::write(&file, text).unwrap();
        let binary = Path::new(env!("CARGO_BIN_EXE_kvtide")).with_file_name("kvtide-relay");
        let checked = Command::new(binary).arg("--check").arg("--config").arg(&file).output().unwrap();
        (checked.status.code(), String::from_utf8(checked.stderr).unwrap())
    };
    assert_eq!(check(&good).0, Some(0));
    let (status, said) = check(&good.replace("url = \"file://", "url = \"ftp://host"));
    assert!(status == Some(1) && said.contains("cannot open the store at ftp://host"), "{said}");
}

/// A running program, which ends with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Start the program `kvtide-relay`, and return it with its address.
fn program(dir: &Dir, daemon: &PrivateDaemon, rest: &str) -> (Program, SocketAddr) {
    let file = dir.path().join("relay.toml");
    std::fs::write(&file, configuration(dir, daemon.socket(), rest)).unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_kvtide")).with_file_name("kvtide-relay");
    assert!(binary.exists(), "{} is missing: build it (cargo build -p kvtide-relay)", binary.display());
    // The umask of a shell, whatever that of this test is.
    let run = "umask 022; exec \"$0\" --config \"$1\"";
    let mut child = Command::new("sh").args(["-c", run]).arg(binary).arg(&file).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let address =
        lines.find_map(|line| line.unwrap().split_once("http://").map(|(_, address)| address.parse().unwrap()));
    // Read on, so that the relay can write its log.
    std::thread::spawn(move || lines.for_each(drop));
    (Program(child), address.expect("the relay says where it listens"))
}

/// Kills of a relay of each machine; KVTIDE_KILLS asks for another number.
fn kills() -> u64 {
    std::env::var("KVTIDE_KILLS").map_or(12, |kills| kills.parse().expect("KVTIDE_KILLS is a number"))
}

/// A relay that is killed while it copies out or brings in leaves no session, disturbs no engine, and its successor goes on.
#[test]
fn relays_killed_at_any_moment_cost_nobody_anything() {
    // Each prefix is a run of its own.
    const PREFIXES: u64 = 4;
    const BLOCKS: u32 = 8;
    let rounds = kills();
    let prefixes = |round: u64| (0..PREFIXES).map(move |i| u128::from(round * PREFIXES + i));
    // Killed when nothing, some, or all of it has moved.
    let moved = |round: u64| round % (PREFIXES + 1) * u64::from(BLOCKS);
    let copies = "[copy_out]\nwhen = \"stored\"";
    // Nothing is evicted.
    let host_bytes = Some((64 << 20) + (rounds * PREFIXES * u64::from(BLOCKS) * (32 << 10)).next_multiple_of(1 << 20));
    let machine = || {
        let daemon = PrivateDaemon::start(&DaemonOptions { host_bytes, ..options(&with_relays("a")) }).unwrap();
        let engine = attach(daemon.socket(), 1, 0, BLOCKS);
        (daemon, engine)
    };
    let dir = Dir::new();
    let (mut first, mut engine) = machine();
    for round in 1..=rounds {
        let (child, address) = program(&dir, &first, copies);
        until_served(address, 1);
        prefixes(round).for_each(|prefix| store(&mut engine.1, &mut engine.2, prefix, BLOCKS, Level::Published));
        until_metric(address, "blocks_out_total", moved(round));
        drop(child); // kill -9
        prefixes(round).for_each(|prefix| load(&mut engine.1, &mut engine.2, prefix, BLOCKS));
    }
    until_status(&mut first, "no relay is left", |status| sessions(status) == (1, 0));
    let (mut child, address) = program(&dir, &first, copies);
    until_served(address, 1);
    let there = |address| metric(address, "blocks_out_total") + metric(address, "blocks_there_total");
    let all = u64::from(BLOCKS) * PREFIXES * rounds;
    until(|| "the successor copies what its predecessors did not", || there(address) >= all);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child.0), Signal::TERM).unwrap();
    assert!(child.0.wait().unwrap().success());

    let (mut second, mut other) = machine();
    for round in 1..=rounds {
        let (child, address) = program(&dir, &second, "");
        until_served(address, 1);
        for prefix in prefixes(round) {
            assert_eq!(recall(address, &hashes(prefix, BLOCKS), Duration::ZERO).0, 200);
        }
        until_metric(address, "blocks_in_total", moved(round));
        drop(child); // kill -9
        for prefix in prefixes(round) {
            match found(&mut other, prefix, BLOCKS) {
                0 => {}
                came => load(&mut other.1, &mut other.2, prefix, came),
            }
        }
    }
    until_status(&mut second, "no relay is left", |status| sessions(status) == (1, 0));
    let here = relay(&dir, &second, "");
    until_served(here.listen(), 1);
    for prefix in (1..=rounds).flat_map(prefixes) {
        let whole = format!("{{\"done\":true,\"blocks\":{BLOCKS}}}");
        assert_eq!(recall(here.listen(), &hashes(prefix, BLOCKS), BOUND).1, whole);
        load(&mut other.1, &mut other.2, prefix, BLOCKS);
    }
}

/// A store that never answers costs a recall its deadline, and engines nothing.
#[test]
fn a_store_that_hangs_is_left_alone_and_engines_go_on() {
    let dir = Dir::new();
    let (daemon, mut engine) = machine(8);
    // Connections to it are made and never answered.
    let hangs = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", hangs.local_addr().unwrap());
    let text = configuration(&dir, daemon.socket(), "[copy_out]\nwhen = \"stored\"");
    let file = format!("file://{}", dir.path().join("store").display());
    let text = text.replace(&file, &url).replace("[store]", "[store]\ndeadline_ms = 50");
    let relay = Relay::start(Config::parse(Path::new("relay.toml"), &text).unwrap(), Path::new("relay.toml")).unwrap();
    until_served(relay.listen(), 1);
    for prefix in 1..=4 {
        store(&mut engine.1, &mut engine.2, prefix, 8, Level::Published);
        load(&mut engine.1, &mut engine.2, prefix, 8);
        assert_eq!(recall(relay.listen(), &hashes(9, 8), BOUND).1, "{\"done\":true,\"blocks\":0}");
    }
    until_metric(relay.listen(), "blocks_again_total", 8);
    let deadline = Instant::now() + BOUND;
    while metric(relay.listen(), "store_in_use") == 1 {
        recall(relay.listen(), &hashes(9, 8), BOUND);
        assert!(Instant::now() < deadline, "the breaker opens");
    }
    assert_eq!(metric(relay.listen(), "blocks_out_total"), 0);
}

#[test]
fn what_the_store_did_not_take_is_copied_when_it_is_back_without_another_use() {
    let dir = Dir::new();
    let (mut daemon, mut engine) = machine(40);
    let relay = relay(&dir, &daemon, "[copy_out]\nwhen = \"stored\"");
    until_served(relay.listen(), 1);
    // A file in place of the directory: every write fails.
    let (place, away) = (dir.path().join("store"), dir.path().join("away"));
    std::fs::rename(&place, &away).unwrap();
    std::fs::write(&place, "").unwrap();
    (1..=5).for_each(|prefix| store(&mut engine.1, &mut engine.2, prefix, 8, Level::Published));
    until_metric(relay.listen(), "blocks_again_total", 8);
    until(|| "the breaker opens", || metric(relay.listen(), "store_in_use") != 1);
    until_metric(relay.listen(), "waiting_runs", 4);
    let told = |status: &serde_json::Value, part: &str| status["relays"][0]["text"].as_str().unwrap().contains(part);
    until_status(&mut daemon, "the daemon knows", |status| told(status, "is NOT USED: cannot "));
    std::fs::remove_file(&place).unwrap();
    std::fs::rename(&away, &place).unwrap();
    until_metric(relay.listen(), "blocks_out_total", 40);
    assert_eq!(metric(relay.listen(), "waiting_runs"), 0);
    until_status(&mut daemon, "the daemon knows", |status| told(status, " is in use"));
}

/// The budget begins empty, and one run is admitted into debt.
#[test]
fn copies_wait_for_the_budget_of_a_day() {
    for (budget, left) in [("requests_per_day = 24", "requests"), ("bytes_per_day = 1048576", "bytes")] {
        let dir = Dir::new();
        let (daemon, mut engine) = machine(32);
        let relay = relay(&dir, &daemon, &format!("[copy_out]\nwhen = \"stored\"\n{budget}"));
        until_served(relay.listen(), 1);
        (1..=4).for_each(|prefix| store(&mut engine.1, &mut engine.2, prefix, 8, Level::Published));
        until_metric(relay.listen(), "waiting_runs", 3);
        until_metric(relay.listen(), "blocks_out_total", 8);
        assert_eq!(metric(relay.listen(), &format!("budget_left_{left}")), 0, "{budget}");
        // PACE: 200 ms, in which the others would be copied.
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(metric(relay.listen(), "blocks_out_total"), 8, "{budget}");
        assert_eq!(metric(relay.listen(), "waiting_runs"), 3, "{budget}");
        assert_eq!(metric(relay.listen(), "store_writes_total"), 1, "{budget}");
        // Blocks that come in are not limited.
        let (second, mut other) = machine(32);
        let here = self::relay(&dir, &second, &format!("[copy_out]\n{budget}"));
        until_served(here.listen(), 1);
        let brought: u32 = (1..=4)
            .map(|prefix| recall(here.listen(), &hashes(prefix, 8), BOUND))
            .filter(|(_, answer)| answer.contains(":8}"))
            .count() as u32;
        assert_eq!(brought, 1, "{budget}");
        assert_eq!((1..=4).map(|prefix| found(&mut other, prefix, 8)).sum::<u32>(), 8);
    }
}

/// The daemon ends and comes back, a second model comes and goes: the relay follows.
#[test]
fn a_relay_outlives_its_daemon_and_serves_each_space() {
    let dir = Dir::new();
    let (first, mut engine) = machine(8);
    let socket = first.socket().to_owned();
    // The relay's path to the daemon's socket; the next daemon takes it over.
    let path = dir.path().join("socket");
    std::os::unix::fs::symlink(&socket, &path).unwrap();
    let text = configuration(&dir, &path, "[copy_out]\nwhen = \"stored\"");
    let relay = Relay::start(Config::parse(Path::new("relay.toml"), &text).unwrap(), Path::new("relay.toml")).unwrap();
    until_served(relay.listen(), 1);
    store(&mut engine.1, &mut engine.2, 1, 4, Level::Published);
    until_metric(relay.listen(), "blocks_out_total", 4);
    let mut model = attach_model(&socket, None, (1, 0), 7, 8);
    until_served(relay.listen(), 2);
    store(&mut model.1, &mut model.2, 1, 4, Level::Published);
    until_metric(relay.listen(), "blocks_out_total", 8);
    drop((engine, model, first));
    until(|| "the relay notices the end of its daemon", || metric(relay.listen(), "daemon_connected") != 1);
    let (second, mut engine) = machine(8);
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(second.socket(), &path).unwrap();
    until_served(relay.listen(), 1);
    assert_eq!(recall(relay.listen(), &hashes(1, 4), BOUND).1, "{\"done\":true,\"blocks\":4}");
    load(&mut engine.1, &mut engine.2, 1, 4);
    store(&mut engine.1, &mut engine.2, 2, 4, Level::Published);
    until_metric(relay.listen(), "blocks_out_total", 12);
}

/// Wait until a metric of the relay has exactly a value.
fn until_metric_is(address: SocketAddr, name: &str, expected: u64) {
    let what = || format!("{name} is not {expected}: {}", http(address, "GET /metrics", "").1);
    until(what, || metric(address, name) == expected);
}

/// What the sockets carry is tested in src/relay/tests/events.rs.
#[test]
fn blocks_are_announced_to_routers_once_an_engine_has_told_their_tokens() {
    const BLOCKS: u32 = 20;
    let dir = Dir::new();
    let (daemon, mut engine) = machine(2 * BLOCKS);
    let tokens = dir.path().join("tokens");
    let events = || {
        let ports = [0; 2].map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let [publish, replay] = ports.map(|port| port.local_addr().unwrap());
        let dir = tokens.display();
        format!(
            "[domains.events]\npublish = \"tcp://{publish}\"\nreplay = \"tcp://{replay}\"\nanyone = true\ntokens_dir = \"{dir}\""
        )
    };
    let first = relay(&dir, &daemon, &events());
    let note = |address, hashes: &[u128], tokens: usize| {
        let hashes: Vec<String> = hashes.iter().map(|hash| format!("\"{}\"", hash_hex(*hash))).collect();
        let (fingerprint, tokens) = ("09".repeat(32), vec!["7"; tokens].join(","));
        let body =
            format!("{{\"fingerprint\":\"{fingerprint}\",\"hashes\":[{}],\"tokens\":[{tokens}]}}", hashes.join(","));
        http(address, "POST /v1/note", &body)
    };
    until_served(first.listen(), 1);
    store(&mut engine.1, &mut engine.2, 1, BLOCKS, Level::Published);
    until_metric_is(first.listen(), "events_blocks_without_tokens", BLOCKS.into());
    let (status, why) = note(first.listen(), &hashes(1, 2), 31);
    assert_eq!((status, why.contains("expected 16")), (400, true), "{why}");
    // The blocks behind the first one wait for it.
    assert_eq!(note(first.listen(), &hashes(1, BLOCKS)[1..], 19 * 16).0, 204);
    until_metric_is(first.listen(), "events_blocks_with_tokens", 19);
    assert_eq!(metric(first.listen(), "events_blocks_without_tokens"), u64::from(BLOCKS));
    assert_eq!(note(first.listen(), &hashes(1, 1), 16).0, 204);
    until_metric_is(first.listen(), "events_blocks_without_tokens", 0);
    drop(first);
    let second = relay(&dir, &daemon, &events());
    until_served(second.listen(), 1);
    // All clear, and one prefix in one event.
    until_metric_is(second.listen(), "events_published_total", 2);
    assert_eq!(metric(second.listen(), "events_blocks_with_tokens"), u64::from(BLOCKS));
    until_metric_is(second.listen(), "events_blocks_without_tokens", 0);
    let off = relay(&dir, &daemon, "");
    assert_eq!(note(off.listen(), &hashes(1, 1), 16).0, 404);
}

/// Two spaces of one model share a stream: the second one has it when the first has closed.
#[test]
fn a_space_gets_the_stream_of_kv_events_that_another_one_had() {
    let dir = Dir::new();
    let (daemon, first) = machine(8);
    let (shown, uid) = (dir.path().display(), std::fs::metadata(dir.path()).unwrap().uid());
    let events = format!(
        "[domains.events]\npublish = \"ipc://{shown}/publish\"\nreplay = \"ipc://{shown}/replay\"\nuids = [{uid}]\n\
         tokens_dir = \"{shown}/tokens\""
    );
    let relay = relay(&dir, &daemon, &events);
    until_served(relay.listen(), 1);
    let mut shards = [0, 1].map(|shard| attach(daemon.socket(), 2, shard, 8));
    until_served(relay.listen(), 2);
    for (_, channel, memory) in &mut shards {
        store(channel, memory, 1, 4, Level::Published);
    }
    assert_eq!(metric(relay.listen(), "events_blocks_without_tokens"), 0, "the first space has the stream");
    drop(first);
    until_metric_is(relay.listen(), "events_blocks_without_tokens", 4);
}

/// Two tenants of one machine have their own spaces, names and keys, also for one model.
#[test]
fn one_relay_serves_two_domains_and_keeps_their_blocks_apart() {
    let dir = Dir::new();
    let secret = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        path
    };
    let token = secret("token", &"t".repeat(40));
    let relay_token = secret("relay_token", &"r".repeat(40));
    let key = secret("other_key", &"fedcba9876543210".repeat(4));
    let domains = format!(
        "{}[[domains]]\nname = \"b\"\ntokens = [\"{}\"]\nrelay_tokens = [\"{}\"]",
        with_relays("a"),
        token.display(),
        relay_token.display()
    );
    let rest = format!(
        "[copy_out]\nwhen = \"stored\"\n[[domains]]\nname = \"b\"\nshared_key_file = \"{}\"\ntoken_file = \"{}\"",
        key.display(),
        relay_token.display()
    );
    let machine = || {
        let daemon = daemon(&domains);
        let of_a = attach_model(daemon.socket(), None, (1, 0), 9, 16);
        let of_b = attach_model(daemon.socket(), Some(token.clone()), (1, 0), 9, 16);
        (daemon, of_a, of_b)
    };
    let ask = |address, domain: &str, prefix: u128| {
        let hashes: Vec<String> = hashes(prefix, 8).iter().map(|hash| format!("\"{}\"", hash_hex(*hash))).collect();
        let (fingerprint, hashes) = ("09".repeat(32), hashes.join(","));
        let domain = if domain.is_empty() { String::new() } else { format!("\"domain\":\"{domain}\",") };
        http(
            address,
            "POST /v1/recall",
            &format!("{{{domain}\"fingerprint\":\"{fingerprint}\",\"hashes\":[{hashes}],\"wait_ms\":20000}}"),
        )
    };
    let (mut first, mut of_a, mut of_b) = machine();
    let there = relay(&dir, &first, &rest);
    until_served(there.listen(), 2);
    until_status(&mut first, "it watches both", |status| status["relays"].as_array().unwrap().len() == 2);
    store(&mut of_a.1, &mut of_a.2, 1, 8, Level::Published);
    store(&mut of_b.1, &mut of_b.2, 2, 8, Level::Published);
    until_metric(there.listen(), "blocks_out_total", 16);
    let (second, mut of_a, mut of_b) = machine();
    let here = relay(&dir, &second, &rest);
    until_served(here.listen(), 2);
    assert_eq!(ask(here.listen(), "", 1).0, 404, "both domains have the model");
    assert_eq!(ask(here.listen(), "c", 1).0, 404);
    for (domain, own, other) in [("a", 1, 2), ("b", 2, 1)] {
        assert_eq!(ask(here.listen(), domain, other).1, "{\"done\":true,\"blocks\":0}", "{domain}");
        assert_eq!(ask(here.listen(), domain, own).1, "{\"done\":true,\"blocks\":8}", "{domain}");
    }
    assert_eq!([found(&mut of_a, 1, 8), found(&mut of_a, 2, 8)], [8, 0]);
    assert_eq!([found(&mut of_b, 1, 8), found(&mut of_b, 2, 8)], [0, 8]);
    load(&mut of_a.1, &mut of_a.2, 1, 8);
    load(&mut of_b.1, &mut of_b.2, 2, 8);
}
