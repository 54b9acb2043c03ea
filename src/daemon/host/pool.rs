//! Host memory that no space owns yet. With prefaulting, threads begin to allocate all of it at start, and replace later what spaces
//! return. The daemon serves meanwhile, and a space that needs memory gets the next segment.

use super::NodeMessage;
use crate::config::Machine;
use crate::error::Error;
use crossbeam::channel::{Receiver, Sender, unbounded};
use kvtide_rt::mail::Address;
use kvtide_wire::error::Error as WireError;
use kvtide_wire::os::memfd::{Memfd, Reserved};
use rustix::io::Errno;
use std::collections::BTreeMap;

/// Maximum threads that allocate memory. One thread zeroes a few GB/s; four reach the bandwidth of a socket.
const THREADS_MAX: usize = 4;
/// Name of the memory in /proc/PID/maps.
const NAME: &str = "kvtide-host";

/// A segment to allocate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    bytes: u64,
    /// NUMA node; none: the system decides.
    node: Option<u16>,
}

/// Memory in segments; each becomes one slab.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// All of one size, except perhaps one smaller segment.
    segments: Vec<Reserved>,
    segment_bytes: u64,
    capacity_bytes: u64,
    /// Orders to the threads.
    orders: Option<Sender<Order>>,
    /// Bytes that the threads still allocate, by node.
    allocating: BTreeMap<Option<u16>, u64>,
    /// Of the allocated bytes those on small pages, and why.
    small: (u64, Option<Errno>),
    unbound: Option<Errno>,
    /// NUMA nodes among which the memory is divided; none: the system decides.
    nodes: Vec<u16>,
}

impl Pool {
    /// Create a pool without memory: slabs are allocated on request.
    pub fn empty(nodes: Vec<u16>) -> Pool {
        Pool { nodes, ..Pool::default() }
    }

