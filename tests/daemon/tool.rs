//! Commands of the tool with and without a daemon, with output that cannot be written, and with unknown names.

use crate::http::served;
use crate::nvme::{BLOCKS, Dir, Engine, NVME_BYTES, nvme_options};
use crate::raw::Raw;
use crate::{BOUND, options};
use kvtide_bench::private_daemon::{Options, PrivateDaemon};
use kvtide_wire::entry::Level;
use rustix::process::Signal;
use std::fs::File;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

fn kvtide(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvtide")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn status_tells_people_and_programs() {
    let (daemon, address) = served("");
    let _raw = Raw::attach(daemon.socket());
    let address = address.to_string();
    let told = kvtide(&["status", "--http", &address]);
    let said = text(&told.stdout);
    assert_eq!((told.status.code(), text(&told.stderr)), (Some(0), ""), "{said}");
    for part in [
        &format!("pid {}  serving", daemon.pid()),
        "1 attached, 0 disconnected",
        "space 1    raw  (domain default)",
        "  session 1 ",
    ] {
        assert!(said.contains(part), "{part} is not in:\n{said}");
    }
    let told = kvtide(&["status", "--json", "--http", &address]);
    let json: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!((told.status.code(), &json["spaces"][0]["name"]), (Some(0), &"raw".into()));
    assert_eq!(json["socket"], daemon.socket().to_str().unwrap());
}

#[test]
fn a_daemon_that_is_not_there_is_a_clear_error() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let told = kvtide(&["status", "--http", &address]);
    assert_eq!(told.status.code(), Some(3));
    let said = text(&told.stderr);
    for part in ["no daemon answers", address.as_str(), "refused", "--http"] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    assert!(told.stdout.is_empty());
}

#[test]
fn a_daemon_is_found_by_the_names_that_it_was_given_without_an_address() {
    let mut daemon = PrivateDaemon::start(&Options { http: Some(String::new()), ..options("") }).unwrap();
    let (socket, pid) = (daemon.socket().to_owned(), daemon.pid());
    let (path, dir) = (socket.to_str().unwrap(), socket.parent().unwrap().to_str().unwrap());
    let serving = format!("pid {pid}  serving");
    for args in [&["status", "--socket", path][..], &["status", "--dir", dir], &["status", "--wait", "--dir", dir]] {
        let told = kvtide(args);
        assert_eq!(told.status.code(), Some(0), "{args:?}: {}", text(&told.stderr));
        assert!(text(&told.stdout).contains(&serving), "{args:?}");
    }
    let mut named = Command::new(env!("CARGO_BIN_EXE_kvtide"));
    let told = named.arg("status").env("KVTIDE_SOCKET", path).output().unwrap();
    assert!(text(&told.stdout).contains(&serving), "{}", text(&told.stderr));
    // An empty variable of a chart must not select another daemon, or none of the tokens.
    for (variable, command) in [("KVTIDE_SOCKET", "status"), ("KVTIDE_SOCKET", "events"), ("KVTIDE_TOKEN", "status")] {
        let mut empty = Command::new(env!("CARGO_BIN_EXE_kvtide"));
        let told = empty.arg(command).env(variable, "").output().unwrap();
        let said = text(&told.stderr);
        assert!(said.contains(&format!("{variable} is empty")) && !told.status.success(), "{said}");
    }
    // Two ways to name it may contradict each other.
    assert_eq!(kvtide(&["status", "--dir", dir, "--http", "127.0.0.1:1"]).status.code(), Some(2));
    daemon.signal(Signal::KILL).unwrap();
    daemon.wait(BOUND).unwrap();
    let told = kvtide(&["status", "--wait", "0", "--dir", dir]);
    let said = text(&told.stderr);
    assert_eq!(told.status.code(), Some(3), "{said}");
    for part in ["no daemon answers", &format!("{path}.http: Connection refused"), "--socket, --dir or --http"] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
}

#[test]
fn help_begins_with_what_a_program_does() {
    for (binary, does) in
        [(env!("CARGO_BIN_EXE_kvtide"), "Try, run, watch"), (env!("CARGO_BIN_EXE_kvtided"), "Keep the KV cache")]
    {
        let told = Command::new(binary).arg("--help").output().unwrap();
        let said = text(&told.stdout);
        assert!(said.starts_with(does) && said.contains("Exit status: 0: "), "{said}");
        assert!(!said.contains("library"), "it describes the crate: {said}");
    }
}

