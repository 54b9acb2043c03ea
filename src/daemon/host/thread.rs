//! The host thread's loop and message handling.

use super::needs::{Need, Needs};
use super::pool::{Order, Pool};
use super::regions::Regions;
use super::{HostStatus, NodeMessage};
use crate::config::Config;
use crate::space::{Granted, SpaceMessage};
use crossbeam::channel::TrySendError;
use kvtide_format::log::Recovered;
use kvtide_nvme::{Disk, DiskMessage, Memory};
use kvtide_rt::mail::{Mailbox, RetryQueue, Waited};
use kvtide_rt::published::Publisher;
use kvtide_tiering::node::{Grant, Node, NodeConfig};
use kvtide_wire::error::Error as WireError;
use kvtide_wire::hello::Slab;
use kvtide_wire::os::map::Access;
use kvtide_wire::os::memfd::{Memfd, Reserved};
use rustix::fs::{FallocateFlags, fallocate};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum wait while the mailbox of a disk, log or space is full.
const RETRY: Duration = Duration::from_millis(1);
/// Interval between progress reports while memory is allocated.
const PROGRESS: Duration = Duration::from_secs(1);

/// State of the host thread.
pub(super) struct Host {
    node: Node,
    regions: Regions,
    /// Messages to each disk.
    to_disks: Vec<RetryQueue<DiskMessage>>,
    pool: Pool,
    /// Slabs registered with the disks, by space and slab.
    mapped: BTreeMap<(u32, u32), Arc<Memory>>,
    /// Granted slabs by space and slab.
    placed: BTreeMap<(u32, u32), Placed>,
    /// Messages to each space.
    spaces: BTreeMap<u32, RetryQueue<SpaceMessage>>,
    needs: Needs,
    /// Needs that wait for memory that is being allocated: space, class, NUMA node.
    awaiting: Vec<(u32, u8, Option<u16>)>,
    /// Start of the first allocation, until it has ended.
    began: Option<Instant>,
    /// Last progress report about it.
    told: Instant,
    allocation_error: String,
    slabs_granted: u64,
    slabs_refused: u64,
    slabs_elsewhere: u64,
}

/// Where the memory of a slab is.
#[derive(Debug)]
struct Placed {
    numa_node: Option<u16>,
    huge_bytes: u64,
}

impl Host {
    /// Create the state; no memory is granted.
    pub fn new(config: &Config, pool: Pool, disks: &[Disk], recovered: Vec<Recovered>) -> Host {
        let node = Node::new(NodeConfig {
            capacity_bytes: config.tiers.host.capacity_bytes,
            slab_bytes: config.tiers.host.slab_bytes,
            quotas_bytes: config.domains.iter().map(|domain| domain.host_bytes).collect(),
        });
        let regions = Regions::new(config, disks, recovered);
        let to_disks = disks.iter().map(|disk| RetryQueue::new(disk.address())).collect();
        Host {
            node,
            regions,
            to_disks,
            pool,
            mapped: BTreeMap::new(),
            placed: BTreeMap::new(),
            spaces: BTreeMap::new(),
            needs: Needs::default(),
            awaiting: Vec::new(),
            began: Some(Instant::now()),
            told: Instant::now(),
            allocation_error: String::new(),
            slabs_granted: 0,
            slabs_refused: 0,
            slabs_elsewhere: 0,
        }
    }

    /// Publish stats if due, then handle the next message. Return false after the last.
    pub fn read(&mut self, messages: &Mailbox<NodeMessage>, figures: &mut Publisher<HostStatus>) -> bool {
        // A disk thread may be inside the device for long; messages that its full mailbox refused are sent again.
        let retry = (!self.flush()).then(|| Instant::now() + RETRY);
        // Retries alone change little; they are published with later changes.
        let is_quiet = retry.is_none() && messages.is_empty();
        if is_quiet && figures.has_changes() || figures.is_due() {
            figures.publish(self.status());
        }
        let unpublished = figures.due().map(|after| Instant::now() + after);
        let due = retry.into_iter().chain(self.needs.due()).chain(self.regions.due()).chain(unpublished).min();
        figures.sleep_unrung(due.map(|due| due.saturating_duration_since(Instant::now())));
        let waited = messages.wait_until(due);
        figures.round();
        figures.changed();
        let go_on = match waited {
            Waited::Message(message) => self.handle(message),
            Waited::Due => {
                // No message waits, so no returned slab does either.
                self.settle();
                self.regions.grant();
                true
            }
            Waited::Gone => false,
        };
        for (space, message) in self.regions.take_post() {
            self.tell(space, message);
        }
        go_on
    }

