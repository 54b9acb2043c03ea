//! A private daemon: the same binary as `kvtide daemon`, in a temporary directory that is removed with it.
//!
//! The demo, the benchmarks, the crash test and the tests start one. It ends when its guard is dropped, or when the process that
//! started it ends.

use kvtide_daemon::announce::{DUMPED, READY, RECORDED, RELOADED};
use kvtide_daemon::error::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, DirBuilder, File};
use std::io::{self, PipeReader, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Time limit of a status dump: spaces may be busy.
const DUMP: Duration = Duration::from_secs(20);
/// Time limit of a start.
const START: Duration = Duration::from_secs(20);
/// Time limit of the allocation of host memory after it: 8 GiB take 10 s where memory is fragmented.
const ALLOCATION: Duration = Duration::from_secs(300);
/// Time limit of a stop before it is forced.
const STOP: Duration = Duration::from_secs(10);
/// Bytes of a failed daemon's log that are shown.
const STDERR_SHOWN_BYTES: usize = 4096;

/// Settings of a private daemon.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Binary to run as `BINARY daemon …`; `None`: the binary of this process.
    pub binary: Option<PathBuf>,
    /// Parent of its directory; `None`: the system's temporary directory.
    pub dir: Option<PathBuf>,
    /// `--host-bytes`.
    pub host_bytes: Option<u64>,
    /// `--slab-bytes`.
    pub slab_bytes: Option<u64>,
    /// `--scan-frames`.
    pub scan_frames: Option<u32>,
    /// NVMe tier.
    pub nvme: Option<Nvme>,
    /// `--http`; `None`: no metrics, because many private daemons may run.
    pub http: Option<String>,
    /// Text of a configuration file.
    pub config: Option<String>,
}

/// The NVMe tier of a private daemon: one disk in its own directory, removed with the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nvme {
    /// Parent of that directory; `None`: the daemon's directory.
    pub dir: Option<PathBuf>,
    /// `--nvme-bytes`.
    pub bytes: u64,
}

/// A running private daemon. Dropping it kills the daemon and removes its directory.
#[derive(Debug)]
pub struct PrivateDaemon {
    child: Child,
    stdout: PipeReader,
    /// Bytes read from stdout that are not processed yet.
    heard: Vec<u8>,
    dir: PathBuf,
    nvme_dir: Option<PathBuf>,
    socket: PathBuf,
}

impl PrivateDaemon {
    /// Start a daemon and wait until engines can attach and its host memory is allocated.
    ///
    /// # Errors
    /// The binary or the directory cannot be used, or the daemon ends or does not get ready in time; the error contains the end of
    /// its log.
    pub fn start(options: &Options) -> Result<PrivateDaemon, Error> {
        let mut daemon = PrivateDaemon::launch(options)?;
        daemon.ready()?;
        daemon.allocated()?;
        Ok(daemon)
    }

    /// Start a daemon without waiting for it.
    ///
    /// # Errors
    /// The binary or the directory cannot be used.
    pub fn launch(options: &Options) -> Result<PrivateDaemon, Error> {
        let binary = match &options.binary {
            Some(binary) => binary.clone(),
            None => std::env::current_exe().map_err(|e| Error::system("find this process's own binary", e))?,
        };
        let dir = temporary_dir(options.dir.as_deref())?;
        let nvme_dir = nvme_dir(&dir, options.nvme.as_ref()).inspect_err(|_| remove_dir(&dir))?;
        let spawned = spawn(&binary, &dir, nvme_dir.as_deref(), options);
        let (child, stdout) = spawned.inspect_err(|_| remove_dirs(&dir, nvme_dir.as_deref()))?;
        let socket = dir.join("kvtide.sock");
        Ok(PrivateDaemon { child, stdout, heard: Vec::new(), socket, dir, nvme_dir })
    }

    /// Wait until engines can attach.
    ///
    /// # Errors
    /// The daemon ends or does not get ready in time; the error contains the end of its log.
    pub fn ready(&mut self) -> Result<(), Error> {
        self.hear(READY, START)
    }

