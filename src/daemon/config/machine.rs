//! Memory of this machine and of the daemon's cgroup.
//!
//! The limit of a cgroup applies to all its descendants. So the limits of all cgroups from the daemon's own up to the root of the
//! mount count, in version 2 (`memory.max`, `memory.high`) and version 1 (`memory.limit_in_bytes`).

use super::{ByteSize, HostTier};
use crate::config::ConfigError;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Limits from here on mean "unlimited": version 1 reports that as the largest multiple of the page size.
const UNLIMITED: u64 = 1 << 62;

/// Memory and disk of [`Machine::assumed`]: 1 TiB each.
const ASSUMED: u64 = 1 << 40;

/// Sizes on which defaults, percentages and "max" depend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Bytes of memory of the machine.
    pub total_bytes: u64,
    /// Bytes that can be allocated without swapping, on the machine or within the cgroup, whichever is less.
    pub available_bytes: u64,
    /// The lowest limit of the daemon's cgroup and its ancestors, if any.
    pub cgroup: Option<CgroupLimit>,
    /// Bytes of each disk; `None`: they are measured.
    pub disk_bytes: Option<u64>,
}

/// A limit of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLimit {
    /// The file that contains it.
    pub file: PathBuf,
    /// Bytes.
    pub bytes: u64,
}

