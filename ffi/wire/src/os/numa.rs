//! NUMA nodes: those that a process may use, the node of a device, and shared memory on a chosen node.
//!
//! A device copies from memory of its own node at the full rate of its link. Memory of another node passes through the link between
//! the processors, which all devices and threads share.
//!
//! The functions that read `/proc` and `/sys` take the root of the file system, so that tests can use another one.

use super::aligned::SharedMap;
use super::huge::{HUGE, last_error};
use crate::hello::NUMA_NODES_MAX;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use std::format;
use std::path::Path;
use std::string::{String, ToString};
use std::vec::Vec;

/// Flags of `get_mempolicy`: the node of the page at an address (`linux/mempolicy.h`).
const NODE_OF_ADDRESS: libc::c_ulong = 1 | 2;
/// Bits of a word of a node mask.
const WORD_BITS: usize = libc::c_ulong::BITS as usize;

/// Return the nodes that have CPUs and memory and on which this process may allocate, in ascending order. Nodes without CPUs are
/// left out: they are memory of a GPU, or slow. Empty if the system does not say.
#[must_use]
pub fn usable(root: &Path) -> Vec<u16> {
    let nodes = root.join("sys/devices/system/node");
    let read = |name: &str| read(&nodes.join(name)).map(|text| numbers(&text)).unwrap_or_default();
    let (with_cpus, allowed) = (read("has_cpu"), status_list(root, "Mems_allowed_list:"));
    let mut usable = read("has_memory");
    usable.retain(|node| with_cpus.contains(node) && allowed.contains(node) && *node < NUMA_NODES_MAX);
    usable
}

/// Return the node of a PCI device by its address, `domain:bus:device.function` in hexadecimal digits of either case. `None` if the
/// system does not know it, or if there is no such device.
#[must_use]
pub fn of_pci_device(root: &Path, address: &str) -> Option<u16> {
    let (domain, rest) = address.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let is_plain = |c: char| c.is_ascii_hexdigit() || matches!(c, ':' | '.');
    if rest.contains("..") || !rest.chars().all(is_plain) {
        return None; // no address, and it must not become a path
    }
    let name = format!("{domain:04x}:{}", rest.to_ascii_lowercase());
    node_number(&read(&root.join("sys/bus/pci/devices").join(name).join("numa_node"))?)
}

/// Return the node of the CPUs on which this process may run, if they are all on one.
#[must_use]
pub fn of_process(root: &Path) -> Option<u16> {
    let cpus = status_list(root, "Cpus_allowed_list:");
    let nodes = root.join("sys/devices/system/node");
    let online = numbers(&read(&nodes.join("has_cpu"))?);
    let all_of = |node: &u16| {
        let theirs = read(&nodes.join(format!("node{node}/cpulist"))).map(|text| numbers(&text)).unwrap_or_default();
        cpus.iter().all(|cpu| theirs.contains(cpu))
    };
    online.into_iter().filter(|node| !cpus.is_empty() && *node < NUMA_NODES_MAX).find(all_of)
}

/// Return whether this thread has a memory policy of its own, as by `numactl` or systemd's `NUMAPolicy=`.
///
/// # Errors
/// The system does not allow the question; containers often do not.
pub fn has_policy() -> Result<bool, Errno> {
    let mut mode: libc::c_int = 0;
    // SAFETY: writes one int; without a mask and an address.
    let code = unsafe { libc::syscall(libc::SYS_get_mempolicy, &mut mode, 0usize, 0usize, 0usize, 0usize) };
    if code == 0 { Ok(mode != libc::MPOL_DEFAULT) } else { Err(last_error()) }
}

