//! Host memory and NVMe regions of all spaces. One thread owns them: it allocates slabs and grants regions, so that neither
//! allocation nor prefaulting delays a core thread.
//!
//! A slab is one memfd of one space and one size class. It is allocated whole, so that it is charged to the daemon's cgroup and a
//! full machine is an error here instead of a SIGBUS later, and it is sealed. The node (`kvtide_tiering::node`) decides which space
//! gets one. If there is an NVMe tier, the daemon maps slabs for disk I/O; it does not access their bytes itself. Blocks of earlier
//! runs are kept in their regions ([`regions`]) until their space attaches.
//!
//! Must not depend on sessions.

mod needs;
mod pool;
mod regions;
mod thread;

pub(crate) use regions::bytes_per_day;

use crate::config::{Config, HostTier, Machine};
use crate::error::Error;
use crate::orders::Purge;
use crate::space::{Left, SpaceMessage};
use crate::status::ThreadRegistry;
use kvtide_format::log::{Recovered, SlabHeader, SpaceKey};
use kvtide_nvme::{Disk, DiskEvent};
use kvtide_rt::mail::{Address, Mailbox, mailbox};
use kvtide_rt::published::published;
use kvtide_tiering::node;
use kvtide_wire::error::Error as WireError;
use kvtide_wire::os::memfd::{Memfd, Reserved};
use kvtide_wire::os::numa;
use pool::{Order, Pool};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use thread::Host;

/// Mailbox size of the host thread. Senders that must not block keep messages that do not fit.
const MESSAGES_MAX: usize = 1024;

/// A space with the same name and domain as another, but another fingerprint or geometry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtherSpace {
    /// Key of its blocks on NVMe.
    pub stored: SpaceKey,
    /// Identity of its last engine.
    pub identity: String,
}

/// Messages to the host thread.
#[derive(Debug)]
pub(crate) enum NodeMessage {
    /// A space starts.
    Join {
        /// Its number.
        space: u32,
        /// Index of its domain.
        domain: usize,
        /// Its size classes.
        classes: Vec<node::FrameClass>,
        /// Header of its NVMe slabs; region and grant number are set here.
        slab: Box<SlabHeader>,
        /// Other spaces of its name that do not run, the last used first.
        others: Vec<OtherSpace>,
        /// Its mailbox.
        to: Address<SpaceMessage>,
    },
    /// A space needs memory; answered by [`SpaceMessage::Granted`] or [`SpaceMessage::Refused`].
    Need {
        /// Its number.
        space: u32,
        /// The size class.
        class: u8,
        /// NUMA node on which it is best; `None`: any.
        numa_node: Option<u16>,
    },
    /// The answer to [`SpaceMessage::Reclaim`].
    Reclaimed {
        /// Its number.
        space: u32,
        /// The space returned a slab.
        gave: bool,
    },
    /// The first session of a space attached, or its last one left.
    InUse {
        /// Its number.
        space: u32,
        /// The space has sessions now.
        sessions: bool,
    },
    /// A space returns a slab.
    Return {
        /// Its number.
        space: u32,
        /// The slab.
        slab: u32,
        /// Its memory, if allocated. Engines may still map it, so its pages are freed explicitly.
        memfd: Option<Arc<Memfd>>,
    },
    /// A space needs a region of a disk; answered by [`SpaceMessage::DiskGranted`] or [`SpaceMessage::DiskRefused`], as soon as a grant is
    /// recorded.
    NeedDisk {
        /// Its number.
        space: u32,
        /// The preferred disk.
        wanted: Option<u32>,
    },
    /// A space returns a region. No transfer to it is in flight, and its records are no longer valid.
    ReturnDisk {
        /// Its number.
        space: u32,
        /// The slab.
        slab: u32,
    },
    /// A space ends and has no transfer to the region in flight: the recorded blocks stay.
    UnclaimedDisk {
        /// Its number.
        space: u32,
        /// The region with its recorded blocks.
        left: Box<Left>,
    },
    /// A space has ended; all its slabs are free.
    Leave {
        /// Its number.
        space: u32,
    },
    /// New limits of the domains, by index; there may be new domains. Memory and regions above a limit stay with their space until
    /// it returns them.
    Quotas {
        /// Their names.
        names: Vec<String>,
        /// Bytes of host memory.
        host: Vec<u64>,
        /// Bytes of NVMe space.
        nvme: Vec<u64>,
        /// Bytes that may be written to each disk per day, if limited.
        bytes_per_day: Vec<Option<u64>>,
    },
    /// Purge a tenant without running spaces.
    Purge(Purge),
    /// A thread allocated memory for the pool, or could not.
    Allocated {
        /// What it was told to allocate: this segment, and after a failure all that is given up.
        orders: Vec<Order>,
        /// The memory.
        segment: Result<Reserved, WireError>,
    },
    /// A disk event.
    Disk(DiskEvent),
    /// Stop the thread.
    End,
}

