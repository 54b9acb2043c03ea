//! SIGHUP: changes at run time, changes that need a restart, and invalid files.

use crate::raw::{Raw, hello, sub};
use crate::roles::park_four_blocks;
use crate::{BOUND, daemon, sessions};
use kvtide_bench::private_daemon::PrivateDaemon;
use kvtide_daemon::announce::{READY, RELOADED};
use kvtide_daemon::http::client::{self, Address, Ask};
use kvtide_wire::entry::{Op, Submission};
use kvtide_wire::hello::{Hello, Token};
use kvtide_wire::os::session::attach;
use kvtide_wire::status::Status;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn refusal(daemon: &PrivateDaemon, hello: &Hello) -> String {
    crate::peers::refusal(daemon.socket(), hello).1
}

fn log(daemon: &PrivateDaemon) -> String {
    fs::read_to_string(daemon.dir().join("daemon.log")).unwrap()
}

fn own(rest: &str) -> String {
    let uid = rustix::process::geteuid().as_raw();
    format!("[[domains]]\nname = \"own\"\nuids = [{uid}]\n{rest}")
}

#[test]
fn a_running_space_gets_the_new_policy_and_its_sessions_stay() {
    let mut daemon = daemon("[edges.nvme_to_host]\nscan_frames = 32\n");
    let mut raw = Raw::attach(daemon.socket());
    park_four_blocks(&mut raw, 0);
    let config = "[edges.nvme_to_host]\nscan_frames = 64\n[limits]\nrequest_timeout_ms = 1\n\
                  [tiers.host]\nhigh_percent = 96\n[daemon]\nlog = \"debug\"\ndrain_ms = 77\n";
    daemon.reload(config).unwrap();
    // The session does not process its jobs, so only the deadline can end the request: 1 ms instead of 30 s.
    raw.submit(0, &sub(Op::Resume));
    let done = raw.completion_without_jobs(0).unwrap();
    assert_eq!(Status::from_code(done.status), Some(Status::TimedOut));
    let log = log(&daemon);
    for line in [
        "limits.request_timeout_ms changed from 30000 to 1: in effect now",
        "edges.nvme_to_host.scan_frames changed from 32 to 64: in effect now",
        "tiers.host.high_percent changed from 95 to 96: in effect now",
        "daemon.log changed from \"info\" to \"debug\": in effect now",
        "daemon.drain_ms changed from 5000 to 77: in effect now",
        "5 values changed, 0 of them need a restart",
    ] {
        assert!(log.contains(line), "{line} is not in: {log}");
    }
}

#[test]
fn what_needs_a_restart_is_named_and_stays() {
    let mut daemon = daemon("[limits]\nblocks_max = 100\nseq_blocks_max = 100\n");
    let mut raw = Raw::attach(daemon.socket());
    let config = "[daemon]\nsocket = \"/nowhere/s\"\nsocket_mode = \"0600\"\n[tiers.host]\nprefault = false\n\
                  [http]\nlisten = \"\"\n[limits]\nblocks_max = 200\nseq_blocks_max = 200\nsessions_max = 2\n";
    daemon.reload(config).unwrap();
    let said = log(&daemon);
    let socket = format!("daemon.socket changed from {:?} to \"/nowhere/s\": needs a restart", daemon.socket());
    for line in [
        socket.as_str(),
        "daemon.socket_mode changed from \"0660\" to \"0600\": needs a restart",
        "tiers.host.prefault changed from true to false: needs a restart",
        "limits.blocks_max changed from 100 to 200: applies to new spaces",
        "limits.sessions_max changed from 256 to 2: in effect now",
        "3 of them need a restart",
    ] {
        assert!(said.contains(line), "{line} is not in: {said}");
    }
    // The running space keeps its size, also for sessions that join it. A new space has the new size. At most two sessions attach.
    let blocks =
        |hello: &Hello| attach(daemon.socket(), hello, BOUND).map(|(_, _, limits, side)| (limits.blocks_max, side));
    let (running, _side) = blocks(&hello()).unwrap();
    assert_eq!(running, 100);
    assert_eq!(raw.status(sub(Op::Nop)), Status::Ok);
    drop((raw, _side));
    crate::until_status(&mut daemon, "the sessions are removed", |status| sessions(status) == (0, 0));
    let (fresh, _side) = attach(daemon.socket(), &Hello { fingerprint: [9; 32], ..hello() }, BOUND)
        .map(|a| (a.2.blocks_max, a.3))
        .unwrap();
    assert_eq!(fresh, 200);
}

#[test]
fn a_wrong_file_changes_nothing_and_says_why() {
    let mut daemon = daemon(&own("sessions_max = 1\n"));
    let _raw = Raw::attach(daemon.socket());
    for (wrong, why) in [
        ("[limits]\nsessions_max = 5\nsession_max = 6\n".to_owned(), "kvtided.toml:3:1: unknown key `session_max`"),
        (own("sessions_max = 5000\n"), "domains[0].sessions_max = 5000 (line 4) contradicts"),
        (own("tokens = [\"/nowhere/token\"]\n"), "cannot read the token file: /nowhere/token"),
        ("[tiers.host\n".to_owned(), "kvtided.toml:1:"),
    ] {
        daemon.reload(&wrong).unwrap();
        let log = log(&daemon);
        assert!(
            log.contains("reload failed, the configuration is unchanged") && log.contains(why),
            "{why} is not in: {log}"
        );
        assert!(refusal(&daemon, &hello()).contains("at most 1 are allowed"));
    }
    daemon.reload(&own("sessions_max = 2\n")).unwrap();
    let _second = Raw::attach(daemon.socket());
}