/// Have the memory of an empty memfd of `bytes` bytes allocated on a node, or on another one if that is full. This holds for every
/// process that touches it.
///
/// # Errors
/// There is no such node, this process may not use it, or the system does not allow the call.
pub(super) fn prefer(fd: BorrowedFd<'_>, bytes: u64, node: u16) -> Result<(), Errno> {
    if node >= NUMA_NODES_MAX {
        return Err(Errno::INVAL);
    }
    let map = map(fd, bytes, ProtFlags::empty())?;
    let mut mask = [0 as libc::c_ulong; NUMA_NODES_MAX as usize / WORD_BITS];
    mask[usize::from(node) / WORD_BITS] = 1 << (usize::from(node) % WORD_BITS);
    // The kernel uses one bit less than the call says.
    let bits = libc::c_ulong::from(NUMA_NODES_MAX) + 1;
    // SAFETY: the map is ours and the mask outlives the call. The policy is the memfd's and changes no content.
    let code = unsafe {
        libc::syscall(libc::SYS_mbind, map.start(), map.bytes(), libc::MPOL_PREFERRED, mask.as_ptr(), bits, 0usize)
    };
    if code == 0 { Ok(()) } else { Err(last_error()) }
}

/// Return the node that holds most of an allocated memfd of `bytes` bytes, by one page of each [`HUGE`] bytes.
///
/// # Errors
/// The system does not allow the question.
pub(super) fn of_memory(fd: BorrowedFd<'_>, bytes: u64) -> Result<u16, Errno> {
    let map = map(fd, bytes, ProtFlags::READ)?;
    let mut pages: Vec<(u16, usize)> = Vec::new();
    for at in (0..map.bytes()).step_by(HUGE as usize) {
        let (mut node, page): (libc::c_int, _) = (0, map.start().wrapping_byte_add(at));
        // SAFETY: writes one int. The page is within the map; the kernel reads it, and it is allocated.
        let code = unsafe { libc::syscall(libc::SYS_get_mempolicy, &mut node, 0usize, 0usize, page, NODE_OF_ADDRESS) };
        if code != 0 {
            return Err(last_error());
        }
        let node = u16::try_from(node).map_err(|_| Errno::RANGE)?;
        match pages.iter_mut().find(|(of, _)| *of == node) {
            Some((_, count)) => *count += 1,
            None => pages.push((node, 1)),
        }
    }
    pages.into_iter().max_by_key(|&(_, count)| count).map(|(node, _)| node).ok_or(Errno::INVAL)
}

fn map(fd: BorrowedFd<'_>, bytes: u64, rights: ProtFlags) -> Result<SharedMap, Errno> {
    SharedMap::new(fd, usize::try_from(bytes).map_err(|_| Errno::OVERFLOW)?, rights, false)
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_string())
}

/// Return a list of the process's status by the name of its line.
fn status_list(root: &Path, name: &str) -> Vec<u16> {
    let status = read(&root.join("proc/self/status")).unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix(name));
    list.map(numbers).unwrap_or_default()
}

