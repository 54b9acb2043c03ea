//! `e2e upgrade`: either side of a release before this one, with the other side of this one.

use super::check::Case;
use super::{failed, scratch};
use crate::machine::deploy;
use crate::run::{Error, cargo, output, root, run, target};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The commit of the release before; until there is one, a commit of 2026-11-29 in its place. It speaks the oldest protocol of this one, and
/// knows nothing of an agreement about versions.
const BEFORE: &str = "5e2688ce4410ac0c2483c07e35026fb4f27ce5eb";
/// All cases.
pub const CASES: [Case; 5] = [
    ("old client, new daemon", || with(Side::Old, Side::New, Side::New)),
    ("new client, old daemon", || with(Side::New, Side::Old, Side::Old)),
    ("upgrade of the daemon", || with(Side::Old, Side::Old, Side::New)),
    ("downgrade of the daemon", || with(Side::New, Side::New, Side::Old)),
    ("status of the other release", status),
];

/// A release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Old,
    New,
}

impl Side {
    /// Return the folder of its programs and of libkvtide.a.
    fn programs(self) -> PathBuf {
        match self {
            Side::Old => target().join("upgrade/build/release"),
            Side::New => target().join("release"),
        }
    }

    fn engine(self) -> PathBuf {
        self.programs().join("durable")
    }
}

/// Build both releases and an engine of each.
pub fn build() -> Result<(), Error> {
    let source = target().join(format!("upgrade/source-{BEFORE}"));
    if !source.exists() {
        let is_here = output(Command::new("git").args(["cat-file", "-e", BEFORE]).current_dir(root()));
        is_here.map_err(|_| {
            Error::Check(format!("commit {BEFORE} is not in this clone: get its whole history (git fetch --unshallow)"))
        })?;
        let unpack = "git archive \"$1\" | tar --extract --directory \"$2\"";
        let mut bash = Command::new("bash");
        let whole = scratch("before")?;
        bash.args(["-o", "pipefail", "-c", unpack, "bash", BEFORE]).arg(&whole);
        run(bash.current_dir(root()))?;
        // Only now: an empty folder would be part of this workspace.
        let parent = target().join("upgrade");
        fs::create_dir_all(&parent).map_err(failed("create", &parent))?;
        fs::rename(&whole, &source).map_err(failed("rename", &whole))?;
    }
    for (source, folder) in [(&*source, target().join("upgrade/build")), (root(), target())] {
        // One by one: a dependency of the tool would add symbols to the library.
        for package in ["kvtide-capi", "kvtide"] {
            let mut build = cargo();
            build.args(["build", "--release", "--locked", "-p", package]).current_dir(source);
            run(build.env("CARGO_TARGET_DIR", &folder))?;
        }
        deploy::compile(source, &folder.join("release"), &folder.join("release/durable"))?;
    }
    Ok(())
}

/// A daemon, ended when it is dropped.
struct Daemon(Child);

impl Daemon {
    /// Start a daemon and wait until it is ready, or has ended.
    fn start(side: Side, place: &Path) -> Result<Daemon, Error> {
        let mut command = Command::new(side.programs().join("kvtided"));
        let log_path = place.join("log");
        let log = fs::OpenOptions::new().create(true).append(true).open(&log_path);
        command.arg("--dir").arg(place.join("dir")).arg("--nvme-dir").arg(place.join("nvme"));
        command.args(["--host-bytes", "64MiB", "--nvme-bytes", "256MiB", "--http", ""]);
        if side == Side::New {
            // An optional feature, which its clients have and those of the release before have not. No collector is there, and none is needed.
            let config = place.join("kvtided.toml");
            fs::write(&config, "[tracing]\nendpoint = \"http://127.0.0.1:9\"\n").map_err(failed("write", &config))?;
            command.arg("--config").arg(&config);
        }
        command.stdout(Stdio::piped()).stderr(log.map_err(failed("open", &log_path))?);
        let mut child = command.spawn().map_err(|e| Error::Start("kvtided".to_owned(), e))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).map_err(failed("read", place))?;
        }
        let daemon = Daemon(child);
        if line.is_empty() {
            let log = fs::read_to_string(&log_path).unwrap_or_default();
            return Err(Error::Check(format!("the daemon of {side:?} did not start:\n{log}")));
        }
        Ok(daemon)
    }

    /// Stop it as a service manager does.
    fn stop(mut self) -> Result<(), Error> {
        run(Command::new("kill").arg(self.0.id().to_string()))?;
        let status = self.0.wait().map_err(|e| Error::Start("wait for kvtided".to_owned(), e))?;
        if status.success() { Ok(()) } else { Err(Error::Failed("kvtided".to_owned(), status)) }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Store blocks with a client at a daemon; find them at once, and after a restart with `next`, with clients of both releases.
fn with(client: Side, daemon: Side, next: Side) -> Result<Value, Error> {
    let place = scratch("upgrade")?;
    let engine = |side: Side, does: &str| {
        let said = output(Command::new(side.engine()).arg(place.join("dir/kvtide.sock")).arg(does));
        said.map(|text| text.trim().to_owned())
    };
    let expect = |found: String, wanted: &str| match found == wanted {
        true => Ok(()),
        false => Err(Error::Check(format!("an engine printed {found:?}, not {wanted:?}"))),
    };
    const FOUND: &str = "found 64 of 64, 64 equal";
    let running = Daemon::start(daemon, &place)?;
    expect(engine(client, "store")?, "stored 64")?;
    expect(engine(client, "find")?, FOUND)?;
    running.stop()?;
    let running = Daemon::start(next, &place)?;
    for client in [Side::Old, Side::New] {
        expect(engine(client, "find")?, FOUND)?;
    }
    running.stop()?;
    Ok(json!({"client": format!("{client:?}"), "daemon": format!("{daemon:?}"), "restarted": format!("{next:?}")}))
}

/// Ask a daemon for its status with the tool of the other release.
fn status() -> Result<Value, Error> {
    for (daemon, tool) in [(Side::Old, Side::New), (Side::New, Side::Old)] {
        let place = scratch("upgrade")?;
        let running = Daemon::start(daemon, &place)?;
        let mut status = Command::new(tool.programs().join("kvtide"));
        let said = output(status.arg("status").arg("--dir").arg(place.join("dir")))?;
        if !said.contains("serving") {
            return Err(Error::Check(format!("the tool of {tool:?} printed at the daemon of {daemon:?}:\n{said}")));
        }
        running.stop()?;
    }
    Ok(Value::Null)
}
