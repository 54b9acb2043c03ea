//! What operators do with cached blocks: find, pin, evict, clear; drain and reload. And the figures of hits, which are the same wherever
//! they are shown.

use crate::blocks::{attach, attach_as, hashes, load, store};
use crate::http::{exchange, get, metric, served};
use crate::nvme::{Dir, NVME_BYTES, nvme_options};
use crate::{BOUND, options, until_status};
use kvtide_bench::private_daemon::{Options, PrivateDaemon};
use kvtide_types::hash_hex;
use kvtide_wire::entry::Level;
use kvtide_wire::status::Status;
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Tokens of a block.
const TOKENS: u64 = 16;

/// Run the tool against the daemon of a socket.
pub fn kvtide(socket: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide"));
    command.args(args).env("KVTIDE_SOCKET", socket).stdin(Stdio::null()).output().unwrap()
}

/// Do the same; return the JSON that it printed with `--json`. It must exit with `status`.
pub fn told(socket: &Path, args: &[&str], status: i32) -> Value {
    let ended = kvtide(socket, &[args, &["--json"]].concat());
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(status), "{args:?}: {said}{}", String::from_utf8_lossy(&ended.stdout));
    let json: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(json["version"], 1, "{args:?}: {json}");
    json
}

/// Do the same with a command that fails; return what it said.
fn failed(socket: &Path, args: &[&str], status: i32) -> String {
    let ended = kvtide(socket, args);
    assert_eq!(ended.status.code(), Some(status), "{args:?}");
    String::from_utf8(ended.stderr).unwrap()
}

pub fn hex(prefix: u128, block: u128) -> String {
    hash_hex(prefix << 64 | block)
}

#[test]
fn a_block_is_found_pinned_and_evicted() {
    let dir = Dir::new();
    let daemon = PrivateDaemon::start(&nvme_options(&dir, NVME_BYTES, "", "")).unwrap();
    let socket = daemon.socket();
    let (client, mut channel, mut memory) = attach(socket, 1, 0, 32);
    store(&mut channel, &mut memory, 1, 8, Level::Stored);
    let found = told(socket, &["cache", "search", &hex(1, 3)], 0);
    let block = &found["matches"][0];
    assert_eq!((&block["kind"], &block["position"], &block["name"]), (&"block".into(), &2.into(), &"blocks".into()));
    let bytes = |tier: usize| block["tiers"][tier]["bytes"].as_u64().unwrap();
    assert_eq!((bytes(0), bytes(1), bytes(2)), (0, 8192 * 2 + 1000, 8192 * 2 + 1000), "{block}");
    assert!(block["evicted_next"].as_str().unwrap().contains("lack of room in NVMe"), "{block}");
    // Someone uses it.
    let lease = channel.lease(1 << 64 | 8, 8, Duration::from_secs(600), BOUND).unwrap();
    let used = told(socket, &["cache", "search", &hex(1, 3)], 0);
    assert_eq!(used["matches"][0]["users"][0]["pid"], std::process::id(), "{used}");
    let refused = failed(socket, &["cache", "evict", "--yes", &hex(1, 3)], 1);
    assert!(refused.contains("1 references hold it"), "{refused}");
    channel.drop_seq(lease.seq).unwrap();
    // Pinned it stays.
    let pinned = told(socket, &["cache", "pin", &hex(1, 6)], 0);
    assert!(pinned["text"].as_str().unwrap().contains("and the 5 before it are pinned"), "{pinned}");
    let refused = failed(socket, &["cache", "evict", "--yes", &hex(1, 3)], 1);
    assert!(refused.contains("it is pinned: unpin it first"), "{refused}");
    assert_eq!(
        told(socket, &["cache", "clear", "--all", "--yes"], 0)["evicted"],
        2,
        "the blocks after the pinned ones"
    );
    assert_eq!(channel.lookup(&hashes(1, 8), BOUND).unwrap().blocks, 6);
    let refused = failed(socket, &["cache", "unpin", &hex(1, 3)], 1);
    assert!(refused.contains("not the last block of a pinned prefix"), "{refused}");
    told(socket, &["cache", "unpin", &hex(1, 6)], 0);
    // Evicted with what follows it, after a question.
    let asked = failed(socket, &["cache", "evict", &hex(1, 3)], 2);
    assert!(asked.contains("no terminal to ask at: give --yes"), "{asked}");
    let dry = kvtide(socket, &["cache", "evict", "--dry-run", &hex(1, 3)]);
    let would = String::from_utf8_lossy(&dry.stdout);
    assert!(dry.status.success() && would.starts_with("would evict block"), "{would}");
    assert_eq!(channel.lookup(&hashes(1, 8), BOUND).unwrap().blocks, 6, "nothing happened");
    assert_eq!(told(socket, &["cache", "evict", "--yes", &hex(1, 3)], 0)["evicted"], 4);
    assert_eq!(channel.lookup(&hashes(1, 8), BOUND).unwrap().blocks, 2);
    assert!(failed(socket, &["cache", "evict", "--yes", &hex(1, 3)], 1).contains("no space has a block with the hash"));
    // One in another space than the named one is an error before the question.
    let other = failed(socket, &["cache", "evict", "--space", "7", &hex(1, 2)], 1);
    assert!(other.contains("space 7 has no block with the hash"), "{other}");
    assert!(failed(socket, &["cache", "pin", "12"], 1).contains("32 hexadecimal digits"));
    drop(client);
}