impl Machine {
    /// Measure this machine.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn look() -> Result<Machine, ConfigError> {
        Machine::look_below(Path::new("/"))
    }

    /// Return the machine for which the file of another machine is checked: 1 TiB of memory, empty disks of 1 TiB.
    #[must_use]
    pub fn assumed() -> Machine {
        Machine { total_bytes: ASSUMED, available_bytes: ASSUMED, cgroup: None, disk_bytes: Some(ASSUMED) }
    }

    /// Measure below another root directory, for tests.
    pub(super) fn look_below(root: &Path) -> Result<Machine, ConfigError> {
        let meminfo = root.join("proc/meminfo");
        let text = read(&meminfo)?;
        let field = |name: &str| {
            kib_of(&text, name).ok_or_else(|| {
                let source = io::Error::new(io::ErrorKind::InvalidData, format!("no line {name}"));
                ConfigError::File { action: "determine the memory size", path: meminfo.clone(), source }
            })
        };
        let (total_bytes, available_bytes) = (field("MemTotal")?, field("MemAvailable")?);
        let mut machine = Machine { total_bytes, available_bytes, cgroup: None, disk_bytes: None };
        let memberships = read(&root.join("proc/self/cgroup"))?;
        for mount in mounts(&read(&root.join("proc/self/mountinfo"))?) {
            if let Some(path) = membership(&memberships, mount.v2) {
                machine.apply(root, &mount, path);
            }
        }
        Ok(machine)
    }

    /// Return the bytes of memory that the daemon can have at most: those of the machine, or of the cgroup's limit.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.cgroup.as_ref().map_or(self.total_bytes, |limit| limit.bytes.min(self.total_bytes))
    }

    /// Check that a host tier of this capacity is possible.
    ///
    /// # Errors
    /// The capacity exceeds the memory of the machine or the limit of the cgroup. The error names the file that states the limit.
    pub fn holds(&self, host: &HostTier) -> Result<(), ConfigError> {
        let refuse = |bytes, source: String| {
            Err(ConfigError::HostTier {
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

    /// Apply the limits of the cgroup at `path` and of its ancestors up to the root of the mount.
    fn apply(&mut self, root: &Path, mount: &Mount<'_>, path: &str) {
        let top = root.join(mount.point.trim_start_matches('/'));
        // In a cgroup namespace or a bind mount, ancestors of the mount are not visible.
        let below = Path::new(path).strip_prefix(mount.root).unwrap_or(Path::new(""));
        let own = top.join(below.strip_prefix("/").unwrap_or(below));
        let limits: &[&str] = if mount.v2 { &["memory.max", "memory.high"] } else { &["memory.limit_in_bytes"] };
        for dir in own.ancestors().take_while(|dir| dir.starts_with(&top)) {
            for file in limits.iter().map(|name| dir.join(name)) {
                // No file: the controller is disabled here, as in the root cgroup. "max": no limit.
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

/// Return the memory of a cgroup that is not reclaimable: its usage without inactive file pages.
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
    /// The cgroup at the root of the mount.
    root: &'a str,
    /// The mount point.
    point: &'a str,
}

fn mounts(mountinfo: &str) -> Vec<Mount<'_>> {
    mountinfo.lines().filter_map(parse_mount).collect()
}

/// Parse `36 35 0:31 ROOT POINT options … - TYPE source SUPER-OPTIONS` (proc(5)).
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

/// Return the cgroup of this process in a hierarchy: `0::PATH` in version 2, `N:…,memory,…:PATH` in version 1 (cgroups(7)).
fn membership(text: &str, v2: bool) -> Option<&str> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let ours = if v2 { controllers.is_empty() } else { controllers.split(',').any(|name| name == "memory") };
        ours.then_some(path)
    })
}

/// Parse `NAME:   123 kB` of `/proc/meminfo`. Return bytes.
fn kib_of(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::File { action: "determine the memory size", path: path.into(), source };
    fs::read_to_string(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root directory of a machine with 16 GiB, 10 of them available.
    struct Root(tempfile::TempDir);

    impl Root {
        fn new(cgroup: &str, mountinfo: &str) -> Root {
            let root = Root(tempfile::tempdir().unwrap());
            root.file("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:   10485760 kB\n");
            root.file("proc/self/cgroup", cgroup);
            root.file("proc/self/mountinfo", mountinfo);
            root
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn look(&self) -> (u64, Option<(String, u64)>) {
            let machine = Machine::look_below(self.0.path()).unwrap();
            assert_eq!(machine.total_bytes, 16 << 30);
            let limit = machine.cgroup.map(|limit| {
                let file = limit.file.strip_prefix(self.0.path()).unwrap().display().to_string();
                (file, limit.bytes)
            });
            (machine.available_bytes, limit)
        }
    }

    const V2: &str =
        "22 1 0:21 / /proc rw - proc proc rw\n30 22 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
    const V1: &str = "35 30 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                      36 30 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

    #[test]
    fn without_a_limit_the_machines_memory_counts() {
        let root = Root::new("0::/user.slice\n", V2);
        root.file("sys/fs/cgroup/user.slice/memory.max", "max\n");
        assert_eq!(root.look(), (10 << 30, None));
        let v1 = Root::new("4:memory:/user\n3:cpu,cpuacct:/\n", V1);
        v1.file("sys/fs/cgroup/memory/user/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(v1.look(), (10 << 30, None));
    }

    #[test]
    fn the_lowest_limit_above_the_daemon_counts_whoever_set_it() {
        let root = Root::new("0::/a.slice/kvtided.service\n", V2);
        let cgroup = "sys/fs/cgroup/a.slice";
        root.file(&format!("{cgroup}/kvtided.service/memory.max"), "8589934592\n");
        root.file(&format!("{cgroup}/kvtided.service/memory.high"), "max\n");
        root.file(&format!("{cgroup}/kvtided.service/memory.current"), "1073741824\n");
        assert_eq!(root.look(), (7 << 30, Some((format!("{cgroup}/kvtided.service/memory.max"), 8 << 30))));
        // The slice has a lower limit, and siblings use part of it; half of the usage is inactive file pages.
        root.file(&format!("{cgroup}/memory.high"), "6442450944\n");
        root.file(&format!("{cgroup}/memory.current"), "4294967296\n");
        root.file(&format!("{cgroup}/memory.stat"), "anon 1\ninactive_file 2147483648\nactive_file 5\n");
        assert_eq!(root.look(), (4 << 30, Some((format!("{cgroup}/memory.high"), 6 << 30))));
    }

    #[test]
    fn version_1_counts_too_and_more_than_the_machine_has_is_no_more() {
        let root = Root::new("5:cpu,cpuacct:/x\n4:memory:/docker/abc\n", V1);
        root.file("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "3221225472\n");
        root.file("sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "1073741824\n");
        root.file("sys/fs/cgroup/memory/docker/abc/memory.stat", "inactive_file 7\ntotal_inactive_file 536870912\n");
        let limit = "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes".to_owned();
        assert_eq!(root.look(), ((2 << 30) + (512 << 20), Some((limit.clone(), 3 << 30))));
        root.file(&limit, "34359738368\n");
        assert_eq!(root.look(), (10 << 30, Some((limit, 32 << 30))));
    }

    #[test]
    fn a_container_sees_its_own_cgroup_as_the_mounts_root() {
        // Version 2 in a cgroup namespace; version 1 bind-mounted, where the path is that of the host.
        let namespaced = Root::new("0::/\n", V2);
        namespaced.file("sys/fs/cgroup/memory.max", "2147483648\n");
        assert_eq!(namespaced.look().0, 2 << 30);
        let mount = "36 30 0:31 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let bound = Root::new("4:memory:/docker/abc\n", mount);
        bound.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
        assert_eq!(bound.look().0, 2 << 30);
    }

    #[test]
    fn a_tier_that_cannot_be_had_names_who_says_so() {
        let host = |capacity_bytes| HostTier {
            capacity_bytes,
            slab_bytes: 1 << 20,
            prefault: true,
            high_percent: 95,
            low_percent: 90,
        };
        let free = Machine { total_bytes: 4 << 30, available_bytes: 1 << 30, cgroup: None, disk_bytes: None };
        assert!(free.holds(&host(4 << 30)).is_ok());
        let error = free.holds(&host((4 << 30) + 1)).unwrap_err().to_string();
        assert!(error.contains("MemTotal in /proc/meminfo") && error.contains("which is 4 GiB"), "{error}");
        let odd = Machine { total_bytes: 24_683_656 << 10, ..free.clone() };
        let error = odd.holds(&host(1 << 40)).unwrap_err().to_string();
        assert!(error.contains("= 1TiB exceeds") && error.contains("which is 23.54 GiB"), "{error}");
        let limit = CgroupLimit { file: "/x/memory.max".into(), bytes: 2 << 30 };
        let caged = Machine { cgroup: Some(limit), ..free };
        let error = caged.holds(&host(3 << 30)).unwrap_err().to_string();
        assert!(
            error.contains("tiers.host.capacity = 3GiB exceeds the limit of the daemon's cgroup in /x/memory.max"),
            "{error}"
        );
    }
}
