//! The daemon's spaces, by the key that identifies them: domain, geometry, fingerprint.

use super::key::Key;
use super::watchers::Watchers;
use super::{Address, AttachRequest, Report, RetryQueue, SpaceMessage};
use crate::attach;
use crate::config::{Config, Daemon, Domain, IntegritySample, Limits, constants};
use crate::error::Error;
use crate::host::{NodeMessage, OtherSpace};
use crate::space::{Reconfigure, SpaceThread, Spec};
use crate::status::{SpaceHandle, ThreadRegistry};
use crate::trace::{Exporter, Place, Tracer};
use crossbeam::channel::{RecvTimeoutError, Sender, bounded};
use kvtide_format::SlotLayout;
use kvtide_format::log::{SlabHeader, SpaceKey};
use kvtide_nvme::Disk;
use kvtide_tiering::api::SpaceConfig;
use kvtide_tiering::node::FrameClass;
use kvtide_wire::geometry::{self, stride};
use kvtide_wire::hello::{Hello, SpaceOpened};
use kvtide_wire::os::socket::{Peer, Socket};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum time for core threads to answer a request.
const ANSWER: Duration = Duration::from_secs(2);
/// Maximum time for a core thread to report whether it has blocks, before its last report is taken. Threads report within
/// microseconds, but on a loaded machine one may not run for some time slices.
const STATUS: Duration = Duration::from_millis(250);
/// Interval for retrying messages that a full mailbox refused.
pub(super) const RETRY: Duration = Duration::from_millis(10);

#[derive(Debug)]
struct Space {
    key: Key,
    /// The key of its blocks on NVMe.
    stored: SpaceKey,
    /// Its description for relays; none if the space stays on this machine.
    opened: Option<SpaceOpened>,
    /// Limits in force when it started.
    limits: Limits,
    /// Messages to its thread; `limits.sessions_max` bounds how many attach requests can wait here.
    messages: RetryQueue<SpaceMessage>,
    thread: JoinHandle<()>,
    /// Attach requests sent.
    sent: u64,
    /// The thread was asked to stop.
    retired: bool,
    /// Serial number of the moment when its last session left; none while it may have sessions.
    left: Option<u64>,
}

impl Space {
    /// Send it no further sessions, and let it stop.
    fn retire(&mut self) {
        self.retired = true;
        self.messages.send(SpaceMessage::Retire);
    }
}

/// All spaces by number.
#[derive(Debug)]
pub(super) struct Spaces {
    spaces: BTreeMap<u32, Space>,
    /// Relays that watch them.
    pub watchers: Watchers,
    next: u32,
    /// Number of times that a last session left a space.
    left: u64,
    control: Address<Report>,
    node: Address<NodeMessage>,
    /// Messages to the host thread.
    to_node: RetryQueue<NodeMessage>,
    disks: Arc<[Disk]>,
    thread_registry: ThreadRegistry,
    daemon: Daemon,
    sample: IntegritySample,
    /// Sends traces to a collector, if there is one.
    exporter: Option<Exporter>,
}

impl Spaces {
    /// Create an empty registry.
    pub fn new(
        control: Address<Report>,
        node: Address<NodeMessage>,
        disks: Arc<[Disk]>,
        thread_registry: ThreadRegistry,
        config: &Config,
        exporter: Option<Exporter>,
    ) -> Spaces {
        let (daemon, sample) = (config.daemon.clone(), config.sample);
        let to_node = RetryQueue::new(node.clone());
        Spaces {
            spaces: BTreeMap::new(),
            watchers: Watchers::default(),
            next: 1,
            left: 0,
            control,
            node,
            to_node,
            disks,
            thread_registry,
            daemon,
            sample,
            exporter,
        }
    }

    /// Return the number of running spaces, including retired ones.
    pub fn len(&self) -> usize {
        self.spaces.len()
    }

