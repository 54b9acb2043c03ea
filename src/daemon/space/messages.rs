//! What a core thread is started with, and messages to and from it.

use super::operate::Operate;
use crate::host::NodeMessage;
use crate::session::Registry;
use crate::trace::Tracer;
use crossbeam::channel::Sender;
use kvtide_format::log::Blocks;
use kvtide_nvme::{Disk, Memory, SlabCode};
use kvtide_rt::mail::Address;
use kvtide_tiering::api::{Policy, SpaceConfig};
use kvtide_tiering::node::DiskGrant;
use kvtide_wire::hello::{Limits, Protocol, Slab};
use kvtide_wire::os::memfd::Memfd;
use kvtide_wire::os::session::{DaemonSide, PeerFds};
use kvtide_wire::os::socket::{Peer, Socket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Parameters of a core thread.
#[derive(Debug)]
pub(crate) struct Spec {
    /// Number of the space.
    pub number: u32,
    /// Name given by its first engine.
    pub name: String,
    /// Name of its domain.
    pub domain: String,
    /// Identity of the last engine of another space with this name that runs and has blocks; empty if there is none.
    pub other_identity: String,
    /// Geometry, limits, policy.
    pub config: SpaceConfig,
    /// Spin time before it sleeps.
    pub spin: Duration,
    /// Bytes of input that the flight recorder keeps; 0: off.
    pub recorder_bytes: u64,
    /// One page in this many is in the integrity sample; 0: none.
    pub sample_one_in: u32,
    /// Directory for recordings.
    pub dir: PathBuf,
    /// Address for its reports.
    pub control: Address<Report>,
    /// Address of the host thread, which grants host memory and disk regions.
    pub node: Address<NodeMessage>,
    /// First message to the host thread.
    pub join: NodeMessage,
    /// Disks of the NVMe tier, in the node's order.
    pub disks: Arc<[Disk]>,
    /// The daemon's sessions.
    pub registry: Registry,
    /// Makes spans of traced requests, if the daemon traces.
    pub tracer: Option<Tracer>,
}

/// Messages to a core thread.
#[derive(Debug)]
pub(crate) enum SpaceMessage {
    /// An admitted engine. The core thread answers with a Welcome or a refusal.
    Attach(Box<AttachRequest>),
    /// The node granted a slab of host memory.
    Granted(Granted),
    /// The node has no free slab of this class now.
    Refused {
        /// Size class.
        class: u8,
    },
    /// Another space needs host memory: return idle slabs. Answered by [`NodeMessage::Reclaimed`].
    Reclaim {
        /// If no slab is idle, empty one of unreferenced cached blocks.
        cached: bool,
    },
    /// Memory was returned to the node after it had refused this space.
    Freed,
    /// The node granted a region of a disk.
    DiskGranted(Region),
    /// Regions of this space from an earlier run, in order of grants. Sent once, before other messages of the node, if there are
    /// disks.
    Adopted {
        /// The regions.
        regions: Vec<Region>,
        /// Identity of the last engine of another space with this name that has regions; empty if there is none.
        other_identity: String,
    },
    /// The disk of a slab went out of service.
    DiskGone {
        /// The slab.
        slab: u32,
    },
    /// The node has no NVMe space to grant now.
    DiskRefused,
    /// New write budget of the space.
    Rate {
        /// Bytes per day; 0: unlimited.
        nvme_bytes_per_day: u64,
    },
    /// Stop taking requests; end when all work in flight has ended, or at `until`.
    Drain {
        /// End of the grace period.
        until: Instant,
    },
    /// The control thread sends no further attach requests: end, unless sessions exist. Blocks on NVMe stay there.
    Retire,
    /// The operator changed the policy or the limits of the space.
    Reconfigure(Box<Reconfigure>),
    /// Write the flight recording.
    Record(Sender<()>),
    /// An operator asks something.
    Operate(Box<Operate>),
}

/// New settings of a running space.
#[derive(Debug)]
pub(crate) struct Reconfigure {
    /// Its policy.
    pub policy: Policy,
    /// Maximum host memory.
    pub host_bytes_max: u64,
    /// Maximum NVMe space.
    pub nvme_bytes_max: u64,
    /// Receives a message when the settings are in force.
    pub done: Sender<()>,
}

/// An attach request: an admitted engine with everything that its session needs.
#[derive(Debug)]
pub(crate) struct AttachRequest {
    /// Number of the session.
    pub number: u32,
    /// Its connection.
    pub socket: Socket,
    /// Its process id, user id and group id.
    pub peer: Peer,
    /// Its process.
    pub pidfd: OwnedFd,
    /// The daemon's side of the shared memory.
    pub side: DaemonSide,
    /// Descriptors of the engine's side, to be sent.
    pub fds: PeerFds,
    /// Protocol version and features that it uses.
    pub protocol: Protocol,
    /// Limits granted to it.
    pub limits: Limits,
    /// Its shard.
    pub shard: u16,
    /// NUMA node of its device or its CPUs.
    pub numa_node: Option<u16>,
    /// It is a relay.
    pub relay: bool,
    /// Socket of the relay of its domain; empty without one.
    pub relay_socket: PathBuf,
    /// Identity that it sent; empty if it has none.
    pub identity: String,
    /// Its tier-0 frames by size class, followed by its mapped frames, if any.
    pub frames: Vec<u32>,
}

/// A slab: one memfd of this space alone.
#[derive(Debug)]
pub(crate) struct Granted {
    /// Its description for engines.
    pub slab: Slab,
    /// The memory.
    pub memfd: Memfd,
    /// The daemon's map of it, if there is an NVMe tier.
    pub memory: Option<Arc<Memory>>,
}

/// A region of a disk: a slab of this space alone.
#[derive(Debug)]
pub(crate) struct Region {
    /// Its location.
    pub grant: DiskGrant,
    /// Highest generation used in its slots.
    pub generation: u32,
    /// Codec and encryption of its pages; `None`: stored unchanged.
    pub code: Option<Arc<SlabCode>>,
    /// Blocks from an earlier run, if the region was adopted.
    pub blocks: Option<Blocks>,
}

/// A region of a disk with its recorded blocks, returned by a space that ends.
#[derive(Debug)]
pub(crate) struct Left {
    /// Its slab there.
    pub slab: u32,
    /// Its recorded blocks.
    pub blocks: Blocks,
    /// Highest generation used in its slots.
    pub generation: u32,
}

/// Messages from a core thread to the control thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The space has no sessions, blocks or transfers; it has received `attaches` attach requests so far.
    Vacant {
        /// Number of the space.
        space: u32,
        /// Attach requests received.
        attaches: u64,
    },
    /// The last session of the space has left; it has received `attaches` attach requests so far.
    Left {
        /// Number of the space.
        space: u32,
        /// Attach requests received.
        attaches: u64,
    },
    /// The thread has ended.
    Ended {
        /// Number of the space.
        space: u32,
    },
}