    /// Send the waiting messages. Return true if none waits any more.
    fn flush(&mut self) -> bool {
        let disks = self.to_disks.iter_mut().fold(true, |all, disk| disk.flush() & all);
        let spaces = self.spaces.values_mut().fold(true, |all, space| space.flush() & all);
        self.regions.flush() & disks & spaces
    }

    /// Handle a message. Return false if it was the last.
    fn handle(&mut self, message: NodeMessage) -> bool {
        match message {
            NodeMessage::Join { space, domain, classes, slab, others, to } => {
                if !self.node.join(space, domain, &classes) {
                    tracing::error!("space {space}: the node refused it; it gets no host memory");
                }
                self.spaces.insert(space, RetryQueue::new(to));
                if self.regions.exist() {
                    self.regions.join(space, domain, *slab, others);
                }
            }
            NodeMessage::Need { space, class, numa_node } => self.need(space, class, numa_node),
            NodeMessage::Reclaimed { space, gave } => {
                self.needs.heard(space, gave);
                self.settle();
            }
            NodeMessage::InUse { space, sessions } => self.node.set_in_use(space, sessions),
            NodeMessage::Return { space, slab, memfd } => {
                if let Some(memfd) = memfd {
                    empty(space, slab, &memfd);
                }
                self.take_back(space, slab);
                self.refill();
                self.came_back();
            }
            NodeMessage::NeedDisk { space, wanted } => self.regions.need(space, wanted),
            NodeMessage::ReturnDisk { space, slab } => self.regions.take_back(space, slab),
            NodeMessage::UnclaimedDisk { space, left } => self.regions.add_unclaimed(space, *left),
            NodeMessage::Quotas { names, host, nvme, bytes_per_day } => {
                self.node.set_quotas(host);
                self.regions.set_quotas(names, nvme, bytes_per_day);
                self.came_back();
            }
            NodeMessage::Leave { space } => self.leave(space),
            NodeMessage::Purge(purge) => self.regions.purge(&purge),
            NodeMessage::Allocated { orders, segment } => self.allocated(&orders, segment),
            NodeMessage::Disk(event) => self.regions.handle(event),
            NodeMessage::End => return false,
        }
        true
    }

    fn need(&mut self, space: u32, class: u8, numa_node: Option<u16>) {
        if self.grant(space, class, numa_node) {
            return;
        }
        let (helpers, spaces) = (self.node.helpers(space, class), &self.spaces);
        let now = Instant::now();
        let need = self.needs.ask_idle((space, class, numa_node), helpers, now, |helper| ask(spaces, helper, false));
        self.go_on(need, now);
    }

    /// Retry the waiting requests.
    fn settle(&mut self) {
        let now = Instant::now();
        for need in self.needs.take() {
            if !self.grant(need.space, need.class, need.numa_node) {
                self.go_on(need, now);
            }
        }
    }

    /// After the answers about idle memory, ask one space at a time for cached memory. Refuse the request when no space is left.
    fn go_on(&mut self, mut need: Need, now: Instant) {
        let (space, class) = (need.space, need.class);
        while need.may_ask_cached(now) {
            let Some(giver) = self.node.giver(space, class, |giver| need.has_nothing(giver)) else { break };
            let spaces = &self.spaces;
            self.needs.ask_cached(&mut need, giver, |giver| ask(spaces, giver, true));
        }
        match need.waits(now) {
            true => self.needs.keep(need),
            false => self.refuse(space, class),
        }
    }

