//! The spaces of the daemon, by what makes them the same: domain, geometry, fingerprint.

use super::key::Key;
use super::{Address, Letter, Newcomer, NodeLetter, Report};
use crate::attach;
use crate::config::{Canary, Config, Daemon, Domain, Limits, defaults};
use crate::error::Error;
use crate::io::Disk;
use crate::space::{Reconfigure, SpaceThread, Spec};
use crate::status::Roll;
use crate::translate;
use crossbeam::channel::{Sender, bounded};
use kvtide_tiering::api::SpaceConfig;
use kvtide_tiering::format::SlotLayout;
use kvtide_tiering::log::SlabHeader;
use kvtide_tiering::node::FrameClass;
use kvtide_wire::geometry::stride;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long core threads may take to do what they are asked to.
const ANSWER: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Space {
    key: Key,
    /// Limits that it began under.
    limits: Limits,
    running: SpaceThread,
    /// Newcomers sent.
    sent: u64,
    /// Told to end.
    retired: bool,
    /// Which of the spaces it was that were left by their last session; none while it may have sessions.
    left: Option<u64>,
}

impl Space {
    /// Send it no further engine, and let it end.
    fn retire(&mut self) {
        self.retired = true;
        // Gone already: it will report its end.
        let _ = self.running.address.send(Letter::Retire);
    }
}

/// All spaces by number.
#[derive(Debug)]
pub(super) struct Spaces {
    spaces: BTreeMap<u32, Space>,
    next: u32,
    /// Times that a space was left by its last session.
    left: u64,
    control: Address<Report>,
    node: Address<NodeLetter>,
    disks: Arc<[Disk]>,
    roll: Roll,
    daemon: Daemon,
    canary: Canary,
}

impl Spaces {
    /// None yet.
    pub fn new(
        control: Address<Report>,
        node: Address<NodeLetter>,
        disks: Arc<[Disk]>,
        roll: Roll,
        config: &Config,
    ) -> Spaces {
        let (daemon, canary) = (config.daemon.clone(), config.canary);
        Spaces { spaces: BTreeMap::new(), next: 1, left: 0, control, node, disks, roll, daemon, canary }
    }

    /// Spaces that run, those included that were told to end.
    pub fn len(&self) -> usize {
        self.spaces.len()
    }

    /// Return true if one more space may begin. At the limit, the space that has been without sessions for the longest time is retired;
    /// its blocks on NVMe stay. Retired spaces count separately, up to the same limit.
    pub fn has_room(&mut self, spaces_max: usize) -> bool {
        let running = self.spaces.values().filter(|space| !space.retired).count();
        if running < spaces_max {
            return true;
        }
        let left =
            self.spaces.iter().filter(|(_, space)| !space.retired).filter_map(|(id, space)| Some((space.left?, *id)));
        let Some((_, oldest)) = left.min().filter(|_| self.spaces.len() < 2 * spaces_max) else { return false };
        if let Some(space) = self.spaces.get_mut(&oldest) {
            space.retire();
        }
        true
    }

    /// The space that takes newcomers of this key.
    pub fn find(&self, key: &Key) -> Option<u32> {
        self.spaces.iter().find(|(_, space)| space.key == *key && !space.retired).map(|(number, _)| *number)
    }

    /// The limits that a space began under.
    pub fn limits(&self, space: u32) -> Option<&Limits> {
        self.spaces.get(&space).map(|space| &space.limits)
    }

    /// Tells all of another configuration, waits until it holds, within a bound, and starts new ones by it.
    pub fn reconfigure(&mut self, config: &Config) {
        let policy = attach::policy(config);
        self.ask("take the new configuration", |space, done| {
            let (host_bytes_max, nvme_bytes_max) = attach::bounds(config, &config.domains[space.key.domain]);
            Letter::Reconfigure(Box::new(Reconfigure { policy, host_bytes_max, nvme_bytes_max, done }))
        });
        self.daemon = config.daemon.clone();
        self.canary = config.canary;
    }