    /// Wait until its host memory is allocated.
    ///
    /// # Errors
    /// The daemon ends, or does not allocate it in time.
    pub fn allocated(&mut self) -> Result<(), Error> {
        let began = Instant::now();
        while self.status()?["host"]["allocating_bytes"].as_u64().is_some_and(|bytes| bytes > 0) {
            if began.elapsed() > ALLOCATION {
                return Err(self.failed(format!("did not allocate its memory within {ALLOCATION:?}")));
            }
            // PACE: polls until the time limit.
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Return the socket that engines attach to.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Return the daemon's directory: socket, status dump (`status.json`), log (`daemon.log`).
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Return the directory of its disk, if it has an NVMe tier.
    #[must_use]
    pub fn nvme_dir(&self) -> Option<&Path> {
        self.nvme_dir.as_deref()
    }

    /// Return its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Send a signal.
    ///
    /// # Errors
    /// The process has already ended.
    pub fn signal(&self, signal: Signal) -> Result<(), Error> {
        let action = || format!("signal the private daemon (pid {})", self.child.id());
        kill_process(Pid::from_child(&self.child), signal).map_err(|e| Error::system(action(), e))
    }

    /// Stop the daemon with SIGTERM, wait a limited time and return its exit status. Its directory remains until the drop.
    ///
    /// # Errors
    /// The process has already ended, or did not end in time.
    pub fn stop(&mut self) -> Result<ExitStatus, Error> {
        self.signal(Signal::TERM)?;
        self.wait(STOP)
    }

    /// Wait until the process has ended.
    ///
    /// # Errors
    /// It did not end within `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> Result<ExitStatus, Error> {
        let pidfd = rustix::process::pidfd_open(Pid::from_child(&self.child), rustix::process::PidfdFlags::empty())
            .map_err(|e| Error::system("watch the private daemon", e))?;
        if !readable(&pidfd, timeout)? {
            return Err(self.failed(format!("did not end within {timeout:?}")));
        }
        self.child.wait().map_err(|e| Error::system("reap the private daemon", e))
    }

    /// Return the end of its log.
    #[must_use]
    pub fn log(&self) -> String {
        let bytes = fs::read(self.dir.join("daemon.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(STDERR_SHOWN_BYTES)..]).into_owned()
    }

    /// Request a status dump and read it: an object with `sessions`, `spaces`, `host`, `counters`.
    ///
    /// # Errors
    /// The process has ended, or the dump was not written in time.
    pub fn status(&mut self) -> Result<serde_json::Value, Error> {
        self.signal(Signal::USR1)?;
        self.hear(DUMPED, DUMP)?;
        let path = self.dir.join("status.json");
        let failed = |source| Error::File { action: "read the private daemon's status", path: path.clone(), source };
        let text = fs::read(&path).map_err(failed)?;
        serde_json::from_slice(&text).map_err(|error| failed(error.into()))
    }

    /// Request the flight recordings of all spaces (`space-N.kvtrec` in its directory). The configuration must enable them.
    ///
    /// # Errors
    /// The process has ended, or the recordings were not written in time.
    pub fn record(&mut self) -> Result<(), Error> {
        self.signal(Signal::USR2)?;
        self.hear(RECORDED, DUMP)
    }

    /// Reload the daemon with another configuration (SIGHUP); the result is in its log. It must have been started with a
    /// configuration.
    ///
    /// # Errors
    /// The process has ended, or did not read the configuration in time.
    pub fn reload(&mut self, config: &str) -> Result<(), Error> {
        let path = self.dir.join("kvtided.toml");
        let action = "write the private daemon's configuration";
        fs::write(&path, config).map_err(|source| Error::File { action, path, source })?;
        self.signal(Signal::HUP)?;
        self.hear(RELOADED, DUMP)
    }

    /// Wait for a line on its stdout that begins with `what`.
    fn hear(&mut self, what: &str, timeout: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=end).collect();
                if line.starts_with(what.as_bytes()) {
                    return Ok(());
                }
                continue;
            }
            if !readable(&self.stdout, deadline.saturating_duration_since(Instant::now()))? {
                return Err(self.failed(format!("did not print \"{what}…\" within {timeout:?}")));
            }
            let mut chunk = [0; 512];
            let count =
                self.stdout.read(&mut chunk).map_err(|e| Error::system("read the private daemon's stdout", e))?;
            if count == 0 {
                let status = self.wait(STOP)?;
                return Err(self.failed(format!("ended before it printed \"{what}…\" ({status})")));
            }
            self.heard.extend_from_slice(&chunk[..count]);
        }
    }

