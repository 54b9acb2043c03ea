//! Attach with a tenant token: the session's tenant, the error for a wrong token, and no token in logs or status.

use crate::peers::refusal;
use crate::raw::{Raw, hello};
use crate::{BOUND, daemon, options, sessions, until};
use kvtide_bench::private_daemon::{self, PrivateDaemon};
use kvtide_client::{Client, Options, SpaceSpec};
use kvtide_wire::geometry::Plane;
use kvtide_wire::hello::{Hello, Token};
use kvtide_wire::status::Status;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const A: &str = "tenant-a-0123456789abcdef0123456789abcdef";
const B: &str = "tenant-b-0123456789abcdef0123456789abcdef";

/// A user that no domain names.
const STRANGER: u32 = 12_345;

/// Token files of two tenants, removed on drop.
pub struct Files(tempfile::TempDir);

impl Files {
    pub fn new() -> Files {
        let files = Files(tempfile::tempdir().unwrap());
        for (name, secret) in [("a", A), ("b", B)] {
            fs::write(files.path(name), format!("{secret}\n")).unwrap();
            fs::set_permissions(files.path(name), Permissions::from_mode(0o600)).unwrap();
        }
        files
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Return a configuration with two tenants by token, and the daemon's user by uid.
    pub fn config(&self) -> String {
        let uid = rustix::process::geteuid().as_raw();
        let dir = self.0.path().display();
        format!(
            "[daemon]\nsocket_mode = \"0666\"\nlog = \"trace\"\n\
             [[domains]]\nname = \"own\"\nuids = [{uid}]\n\
             [[domains]]\nname = \"tenant-a\"\ntokens = [\"{dir}/a\"]\n\
             [[domains]]\nname = \"tenant-b\"\ntokens = [\"{dir}/b\"]\nsessions_max = 1\n"
        )
    }
}

/// Return a handshake message with a token.
pub fn with(secret: &str) -> Hello {
    Hello { token: Some(Token::new(secret.as_bytes()).unwrap()), ..hello() }
}

fn domains_of(status: &serde_json::Value) -> Vec<String> {
    let spaces = status["spaces"].as_array().unwrap();
    let mut domains: Vec<_> = spaces.iter().map(|space| space["domain"].as_str().unwrap().to_owned()).collect();
    domains.sort();
    domains
}

#[test]
fn a_token_makes_a_tenant_and_nothing_is_shared_between_two() {
    let files = Files::new();
    let mut daemon = daemon(&files.config());
    let _own = Raw::attach(daemon.socket());
    let _a = Raw::attach_as(daemon.socket(), &with(A)).unwrap();
    let _again = Raw::attach_as(daemon.socket(), &with(A)).unwrap();
    let _b = Raw::attach_as(daemon.socket(), &with(B)).unwrap();
    let status = daemon.status().unwrap();
    assert_eq!(domains_of(&status), ["own", "tenant-a", "tenant-b"], "equal geometry and fingerprint, three spaces");
    assert_eq!(sessions(&status), (4, 0));
    let (status, text) = refusal(daemon.socket(), &with(B));
    assert_eq!((status, text.contains("the domain's sessions_max")), (Status::Limit, true), "{text}");
}

#[test]
fn a_wrong_token_is_refused_whoever_shows_it_and_learns_nothing() {
    let files = Files::new();
    let mut daemon = daemon(&files.config());
    let mut texts = Vec::new();
    // The uid alone would be accepted. The first token differs in one character, the second in its length, the third completely.
    for wrong in [B.replace("tenant-b", "tenant-c"), format!("{A}0"), "x".repeat(40)] {
        let (status, text) = refusal(daemon.socket(), &with(&wrong));
        assert_eq!(status, Status::Permission);
        texts.push(text);
    }
    assert!(texts[0].starts_with("unknown token: ") && texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    assert_eq!(sessions(&daemon.status().unwrap()), (0, 0));
}

#[test]
fn no_token_is_written_to_a_log_or_a_dump() {
    let files = Files::new();
    let mut daemon = daemon(&files.config());
    let _a = Raw::attach_as(daemon.socket(), &with(A)).unwrap();
    let wrong = "wrong-one-0123456789abcdef0123456789abcdef";
    refusal(daemon.socket(), &with(wrong));
    let mut malformed = with(A).encode().unwrap();
    let cut = malformed.len() - 4;
    malformed.truncate(cut);
    let socket = kvtide_wire::os::socket::Socket::connect(daemon.socket()).unwrap();
    socket.send(&malformed, &[]).unwrap();
    socket.receive_within(&mut vec![0; 16384], 0, BOUND).unwrap();
    let status = daemon.status().unwrap().to_string();
    assert!(daemon.stop().unwrap().success());
    let log = fs::read_to_string(daemon.dir().join("daemon.log")).unwrap();
    assert!(log.contains("unknown token"), "the log reports the rejection: {log}");
    for secret in [A, B, wrong] {
        // Not only the whole secret: a part of it in a log would also be a leak.
        for part in [secret, &secret[..24]] {
            assert!(!log.contains(part) && !status.contains(part), "{part} was written to the log or the status");
        }
    }
}

#[test]
fn a_token_file_that_others_can_read_keeps_the_daemon_from_starting() {
    let files = Files::new();
    fs::set_permissions(files.path("b"), Permissions::from_mode(0o644)).unwrap();
    let error = PrivateDaemon::start(&options(&files.config())).unwrap_err().to_string();
    for part in ["cannot use the token file", &*files.path("b").to_string_lossy(), "mode 0644"] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
    assert!(!error.contains(B));
}

fn client_options(socket: &Path, token_file: Option<PathBuf>) -> Options {
    let space = SpaceSpec::new("tenant", [4; 32], 16, vec![Plane::full(4096)]);
    Options { token_file, timeout: BOUND, ..Options::new(socket.into(), space, vec![16]) }
}

#[test]
fn the_client_reads_its_token_file() {
    let files = Files::new();
    let mut daemon = daemon(&files.config());
    let attach = |file: &str| Client::attach(client_options(daemon.socket(), Some(files.path(file))));
    let client = attach("a").unwrap_or_else(|error| panic!("{error}"));
    fs::write(files.path("wrong"), "x".repeat(32)).unwrap();
    let error = attach("wrong").err().unwrap();
    assert_eq!(error.status(), Status::Permission);
    fs::write(files.path("short"), "x").unwrap();
    let error = attach("short").err().unwrap();
    assert_eq!(error.status(), Status::Invalid);
    assert!(error.to_string().contains("short: token: length is 1, expected 32 to 512"), "{error}");
    let error = attach("none").err().unwrap();
    assert!(error.status() == Status::System && error.to_string().contains("read the token file"), "{error}");
    assert_eq!(domains_of(&daemon.status().unwrap()), ["tenant-a"]);
    drop(client);
}

/// In a user namespace that maps one user, all other users appear as 65534, so only the token distinguishes them.
#[test]
fn a_peer_whose_uid_reads_as_nobody_attaches_by_its_token() {
    let unshare = ["--user", "--map-root-user", "true"];
    let namespaces = Command::new("unshare").args(unshare).status().is_ok_and(|status| status.success());
    if !namespaces || !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED a_peer_whose_uid_reads_as_nobody_attaches_by_its_token: needs root and user namespaces");
        return;
    }
    let files = Files::new();
    let wrapper = files.path("kvtide");
    let binary = env!("CARGO_BIN_EXE_kvtide");
    fs::write(&wrapper, format!("#!/bin/sh\nexec unshare --user --map-root-user '{binary}' \"$@\"\n")).unwrap();
    fs::set_permissions(&wrapper, Permissions::from_mode(0o700)).unwrap();
    let options = private_daemon::Options { binary: Some(wrapper), ..options(&files.config()) };
    let mut daemon = PrivateDaemon::start(&options).unwrap();
    fs::set_permissions(daemon.dir(), Permissions::from_mode(0o755)).unwrap();
    let path = daemon.socket().to_owned();
    let raw = std::thread::spawn(move || {
        // The system call changes only this thread; the library function changes all threads.
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(STRANGER)).unwrap();
        let (status, text) = refusal(&path, &hello());
        assert_eq!(status, Status::Permission);
        assert!(text.contains("uid 65534"), "{text}");
        Raw::attach_as(&path, &with(A)).unwrap()
    });
    let mut raw = raw.join().unwrap();
    assert_eq!(raw.status(crate::raw::sub(kvtide_wire::entry::Op::Nop)), Status::Ok);
    assert_eq!(domains_of(&daemon.status().unwrap()), ["tenant-a"]);
}

