//! A machine for the documents that are about one: Debian with its real systemd, in a container, with this checkout and its release
//! build at /src/kvtide. It needs root, mmdebstrap and systemd-container.

use crate::run::{Error, output, root, run, target};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Packages of the machine. Another list makes another root.
const PACKAGES: &str = "systemd,systemd-sysv,dbus,curl,passwd,libgcc-s1";
const RELEASE: &str = "bookworm";
/// Where the checkout is in the machine.
pub const CHECKOUT: &str = "/src/kvtide";
/// Limits in which it starts and ends.
const BOOT: Duration = Duration::from_secs(120);
const END: Duration = Duration::from_secs(40);
/// Pause between two looks at something that is awaited.
const PAUSE: Duration = Duration::from_millis(100);

/// A running machine. It is powered off and forgets everything when it is dropped.
pub struct Machine {
    nspawn: Child,
    /// Its process 1, as this system numbers it.
    init: u32,
    /// What is mounted at /var/lib/kvtide: O_DIRECT needs a real file system.
    state: PathBuf,
}

impl Machine {
    /// Boot it.
    pub fn boot() -> Result<Machine, Error> {
        let debian = debian()?;
        let state = target().join("machine-state");
        let _ = fs::remove_dir_all(&state);
        let failed = |e| Error::Start(format!("prepare {}", state.display()), e);
        fs::create_dir_all(&state).map_err(failed)?;
        let log = File::create(target().join("machine.log")).map_err(failed)?;
        let mut nspawn = Command::new("systemd-nspawn");
        nspawn.args(["--quiet", "--boot", "--register=no", "--keep-unit", "--volatile=overlay", "--private-network"]);
        // The container's own filter forbids io_uring; the unit's filter, which is tested, allows it.
        nspawn.args(["--system-call-filter=io_uring_setup io_uring_enter io_uring_register", "--machine=kvtide"]);
        nspawn.arg("--rlimit=RLIMIT_MEMLOCK=infinity").arg("--directory").arg(debian);
        nspawn.arg(format!("--bind-ro={}:{CHECKOUT}", root().display()));
        nspawn.arg(format!("--bind={}:/var/lib/kvtide", state.display()));
        nspawn.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log);
        let nspawn = nspawn.spawn().map_err(|e| missing("systemd-nspawn", "systemd-container", e))?;
        // From here on its end is awaited in every case.
        let mut machine = Machine { nspawn, init: 0, state };
        let deadline = Instant::now() + BOOT;
        loop {
            machine.init = machine.children().first().copied().unwrap_or(0);
            let mut asked = machine.command("systemctl");
            asked.args(["is-system-running", "--wait"]).stdout(Stdio::null()).stderr(Stdio::null());
            if machine.init != 0 && asked.status().is_ok_and(|status| status.success()) {
                return Ok(machine);
            }
            let ended = machine.nspawn.try_wait().is_ok_and(|ended| ended.is_some());
            if ended || Instant::now() > deadline {
                let log = fs::read_to_string(target().join("machine.log")).unwrap_or_default();
                return Err(Error::Check(format!("the machine did not start within {} s:\n{log}", BOOT.as_secs())));
            }
            // PACE: of the looks at a machine that boots.
            std::thread::sleep(PAUSE);
        }
    }

    fn children(&self) -> Vec<u32> {
        let pid = self.nspawn.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        children.split_whitespace().filter_map(|child| child.parse().ok()).collect()
    }

    /// Return a command that runs as root in the machine, in the checkout.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.init)).args(["--all", &format!("--wdns={CHECKOUT}"), "--"]);
        command.args(["env", "-i", "HOME=/root", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]);
        command.arg(program);
        command
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.command("systemctl").args(["poweroff", "--no-wall"]).stderr(Stdio::null()).status();
        let deadline = Instant::now() + END;
        while self.nspawn.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < deadline {
            // PACE: of the looks at a machine that ends.
            std::thread::sleep(PAUSE);
        }
        let _ = self.nspawn.kill();
        let _ = self.nspawn.wait();
        let _ = fs::remove_dir_all(&self.state);
    }
}

/// Return the root of the machine; make it if it is missing.
fn debian() -> Result<PathBuf, Error> {
    if output(Command::new("id").arg("-u"))?.trim() != "0" {
        return Err(Error::Check("this case starts a machine with systemd-nspawn, and needs root".to_owned()));
    }
    let folder = target().join("tools/debian");
    let stamp = folder.join("etc/kvtide-packages");
    let identity = format!("{RELEASE} {PACKAGES}\n");
    if !fs::read_to_string(&stamp).is_ok_and(|made| made == identity) {
        let _ = fs::remove_dir_all(&folder);
        let failed = |e| Error::Start(format!("make {}", folder.display()), e);
        fs::create_dir_all(target().join("tools")).map_err(failed)?;
        let mut mmdebstrap = Command::new("mmdebstrap");
        mmdebstrap.args(["--quiet", "--variant=minbase", &format!("--include={PACKAGES}"), RELEASE]).arg(&folder);
        run(&mut mmdebstrap).map_err(|error| match error {
            Error::Start(_, e) => missing("mmdebstrap", "mmdebstrap", e),
            other => other,
        })?;
        // Written last, so that an interrupted installation is repeated.
        fs::write(&stamp, identity).map_err(failed)?;
    }
    Ok(folder)
}

fn missing(program: &str, package: &str, error: std::io::Error) -> Error {
    Error::Start(format!("{program} (of the Debian package {package}; install it)"), error)
}