    /// Handle returned memory or a larger quota: serve the waiting requests first, then notify refused spaces so that they ask
    /// again.
    fn came_back(&mut self) {
        self.settle();
        for space in self.needs.came_back() {
            self.tell(space, SpaceMessage::Freed);
        }
    }

    fn refuse(&mut self, space: u32, class: u8) {
        self.slabs_refused += 1;
        self.needs.refuse(space);
        self.tell(space, SpaceMessage::Refused { class });
    }

    /// Add memory that a thread allocated, and grant it to a space that waits for it.
    fn allocated(&mut self, orders: &[Order], segment: Result<Reserved, WireError>) {
        if let Err(error) = self.pool.add(orders, segment) {
            tracing::error!("host tier: cannot allocate memory: {error}; slabs will be allocated on demand");
            self.allocation_error = error.to_string();
        }
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let (all, coming, now) = (self.node.capacity_bytes(), self.pool.allocating_bytes(), Instant::now());
        if coming == 0 && self.pool.is_whole(self.node.granted_bytes()) {
            self.allocation_error.clear();
            if let Some(began) = self.began.take() {
                let (seconds, huge) = ((now - began).as_secs_f64(), gib(self.status().huge_bytes));
                tracing::info!(
                    "host tier: {:.2} GiB allocated in {seconds:.2} s, {huge:.2} GiB on huge pages",
                    gib(all)
                );
            }
        } else if coming > 0 && now - self.told >= PROGRESS {
            self.told = now;
            let there = self.pool.bytes() + self.node.granted_bytes();
            tracing::info!("host tier: {:.2} of {:.2} GiB allocated", gib(there), gib(all));
        }
        for (space, class, numa_node) in std::mem::take(&mut self.awaiting) {
            self.need(space, class, numa_node);
        }
    }

    /// Grant a slab if one is available, or will be once its memory is allocated; else return false. Allocation errors are reported to
    /// the space.
    fn grant(&mut self, space: u32, class: u8, numa_node: Option<u16>) -> bool {
        let Some(grant) = self.node.grant(space, class) else { return false };
        if self.pool.is_awaited(grant.bytes, numa_node) {
            self.node.take_back(space, grant.slab);
            self.awaiting.push((space, class, numa_node));
            return true;
        }
        match self.allocate(space, class, grant, numa_node) {
            Ok(granted) => {
                self.slabs_granted += 1;
                self.place((space, grant.slab), &granted.memfd, numa_node);
                self.tell(space, SpaceMessage::Granted(granted));
            }
            Err(error) => {
                tracing::error!("space {space}: cannot allocate a slab of {} bytes: {error}", grant.bytes);
                self.take_back(space, grant.slab);
                self.refuse(space, class);
            }
        }
        true
    }

    /// Record where a slab is.
    fn place(&mut self, slab: (u32, u32), memfd: &Memfd, wanted: Option<u16>) {
        let numa_node = memfd.node();
        self.placed.insert(slab, Placed { numa_node, huge_bytes: memfd.huge_bytes() });
        let Some(wanted) = wanted.filter(|&wanted| self.pool.has_nodes() && numa_node != Some(wanted)) else { return };
        self.slabs_elsewhere += 1;
        if self.slabs_elsewhere == 1 {
            let found = numa_node.map_or_else(|| "an unknown node".to_owned(), |node| format!("node {node}"));
            let why = match memfd.why_unbound() {
                Some(errno) => format!("memory cannot be bound to nodes ({errno})"),
                None => "that node has no free memory, or none that the daemon may use".to_owned(),
            };
            tracing::warn!(
                "host tier: a slab of space {} is on {found}, its engine on NUMA node {wanted}: {why}. Copies to the other node are \
                 slower; kvtide_host_grants_elsewhere_total counts such slabs",
                slab.0
            );
        }
    }