#[test]
fn the_blocks_of_a_prompt_are_found_by_their_hashes() {
    let dir = Dir::new();
    let daemon = PrivateDaemon::start(&nvme_options(&dir, NVME_BYTES, "", "")).unwrap();
    let socket = daemon.socket();
    let (_client, mut channel, mut memory) = attach(socket, 1, 0, 32);
    store(&mut channel, &mut memory, 1, 8, Level::Stored);
    let file = dir.path().join("hashes");
    let path = file.to_str().unwrap();
    let write = |prefix, blocks: RangeInclusive<u128>| {
        fs::write(&file, blocks.map(|block| hex(prefix, block) + "\n").collect::<String>()).unwrap();
    };
    // More than one request has.
    write(1, 1..=600);
    let found = told(socket, &["why", "--hashes", path], 0);
    let space = &found["spaces"][0];
    assert_eq!((&found["blocks"], &space["prefix_blocks"], &space["name"]), (&600.into(), &8.into(), &"blocks".into()));
    let blocks = space["blocks"].as_array().unwrap();
    assert_eq!((blocks.len(), &blocks[7]["index"], &blocks[7]["hash"]), (8, &7.into(), &hex(1, 8).into()));
    let bytes = |tier: usize| blocks[7]["tiers"][tier]["bytes"].as_u64().unwrap();
    assert_eq!((bytes(0), bytes(1), bytes(2)), (0, 8192 * 2 + 1000, 8192 * 2 + 1000), "{space}");
    told(socket, &["cache", "pin", &hex(1, 2)], 0);
    told(socket, &["cache", "evict", "--yes", &hex(1, 5)], 0);
    let mut piped = Command::new(env!("CARGO_BIN_EXE_kvtide"));
    piped.args(["why", "--hashes", "-"]).env("KVTIDE_SOCKET", socket);
    let ended = piped.stdin(fs::File::open(&file).unwrap()).output().unwrap();
    let said = String::from_utf8(ended.stdout).unwrap();
    for part in [
        "space 1 blocks  (tenant default)\n  prefix     4 of 600 blocks are cached\n  1-2        host, nvme, pinned\n  3-4        host, nvme\n",
        "\n  5-8        not cached: evicted from NVMe ",
        " ago: an operator evicted it, by kvtide cache evict or clear\n  9-600      not cached: no engine has stored it in the last ",
    ] {
        assert!(said.contains(part), "{part} is not in:\n{said}");
    }
    write(2, 1..=3);
    let none = kvtide(socket, &["why", "--hashes", path]);
    let said = String::from_utf8(none.stdout).unwrap();
    let title = "space 1 blocks  (tenant default): no engine has stored these blocks in the last ";
    assert!(none.status.code() == Some(1) && said.starts_with(title) && said.contains("seed"), "{said}");
    assert_eq!(told(socket, &["why", "--hashes", path], 1)["spaces"][0]["blocks"], json!([]));
    // What is no list of hashes.
    let empty = failed(socket, &["why", "--hashes", "-"], 1);
    assert!(empty.contains("stdin: it has no hashes"), "{empty}");
    fs::write(&file, "1 2 3").unwrap();
    let tokens = failed(socket, &["why", "--hashes", path], 1);
    assert!(
        tokens.contains(&format!("{path}: hash 1 is \"1\"")) && tokens.contains("kvtide.prompt_hashes"),
        "{tokens}"
    );
    let missing = failed(socket, &["why", "--hashes", &format!("{path}.none")], 1);
    assert!(missing.contains(&format!("cannot read the hashes: {path}.none: No such file")), "{missing}");
    for usage in [&["why"][..], &["why", "llama", "--hashes", path], &["cache", "search"]] {
        failed(socket, usage, 2);
    }
}