#[test]
fn quotas_change_under_a_running_space() {
    let mut daemon = daemon(&own("host = \"8KiB\"\n"));
    let mut raw = Raw::attach(daemon.socket());
    let reserve = |seq| Submission { seq, count: 4, ..sub(Op::Reserve) };
    let refused = (0..8).find(|&seq| {
        assert_eq!(raw.status(Submission { seq, ..sub(Op::SeqCreate) }), Status::Ok);
        let reserved = raw.status(reserve(seq));
        if reserved == Status::Ok {
            assert_eq!(raw.status(Submission { seq, value: 64, ..sub(Op::Commit) }), Status::Ok);
        }
        reserved == Status::NoSpace
    });
    let seq =
        refused.expect("two pages of host memory and 32 frames, some of them for streaming, cannot hold 32 pages");
    assert!(seq >= 4, "requests that fit must succeed: {seq}");
    daemon.reload(&own("host = \"8MiB\"\n")).unwrap();
    assert_eq!(raw.status(reserve(seq)), Status::Ok);
}

fn token(dir: &Path, name: &str, secret: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, secret).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path
}

#[test]
fn tenants_come_and_go_and_tokens_change() {
    const OLD: &str = "old-0123456789abcdef0123456789abcdef";
    const NEW: &str = "new-0123456789abcdef0123456789abcdef";
    let with = |secret: &str| Hello { token: Some(Token::new(secret.as_bytes()).unwrap()), ..hello() };
    let mut daemon = daemon(&own(""));
    let dir = daemon.dir().to_owned();
    let (a, b) = (token(&dir, "a.token", OLD), token(&dir, "b.token", &"b".repeat(32)));
    assert!(refusal(&daemon, &with(OLD)).contains("unknown token"));
    let tenant =
        |name: &str, path: &Path| format!("[[domains]]\nname = \"{name}\"\ntokens = [{path:?}]\nhost = \"1MiB\"\n");
    daemon.reload(&format!("{}{}", own(""), tenant("a", &a))).unwrap();
    let mut first = Raw::attach_as(daemon.socket(), &with(OLD)).unwrap();
    park_four_blocks(&mut first, 0);
    // The same files with new content, and a new tenant before the first one: sessions keep their domain.
    token(&dir, "a.token", NEW);
    daemon.reload(&format!("{}{}{}", tenant("b", &b), own(""), tenant("a", &a))).unwrap();
    assert!(refusal(&daemon, &with(OLD)).contains("unknown token"));
    let mut second = Raw::attach_as(daemon.socket(), &with(NEW)).unwrap();
    let mut other = Raw::attach_as(daemon.socket(), &with(&"b".repeat(32))).unwrap();
    park_four_blocks(&mut other, 0);
    let status = daemon.status().unwrap();
    let domains: Vec<_> = status["spaces"].as_array().unwrap().iter().map(|space| space["domain"].clone()).collect();
    assert_eq!(domains, ["a", "b"], "the second session of a joined its space");
    // A tenant that is removed from the file: new sessions are rejected, existing ones stay.
    daemon.reload(&format!("{}{}", own(""), tenant("b", &b))).unwrap();
    assert!(refusal(&daemon, &with(NEW)).contains("unknown token"));
    assert_eq!((first.status(sub(Op::Nop)), second.status(sub(Op::Nop))), (Status::Ok, Status::Ok));
}

#[test]
fn whoever_asks_for_a_reload_learns_its_result() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let file = dir.join("kvtided.toml");
    fs::write(&file, "[limits]\nsessions_max = 7\n").unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvtided"))
        .args(["--host-bytes", "64MiB", "--slab-bytes", "1MiB", "--http", "", "--config"])
        .arg(&file)
        .arg("--dir")
        .arg(dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut line = |prefix: &str| lines.by_ref().map(Result::unwrap).find(|line| line.starts_with(prefix)).unwrap();
    line(READY);
    let address = Address::of_socket(&dir.join("kvtide.sock"));
    let asked = || {
        let ask = Ask { path: "/v1/reload", body: Some("{}"), token: None };
        let (_, answer) = client::first(std::slice::from_ref(&address), ask).unwrap();
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        (answer["done"].as_bool().unwrap(), answer["text"].as_str().unwrap().to_owned())
    };
    fs::write(&file, "[limits]\nsession_max = 8\n").unwrap();
    let (done, text) = asked();
    assert!(!done && text.contains("unknown key `session_max`"), "{text}");
    assert!(line(RELOADED).ends_with("kvtided.toml is not in effect, the log says why"));
    fs::write(&file, "[limits]\nsessions_max = 8\n").unwrap();
    let (done, text) = asked();
    assert!(done && text.starts_with("the configuration is reloaded: "), "{text}");
    assert!(line(RELOADED).ends_with("kvtided.toml is in effect"));
    child.kill().unwrap();
    child.wait().unwrap();
}