#[test]
fn a_socket_of_another_user_is_said_to_be_denied() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let daemon = PrivateDaemon::start(&Options { http: Some(String::new()), ..options("") }).unwrap();
    let socket = daemon.socket().to_str().unwrap().to_owned();
    // Root may connect to everything; as itself, this user is kept out by the mode alone.
    let http = format!("{socket}.http");
    std::fs::set_permissions(&http, std::fs::Permissions::from_mode(0o0)).unwrap();
    let is_root = rustix::process::getuid().is_root();
    for args in [&["status", "--socket", &socket][..], &["cache", "list", "--socket", &socket]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide"));
        if is_root {
            command.uid(65534).gid(65534);
        }
        let told = match command.args(args).output() {
            Ok(told) => told,
            // Other users cannot reach the checkout.
            Err(error) => {
                assert!(std::env::var_os("KVTIDE_NO_SKIP").is_none(), "cannot run the tool as another user: {error}");
                return;
            }
        };
        let said = text(&told.stderr);
        assert_eq!(told.status.code(), Some(1), "{said}");
        for part in ["permission denied on the daemon's socket", &http, "with sudo", "--http"] {
            assert!(said.contains(part), "{part} is not in: {said}");
        }
        assert!(!said.contains("no daemon answers"), "{said}");
    }
}

#[test]
fn top_without_a_terminal_says_what_to_use() {
    let told = kvtide(&["top"]);
    assert_eq!((told.status.code(), told.stdout.is_empty()), (Some(2), true));
    assert!(text(&told.stderr).contains("needs a terminal") && text(&told.stderr).contains("status --json"));
}

/// Run the tool with its stdout on a full disk.
fn into_full(binary: &str, args: &[&str]) -> Output {
    let full = File::options().write(true).open("/dev/full").unwrap();
    Command::new(binary).args(args).stdin(Stdio::null()).stdout(full).output().unwrap()
}

/// Return the problem, if any, of a command that prints to a full disk: it must report that in one line and exit with status 1.
fn problem(binary: &str, args: &[&str], is_quiet: bool) -> Option<String> {
    let ended = into_full(binary, args);
    let said = text(&ended.stderr);
    let lines = said.lines().filter(|line| line.contains("cannot write to stdout: No space left on device")).count();
    let good = ended.status.code() == Some(1) && lines == 1 && !said.contains("panicked");
    (!good || (is_quiet && said.lines().count() != 1)).then(|| format!("{args:?}: {:?}: {said}", ended.status))
}

/// Return the paths of all commands that have no subcommands.
fn leaves(of: &clap::Command, path: &[&str]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for command in of.get_subcommands() {
        let path: Vec<&str> = path.iter().copied().chain([command.get_name()]).collect();
        match command.has_subcommands() {
            true => found.extend(leaves(command, &path)),
            false => found.push(path.iter().map(|name| (*name).to_owned()).collect()),
        }
    }
    found
}

#[test]
fn help_that_cannot_be_written_is_an_error_of_every_command() {
    let (tool, daemon) = (env!("CARGO_BIN_EXE_kvtide"), env!("CARGO_BIN_EXE_kvtided"));
    let mut problems: Vec<String> = Vec::new();
    for flag in ["--help", "-h", "--version"] {
        problems.extend([tool, daemon].iter().filter_map(|binary| problem(binary, &[flag], true)));
    }
    problems.extend(problem(tool, &["help"], true));
    problems.extend(problem(daemon, &["--check"], false));
    let commands = leaves(&kvtide_cli::commands(), &[]);
    assert!(commands.len() > 15, "{commands:?}");
    for command in &commands {
        let args: Vec<&str> = command.iter().map(String::as_str).chain(["--help"]).collect();
        problems.extend(problem(tool, &args, true));
    }
    assert_eq!(problems, [""; 0]);
}