    fn allocate(&mut self, space: u32, class: u8, grant: Grant, numa_node: Option<u16>) -> Result<Granted, WireError> {
        let memfd = self.pool.take(&format!("kvtide-host-{space}-{}", grant.slab), grant.bytes, numa_node)?;
        let Grant { slab, frames, stride, bytes } = grant;
        let memory = if self.to_disks.is_empty() { None } else { self.map(space, slab, &memfd)? };
        Ok(Granted { slab: Slab { slab, class: class.into(), frames, stride, bytes }, memfd, memory })
    }

    /// Map a slab and register it with the disks, before any transfer can refer to it.
    fn map(&mut self, space: u32, slab: u32, memfd: &Memfd) -> Result<Option<Arc<Memory>>, WireError> {
        let memory = Memory::new(memfd.map(Access::ReadWrite)?).map(Arc::new);
        if let Some(memory) = &memory {
            self.tell_disks(|| DiskMessage::Register(Arc::clone(memory)));
            self.mapped.insert((space, slab), Arc::clone(memory));
        }
        Ok(memory)
    }

    /// Unregister a slab's memory; no transfer refers to it any more.
    fn unmap(&mut self, space: u32, slab: u32) {
        if let Some(memory) = self.mapped.remove(&(space, slab)) {
            self.tell_disks(|| DiskMessage::Forget(Arc::clone(&memory)));
        }
    }

    fn tell_disks(&mut self, message: impl Fn() -> DiskMessage) {
        self.to_disks.iter_mut().for_each(|disk| disk.send(message()));
    }

    fn leave(&mut self, space: u32) {
        for slab in self.node.leave(space) {
            self.unmap(space, slab);
            self.placed.remove(&(space, slab));
        }
        self.refill();
        self.regions.leave(space);
        self.spaces.remove(&space);
        self.needs.gone(space);
        self.awaiting.retain(|waiting| waiting.0 != space);
        self.came_back();
    }

    fn refill(&mut self) {
        self.pool.refill(self.node.granted_bytes(), self.placed.values().filter_map(|slab| slab.numa_node));
    }

    fn take_back(&mut self, space: u32, slab: u32) {
        self.unmap(space, slab);
        self.placed.remove(&(space, slab));
        if !self.node.take_back(space, slab) {
            tracing::error!("space {space}: returned slab {slab}, which it does not own");
        }
    }

    /// Send a message to a space, unless it has ended.
    fn tell(&mut self, space: u32, message: SpaceMessage) {
        if let Some(to) = self.spaces.get_mut(&space) {
            to.send(message);
        }
    }

    fn status(&self) -> HostStatus {
        HostStatus {
            capacity_bytes: self.node.capacity_bytes(),
            granted_bytes: self.node.granted_bytes(),
            pooled_bytes: self.pool.bytes(),
            allocating_bytes: self.pool.allocating_bytes(),
            allocation_error: self.allocation_error.clone(),
            slabs: self.node.slabs(),
            slabs_granted: self.slabs_granted,
            slabs_refused: self.slabs_refused,
            huge_bytes: self.pool.huge_bytes() + self.placed.values().map(|slab| slab.huge_bytes).sum::<u64>(),
            slabs_elsewhere: self.slabs_elsewhere,
            disks: self.regions.status(),
            region_bytes: self.regions.region_bytes(),
        }
    }
}

/// Ask a space for a slab. Return false if its mailbox is full; then no answer will arrive. A space with an ended thread counts
/// as asked: its slabs and its `Leave` are already in the queue.
fn ask(spaces: &BTreeMap<u32, RetryQueue<SpaceMessage>>, helper: u32, cached: bool) -> bool {
    spaces.get(&helper).is_some_and(|to| match to.offer(SpaceMessage::Reclaim { cached }) {
        Ok(()) | Err(TrySendError::Disconnected(_)) => true,
        Err(TrySendError::Full(_)) => false,
    })
}