/// Parse the kernel's form of a list, as in `0-3,8`. Parts that are none are left out.
fn numbers(list: &str) -> Vec<u16> {
    let range = |part: &str| {
        let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// Parse the node of a device; the kernel writes -1 for "unknown".
fn node_number(text: &str) -> Option<u16> {
    text.parse().ok().filter(|node| *node < NUMA_NODES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memfd::Memfd;
    use rustix::fd::AsFd;
    use std::fs;

    /// Return the root directory of a file system with these files.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn nodes_are_usable_with_cpus_and_memory_and_the_right_to_allocate() {
        let root = root(&[
            ("sys/devices/system/node/has_cpu", "0-2,4\n"),
            ("sys/devices/system/node/has_memory", "0-1,3-9\n"),
            ("proc/self/status", "Name:\tx\nMems_allowed:\tff\nMems_allowed_list:\t1-5\nCpus_allowed_list:\t8-15\n"),
            ("sys/devices/system/node/node0/cpulist", "0-7\n"),
            ("sys/devices/system/node/node1/cpulist", "8-15,24-31\n"),
        ]);
        // Node 0 is not allowed, 2 has no memory, 3 has no CPU.
        assert_eq!(usable(root.path()), [1, 4]);
        assert_eq!(of_process(root.path()), Some(1));
        fs::write(root.path().join("proc/self/status"), "Cpus_allowed_list:\t7-8\n").unwrap();
        assert_eq!((of_process(root.path()), usable(root.path())), (None, Vec::new()), "CPUs of two nodes; no list");
        assert_eq!((usable(Path::new("/nowhere")), of_process(Path::new("/nowhere"))), (Vec::new(), None));
    }

    #[test]
    fn the_node_of_a_device_is_found_by_its_address() {
        let root = root(&[
            ("sys/bus/pci/devices/0000:c1:00.0/numa_node", "1\n"),
            ("sys/bus/pci/devices/10000:01:00.0/numa_node", "3\n"),
            ("sys/bus/pci/devices/0000:02:00.0/numa_node", "-1\n"),
            ("sys/bus/pci/devices/0000:03:00.0/numa_node", "65000\n"),
            ("numa_node", "7"),
        ]);
        let of = |address| of_pci_device(root.path(), address);
        assert_eq!((of("0000:C1:00.0"), of("00000000:c1:00.0"), of("10000:01:00.0")), (Some(1), Some(1), Some(3)));
        let none = ["0000:02:00.0", "0000:03:00.0", "0000:04:00.0", "", "c1", "0000:../../../../..", "0000:/"];
        assert!(none.iter().all(|address| of(address).is_none()));
    }

    #[test]
    fn memory_is_on_the_node_that_was_asked_for_and_its_maps_say_so() {
        for node in usable(Path::new("/")) {
            let memfd = Memfd::shared_on("kvtide-numa-test", 4 * HUGE + 5000, Some(node)).unwrap();
            assert_eq!((memfd.node(), memfd.why_unbound()), (Some(node), None));
            let map = memfd.map(crate::os::map::Access::ReadWrite).unwrap();
            let at = format!("{:x} ", map.as_ptr().addr());
            let maps = fs::read_to_string("/proc/self/numa_maps").unwrap();
            let line = maps.lines().find(|line| line.starts_with(&at)).unwrap();
            assert!(line.contains(&format!(" prefer:{node} ")), "{line}");
            // Every page, with huge pages and without: N0=2050 stands for 2,050 pages on node 0.
            let pages = line.split(' ').filter_map(|word| word.strip_prefix('N')?.split_once('='));
            let pages: Vec<_> = pages.filter(|(number, _)| number.parse::<u16>().is_ok()).collect();
            assert_eq!(pages, [(node.to_string().as_str(), "2050")], "{line}");
        }
    }

    #[test]
    fn a_policy_of_the_thread_is_seen() {
        let seen = std::thread::spawn(|| {
            let (before, mask) = (has_policy(), 1 as libc::c_ulong);
            // SAFETY: the policy of this thread alone, which ends after the test; the mask outlives the call.
            let code = unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_PREFERRED, &mask, WORD_BITS) };
            (before, code, has_policy())
        });
        assert_eq!(seen.join().unwrap(), (Ok(false), 0, Ok(true)));
    }

    #[test]
    fn memory_for_a_node_that_does_not_exist_is_allocated_elsewhere_and_says_why() {
        for node in [NUMA_NODES_MAX - 1, NUMA_NODES_MAX] {
            let memfd = Memfd::shared_on("kvtide-numa-test", 4096, Some(node)).unwrap();
            assert_eq!((memfd.why_unbound(), memfd.node()), (Some(Errno::INVAL), None), "node {node}");
            assert_eq!(prefer(memfd.as_fd(), 4096, node), Err(Errno::INVAL));
        }
        let memfd = Memfd::shared("kvtide-numa-test", 4096).unwrap();
        assert_eq!((memfd.node(), memfd.why_unbound()), (None, None), "not asked for");
    }
}