#[test]
fn spaces_and_tenants_are_found_by_name_and_cleared() {
    let daemon = PrivateDaemon::start(&options("")).unwrap();
    let socket = daemon.socket();
    let (_client, mut channel, mut memory) = attach(socket, 1, 0, 32);
    store(&mut channel, &mut memory, 1, 8, Level::Published);
    let list = told(socket, &["cache", "list"], 0);
    assert_eq!((&list["spaces"][0]["name"], &list["spaces"][0]["blocks"]), (&"blocks".into(), &8.into()));
    let found = told(socket, &["cache", "search", "lock"], 0);
    assert_eq!(
        (&found["matches"][0]["kind"], &found["matches"][0]["users"][0]["session"]),
        (&"space".into(), &1.into())
    );
    assert_eq!(told(socket, &["cache", "search", "default"], 0)["matches"][0]["kind"], "tenant");
    assert_eq!(told(socket, &["cache", "search", "blokcs"], 1)["near"], "blocks");
    let shown = kvtide(socket, &["cache", "show", "blocks"]);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(
        text.contains("8 cached, 0 of them only on NVMe, 0 pinned") && text.contains("session 1, daemon"),
        "{text}"
    );
    let wrong = failed(socket, &["cache", "show", "blokcs"], 1);
    assert!(wrong.contains("did you mean \"blocks\"?"), "{wrong}");
    let wrong = failed(socket, &["cache", "clear", "--yes", "--tenant", "defualt"], 1);
    assert!(wrong.contains("did you mean \"default\"?"), "{wrong}");
    let dry = kvtide(socket, &["cache", "clear", "--dry-run", "--space", "blocks"]);
    assert!(String::from_utf8_lossy(&dry.stdout).contains("would evict up to 8 cached blocks of space 1 (blocks)"));
    assert_eq!(told(socket, &["cache", "clear", "--yes", "--tenant", "default"], 0)["evicted"], 8);
    assert_eq!(channel.lookup(&hashes(1, 8), BOUND).unwrap().blocks, 0);
}

