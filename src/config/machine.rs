//! What memory this machine, and the cgroup that the daemon runs in, can give.
//!
//! A limit of a cgroup holds for everything below it, so all of them from the daemon's own up to the mount's root count, of
//! version 2 (`memory.max`, `memory.high`) and of version 1 (`memory.limit_in_bytes`).

use super::{ByteSize, HostTier};
use crate::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Version 1 writes "no limit" as the largest multiple of a page; nothing near it is a limit.
const UNLIMITED: u64 = 1 << 62;

/// Memory, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Of the machine.
    pub total_bytes: u64,
    /// What new work could have without swapping: the machine's, or the cgroup's if that is less.
    pub available_bytes: u64,
    /// The lowest limit above the daemon, if there is one.
    pub cgroup: Option<CgroupLimit>,
}

/// A limit of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLimit {
    /// The file that states it.
    pub file: PathBuf,
    /// Bytes.
    pub bytes: u64,
}

impl Machine {
    /// Looks at this one.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn look() -> Result<Machine, Error> {
        Machine::look_below(Path::new("/"))
    }

    /// The same below another root, for tests.
    pub(super) fn look_below(root: &Path) -> Result<Machine, Error> {
        let meminfo = root.join("proc/meminfo");
        let text = read(&meminfo)?;
        let field = |name: &str| {
            kib_of(&text, name).ok_or_else(|| {
                let source = io::Error::new(io::ErrorKind::InvalidData, format!("it has no {name}"));
                Error::File { action: "tell how much memory there is", path: meminfo.clone(), source }
            })
        };
        let mut machine =
            Machine { total_bytes: field("MemTotal")?, available_bytes: field("MemAvailable")?, cgroup: None };
        let memberships = read(&root.join("proc/self/cgroup"))?;
        for mount in mounts(&read(&root.join("proc/self/mountinfo"))?) {
            if let Some(path) = membership(&memberships, mount.v2) {
                machine.heed(root, &mount, path);
            }
        }
        Ok(machine)
    }

    /// Whether a host tier of this capacity can be had at all.
    ///
    /// # Errors
    /// The machine has less memory, or the daemon's cgroup may have less; the file that says so is named.
    pub fn holds(&self, host: &HostTier) -> Result<(), Error> {
        let refuse = |bytes, source: String| {
            Err(Error::HostTier {
                capacity: ByteSize(host.capacity_bytes),
                limit: ByteSize(bytes),
                source_of_limit: source,
            })
        };
        match &self.cgroup {
            Some(limit) if limit.bytes < host.capacity_bytes => {
                refuse(limit.bytes, format!("the limit of the daemon's cgroup in {}", limit.file.display()))
            }
            _ if self.total_bytes < host.capacity_bytes => {
                refuse(self.total_bytes, "the memory of this machine (MemTotal in /proc/meminfo)".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Takes in the limits from the cgroup at `path` up to the mount's root.
    fn heed(&mut self, root: &Path, mount: &Mount<'_>, path: &str) {
        let top = root.join(mount.point.trim_start_matches('/'));
        // Behind a cgroup namespace, or a bind mount, what is above the mount is not to be seen.
        let below = Path::new(path).strip_prefix(mount.root).unwrap_or(Path::new(""));
        let own = top.join(below.strip_prefix("/").unwrap_or(below));
        let limits: &[&str] = if mount.v2 { &["memory.max", "memory.high"] } else { &["memory.limit_in_bytes"] };
        for dir in own.ancestors().take_while(|dir| dir.starts_with(&top)) {
            for file in limits.iter().map(|name| dir.join(name)) {
                // No file: the controller is off here, as it is in the root. "max": no limit.
                let limit = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u64>().ok());
                let Some(bytes) = limit.filter(|bytes| *bytes < UNLIMITED) else { continue };
                let left = bytes.saturating_sub(used(dir, mount.v2));
                self.available_bytes = self.available_bytes.min(left);
                if self.cgroup.as_ref().is_none_or(|lowest| bytes < lowest.bytes) {
                    self.cgroup = Some(CgroupLimit { file, bytes });
                }
            }
        }
    }
}

/// What a cgroup uses and would not give up for new work: all but the file pages that nobody has touched for a while.
fn used(dir: &Path, v2: bool) -> u64 {
    let (current, inactive) =
        if v2 { ("memory.current", "inactive_file") } else { ("memory.usage_in_bytes", "total_inactive_file") };
    let number = |text: String| text.trim().parse::<u64>().ok();
    let current = fs::read_to_string(dir.join(current)).ok().and_then(number).unwrap_or(0);
    let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let reclaimable = stat.lines().find_map(|line| line.strip_prefix(inactive)?.trim().parse::<u64>().ok());
    current.saturating_sub(reclaimable.unwrap_or(0))
}

/// A mounted hierarchy with the memory controller.
#[derive(Debug)]
struct Mount<'a> {
    v2: bool,
    /// Which cgroup the mount shows.
    root: &'a str,
    /// Where.
    point: &'a str,
}

fn mounts(mountinfo: &str) -> Vec<Mount<'_>> {
    mountinfo.lines().filter_map(parse_mount).collect()
}

/// `36 35 0:31 ROOT POINT options … - TYPE source SUPER-OPTIONS` (proc(5)).
fn parse_mount(line: &str) -> Option<Mount<'_>> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (root, point) = (mount.next()?, mount.next()?);
    let mut file_system = file_system.split(' ');
    match (file_system.next()?, file_system.nth(1)) {
        ("cgroup2", _) => Some(Mount { v2: true, root, point }),
        ("cgroup", Some(options)) if options.split(',').any(|option| option == "memory") => {
            Some(Mount { v2: false, root, point })
        }
        _ => None,
    }
}

/// The cgroup of this process in a hierarchy: `0::PATH` in version 2, `N:…,memory,…:PATH` in version 1 (cgroups(7)).
fn membership(text: &str, v2: bool) -> Option<&str> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let ours = if v2 { controllers.is_empty() } else { controllers.split(',').any(|name| name == "memory") };
        ours.then_some(path)
    })
}

/// `NAME:   123 kB` of `/proc/meminfo`, in bytes.
fn kib_of(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn read(path: &Path) -> Result<String, Error> {
    let failed = |source| Error::File { action: "tell how much memory there is", path: path.into(), source };
    fs::read_to_string(path).map_err(failed)
}