/// Free a slab's memory although engines may still map it. Pages that they touch afterwards are charged to them.
fn empty(space: u32, slab: u32, memfd: &Memfd) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if let Err(errno) = fallocate(memfd, flags, 0, memfd.bytes()) {
        tracing::error!("space {space}: cannot free the memory of slab {slab} while an engine maps it: {errno}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Machine, Overrides};
    use kvtide_format::log::SlabHeader;
    use kvtide_rt::mail::mailbox;
    use kvtide_rt::published::published;
    use kvtide_tiering::node::FrameClass;

    /// Create a host tier of four slabs.
    fn host() -> Host {
        let text = "[tiers.host]\ncapacity = 262144\nslab = 65536\nprefault = false\n";
        let config = Config::parse("", text, &Overrides::default(), &Machine::look().unwrap()).unwrap();
        Host::new(&config, Pool::empty(Vec::new()), &[], Vec::new())
    }

    /// Add a space with two size classes; a frame takes a whole slab.
    fn join(host: &mut Host, space: u32) -> Mailbox<SpaceMessage> {
        let (to, messages) = mailbox(8).unwrap();
        let classes = vec![FrameClass { stride: 65536, planes: 1 }; 2];
        let slab = SlabHeader::new(0, 0, [0; 32], "default", 131072, vec![65536; 2]);
        host.handle(NodeMessage::Join { space, domain: 0, classes, slab: Box::new(slab), others: Vec::new(), to });
        messages
    }

    /// Return the kinds of the messages to a space.
    fn told(messages: &Mailbox<SpaceMessage>) -> Vec<&'static str> {
        std::iter::from_fn(|| messages.take())
            .map(|message| match message {
                SpaceMessage::Granted(_) => "granted",
                SpaceMessage::Refused { .. } => "refused",
                SpaceMessage::Reclaim { cached: false } => "reclaim",
                SpaceMessage::Reclaim { cached: true } => "reclaim cached",
                SpaceMessage::Freed => "freed",
                _ => "another",
            })
            .collect()
    }

    #[test]
    fn nobody_is_refused_what_another_gives_back_and_who_was_refused_hears_of_more() {
        let mut host = host();
        let (holder, asker) = (join(&mut host, 1), join(&mut host, 2));
        for class in [0, 1, 0, 1] {
            host.handle(NodeMessage::Need { space: 1, class, numa_node: None });
        }
        assert_eq!(told(&holder), ["granted"; 4]);
        // Requests of one space for both size classes wait for the same answer.
        host.handle(NodeMessage::Need { space: 2, class: 0, numa_node: None });
        host.handle(NodeMessage::Need { space: 2, class: 1, numa_node: None });
        assert_eq!((told(&holder), told(&asker)), (vec!["reclaim"], vec![]));
        for slab in [0, 1] {
            host.handle(NodeMessage::Return { space: 1, slab, memfd: None });
        }
        host.handle(NodeMessage::Reclaimed { space: 1, gave: false });
        assert_eq!((told(&holder), told(&asker)), (vec![], vec!["granted", "granted"]));
        // If no slab is returned, the request is refused once the answer arrives.
        host.handle(NodeMessage::Need { space: 2, class: 0, numa_node: None });
        assert_eq!((told(&holder), told(&asker)), (vec!["reclaim"], vec![]));
        host.handle(NodeMessage::Reclaimed { space: 1, gave: false });
        assert_eq!(told(&asker), ["refused"]);
        // A second request is refused at once, since the others have just answered; a refused space is notified when memory is
        // returned.
        host.handle(NodeMessage::Need { space: 2, class: 0, numa_node: None });
        assert_eq!((told(&holder), told(&asker)), (vec![], vec!["refused"]));
        host.handle(NodeMessage::Leave { space: 1 });
        assert_eq!(told(&asker), ["freed"]);
        host.handle(NodeMessage::Need { space: 2, class: 0, numa_node: None });
        assert_eq!(told(&asker), ["granted"]);
    }

    /// Fill the host memory with slabs of a space.
    fn fill(host: &mut Host, space: u32, messages: &Mailbox<SpaceMessage>) {
        while host.node.granted_bytes() < host.node.capacity_bytes() {
            host.handle(NodeMessage::Need { space, class: 0, numa_node: None });
            host.handle(NodeMessage::Need { space, class: 1, numa_node: None });
        }
        told(messages);
    }

    #[test]
    fn cached_blocks_are_asked_for_until_two_spaces_in_use_hold_as_much() {
        let mut host = host();
        let (holder, asker) = (join(&mut host, 1), join(&mut host, 2));
        fill(&mut host, 1, &holder);
        for (slab, answer) in [(0, "granted"), (1, "granted"), (2, "refused")] {
            host.handle(NodeMessage::Need { space: 2, class: (slab % 2) as u8, numa_node: None });
            assert_eq!(told(&holder), ["reclaim"]);
            host.handle(NodeMessage::Reclaimed { space: 1, gave: false });
            if answer == "granted" {
                assert_eq!(told(&holder), ["reclaim cached"], "slab {slab}");
                host.handle(NodeMessage::Return { space: 1, slab, memfd: None });
                host.handle(NodeMessage::Reclaimed { space: 1, gave: true });
            }
            assert_eq!((told(&holder), told(&asker)), (vec![], vec![answer]), "slab {slab}");
        }
    }

    #[test]
    fn spaces_without_sessions_give_all_they_have_and_the_one_that_was_left_first_gives_first() {
        let mut host = host();
        let spaces = [1, 2, 3].map(|space| join(&mut host, space));
        for (space, class) in [(1, 0), (2, 0), (3, 0), (3, 1)] {
            host.handle(NodeMessage::Need { space, class, numa_node: None });
        }
        spaces.iter().for_each(|messages| _ = told(messages));
        for space in [2, 1] {
            host.handle(NodeMessage::InUse { space, sessions: false });
        }
        for (giver, other, class) in [(2, 1, 0), (1, 2, 1)] {
            host.handle(NodeMessage::Need { space: 3, class, numa_node: None });
            for space in 1..=2 {
                host.handle(NodeMessage::Reclaimed { space, gave: false });
            }
            let asked = told(&spaces[giver - 1]);
            assert_eq!(asked.last(), Some(&"reclaim cached"), "space {giver}");
            assert!(!told(&spaces[other - 1]).contains(&"reclaim cached"), "space {other}");
            host.handle(NodeMessage::Return { space: giver as u32, slab: 0, memfd: None });
            host.handle(NodeMessage::Reclaimed { space: giver as u32, gave: true });
            assert_eq!(told(&spaces[2]), ["granted"]);
        }
    }

    #[test]
    fn what_an_ending_space_held_is_waited_for() {
        let mut host = host();
        let (holder, asker) = (join(&mut host, 1), join(&mut host, 2));
        for class in [0, 1, 0, 1] {
            host.handle(NodeMessage::Need { space: 1, class, numa_node: None });
        }
        drop(holder);
        host.handle(NodeMessage::Need { space: 2, class: 0, numa_node: None });
        assert!(told(&asker).is_empty());
        host.handle(NodeMessage::Leave { space: 1 });
        assert_eq!(told(&asker), ["granted"]);
    }

    #[test]
    fn one_that_never_answers_holds_up_nobody_for_long() {
        let mut host = host();
        let (_hangs, asker) = (join(&mut host, 1), join(&mut host, 2));
        while host.node.granted_bytes() < host.node.capacity_bytes() {
            host.handle(NodeMessage::Need { space: 1, class: 0, numa_node: None });
            host.handle(NodeMessage::Need { space: 1, class: 1, numa_node: None });
        }
        host.handle(NodeMessage::Need { space: 2, class: 0, numa_node: None });
        let (_address, nothing) = mailbox(1).unwrap();
        let (mut figures, _) = published();
        while told(&asker).is_empty() {
            assert!(host.read(&nothing, &mut figures)); // returns when something is due
        }
        assert_eq!((host.slabs_refused, host.needs.due()), (1, None));
    }

    #[test]
    fn a_slab_on_another_node_than_its_engine_is_counted_and_given_up_with_its_space() {
        let Some(&node) = kvtide_wire::os::numa::usable(std::path::Path::new("/")).first() else { return };
        let mut host = host();
        host.pool = Pool::empty(vec![node, 1023]);
        let messages = join(&mut host, 1);
        // No machine of this test has a node 1023.
        for (class, numa_node) in [(0, Some(node)), (1, None), (0, Some(1023)), (1, Some(7777))] {
            host.handle(NodeMessage::Need { space: 1, class, numa_node });
        }
        assert_eq!((told(&messages), host.status().slabs_elsewhere), (vec!["granted"; 4], 2));
        let placed: Vec<_> = host.placed.values().map(|slab| slab.numa_node).collect();
        assert_eq!(placed, [Some(node), None, None, None]);
        host.handle(NodeMessage::Return { space: 1, slab: 0, memfd: None });
        assert_eq!(host.placed.len(), 3);
        host.handle(NodeMessage::Leave { space: 1 });
        assert!(host.placed.is_empty());
    }

    /// Create a host tier of four slabs whose memory is being allocated, and the mailbox at which it arrives.
    fn allocating() -> (Host, Mailbox<NodeMessage>) {
        let (to, allocated) = mailbox(8).unwrap();
        let pool = Pool::begin(262144, 65536, Vec::new(), &to).unwrap();
        (Host { pool, ..host() }, allocated)
    }

    #[test]
    fn a_slab_waits_for_memory_that_is_being_allocated() {
        let (mut host, allocated) = allocating();
        let (leaves, stays) = (join(&mut host, 1), join(&mut host, 2));
        for space in [1, 2, 2] {
            host.handle(NodeMessage::Need { space, class: 0, numa_node: None });
        }
        assert_eq!((told(&leaves), told(&stays), host.status().allocating_bytes), (vec![], vec![], 262144));
        assert_eq!(host.node.granted_bytes(), 0, "what waits holds nothing");
        host.handle(NodeMessage::Leave { space: 1 });
        for left in [3, 2] {
            host.handle(allocated.wait().unwrap());
            assert_eq!((told(&stays), host.status().allocating_bytes), (vec!["granted"], left * 65536));
        }
        // Memory that comes back is not allocated twice.
        host.handle(NodeMessage::Return { space: 2, slab: 0, memfd: None });
        assert_eq!((host.pool.bytes(), host.status().allocating_bytes), (0, 196608));
        for _ in 0..3 {
            host.handle(allocated.wait().unwrap());
        }
        assert_eq!((host.pool.bytes(), host.status().allocating_bytes, host.awaiting.len()), (196608, 0, 0));
    }

    #[test]
    fn without_memory_for_the_whole_tier_slabs_are_allocated_on_demand_and_health_says_so() {
        let (mut host, allocated) = allocating();
        let messages = join(&mut host, 1);
        host.handle(NodeMessage::Need { space: 1, class: 0, numa_node: None });
        for _ in 0..4 {
            assert!(told(&messages).is_empty(), "memory is being allocated");
            let Some(NodeMessage::Allocated { orders, .. }) = allocated.wait() else { panic!("another message") };
            let segment = Err(WireError::Closed { tried: "allocate" });
            host.handle(NodeMessage::Allocated { orders, segment });
        }
        assert_eq!((told(&messages), host.status().allocating_bytes), (vec!["granted"], 0));
        assert!(host.status().allocation_error.contains("allocate"));
        // When memory is returned, all of it is tried again.
        host.handle(NodeMessage::Return { space: 1, slab: 0, memfd: None });
        for _ in 0..4 {
            host.handle(allocated.wait().unwrap());
        }
        assert_eq!((host.pool.bytes(), host.status().allocation_error.as_str()), (262144, ""));
    }

    #[test]
    fn bytes_on_huge_pages_are_those_of_the_slabs() {
        let mut host = host();
        let _messages = join(&mut host, 1);
        let memfd = Memfd::shared("slab", 4 << 20).unwrap();
        let huge_bytes = memfd.huge_bytes();
        assert_eq!(huge_bytes, if memfd.why_small().is_none() { 4 << 20 } else { 0 });
        host.place((1, 0), &memfd, None);
        assert_eq!((host.status().huge_bytes, host.status().slabs_elsewhere), (huge_bytes, 0));
    }
}
