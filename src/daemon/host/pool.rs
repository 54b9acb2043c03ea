//! Host memory that no space owns yet. With prefaulting, all of it is allocated before the daemon is ready: a machine with too
//! little memory fails at start, and no engine waits for pages to be zeroed.

use crate::config::Machine;
use crate::error::Error;
use crossbeam::channel::{Receiver, Sender, bounded};
use kvtide_wire::error::Error as WireError;
use kvtide_wire::os::memfd::{Memfd, Reserved};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Maximum threads that allocate memory at start. One thread zeroes a few GB/s; four reach the bandwidth of a socket.
const THREADS_MAX: usize = 4;
/// Interval between progress reports.
const PROGRESS: Duration = Duration::from_millis(500);
/// Name of the memory in /proc/PID/maps.
const NAME: &str = "kvtide-host";

/// Memory in segments; each becomes one slab.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// All of one size, except perhaps one smaller segment.
    segments: Vec<Reserved>,
    segment_bytes: u64,
    capacity_bytes: u64,
    /// NUMA nodes among which the memory is divided; none: the system decides.
    nodes: Vec<u16>,
}

impl Pool {
    /// Create a pool without memory: slabs are allocated on request.
    pub fn empty(nodes: Vec<u16>) -> Pool {
        Pool { nodes, ..Pool::default() }
    }

    /// Allocate `capacity_bytes` in segments of `segment_bytes`, divided evenly among the NUMA nodes. `progress` gets the bytes
    /// allocated so far, from time to time.
    pub fn fill(
        capacity_bytes: u64,
        segment_bytes: u64,
        nodes: Vec<u16>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Pool, Error> {
        check_available(capacity_bytes, &Machine::look()?)?;
        let (whole, rest) = (capacity_bytes / segment_bytes, capacity_bytes % segment_bytes);
        let sizes: Vec<u64> = (rest > 0).then_some(rest).into_iter().chain((0..whole).map(|_| segment_bytes)).collect();
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        let (next, (made, segments)) = (AtomicUsize::new(0), bounded(sizes.len()));
        let work = |made: Sender<Result<Reserved, WireError>>| {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(&bytes) = sizes.get(at) else { break };
                let segment = Reserved::take(NAME, bytes, nodes.get(at % nodes.len().max(1)).copied());
                if segment.is_err() {
                    // The daemon will not start, so the other threads stop allocating.
                    next.store(sizes.len(), Ordering::Relaxed);
                }
                // The channel has room for all segments.
                let _ = made.send(segment);
            }
        };
        let mut segments = std::thread::scope(|scope| {
            for _ in 0..threads {
                let made = made.clone();
                scope.spawn(|| work(made));
            }
            drop(made);
            collect(&segments, progress)
        })?;
        let small = || segments.iter().filter_map(|segment| Some((segment.bytes(), segment.why_small()?)));
        warn_if_small(small().map(|(bytes, _)| bytes).sum(), small().next().map(|(_, errno)| errno));
        warn_if_unbound(segments.iter().find_map(Reserved::why_unbound));
        // The smaller segment first, so that it is granted last.
        segments.sort_by_key(Reserved::bytes);
        Ok(Pool { segments, segment_bytes, capacity_bytes, nodes })
    }

    /// Return memory of `bytes` for a space, from the pool if it has any, and on a NUMA node if possible. If all segments are too
    /// short, one is freed.
    pub fn take(&mut self, name: &str, bytes: u64, numa_node: Option<u16>) -> Result<Memfd, WireError> {
        let segments = self.segments.iter().map(|segment| (segment.bytes(), segment.node()));
        if let Some(at) = choose(segments, bytes, numa_node) {
            return self.segments.remove(at).shared(bytes);
        }
        self.segments.pop();
        let memfd = Memfd::shared_on(name, bytes, numa_node.filter(|node| self.nodes.contains(node)))?;
        warn_if_small(memfd.bytes(), memfd.why_small());
        warn_if_unbound(memfd.why_unbound());
        Ok(memfd)
    }