/// Return arguments with which a command prints its result within two seconds. Every new command must be added here.
fn printing<'a>(command: &str, http: &'a str, dir: &'a str) -> Option<Vec<Vec<&'a str>>> {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/corpus/traces/requests");
    Some(match command {
        "daemon" => vec![vec!["daemon", "--check"]],
        "config check" => vec![vec!["config", "check"], vec!["config", "check", "--json"]],
        "config show" => vec![vec!["config", "show"], vec!["config", "show", "--json"]],
        "config keys" => vec![vec!["config", "keys", "eviction"], vec!["config", "keys", "--json"]],
        "doctor" => vec![vec!["doctor"], vec!["doctor", "--json"]],
        "cache list" => vec![vec!["cache", "list", "--http", http], vec!["cache", "list", "--json", "--http", http]],
        "cache search" => vec![vec!["cache", "search", "default", "--http", http]],
        "completions" => vec![vec!["completions", "bash"]],
        "man" => vec![vec!["man"]],
        "top" => vec![vec!["top", "--once", "--http", http]],
        // It needs an engine: crate::relay.
        "events" => return None,
        // They need blocks, and change them: crate::operate.
        "why" | "cache show" | "cache pin" | "cache unpin" | "cache evict" | "cache clear" | "drain" | "reload" => {
            return None;
        }
        "fsck" => vec![vec!["fsck", dir], vec!["fsck", "--json", dir]],
        "status" => vec![vec!["status", "--http", http], vec!["status", "--json", "--http", http]],
        "advise" => vec![vec!["advise", "--http", http], vec!["advise", "--json", "--http", http]],
        "purge" => vec![vec!["purge", "--tenant", "default", "--dry-run", "--disk", dir]],
        "replay requests" => vec![vec!["replay", "requests", trace]],
        // They run for minutes, or need a GPU or a terminal. They print through the same functions, which clippy enforces.
        "demo" | "demo-engine" | "demo-chats" | "crash-test" | "replay attention" => return None,
        bench if bench.starts_with("bench ") => return None,
        unknown => panic!("`kvtide {unknown}` is new: add arguments with which it prints"),
    })
}

#[test]
fn a_result_that_cannot_be_written_is_an_error_of_every_command() {
    let disk = Dir::new();
    let (mut filled, _engine) = start_nvme(&disk);
    filled.signal(Signal::TERM).unwrap();
    assert!(filled.wait(BOUND).unwrap().success());
    let (_daemon, address) = served("");
    let (http, dir) = (address.to_string(), disk.store());
    let dir = dir.parent().unwrap().to_str().unwrap();
    let mut problems: Vec<String> = Vec::new();
    for command in leaves(&kvtide_cli::commands(), &[]) {
        for args in printing(&command.join(" "), &http, dir).into_iter().flatten() {
            let printed = kvtide(&args);
            assert!(!printed.stdout.is_empty(), "{args:?} prints nothing: {}", text(&printed.stderr));
            problems.extend(problem(env!("CARGO_BIN_EXE_kvtide"), &args, false));
            // A reader that closes early, such as `head`, changes nothing.
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide"));
            let piped = command.args(&args).stdin(Stdio::null()).stdout(writer).output().unwrap();
            if (piped.status, &piped.stderr) != (printed.status, &printed.stderr) {
                problems.push(format!("{args:?} into a closed pipe: {:?}: {}", piped.status, text(&piped.stderr)));
            }
        }
    }
    assert_eq!(problems, [""; 0]);
}

#[test]
fn an_error_that_cannot_be_written_keeps_its_exit_status() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    for (args, status) in [(&["status", "--http", "127.0.0.1:1"][..], 3), (&["fsck", "/nowhere"], 8), (&["top"], 2)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide"));
        let ended = command.args(args).stdin(Stdio::null()).stderr(full.try_clone().unwrap()).output().unwrap();
        assert_eq!(ended.status.code(), Some(status), "{args:?}");
    }
}

#[test]
fn a_tenant_that_no_disk_knows_is_an_error_that_names_what_is_near() {
    let disk = Dir::new();
    let (mut filled, _engine) = start_nvme(&disk);
    filled.signal(Signal::TERM).unwrap();
    assert!(filled.wait(BOUND).unwrap().success());
    let dir = disk.store();
    let dir = dir.parent().unwrap().to_str().unwrap();
    for (tenant, hint) in [("defualt", "did you mean \"default\"?"), ("x", "they hold data of \"default\"")] {
        let ended = kvtide(&["purge", "--yes", "--tenant", tenant, "--disk", dir]);
        let said = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{said}");
        assert!(said.contains(hint) && said.contains(tenant), "{hint} is not in: {said}");
    }
}

/// Start a daemon with data on its NVMe tier, and an engine.
fn start_nvme(dir: &Dir) -> (PrivateDaemon, Engine) {
    let daemon = PrivateDaemon::start(&nvme_options(dir, NVME_BYTES, "", "")).unwrap();
    let mut engine = Engine::attach(daemon.socket(), 1);
    let seq = engine.write(BLOCKS).unwrap();
    let hashes: Vec<u128> = (1..=u128::from(BLOCKS)).collect();
    assert_eq!(engine.channel.publish(seq, 0, 0, &hashes, Level::Stored, BOUND).unwrap(), Level::Stored);
    (daemon, engine)
}