    /// Begin to allocate `capacity_bytes` in segments of `segment_bytes`, divided evenly among the NUMA nodes. Each segment arrives at
    /// `to` as [`NodeMessage::Allocated`].
    ///
    /// # Errors
    /// The machine has too little memory, or a thread cannot be started.
    pub fn begin(
        capacity_bytes: u64,
        segment_bytes: u64,
        nodes: Vec<u16>,
        to: &Address<NodeMessage>,
    ) -> Result<Pool, Error> {
        check_available(capacity_bytes, &Machine::look()?)?;
        let (orders, ordered) = unbounded();
        for index in 0..std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX) {
            let (ordered, to) = (ordered.clone(), to.clone());
            let thread = std::thread::Builder::new().name(format!("kvtide-alloc-{index}"));
            let thread = thread.spawn(move || allocate(&ordered, &to));
            thread.map_err(|e| Error::system("start a thread that allocates host memory", e))?;
        }
        let mut pool = Pool { segment_bytes, capacity_bytes, nodes, orders: Some(orders), ..Pool::default() };
        // The smaller segment last.
        for at in 0..capacity_bytes.div_ceil(segment_bytes) {
            let bytes = (capacity_bytes - at * segment_bytes).min(segment_bytes);
            pool.order(bytes, pool.nodes.get(at as usize % pool.nodes.len().max(1)).copied());
        }
        Ok(pool)
    }

    /// Let a thread allocate a segment.
    fn order(&mut self, bytes: u64, node: Option<u16>) {
        if self.orders.as_ref().is_some_and(|orders| orders.send(Order { bytes, node }).is_ok()) {
            *self.allocating.entry(node).or_default() += bytes;
        }
    }

    /// Add a segment that a thread allocated, as told by [`NodeMessage::Allocated`].
    ///
    /// # Errors
    /// The thread's.
    pub fn add(&mut self, orders: &[Order], segment: Result<Reserved, WireError>) -> Result<(), WireError> {
        for order in orders {
            let bytes = self.allocating.entry(order.node).or_default();
            *bytes = bytes.saturating_sub(order.bytes);
        }
        let segment = segment?;
        if let Some(errno) = segment.why_small() {
            self.small = (self.small.0 + segment.bytes(), Some(errno));
        }
        self.unbound = self.unbound.or(segment.why_unbound());
        // The smaller segment first, so that it is granted last.
        let at = if segment.bytes() < self.segment_bytes { 0 } else { self.segments.len() };
        self.segments.insert(at, segment);
        if self.allocating_bytes() == 0 {
            warn_if_small(self.small.0, self.small.1);
            warn_if_unbound(self.unbound);
            (self.small, self.unbound) = ((0, None), None);
        }
        Ok(())
    }

    /// Return whether pool and granted memory add up to the capacity, up to less than one segment.
    pub fn is_whole(&self, granted_bytes: u64) -> bool {
        self.bytes() + self.allocating_bytes() + granted_bytes + self.segment_bytes > self.capacity_bytes
    }

    /// Return the bytes that the threads still allocate.
    pub fn allocating_bytes(&self) -> u64 {
        self.allocating.values().sum()
    }

    /// Return whether a slab should wait for a segment that is being allocated. A node that is full gets none: a slab of it waits
    /// for the next of each node only.
    pub fn is_awaited(&self, bytes: u64, numa_node: Option<u16>) -> bool {
        let node = numa_node.filter(|node| self.nodes.contains(node) && self.segments.len() <= self.nodes.len());
        let fits = |segment: &Reserved| segment.bytes() >= bytes && (node.is_none() || segment.node() == node);
        // A frame larger than a segment takes the place of one.
        let fits = |segment: &Reserved| bytes > self.segment_bytes || fits(segment);
        self.allocating_bytes() >= self.segment_bytes.max(1) && !self.segments.iter().any(fits)
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

    /// Begin to replace memory that a space returned: engines may still map the old memory. `granted_nodes`: the NUMA node of each
    /// granted slab.
    pub fn refill(&mut self, granted_bytes: u64, granted_nodes: impl Iterator<Item = u16>) {
        let pooled = self.segments.iter().filter_map(Reserved::node);
        let ordered =
            |node| self.allocating.get(&Some(node)).map_or(0, |bytes| bytes / self.segment_bytes.max(1)) as usize;
        let mut counts: Vec<(u16, usize)> = self.nodes.iter().map(|node| (*node, ordered(*node))).collect();
        for on in pooled.chain(granted_nodes) {
            counts.iter_mut().filter(|(node, _)| *node == on).for_each(|(_, count)| *count += 1);
        }
        while self.segment_bytes > 0 && !self.is_whole(granted_bytes) {
            self.order(self.segment_bytes, emptiest(&mut counts));
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

/// Return the node with the fewest segments, of equal ones the first, and count one more on it.
fn emptiest(counts: &mut [(u16, usize)]) -> Option<u16> {
    let (node, count) = counts.iter_mut().min_by_key(|(_, count)| *count)?;
    *count += 1;
    Some(*node)
}

/// Allocate segments until the pool or the host thread has ended. After a failure, what is ordered is given up.
fn allocate(ordered: &Receiver<Order>, to: &Address<NodeMessage>) {
    for order in ordered {
        let segment = Reserved::take(NAME, order.bytes, order.node);
        let mut orders = vec![order];
        if segment.is_err() {
            orders.extend(ordered.try_iter());
        }
        if to.send(NodeMessage::Allocated { orders, segment }).is_err() {
            break;
        }
    }
}

/// Small pages cost more CPU per byte, and split large KV pages into several I/O requests. The fallback is therefore logged.
fn warn_if_small(bytes: u64, why: Option<Errno>) {
    if let Some(errno) = why {
        let gib = bytes as f64 / f64::from(1 << 30);
        tracing::warn!("host tier: {gib:.2} GiB are on small pages: cannot get huge pages (MADV_COLLAPSE): {errno}");
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
    use kvtide_rt::mail::{Mailbox, mailbox};

    const KIB: u64 = 1 << 10;

    /// Allocate a pool and wait until it is full.
    fn fill(capacity_bytes: u64, segment_bytes: u64, nodes: Vec<u16>) -> Result<(Pool, Mailbox<NodeMessage>), Error> {
        let (to, messages) = mailbox(64).unwrap();
        let mut pool = Pool::begin(capacity_bytes, segment_bytes, nodes, &to)?;
        add_all(&mut pool, &messages);
        Ok((pool, messages))
    }

    /// Wait until the threads have allocated what was ordered.
    fn add_all(pool: &mut Pool, messages: &Mailbox<NodeMessage>) {
        while pool.allocating_bytes() > 0 {
            let Some(NodeMessage::Allocated { orders, segment }) = messages.wait() else { panic!("another message") };
            pool.add(&orders, segment).unwrap();
        }
    }

    #[test]
    fn a_pool_holds_the_capacity_and_gives_what_is_asked_for() {
        let (mut pool, messages) = fill(200 * KIB, 64 * KIB, Vec::new()).unwrap();
        assert_eq!((pool.bytes(), pool.segments.len()), (200 * KIB, 4));
        let a = pool.take("a", 60 * KIB, None).unwrap();
        assert_eq!((a.bytes(), pool.bytes()), (60 * KIB, 136 * KIB), "the rest was freed");
        pool.refill(60 * KIB, std::iter::empty());
        assert_eq!(pool.allocating_bytes(), 0, "no memory was returned");
        drop(a);
        pool.refill(0, std::iter::empty());
        pool.refill(0, std::iter::empty());
        assert_eq!((pool.bytes(), pool.allocating_bytes()), (136 * KIB, 64 * KIB), "ordered once");
        add_all(&mut pool, &messages);
        assert_eq!(pool.bytes(), 200 * KIB);
        let all: Vec<_> = (0..4).map(|_| pool.take("b", 8 * KIB, None).unwrap()).collect();
        assert_eq!((all.len(), pool.bytes()), (4, 0));
        assert_eq!(pool.take("allocated on request", 64 * KIB, None).unwrap().bytes(), 64 * KIB);
    }

    #[test]
    fn after_a_failure_what_was_ordered_is_given_up_and_can_be_ordered_again() {
        let (to, messages) = mailbox(64).unwrap();
        let (orders, ordered) = unbounded();
        let mut pool =
            Pool { segment_bytes: 64 * KIB, capacity_bytes: 192 * KIB, orders: Some(orders), ..Pool::default() };
        // No file is that large. A size that a file can have would be written until the machine has no memory left.
        pool.order(1 << 63, None);
        pool.order(64 * KIB, None);
        pool.order(64 * KIB, None);
        let thread = std::thread::spawn(move || allocate(&ordered, &to));
        let Some(NodeMessage::Allocated { orders, segment }) = messages.wait() else { panic!("another message") };
        assert_eq!(orders.len(), 3);
        pool.add(&orders, segment).unwrap_err();
        assert_eq!((pool.allocating_bytes(), pool.is_whole(0)), (0, false));
        pool.refill(128 * KIB, std::iter::empty());
        assert_eq!((pool.allocating_bytes(), pool.is_whole(128 * KIB)), (64 * KIB, true));
        drop(pool);
        thread.join().unwrap();
    }

    #[test]
    fn more_than_the_machine_has_is_refused_before_it_is_touched() {
        let error = fill(1 << 50, 1 << 30, Vec::new()).unwrap_err();
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
        assert_eq!(emptiest(&mut []), None);
        let mut counts = [(0, 1), (2, 2)];
        assert_eq!([(); 3].map(|()| emptiest(&mut counts)), [Some(0), Some(0), Some(2)]);
    }

    #[test]
    fn segments_are_on_the_nodes_they_were_made_for() {
        let nodes = kvtide_wire::os::numa::usable(std::path::Path::new("/"));
        let (Some(&first), Some(&last)) = (nodes.first(), nodes.last()) else { return };
        let count = 2 * nodes.len();
        let (mut pool, messages) = fill(count as u64 * 64 * KIB, 64 * KIB, nodes.clone()).unwrap();
        for &node in &nodes {
            assert_eq!(pool.segments.iter().filter(|segment| segment.node() == Some(node)).count(), 2);
        }
        let slabs: Vec<_> = nodes.iter().map(|&node| (node, pool.take("a", 64 * KIB, Some(node)).unwrap())).collect();
        assert!(slabs.iter().all(|(node, slab)| slab.node() == Some(*node)));
        // Both segments of the last node are taken: further slabs of it come from elsewhere.
        pool.take("a", 64 * KIB, Some(last)).unwrap();
        assert!(nodes.len() == 1 || pool.take("a", 64 * KIB, Some(last)).unwrap().node() != Some(last));
        let left = pool.segments.len();
        pool.refill((count - left - 1) as u64 * 64 * KIB, [first].into_iter());
        add_all(&mut pool, &messages);
        assert_eq!(pool.segments.len(), left + 1);
        assert!(pool.segments.last().unwrap().node() == Some(last), "the node with the fewest");
        pool.segments.clear();
        assert_eq!(pool.take("allocated on request", 64 * KIB, Some(last)).unwrap().node(), Some(last));
        // A node outside the list is no node: nothing is bound to it.
        let elsewhere = Pool::empty(vec![first]).take("b", 64 * KIB, Some(1023)).unwrap();
        assert_eq!((elsewhere.node(), elsewhere.why_unbound()), (None, None));
    }
}