/// Two tenants on an encrypted disk. One is purged while the daemon runs, and comes back.
#[test]
fn a_purged_tenant_has_no_block_left_and_others_keep_theirs() {
    let (dir, tokens) = (Dir::new(), Dir::new());
    let secret = |name: &str, text: &str| {
        let file = tokens.path().join(name);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        file
    };
    let (token, key) =
        (secret("token", "fedcba9876543210fedcba9876543210"), secret("key", &"0123456789abcdef".repeat(2)));
    let config = format!(
        "[tiers.nvme.encryption]\nkey = \"file\"\npath = {key:?}\n\n[[domains]]\nname = \"own\"\nuids = [{}]\n\n\
         [[domains]]\nname = \"other\"\ntokens = [{token:?}]\n",
        rustix::process::geteuid().as_raw()
    );
    let options = nvme_options(&dir, NVME_BYTES, "", &config);
    let mut daemon = PrivateDaemon::start(&options).unwrap();
    let (_own, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 32);
    store(&mut channel, &mut memory, 1, 8, Level::Stored);
    let other = |daemon: &PrivateDaemon| attach_as(daemon.socket(), Some(token.clone()), (1, 0), 32);
    let (client, mut theirs, mut memory) = other(&daemon);
    store(&mut theirs, &mut memory, 1, 6, Level::Stored);
    let purge = ["purge", "--yes", "--tenant", "other"];
    let refused = failed(daemon.socket(), &purge, 1);
    assert!(refused.contains(&format!("(pid {}); stop them first", std::process::id())), "{refused}");
    drop((client, theirs));
    until_status(&mut daemon, "it has left", |status| status["sessions"].as_array().unwrap().len() == 1);
    let unknown = failed(daemon.socket(), &["purge", "--yes", "--tenant", "otehr"], 1);
    assert!(unknown.contains("no tenant \"otehr\"; did you mean \"other\"?"), "{unknown}");
    let dry = kvtide(daemon.socket(), &["purge", "--dry-run", "--tenant", "other"]);
    let would = String::from_utf8_lossy(&dry.stdout);
    assert!(would.starts_with("would erase all blocks of tenant \"other\" and its key on 1 disk,"), "{would}");
    let purged = told(daemon.socket(), &purge, 0);
    assert_eq!((&purged["disks"][0]["keys_erased"], &purged["disks"][0]["error"]), (&1.into(), &Value::Null));
    assert!(purged["disks"][0]["encrypted_slabs"].as_u64() > Some(0) && purged["disks"][0]["plain_slabs"] == 0);
    assert_eq!(told(daemon.socket(), &purge, 0)["disks"][0]["keys_erased"], 0, "nothing is left to erase");
    // It comes back without its blocks, and stores new ones under a new key.
    let (client, mut theirs, mut memory) = other(&daemon);
    assert_eq!(theirs.lookup(&hashes(1, 6), BOUND).unwrap().blocks, 0);
    store(&mut theirs, &mut memory, 2, 5, Level::Stored);
    assert_eq!(channel.lookup(&hashes(1, 8), BOUND).unwrap().blocks, 8);
    drop((client, theirs));
    daemon.signal(rustix::process::Signal::TERM).unwrap();
    assert!(daemon.wait(BOUND).unwrap().success());
    let daemon = PrivateDaemon::start(&options).unwrap();
    let (_own, mut channel, _memory) = attach(daemon.socket(), 1, 0, 32);
    assert_eq!(channel.lookup(&hashes(1, 8), BOUND).unwrap().blocks, 8);
    let (_client, mut theirs, _memory) = other(&daemon);
    assert_eq!(theirs.lookup(&hashes(1, 6), BOUND).unwrap().blocks, 0);
    assert_eq!(theirs.lookup(&hashes(2, 5), BOUND).unwrap().blocks, 5);
}

/// Without encryption a purge cannot promise that no byte is left, however often it is asked for.
#[test]
fn a_purge_of_a_disk_that_is_not_encrypted_says_so() {
    let dir = Dir::new();
    let mut daemon = PrivateDaemon::start(&nvme_options(&dir, NVME_BYTES, "", "")).unwrap();
    let (client, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 32);
    store(&mut channel, &mut memory, 1, 6, Level::Stored);
    drop((client, channel));
    until_status(&mut daemon, "it has left", |status| status["sessions"].as_array().unwrap().is_empty());
    let purge = ["purge", "--yes", "--tenant", "default"];
    let first = told(daemon.socket(), &purge, 1);
    assert!(
        first["disks"][0]["plain_slabs"].as_u64() > Some(0) && first["disks"][0]["not_encrypted"] == true,
        "{first}"
    );
    let again = told(daemon.socket(), &purge, 1);
    assert!(again["disks"][0]["plain_slabs"] == 0 && again["disks"][0]["not_encrypted"] == true, "{again}");
    let said = failed(daemon.socket(), &purge, 1);
    assert!(said.contains("may stay there until they are overwritten"), "{said}");
    let (_client, mut channel, _memory) = attach(daemon.socket(), 1, 0, 32);
    assert_eq!(channel.lookup(&hashes(1, 6), BOUND).unwrap().blocks, 0, "the index has forgotten them");
}