    /// Make room for one more space of a domain, one of `domains`, or return why there is none. At the limit, a space without sessions is
    /// retired; its blocks on NVMe stay. Retired spaces count separately, up to the same limit.
    pub fn make_room(&mut self, (domain, domains): (usize, &[usize]), spaces_max: usize) -> Result<(), String> {
        let running = self.spaces.iter().filter(|(_, space)| !space.retired);
        let running: Vec<Running> =
            running.map(|(id, space)| Running { id: *id, domain: space.key.domain, left: space.left }).collect();
        match room(&running, (domain, domains), spaces_max) {
            Room::Free => Ok(()),
            Room::InPlaceOf(oldest) if self.spaces.len() < 2 * spaces_max => {
                if let Some(space) = self.spaces.get_mut(&oldest) {
                    space.retire();
                }
                Ok(())
            }
            Room::InPlaceOf(_) => Err(format!("{spaces_max} spaces are ending; try again (limits.spaces_max)")),
            Room::None if running.len() >= spaces_max && domains.len() == 1 => {
                Err(format!("{spaces_max} spaces have sessions, the maximum (limits.spaces_max)"))
            }
            Room::None => Err(format!(
                "this domain has {} of {spaces_max} spaces, and none of them is without sessions; the others are taken by, or kept for, \
                 other domains: each of {} has an equal share. Raise limits.spaces_max, or stop an engine of this domain",
                running.iter().filter(|space| space.domain == domain).count(),
                domains.len()
            )),
        }
    }

    /// Return the number of the running space with this key.
    pub fn find(&self, key: &Key) -> Option<u32> {
        self.spaces.iter().find(|(_, space)| space.key == *key && !space.retired).map(|(number, _)| *number)
    }

    /// Return whether relays may attach to a space.
    pub fn is_open_to_relays(&self, space: u32) -> bool {
        self.spaces.get(&space).is_some_and(|space| space.opened.is_some())
    }

    /// Add a relay of a domain that watches.
    pub fn watch(&mut self, socket: Socket, (domain, name): (usize, &str), peer: Peer) {
        let open = self.spaces.values().filter(|space| space.key.domain == domain && !space.retired);
        self.watchers.add((socket, domain, name, peer), open.filter_map(|space| space.opened.as_ref()));
    }

    /// Read the states of relays, and publish them for the status.
    pub fn hear_relays(&mut self) {
        self.watchers.read_states();
        if let Some(relays) = self.watchers.news() {
            self.thread_registry.set_relays(relays);
        }
    }

    /// Return the limits in force when a space started.
    pub fn limits(&self, space: u32) -> Option<&Limits> {
        self.spaces.get(&space).map(|space| &space.limits)
    }

    /// Send a new configuration to all spaces and wait, within a bound, until it is in force. Spaces started later use it too.
    pub fn reconfigure(&mut self, config: &Config) {
        let policy = attach::policy(config);
        self.ask("take the new configuration", |space, done| {
            let (host_bytes_max, nvme_bytes_max) = attach::bounds(config, &config.domains[space.key.domain]);
            SpaceMessage::Reconfigure(Box::new(Reconfigure { policy, host_bytes_max, nvme_bytes_max, done }))
        });
        self.daemon = config.daemon.clone();
        self.sample = config.sample;
    }

    /// Return whether a running space has blocks; `None` if no such space runs.
    fn has_blocks(&self, stored: SpaceKey) -> Option<bool> {
        let (number, _) = self.spaces.iter().find(|(_, space)| space.stored == stored)?;
        let figures = self.thread_registry.spaces().remove(number)?;
        let reading = figures.read(figures.request(), Instant::now() + STATUS)?;
        Some(reading.snapshot.is_some_and(|status| status.occupancy.published > 0))
    }