    fn failed(&self, what: String) -> Error {
        Error::PrivateDaemon { what, stderr: self.log() }
    }
}

impl Drop for PrivateDaemon {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        remove_dirs(&self.dir, self.nvme_dir.as_deref());
    }
}

fn spawn(binary: &Path, dir: &Path, nvme_dir: Option<&Path>, options: &Options) -> Result<(Child, PipeReader), Error> {
    let file = |action, path: &Path, source| Error::File { action, path: path.into(), source };
    let log_path = dir.join("daemon.log");
    let log = File::create(&log_path).map_err(|e| file("create the private daemon's log", &log_path, e))?;
    let mut command = Command::new(binary);
    command.arg("daemon").arg("--dir").arg(dir).arg("--remove-dir");
    command.arg("--parent").arg(std::process::id().to_string());
    if let Some(text) = &options.config {
        let path = dir.join("kvtided.toml");
        fs::write(&path, text).map_err(|e| file("write the private daemon's configuration", &path, e))?;
        command.arg("--config").arg(path);
    }
    let flags = [("--host-bytes", options.host_bytes), ("--slab-bytes", options.slab_bytes)];
    for (flag, value) in flags.into_iter().chain([("--scan-frames", options.scan_frames.map(u64::from))]) {
        if let Some(value) = value {
            command.arg(flag).arg(value.to_string());
        }
    }
    if let (Some(dir), Some(nvme)) = (nvme_dir, &options.nvme) {
        command.arg("--nvme-dir").arg(dir).arg("--nvme-bytes").arg(nvme.bytes.to_string());
    }
    command.arg("--http").arg(options.http.as_deref().unwrap_or_default());
    // A private daemon belongs to its owner; it must not notify the owner's service manager.
    for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
        command.env_remove(name);
    }
    let (stdout, theirs) = io::pipe().map_err(|e| Error::system("make the private daemon's stdout", e))?;
    // A process group of its own: Ctrl-C in the terminal goes to the owner, which stops its children in order.
    command.stdin(Stdio::null()).stdout(theirs).stderr(log).process_group(0);
    let child = command.spawn().map_err(|e| file("start the private daemon", binary, e))?;
    Ok((child, stdout))
}

/// Create a directory that only this user can use.
pub fn temporary_dir(parent: Option<&Path>) -> Result<PathBuf, Error> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
    let failed = |source| Error::File { action: "find the directory", path: parent.clone(), source };
    let parent = std::path::absolute(&parent).map_err(failed)?;
    loop {
        let name = format!("kvtide-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = parent.join(name);
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            // Left by an earlier process with our pid; the next name differs.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(Error::File { action: "make a temporary directory", path, source }),
        }
    }
}

/// Return the directory of the disk's file. The daemon creates a directory below its own itself.
fn nvme_dir(dir: &Path, nvme: Option<&Nvme>) -> Result<Option<PathBuf>, Error> {
    nvme.map(|nvme| match &nvme.dir {
        None => Ok(dir.join("nvme")),
        Some(parent) => temporary_dir(Some(parent)),
    })
    .transpose()
}

fn remove_dirs(dir: &Path, nvme_dir: Option<&Path>) {
    if let Some(nvme_dir) = nvme_dir.filter(|nvme_dir| !nvme_dir.starts_with(dir)) {
        remove_dir(nvme_dir);
    }
    remove_dir(dir);
}

/// Remove a directory and all that is in it.
pub fn remove_dir(dir: &Path) {
    if let Err(error) = fs::remove_dir_all(dir) {
        tracing::warn!("cannot remove {}: {error}", dir.display());
    }
}

/// Wait until the descriptor is readable or its other end is closed. Return false after the timeout.
fn readable(fd: impl AsFd, timeout: Duration) -> Result<bool, Error> {
    let deadline = Instant::now() + timeout;
    loop {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now()))
            .map_err(|e| Error::system("wait for the private daemon", io::Error::other(e)))?;
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::system("wait for the private daemon", errno)),
        }
    }
}