#[test]
fn a_drained_daemon_takes_no_sessions_and_says_who_is_left() {
    let daemon = PrivateDaemon::start(&options("")).unwrap();
    let socket = daemon.socket();
    let (client, channel, memory) = attach(socket, 1, 0, 8);
    let left = told(socket, &["drain", "--timeout", "0"], 1);
    assert_eq!((&left["drained"], &left["left"][0]["pid"]), (&false.into(), &std::process::id().into()), "{left}");
    let said = failed(socket, &["drain", "--timeout", "0"], 1);
    assert!(said.contains("1 sessions: daemon") && said.contains("session 1"), "{said}");
    let refused = crate::raw::Raw::attach_as(socket, &crate::raw::hello()).map(drop).unwrap_err().to_string();
    assert!(refused.contains("an operator drains it"), "the daemon takes no new session: {refused}");
    drop((channel, client, memory));
    assert_eq!(told(socket, &["drain", "--timeout", "30"], 0)["drained"], true);
    told(socket, &["drain", "--end"], 0);
    drop(attach(socket, 1, 0, 8));
}

#[test]
fn a_reload_tells_what_changed_and_what_is_wrong() {
    let mut daemon = PrivateDaemon::start(&options("[limits]\nlease_percent = 50\n")).unwrap();
    let socket = daemon.socket().to_owned();
    let file = socket.parent().unwrap().join("kvtided.toml");
    assert_eq!(told(&socket, &["reload"], 0)["changes"], json!([]));
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("lease_percent = 50", "lease_percent = 40")).unwrap();
    let changed = told(&socket, &["reload"], 0);
    assert!(changed["changes"][0].as_str().unwrap().contains("limits.lease_percent"), "{changed}");
    fs::write(&file, "[limits]\nlease_precent = 40\n").unwrap();
    let wrong = told(&socket, &["reload"], 1);
    assert!(wrong["failed"].as_str().unwrap().contains("lease_percent"), "it names what is near: {wrong}");
    assert_eq!(daemon.status().unwrap()["reloads"]["count"], 3);
    // The audit lines have the results of the actions.
    let log = daemon.log();
    let results: Vec<&str> = log.lines().filter_map(|line| Some(line.split_once("/v1/reload ")?.1)).collect();
    let ends = ["200 OK", "200 OK", "200 OK, not done"];
    assert!(results.len() == 3 && results.iter().zip(ends).all(|(line, end)| line.ends_with(end)), "{log}");
}

/// Send an action over HTTP.
fn post(address: SocketAddr, path: &str, token: Option<&str>, body: &Value) -> (u16, Value) {
    let (body, token) =
        (body.to_string(), token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n")));
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: kvtide\r\nConnection: close\r\n{token}Content-Length: {}\r\n\r\n",
        body.len()
    );
    let (code, _, answer) = exchange(address, &(head + &body));
    (code, serde_json::from_str(&answer).unwrap_or_else(|_| answer.into()))
}