    /// Start a space. `others` are the spaces of its name that may have blocks if it has none, the last used first.
    pub fn start(
        &mut self,
        key: Key,
        hello: &Hello,
        domain: &Domain,
        (config, limits): (SpaceConfig, Limits),
        others: Vec<OtherSpace>,
    ) -> Result<u32, Error> {
        let name = hello.name.as_str();
        // Of those that run this thread knows whether they have blocks, of the others the host thread.
        let (mut other_identity, mut others_stored) = (String::new(), Vec::new());
        for other in others {
            match self.has_blocks(other.stored) {
                Some(true) => {
                    other_identity = other.identity;
                    break;
                }
                Some(false) => {}
                None => others_stored.push(other),
            }
        }
        let number = self.next;
        let (address, messages) = SpaceThread::mailbox()?;
        let class = |bytes: u32| FrameClass {
            stride: stride(bytes),
            planes: config.planes.iter().filter(|plane| plane.page_bytes == bytes).count() as u32,
        };
        let classes = geometry::classes(&config.planes).into_iter().map(class).collect();
        let slab = Box::new(slab(&key, domain, &config));
        let entries = u64::from(config.limits.entries_max);
        let slots = config.limits.nvme_bytes_max / slab.slot_bytes.max(1);
        if entries < slots {
            tracing::warn!(
                "space {number} ({name}): the index holds {entries} blocks (at most 1/{} of this machine's memory), but {slots} \
                 blocks of {} bytes fit into its NVMe space. The rest stays unused. Use more tokens per page for larger blocks",
                constants::INDEX_PART,
                slab.slot_bytes
            );
        }
        let stored = slab.key;
        let tracer = self.exporter.as_ref().map(|exporter| {
            let block_bytes = config.planes.iter().map(|plane| u64::from(plane.page_bytes)).sum();
            let (space, domain) = (name.to_owned(), domain.name.clone());
            Tracer::new(exporter, Place { space, domain, page_tokens: config.page_tokens, block_bytes })
        });
        let (to, others) = (address.clone(), others_stored);
        let join = NodeMessage::Join { space: number, domain: key.domain, classes, slab, others, to };
        let spec = Spec {
            number,
            name: name.to_owned(),
            domain: domain.name.clone(),
            other_identity,
            config,
            spin: self.daemon.spin,
            recorder_bytes: self.daemon.recorder_bytes,
            sample_one_in: self.sample.one_in,
            dir: self.daemon.dir.clone(),
            control: self.control.clone(),
            node: self.node.clone(),
            join,
            disks: Arc::clone(&self.disks),
            registry: self.thread_registry.registry().clone(),
            tracer,
        };
        let SpaceThread { address, figures, thread } = SpaceThread::spawn(spec, address, messages)?;
        self.next += 1;
        self.thread_registry.join(number, SpaceHandle { figures, address: address.clone() });
        let messages = RetryQueue::new(address);
        let opened = (!hello.local).then(|| SpaceOpened::of(number, hello));
        if let Some(opened) = &opened {
            self.watchers.opened(key.domain, opened);
        }
        let space = Space { key, stored, opened, limits, messages, thread, sent: 0, retired: false, left: None };
        self.spaces.insert(number, space);
        Ok(number)
    }

    /// Send an attach request. Return false if the space has ended. If its thread ended without a report yet, the peer sees its
    /// connection close.
    pub fn send(&mut self, space: u32, request: AttachRequest) -> bool {
        let Some(space) = self.spaces.get_mut(&space) else { return false };
        space.sent += 1;
        // A relay does not keep a space.
        if !request.relay {
            space.left = None;
        }
        space.messages.send(SpaceMessage::Attach(Box::new(request)));
        true
    }

    /// Send a message to the host thread.
    pub fn tell_node(&mut self, message: NodeMessage) {
        self.to_node.send(message);
    }

    /// Retry messages that full mailboxes refused. Return true if none waits any more.
    pub fn flush(&mut self) -> bool {
        let spaces = self.spaces.values_mut().fold(true, |all, space| space.messages.flush() & all);
        self.to_node.flush() & spaces
    }

    /// Have the spaces of a domain without sessions end. Return true when none of the domain is left.
    pub fn end_all_of(&mut self, domain: usize) -> bool {
        let mut ended = true;
        for space in self.spaces.values_mut().filter(|space| space.key.domain == domain) {
            ended = false;
            // A space reports soon that its last session has left.
            if !space.retired && space.left.is_some() {
                space.retire();
            }
        }
        ended
    }

    /// Handle a report.
    pub fn handle(&mut self, report: Report) {
        match report {
            // An attach request sent since the report keeps the space.
            Report::Vacant { space: number, attaches } => {
                if let Some(space) = self.spaces.get_mut(&number).filter(|space| space.sent == attaches) {
                    space.retire();
                }
            }
            Report::Left { space: number, attaches } => {
                self.left += 1;
                if let Some(space) = self.spaces.get_mut(&number).filter(|space| space.sent == attaches) {
                    space.left = Some(self.left);
                }
            }
            Report::Ended { space: number } => {
                let Some(space) = self.spaces.remove(&number) else { return };
                if space.thread.join().is_err() {
                    tracing::error!("space {number}: the core thread panicked; its sessions have ended");
                }
                if space.opened.is_some() {
                    self.watchers.closed(space.key.domain, number);
                }
                self.thread_registry.leave(number);
                self.thread_registry.registry().remove_space(number);
                self.leave(number);
            }
        }
    }

    fn leave(&mut self, number: u32) {
        self.tell_node(NodeMessage::Leave { space: number });
    }