    /// Replace memory that a space returned: engines may still map the old memory. Afterwards pool and granted memory add up to the
    /// capacity again, up to less than one segment. `granted_nodes`: the NUMA node of each granted slab.
    pub fn refill(&mut self, granted_bytes: u64, granted_nodes: impl Iterator<Item = u16> + Clone) {
        while self.segment_bytes > 0 && self.bytes() + granted_bytes + self.segment_bytes <= self.capacity_bytes {
            let pooled = self.segments.iter().filter_map(Reserved::node);
            let node = emptiest(&self.nodes, pooled.chain(granted_nodes.clone()));
            match Reserved::take(NAME, self.segment_bytes, node) {
                Ok(segment) => self.segments.push(segment),
                Err(error) => {
                    return tracing::error!("host tier: cannot allocate a replacement for returned memory: {error}");
                }
            }
        }
    }

    /// Return whether memory is divided among NUMA nodes.
    pub fn has_nodes(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// Return the bytes of the pool that are on huge pages.
    pub fn huge_bytes(&self) -> u64 {
        self.segments.iter().map(Reserved::huge_bytes).sum()
    }

    /// Return the bytes in the pool.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(Reserved::bytes).sum()
    }
}

/// Choose a segment that is long enough, by bytes and node of each: one on the wanted node if there is one, else of the node with the
/// most of them, so that every node keeps some for its own engines. Of equal ones the last.
fn choose(segments: impl Iterator<Item = (u64, Option<u16>)>, bytes: u64, wanted: Option<u16>) -> Option<usize> {
    // Of each node: how many segments are long enough, and which is the last of them.
    let mut by_node: BTreeMap<Option<u16>, (usize, usize)> = BTreeMap::new();
    for (at, (_, node)) in segments.enumerate().filter(|(_, segment)| segment.0 >= bytes) {
        let (count, last) = by_node.entry(node).or_default();
        (*count, *last) = (*count + 1, at);
    }
    let wanted = wanted.and_then(|node| by_node.get(&Some(node)));
    wanted.or_else(|| by_node.values().max()).map(|(_, last)| *last)
}

/// Return the node with the fewest segments; of equal ones the first.
fn emptiest(nodes: &[u16], segments: impl Iterator<Item = u16> + Clone) -> Option<u16> {
    nodes.iter().copied().min_by_key(|node| segments.clone().filter(|of| of == node).count())
}

/// Collect the segments that the threads allocate, until all threads have ended.
fn collect(
    made: &Receiver<Result<Reserved, WireError>>,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<Reserved>, Error> {
    let (mut segments, mut bytes, mut told) = (Vec::new(), 0, Instant::now());
    while let Ok(segment) = made.recv() {
        let segment = segment.map_err(|source| Error::Wire { action: "allocate the host tier's memory", source })?;
        bytes += segment.bytes();
        segments.push(segment);
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            progress(bytes);
        }
    }
    Ok(segments)
}

/// Small pages cost more CPU per byte, and split large KV pages into several I/O requests. The fallback is therefore logged.
fn warn_if_small(bytes: u64, why: Option<Errno>) {
    if let Some(errno) = why {
        tracing::warn!("host tier: {bytes} bytes are on small pages: cannot get huge pages (MADV_COLLAPSE): {errno}");
    }
}

/// Memory that is not bound to a node is wherever the thread that allocated it ran.
fn warn_if_unbound(why: Option<Errno>) {
    if let Some(errno) = why {
        tracing::warn!(
            "host tier: cannot put memory on the NUMA nodes of the engines: {errno}. In a container, allow mbind and get_mempolicy \
             in the seccomp profile"
        );
    }
}