    /// Starts one.
    pub fn start(
        &mut self,
        key: Key,
        name: &str,
        domain: &Domain,
        (config, limits): (SpaceConfig, Limits),
    ) -> Result<u32, Error> {
        let number = self.next;
        let (address, letters) = SpaceThread::mailbox()?;
        let class = |bytes: u32| FrameClass {
            stride: stride(bytes),
            planes: config.planes.iter().filter(|plane| plane.page_bytes == bytes).count() as u32,
        };
        let classes = translate::classes(&config.planes).into_iter().map(class).collect();
        let slab = Box::new(slab(&key, domain, &config));
        let contents = u64::from(config.limits.contents_max);
        let slots = config.limits.nvme_bytes_max / slab.slot_bytes.max(1);
        if contents < slots {
            tracing::warn!(
                "space {number} ({name}): its index holds {contents} blocks, since it may take 1/{} of this machine's memory, and {slots} \
                 blocks of {} bytes fit into its NVMe space: the rest stays unused; more tokens a page make blocks larger",
                defaults::INDEX_PART,
                slab.slot_bytes
            );
        }
        let join = NodeLetter::Join { space: number, domain: key.domain, classes, slab, to: address.clone() };
        // The host thread ends after every space.
        self.node
            .send(join)
            .map_err(|gone| Error::system("tell the host thread of a space", std::io::Error::other(gone)))?;
        let spec = Spec {
            number,
            name: name.to_owned(),
            domain: domain.name.clone(),
            config,
            spin: self.daemon.spin,
            recorder_bytes: self.daemon.recorder_bytes,
            canary_one_in: self.canary.one_in,
            dir: self.daemon.dir.clone(),
            control: self.control.clone(),
            node: self.node.clone(),
            disks: Arc::clone(&self.disks),
            registry: self.roll.registry().clone(),
        };
        let running = match SpaceThread::spawn(spec, address, letters) {
            Ok(running) => running,
            Err(error) => {
                self.leave(number);
                return Err(error);
            }
        };
        self.next += 1;
        self.roll.join(number, running.address.clone());
        self.spaces.insert(number, Space { key, limits, running, sent: 0, retired: false, left: None });
        Ok(number)
    }

    /// Sends a newcomer. False if the space's thread has ended; the newcomer sees its connection end.
    pub fn send(&mut self, space: u32, newcomer: Newcomer) -> bool {
        let Some(space) = self.spaces.get_mut(&space) else { return false };
        space.sent += 1;
        space.left = None;
        space.running.address.send(Letter::Attach(Box::new(newcomer))).is_ok()
    }

    /// Takes a report.
    pub fn heed(&mut self, report: Report) {
        match report {
            // Newcomers that were sent meanwhile keep it.
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
            Report::Beat { beat } => self.roll.see(beat),
            Report::Ended { space: number } => {
                let Some(space) = self.spaces.remove(&number) else { return };
                if space.running.thread.join().is_err() {
                    tracing::error!("space {number}: its core thread panicked; its sessions have ended");
                }
                self.roll.leave(number);
                self.roll.registry().remove_space(number);
                self.leave(number);
            }
        }
    }

    fn leave(&self, number: u32) {
        if self.node.send(NodeLetter::Leave { space: number }).is_err() {
            tracing::error!("space {number}: its host memory cannot be given back: the host thread has ended");
        }
    }

    /// Tells all to end what is in flight.
    pub fn drain(&self, until: Instant) {
        for space in self.spaces.values() {
            // Gone already: it will report its end.
            let _ = space.running.address.send(Letter::Drain { until });
        }
    }

    /// Has every space write its flight recording; waits until they have, within a bound.
    pub fn record(&self) {
        self.ask("write its flight recording", |_, done| Letter::Record(done));
    }

    /// Sends every space a letter that it answers; waits for the answers, within a bound.
    fn ask(&self, what: &str, letter: impl Fn(&Space, Sender<()>) -> Letter) {
        let deadline = Instant::now() + ANSWER;
        let asked: Vec<_> = self
            .spaces
            .iter()
            .filter_map(|(number, space)| {
                let (reply, answer) = bounded(1);
                // Gone already: it will report its end.
                space.running.address.send(letter(space, reply)).ok().map(|()| (number, answer))
            })
            .collect();
        for (number, answer) in asked {
            if answer.recv_deadline(deadline).is_err() {
                tracing::warn!("space {number} did not {what} within {ANSWER:?}");
            }
        }
    }
}

/// What a space's slabs on NVMe look like; region and grant come with each.
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