    /// Tell all spaces to finish the work in flight.
    pub fn drain(&mut self, until: Instant) {
        self.spaces.values_mut().for_each(|space| space.messages.send(SpaceMessage::Drain { until }));
    }

    /// End what is left: threads that did not stop are abandoned. Return what exports their spans.
    pub fn end(self) -> Option<Exporter> {
        self.exporter
    }

    /// Have every space write its flight recording; wait until they have, within a bound.
    pub fn record(&mut self) {
        self.ask("write its flight recording", |_, done| SpaceMessage::Record(done));
    }

    /// Send every space a message that it answers; wait for the answers, within a bound.
    fn ask(&mut self, what: &str, message: impl Fn(&Space, Sender<()>) -> SpaceMessage) {
        let deadline = Instant::now() + ANSWER;
        let mut asked = Vec::with_capacity(self.spaces.len());
        for (number, space) in &mut self.spaces {
            let (reply, answer) = bounded(1);
            let message = message(space, reply);
            space.messages.send(message);
            asked.push((*number, answer));
        }
        for (number, answer) in asked {
            let silent = loop {
                let until = if self.flush() { deadline } else { deadline.min(Instant::now() + RETRY) };
                match answer.recv_deadline(until) {
                    Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                    Err(RecvTimeoutError::Timeout) => break true,
                    // The thread has ended; its report follows.
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => break false,
                }
            };
            if silent {
                tracing::warn!("space {number} did not {what} within {ANSWER:?}");
            }
        }
    }
}

/// A running space, for [`room`].
#[derive(Clone, Copy, Debug)]
struct Running {
    id: u32,
    domain: usize,
    /// As [`Space::left`].
    left: Option<u64>,
}

/// Where a new space may start.
#[derive(Debug, PartialEq, Eq)]
enum Room {
    Free,
    /// This space ends first.
    InPlaceOf(u32),
    None,
}

/// Find room for a space of a domain, one of `domains`. Each of these has an equal share of the spaces, at least one. A domain keeps the
/// room for its share, used or not. So an empty space of one domain never ends a space of another domain within its share, unless there
/// are more domains than spaces. A domain that a reload has withdrawn has no share.
fn room(running: &[Running], (domain, domains): (usize, &[usize]), spaces_max: usize) -> Room {
    let share = (spaces_max / domains.len().max(1)).max(1);
    let of = |domain: usize| running.iter().filter(|space| space.domain == domain).count();
    let reserved: usize =
        domains.iter().filter(|other| **other != domain).map(|other| share.saturating_sub(of(*other))).sum();
    let below = of(domain) < share;
    if running.len() < spaces_max && (below || running.len() + reserved < spaces_max) {
        return Room::Free;
    }
    let gives_way = |space: &&Running| {
        let has_share = domains.contains(&space.domain) && domains.len() <= spaces_max;
        space.domain == domain || !has_share || below && of(space.domain) > share
    };
    let oldest = running.iter().filter(gives_way).filter_map(|space| Some((space.left?, space.id))).min();
    oldest.map_or(Room::None, |(_, id)| Room::InPlaceOf(id))
}