#[test]
fn actions_over_an_address_need_the_operators_token() {
    let (daemon, address) = served("");
    let all = json!({ "all": true });
    let (code, answer) = post(address, "/v1/cache/clear", None, &all);
    assert!(code == 403 && answer["error"].as_str().unwrap().contains("[http] token_file"), "{code} {answer}");
    drop(daemon);
    let dir = Dir::new();
    let (file, secret) = (dir.path().join("operator.token"), "0123456789abcdef0123456789abcdef");
    fs::write(&file, format!("{secret}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let config = format!("[http]\ntoken_file = {:?}\n", file.display().to_string());
    let (mut daemon, address) = served(&config);
    assert_eq!(post(address, "/v1/cache/clear", None, &all).0, 401);
    assert_eq!(post(address, "/v1/cache/clear", Some("0123456789abcdef0123456789abcdee"), &all).0, 401);
    assert_eq!(post(address, "/v1/drain", Some("x"), &json!({ "drain": true })).0, 401);
    let (code, answer) = post(address, "/v1/cache/clear", Some(secret), &all);
    assert_eq!((code, &answer["done"], &answer["version"]), (200, &true.into(), &1.into()));
    let (code, answer) = post(address, "/v1/cache/evict", Some(secret), &json!({ "hash": "x" }));
    assert!(code == 400 && answer["error"].as_str().unwrap().contains("32 hexadecimal digits"), "{code} {answer}");
    assert_eq!(post(address, "/v1/cache/evict", Some(secret), &json!({ "hsah": "x" })).0, 400);
    assert_eq!(
        post(address, "/v1/cache/why", None, &json!({ "hashes": [hex(1, 3)] })).0,
        401,
        "a hash confirms a prompt"
    );
    for (hashes, part) in [
        (json!([hex(1, 3), "x"]), "\"x\" is no hash of a block"),
        (json!([]), "0 were sent; a request has 1 to 256"),
        (json!(vec![hex(1, 3); 257]), "257 were sent"),
    ] {
        let (code, answer) = post(address, "/v1/cache/why", Some(secret), &json!({ "hashes": hashes }));
        assert!(code == 400 && answer["error"].as_str().unwrap().contains(part), "{code} {answer}");
    }
    let (code, answer) = post(address, "/v1/cache/why", Some(secret), &json!({ "hashes": [hex(1, 3)] }));
    assert_eq!((code, &answer["spaces"]), (200, &json!([])));
    assert_eq!(get(address, "/v1/cache/search?q=default").0, 200, "names need no token on this machine");
    assert_eq!(get(address, &format!("/v1/cache/search?q={}", hex(1, 3))).0, 401, "a hash confirms a prompt");
    assert_eq!(get(address, "/v1/cache/clear").0, 405);
    let foreign = "GET /v1/status HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert_eq!(exchange(address, foreign).0, 421, "a name that another site lets point to this machine");
    // Each of these left a line and was counted.
    let page = get(address, "/metrics").2;
    assert_eq!(metric(&page, "kvtide_http_refusals_total", &[]), Some(6.0));
    let log = fs::read_to_string(daemon.dir().join("daemon.log")).unwrap();
    for line in [
        "a client at a loopback address: /v1/drain refused: this is not the operator's token",
        "a client at a loopback address: /v1/status refused: the host \"evil.example\" is not this machine",
        "a client at a loopback address: /v1/cache/clear \"{\\\"all\\\":true}\": 200 OK",
        "a client at a loopback address: /v1/cache/evict \"{\\\"hash\\\":\\\"x\\\"}\": 400 Bad Request",
    ] {
        assert!(log.contains(line), "{line} is not in: {log}");
    }
    assert!(!log.contains(secret), "no line has a token");
    // A reload takes the new token, and the old one is no longer accepted.
    let renewed = "ffffffffffffffff0123456789abcdef";
    fs::write(&file, format!("{renewed}\n")).unwrap();
    daemon.reload(&config).unwrap();
    let codes = [secret, renewed].map(|token| post(address, "/v1/cache/clear", Some(token), &all).0);
    assert_eq!(codes, [401, 200]);
}

/// Stores, lookups and loads of two engines; then every place shows the same figures.
#[test]
fn hits_are_the_same_in_status_metrics_and_tools() {
    let tokens = Dir::new();
    let (file, secret) = (tokens.path().join("tenant.token"), "fedcba9876543210fedcba9876543210");
    fs::write(&file, secret).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let uid = rustix::process::geteuid().as_raw();
    let config = format!(
        "[[domains]]\nname = \"own\"\nuids = [{uid}]\n\n[[domains]]\nname = \"other\"\ntokens = [{:?}]\n",
        file.display().to_string()
    );
    let mut daemon = PrivateDaemon::start(&Options { http: Some("127.0.0.1:0".into()), ..options(&config) }).unwrap();
    let address: SocketAddr = daemon.status().unwrap()["http"].as_str().unwrap().parse().unwrap();
    let socket = daemon.socket().to_owned();
    let (_one, mut channel, mut memory) = attach(&socket, 1, 0, 32);
    let (_two, mut second, mut others) = attach_as(&socket, Some(file), (1, 0), 32);
    store(&mut channel, &mut memory, 1, 20, Level::Published);
    store(&mut second, &mut others, 1, 4, Level::Published);
    for _ in 0..3 {
        assert_eq!(channel.lookup(&hashes(1, 400), BOUND).unwrap().blocks, 20);
        load(&mut channel, &mut memory, 1, 20);
    }
    assert_eq!(second.lookup(&hashes(1, 10), BOUND).unwrap().blocks, 4);
    load(&mut second, &mut others, 1, 3);
    let counted = |hits: &Value| {
        let number = |field: &str| hits[field].as_u64().unwrap() / TOKENS;
        (number("asked_tokens"), number("found_tokens"), hits["loaded_tokens"]["host"].as_u64().unwrap() / TOKENS)
    };
    let (own, other, all) = ((1200, 60, 60), (10, 4, 3), (1210, 64, 63));
    let status = until_status(&mut daemon, "all loads are counted", |status| counted(&status["hits"]) == all);
    let spaces = status["spaces"].as_array().unwrap();
    assert_eq!((counted(&spaces[0]["hits"]), counted(&spaces[1]["hits"])), (own, other));
    assert_eq!(counted(&spaces[0]["attached"][0]["hits"]), own);
    let tenants = status["tenants"].as_array().unwrap();
    let by_name = |name: &str| counted(&tenants.iter().find(|tenant| tenant["name"] == name).unwrap()["hits"]);
    assert_eq!((by_name("own"), by_name("other")), (own, other));
    assert!(status["hits"]["load_us"].as_u64() > Some(0) && status["hits"]["recompute_us"].as_u64() > Some(0));
    let lookups = status["spaces"][0]["request_times"]["lookup"]["buckets"].as_array().unwrap();
    assert!(lookups.iter().any(|count| count.as_u64() > Some(0)), "lookups are not \"other\"");
    // Metrics.
    let (_, _, page) = get(address, "/metrics");
    let of = |name: &str, labels: &[&str]| metric(&page, name, labels).map(|value| value as u64 / TOKENS);
    for (labels, (asked, found, loaded)) in [(&["domain=\"own\""][..], own), (&["domain=\"other\""], other)] {
        assert_eq!(of("kvtide_asked_tokens_total", labels), Some(asked), "{page}");
        assert_eq!(of("kvtide_found_tokens_total", labels), Some(found));
        let labels = [labels, &["tier=\"host\""]].concat();
        assert_eq!(of("kvtide_loaded_tokens_total", &labels), Some(loaded));
    }
    assert_eq!(of("kvtide_tenant_asked_tokens_total", &["domain=\"own\""]), Some(own.0));
    // The tools.
    let list = told(&socket, &["cache", "list"], 0);
    assert_eq!((counted(&list["spaces"][0]["hits"]), counted(&list["spaces"][1]["hits"])), (own, other));
    let text = String::from_utf8(kvtide(&socket, &["status"]).stdout).unwrap();
    let line = format!("{} of {}; {} loaded", 64 * TOKENS, 1210 * TOKENS, 63 * TOKENS);
    assert!(text.contains(&line), "{line} is not in:\n{text}");
    let mut top = Command::new(env!("CARGO_BIN_EXE_kvtide"));
    top.args(["top", "--once"]).env("KVTIDE_SOCKET", &socket).env("COLUMNS", "80").env("LINES", "24");
    let screen = String::from_utf8(top.output().unwrap().stdout).unwrap();
    assert!(screen.contains(&format!("{} of {}k tokens found", 64 * TOKENS, 1210 * TOKENS / 1000)), "{screen}");
    assert_eq!(
        channel.lookup(&[], BOUND).map(|found| found.blocks).map_err(|error| error.status()),
        Ok::<_, Status>(0)
    );
}