/// Fail if the machine has less memory available: a process that allocates more is killed by the kernel.
pub(super) fn check_available(bytes: u64, machine: &Machine) -> Result<(), Error> {
    let available = machine.available_bytes;
    if available < bytes { Err(Error::Memory { wanted: bytes, available }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn a_pool_holds_the_capacity_and_gives_what_is_asked_for() {
        let mut pool = Pool::fill(200 * KIB, 64 * KIB, Vec::new(), &mut |_| ()).unwrap();
        assert_eq!((pool.bytes(), pool.segments.len()), (200 * KIB, 4));
        let a = pool.take("a", 60 * KIB, None).unwrap();
        assert_eq!((a.bytes(), pool.bytes()), (60 * KIB, 136 * KIB), "the rest was freed");
        pool.refill(60 * KIB, std::iter::empty());
        assert_eq!(pool.bytes(), 136 * KIB, "no memory was returned");
        drop(a);
        pool.refill(0, std::iter::empty());
        assert_eq!(pool.bytes(), 200 * KIB);
        let all: Vec<_> = (0..4).map(|_| pool.take("b", 8 * KIB, None).unwrap()).collect();
        assert_eq!((all.len(), pool.bytes()), (4, 0));
        assert_eq!(pool.take("allocated on request", 64 * KIB, None).unwrap().bytes(), 64 * KIB);
    }

    #[test]
    fn more_than_the_machine_has_is_refused_before_it_is_touched() {
        let error = Pool::fill(1 << 50, 1 << 30, Vec::new(), &mut |_| ()).unwrap_err();
        assert!(matches!(error, Error::Memory { wanted, .. } if wanted == 1 << 50), "{error}");
    }

    #[test]
    fn a_slab_comes_from_the_wanted_node_or_else_from_the_one_with_the_most() {
        let of = |nodes: &[i32]| {
            nodes.iter().map(|&node| (64, u16::try_from(node).ok())).collect::<Vec<(u64, Option<u16>)>>()
        };
        let choose = |segments: &[(u64, Option<u16>)], wanted| choose(segments.iter().copied(), 64, wanted);
        let segments = of(&[0, 1, 1, 0, 0]);
        assert_eq!((choose(&segments, Some(0)), choose(&segments, Some(1))), (Some(4), Some(2)));
        assert_eq!((choose(&segments, Some(2)), choose(&segments, None)), (Some(4), Some(4)), "node 0 has most");
        assert_eq!(choose(&of(&[0, 1, 1]), None), Some(2));
        // Without nodes: the last, as the shorter segment is the first.
        assert_eq!((choose(&of(&[-1, -1]), None), choose(&of(&[-1, -1]), Some(0))), (Some(1), Some(1)));
        // A segment that is too short is no choice, even on the wanted node.
        assert_eq!(choose(&[(60, Some(1)), (64, Some(0))], Some(1)), Some(1));
        assert_eq!((choose(&[(60, Some(1))], Some(1)), choose(&[], None)), (None, None));
    }

    #[test]
    fn returned_memory_is_replaced_on_the_node_that_has_least() {
        let emptiest = |nodes: &[u16], segments: &[u16]| emptiest(nodes, segments.iter().copied());
        assert_eq!((emptiest(&[], &[]), emptiest(&[], &[1])), (None, None));
        assert_eq!((emptiest(&[0, 1], &[]), emptiest(&[0, 1], &[0])), (Some(0), Some(1)));
        assert_eq!(emptiest(&[0, 2], &[0, 2, 2, 1]), Some(0));
    }

    #[test]
    fn segments_are_on_the_nodes_they_were_made_for() {
        let nodes = kvtide_wire::os::numa::usable(std::path::Path::new("/"));
        let (Some(&first), Some(&last)) = (nodes.first(), nodes.last()) else { return };
        let count = 2 * nodes.len();
        let mut pool = Pool::fill(count as u64 * 64 * KIB, 64 * KIB, nodes.clone(), &mut |_| ()).unwrap();
        for &node in &nodes {
            assert_eq!(pool.segments.iter().filter(|segment| segment.node() == Some(node)).count(), 2);
        }
        let slabs: Vec<_> = nodes.iter().map(|&node| (node, pool.take("a", 64 * KIB, Some(node)).unwrap())).collect();
        assert!(slabs.iter().all(|(node, slab)| slab.node() == Some(*node)));
        // Both segments of the last node are taken: further slabs of it come from elsewhere.
        pool.take("a", 64 * KIB, Some(last)).unwrap();
        assert!(nodes.len() == 1 || pool.take("a", 64 * KIB, Some(last)).unwrap().node() != Some(last));
        let left = pool.segments.len();
        pool.refill((count - left - 1) as u64 * 64 * KIB, pool_nodes(&[first]));
        assert_eq!(pool.segments.len(), left + 1);
        assert!(pool.segments.last().unwrap().node() == Some(last), "the node with the fewest");
        pool.segments.clear();
        assert_eq!(pool.take("allocated on request", 64 * KIB, Some(last)).unwrap().node(), Some(last));
        // A node outside the list is no node: nothing is bound to it.
        let elsewhere = Pool::empty(vec![first]).take("b", 64 * KIB, Some(1023)).unwrap();
        assert_eq!((elsewhere.node(), elsewhere.why_unbound()), (None, None));
    }

    fn pool_nodes(granted: &[u16]) -> impl Iterator<Item = u16> + Clone {
        granted.iter().copied()
    }
}