/// Return the header of a space's NVMe slabs; region and grant number are set for each slab.
fn slab(key: &Key, domain: &Domain, config: &SpaceConfig) -> SlabHeader {
    let layout = SlotLayout::new(&config.planes);
    SlabHeader {
        region: 0,
        grant: 0,
        key: key.digest(&domain.name, &layout),
        domain: domain.name.clone(),
        slot_bytes: layout.bytes(),
        shards: config.shards,
        codec: 0,
        encrypted: false,
        page_bytes: config.planes.iter().map(|plane| plane.page_bytes).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Machine, Overrides};
    use kvtide_rt::mail::{Mailbox, mailbox};

    /// Far above the time that any of this takes.
    const BOUND: Duration = Duration::from_secs(30);

    /// Create a space with a thread that reads no messages. Its mailbox and the host thread's are full.
    fn hung() -> (Spaces, Mailbox<SpaceMessage>, Mailbox<NodeMessage>) {
        let config = Config::parse("", "", &Overrides::default(), &Machine::look().unwrap()).unwrap();
        let (control, _) = mailbox(1).unwrap();
        let (node, to_node) = mailbox(1).unwrap();
        let (address, messages) = mailbox(1).unwrap();
        address.send(SpaceMessage::Freed).unwrap();
        node.send(NodeMessage::Leave { space: 99 }).unwrap();
        let mut spaces = Spaces::new(control, node, Arc::new([]), ThreadRegistry::default(), &config, None);
        let thread = std::thread::spawn(|| ());
        let (key, limits) = (Key::some(), config.limits);
        let (outgoing, left) = (RetryQueue::new(address), Some(1));
        let space = Space {
            key,
            stored: SpaceKey([7; 32]),
            opened: None,
            limits,
            messages: outgoing,
            thread,
            sent: 0,
            retired: false,
            left,
        };
        spaces.spaces.insert(1, space);
        (spaces, messages, to_node)
    }

    #[test]
    fn an_empty_space_never_ends_one_of_a_domain_within_its_share() {
        // Each space: its domain, and when its last session left.
        let of = |spaces: &[(usize, Option<u64>)], (domain, domains), spaces_max| {
            let domains: Vec<usize> = (0..domains).collect();
            let running: Vec<Running> =
                (0..).zip(spaces).map(|(id, &(domain, left))| Running { id, domain, left }).collect();
            room(&running, (domain, &domains), spaces_max)
        };
        let (used, idle) = (None, Some);
        // One domain has everything, and the space that is idle for the longest time gives way.
        assert_eq!(of(&[(0, used), (0, used)], (0, 1), 3), Room::Free);
        assert_eq!(of(&[(0, idle(7)), (0, idle(5)), (0, used)], (0, 1), 3), Room::InPlaceOf(1));
        assert_eq!(of(&[(0, used); 3], (0, 1), 3), Room::None);
        // The second of two keeps room for its share of four, and what it has.
        assert_eq!(of(&[(1, idle(1)), (0, used)], (0, 2), 4), Room::Free);
        assert_eq!(of(&[(1, idle(1)), (0, used), (0, used)], (0, 2), 4), Room::None);
        assert_eq!(of(&[(1, idle(1)), (0, used), (0, idle(2))], (0, 2), 4), Room::InPlaceOf(2), "its own");
        assert_eq!(of(&[(1, idle(1)), (0, used), (0, used)], (1, 2), 4), Room::Free);
        // A domain that came later gets its share from one that is above its own, as after a change of the limit.
        let above = [(0, idle(1)), (0, used), (0, used), (0, used)];
        assert_eq!(of(&above, (1, 2), 4), Room::InPlaceOf(0));
        assert_eq!(of(&[(0, used); 4], (1, 2), 4), Room::None);
        // Of a domain that was withdrawn, 0, the idle spaces give way, and nothing is kept for it.
        let running = [Running { id: 7, domain: 0, left: idle(9) }, Running { id: 8, domain: 1, left: used }];
        assert_eq!(room(&running, (1, &[1]), 3), Room::Free);
        assert_eq!(room(&running, (1, &[1, 2]), 2), Room::InPlaceOf(7));
        // More domains than spaces: the oldest idle space gives way, whosever it is.
        assert_eq!(of(&[(0, idle(1)), (1, used)], (2, 3), 2), Room::InPlaceOf(0));
    }

    #[test]
    fn a_space_and_a_host_thread_that_read_nothing_do_not_stop_the_control_thread() {
        let (mut spaces, messages, to_node) = hung();
        let (done, is_done) = bounded(1);
        let control = std::thread::spawn(move || {
            spaces.make_room((0, &[0]), 1).expect("the space is asked to stop");
            spaces.drain(Instant::now());
            spaces.record();
            spaces.tell_node(NodeMessage::Leave { space: 1 });
            assert!(!spaces.flush(), "all messages wait");
            done.send(spaces).unwrap();
        });
        let mut spaces = is_done.recv_timeout(BOUND).expect("the control thread continues");
        control.join().unwrap();
        // The waiting messages arrive in order once there is room.
        let mut told = Vec::new();
        while told.len() < 4 {
            told.extend(messages.take().map(|message| format!("{message:?}")));
            spaces.flush();
        }
        let kinds: Vec<_> = told.iter().map(|message| message.split([' ', '(', '{']).next().unwrap()).collect();
        assert_eq!(kinds, ["Freed", "Retire", "Drain", "Record"]);
        assert!(matches!(to_node.take(), Some(NodeMessage::Leave { space: 99 })));
        assert!(spaces.flush());
        assert!(matches!(to_node.take(), Some(NodeMessage::Leave { space: 1 })));
    }
}
