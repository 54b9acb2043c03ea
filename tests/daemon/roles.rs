//! Roles: this test binary, started again as a separate process. A role reports in lines that begin with `@`.

use crate::raw::{Raw, sub};
use crate::{BOUND, options, until};
use kvtide_bench::private_daemon::{Nvme, Options, PrivateDaemon};
use kvtide_wire::entry::{Op, Submission};
use kvtide_wire::os::poll::readable;
use kvtide_wire::status::Status;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::{PipeReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Instant;

const ROLE: &str = "KVTIDE_TEST_ROLE";
const SOCKET: &str = "KVTIDE_TEST_SOCKET";

/// A running role. It is killed on drop.
pub struct Actor {
    pub child: Child,
    /// Open until the actor is dropped: roles and their helpers run until it is closed. (`Child::wait` would close it.)
    _stdin: ChildStdin,
    stdout: PipeReader,
    heard: String,
}

impl Actor {
    /// Start a role with the daemon at `socket`.
    pub fn start(role: &str, socket: &Path) -> Actor {
        let (stdout, theirs) = std::io::pipe().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["roles::role", "--exact", "--nocapture"]).env(ROLE, role).env(SOCKET, socket);
        let mut child = command.stdin(Stdio::piped()).stdout(theirs).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        Actor { child, _stdin: stdin, stdout, heard: String::new() }
    }

    /// Return the role's next line, without its `@`.
    pub fn hear(&mut self) -> String {
        let deadline = Instant::now() + BOUND;
        loop {
            if let Some(end) = self.heard.find('\n') {
                let line: String = self.heard.drain(..=end).collect();
                match line.trim_end().split_once('@') {
                    Some((_, said)) => return said.to_owned(),
                    None => continue,
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert_ne!(
                readable(&[self.stdout.as_fd()], left).unwrap(),
                0,
                "the role printed no line in time: {:?}",
                self.heard
            );
            let mut chunk = [0; 4096];
            let count = self.stdout.read(&mut chunk).unwrap();
            assert_ne!(count, 0, "the role has ended: {:?}", self.heard);
            self.heard.push_str(std::str::from_utf8(&chunk[..count]).unwrap());
        }
    }

    /// Kill the process with SIGKILL, and reap it.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Return a descriptor of a process, to wait for its exit.
pub fn pidfd(pid: u32) -> OwnedFd {
    pidfd_open(Pid::from_raw(pid as i32).unwrap(), PidfdFlags::empty()).unwrap()
}

/// Wait until a process has exited.
pub fn ended(pidfd: &OwnedFd) {
    assert_ne!(readable(&[pidfd.as_fd()], BOUND).unwrap(), 0, "the process did not exit within {BOUND:?}");
}

/// Print one line for the test that started the role.
pub fn say(line: &str) {
    println!("\n@{line}");
}

/// Block until the test drops its [`Actor`].
pub fn hold() {
    let mut end = Vec::new();
    std::io::stdin().read_to_end(&mut end).unwrap();
}

/// Run the role that the environment names; without one, do nothing.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let socket = PathBuf::from(std::env::var(SOCKET).unwrap());
    match role.as_str() {
        "engine" => engine(&socket, false),
        "engine-with-helper" => engine(&socket, true),
        "leaves-while-storing" => leaves_while_storing(&socket),
        "busy" => busy(&socket),
        "helper" => hold(),
        "flipper" => crate::integrity_sample::flipper(&socket),
        "storer" => crate::blocks::storer(&socket),
        "publisher" => crate::clients::publisher(&socket),
        "scanner" => crate::nvme::scanner(&socket),
        "owner" => owner(),
        other => panic!("no role {other}"),
    }
}

/// Create a sequence of four blocks and park it, so that its pages are only in host memory.
pub fn park_four_blocks(raw: &mut Raw, seq: u32) {
    for submission in [
        Submission { seq, ..sub(Op::SeqCreate) },
        Submission { seq, count: 4, ..sub(Op::Reserve) },
        Submission { seq, value: 60, ..sub(Op::Commit) },
        Submission { seq, ..sub(Op::Park) },
    ] {
        assert_eq!(raw.status(submission), Status::Ok, "{submission:?}\n");
    }
}

/// Role: have pages in host memory until killed. The optional helper process inherits the socket, memory and eventfds, and goes on
/// running.
fn engine(socket: &Path, with_helper: bool) {
    let (mut raw, copies) = match with_helper {
        true => Raw::attach_inheritable(socket),
        false => (Raw::attach(socket), Vec::new()),
    };
    park_four_blocks(&mut raw, 0);
    let helper = with_helper.then(|| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["roles::role", "--exact", "--nocapture"]).env(ROLE, "helper");
        command.spawn().unwrap()
    });
    drop(copies);
    say(&helper.as_ref().map_or("parked".to_owned(), |helper| helper.id().to_string()));
    hold();
    if let Some(mut helper) = helper {
        helper.wait().unwrap();
    }
}

/// Role: shut down the socket while stores are in flight, and go on running.
fn leaves_while_storing(socket: &Path) {
    let raw = storing(socket);
    rustix::net::shutdown(&raw.socket, rustix::net::Shutdown::Both).unwrap();
    say("left");
    hold();
}

/// Return a session with stores in flight that are never executed.
pub fn storing(socket: &Path) -> Raw {
    let mut raw = Raw::attach(socket);
    for submission in
        [sub(Op::SeqCreate), Submission { count: 4, ..sub(Op::Reserve) }, Submission { value: 60, ..sub(Op::Commit) }]
    {
        assert_eq!(raw.status(submission), Status::Ok);
    }
    raw.submit(0, &sub(Op::Park));
    until(|| "no job arrived", || raw.side.job_rings.jobs.available().unwrap() != 0);
    raw
}

/// Role: send requests until killed, with one line of output per round.
fn busy(socket: &Path) {
    let mut raw = Raw::attach(socket);
    for round in 0u64.. {
        park_four_blocks(&mut raw, 0);
        assert_eq!(raw.status(sub(Op::Resume)), Status::Ok);
        assert_eq!(raw.status(sub(Op::SeqDrop)), Status::Ok);
        say(&round.to_string());
    }
}

/// Role: own a private daemon with its disk in another directory, until killed.
fn owner() {
    let nvme = Some(Nvme { dir: Some(std::env::temp_dir()), bytes: 1 << 20 });
    let daemon = PrivateDaemon::start(&Options { nvme, ..options("") }).unwrap();
    say(&format!("{} {} {}", daemon.pid(), daemon.dir().display(), daemon.nvme_dir().unwrap().display()));
    hold();
}