/// A daemon in a container has no process ids for engines outside. They attach, and their end is noticed.
#[test]
fn an_engine_outside_of_the_daemons_pid_namespace_attaches() {
    let unshare = ["--user", "--map-root-user", "--pid", "--fork", "true"];
    let namespaces = Command::new("unshare").args(unshare).status().is_ok_and(|status| status.success());
    if !namespaces {
        eprintln!("SKIPPED an_engine_outside_of_the_daemons_pid_namespace_attaches: needs user and pid namespaces");
        return;
    }
    let files = Files::new();
    let wrapper = files.path("kvtide");
    let binary = env!("CARGO_BIN_EXE_kvtide");
    let flags = "--user --map-root-user --pid --fork --kill-child";
    // There the process id of this test is unknown: `--parent` of the options is given another value.
    let script = format!(
        "#!/bin/sh\nexec unshare {flags} sh -c 'for a; do shift; [ \"$b\" = --parent ] && a=1; set -- \"$@\" \"$a\"; b=$a; done; \
         \"{binary}\" \"$@\"' sh \"$@\"\n"
    );
    fs::write(&wrapper, script).unwrap();
    fs::set_permissions(&wrapper, Permissions::from_mode(0o700)).unwrap();
    let config = "[[domains]]\nname = \"a\"\nuids = [0]\nsessions_max = 1\n";
    // `start` would end it: `unshare` passes no signal on.
    let mut daemon =
        PrivateDaemon::launch(&private_daemon::Options { binary: Some(wrapper), ..options(config) }).unwrap();
    daemon.ready().unwrap();
    let mut raw = Raw::attach_as(daemon.socket(), &hello()).unwrap();
    assert_eq!(raw.status(crate::raw::sub(kvtide_wire::entry::Op::Nop)), Status::Ok);
    assert_eq!(refusal(daemon.socket(), &hello()).0, Status::Limit, "it is the only session");
    drop(raw);
    until(|| "the first session does not end", || Raw::attach_as(daemon.socket(), &hello()).is_ok());
}