impl From<DiskEvent> for NodeMessage {
    fn from(event: DiskEvent) -> NodeMessage {
        NodeMessage::Disk(event)
    }
}

/// Status of the host tier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostStatus {
    /// Configured bytes.
    pub capacity_bytes: u64,
    /// Bytes granted to spaces.
    pub granted_bytes: u64,
    /// Bytes allocated in advance and not granted.
    pub pooled_bytes: u64,
    /// Bytes of the capacity that are being allocated, at start and for what spaces returned.
    pub allocating_bytes: u64,
    /// Reason why not all of the capacity could be allocated, until it is; otherwise empty.
    pub allocation_error: String,
    /// Slabs granted.
    pub slabs: usize,
    /// Slabs ever granted.
    pub slabs_granted: u64,
    /// Requests refused.
    pub slabs_refused: u64,
    /// Bytes of granted and pooled memory that are on huge pages.
    pub huge_bytes: u64,
    /// Slabs granted on another NUMA node than that of their sessions; always 0 on a machine with one node.
    pub slabs_elsewhere: u64,
    /// Disks of the NVMe tier.
    pub disks: Vec<node::DiskStatus>,
    /// Bytes of a region of a disk, the unit of grants.
    pub region_bytes: u64,
}

/// The running host thread.
#[derive(Debug)]
pub(crate) struct HostThread {
    address: Address<NodeMessage>,
    thread: JoinHandle<()>,
}

impl HostThread {
    /// Create the mailbox of the host thread that [`HostThread::spawn`] will start.
    pub fn mailbox() -> Result<(Address<NodeMessage>, Mailbox<NodeMessage>), Error> {
        mailbox(MESSAGES_MAX).map_err(|source| Error::Wire { action: "create the host thread's mailbox", source })
    }

    /// Start the thread, and threads that allocate the host tier's memory if prefaulting is configured. `recovered`: the recovered
    /// index of each disk.
    ///
    /// # Errors
    /// There is not enough memory, or a thread cannot be started.
    pub fn spawn(
        config: &Config,
        disks: &[Disk],
        recovered: Vec<Recovered>,
        (address, messages): (Address<NodeMessage>, Mailbox<NodeMessage>),
        thread_registry: &ThreadRegistry,
    ) -> Result<HostThread, Error> {
        let (mut publisher, figures) = published();
        thread_registry.serve_host(figures);
        let nodes = numa_nodes();
        let host = &config.tiers.host;
        let pool = match host.prefault {
            true => Pool::begin(host.capacity_bytes, host.slab_bytes, nodes, &address)?,
            false => Pool::empty(nodes),
        };
        let mut host = Host::new(config, pool, disks, recovered);
        let builder = std::thread::Builder::new().name("kvtide-host".into());
        let thread = builder.spawn(move || {
            messages.awake();
            while host.read(&messages, &mut publisher) {}
        });
        Ok(HostThread { address, thread: thread.map_err(|e| Error::system("start the host thread", e))? })
    }

    /// Return the address for messages to the thread.
    pub fn address(&self) -> Address<NodeMessage> {
        self.address.clone()
    }

    /// Stop the thread. All spaces must have ended.
    pub fn end(self) {
        if self.address.send(NodeMessage::End).is_err() || self.thread.join().is_err() {
            tracing::error!("the host thread had already ended");
        }
    }
}

/// Check that the machine has the memory of a tier that is allocated at start.
pub(crate) fn check(tier: &HostTier, machine: &Machine) -> Result<(), Error> {
    match tier.prefault {
        true => pool::check_available(tier.capacity_bytes, machine),
        false => Ok(()),
    }
}

/// Return the NUMA nodes among which memory is divided; none on a machine with one node, and if the daemon was started with a memory
/// policy, which then decides.
fn numa_nodes() -> Vec<u16> {
    let nodes = numa::usable(Path::new("/"));
    if nodes.len() < 2 {
        return Vec::new();
    }
    if matches!(numa::has_policy(), Ok(true)) {
        tracing::info!(
            "host tier: the daemon's own memory policy decides about NUMA nodes, not the nodes of the engines"
        );
        return Vec::new();
    }
    tracing::info!("host tier: slabs are on the NUMA node of the engine that needs them, of nodes {nodes:?}");
    nodes
}

#[cfg(test)]
mod tests;
