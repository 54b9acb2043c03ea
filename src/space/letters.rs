//! What core threads are told and what they tell.

use crate::io::{Memory, SlabCode};
use crossbeam::channel::Sender;
use kvtide_tiering::api::Policy;
use kvtide_tiering::log::Blocks;
use kvtide_tiering::node::DiskGrant;
use kvtide_wire::hello::{Limits, Slab};
use kvtide_wire::os::memfd::Memfd;
use kvtide_wire::os::session::{DaemonSide, PeerFds};
use kvtide_wire::os::socket::{Peer, Socket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// To a core thread.
#[derive(Debug)]
pub(crate) enum Letter {
    /// A peer that was admitted: it gets its Welcome, or the core's refusal, from the core thread.
    Attach(Box<Newcomer>),
    /// The node granted what the space asked for.
    Granted(Granted),
    /// The node has nothing to grant now.
    Refused {
        /// Size class.
        class: u8,
    },
    /// Another space finds no host memory: what is idle here goes back. Answered by [`crate::host::NodeLetter::Reclaimed`].
    Reclaim {
        /// If no slab is idle, the space empties one of unreferenced cached blocks.
        cached: bool,
    },
    /// Memory came back to the node since this space was refused.
    Freed,
    /// The node granted a region of a disk.
    DiskGranted(Region),
    /// What an earlier run left of this space, in order of grants. Comes once, before anything else of the node, if there are disks.
    Adopted(Vec<Region>),
    /// The disk of a slab went out of service.
    DiskGone {
        /// The slab.
        slab: u32,
    },
    /// The node has no NVMe space to grant now.
    DiskRefused,
    /// The space may write so much to NVMe from now on.
    Rate {
        /// Bytes a day; 0: as many as come.
        nvme_bytes_per_day: u64,
    },
    /// Take no more requests; end when what is in flight has, or at the given time.
    Drain {
        /// End of the grace.
        until: Instant,
    },
    /// No peer will be sent any more: end, unless there are sessions. What is recorded on NVMe stays there.
    Retire,
    /// The operator changed the policy, or what the space may hold.
    Reconfigure(Box<Reconfigure>),
    /// Write the flight recording.
    Record(Sender<()>),
}

/// What changes in a running space.
#[derive(Debug)]
pub(crate) struct Reconfigure {
    /// Its policy.
    pub policy: Policy,
    /// Host memory that it may hold.
    pub host_bytes_max: u64,
    /// NVMe space that it may hold.
    pub nvme_bytes_max: u64,
    /// Told once it holds.
    pub done: Sender<()>,
}

/// An admitted peer with everything its session needs.
#[derive(Debug)]
pub(crate) struct Newcomer {
    /// Number of the session.
    pub number: u32,
    /// Its connection.
    pub socket: Socket,
    /// Who it is.
    pub peer: Peer,
    /// Its process.
    pub pidfd: OwnedFd,
    /// Our side of the shared memory.
    pub side: DaemonSide,
    /// Its side, to be sent.
    pub fds: PeerFds,
    /// What it was granted.
    pub limits: Limits,
    /// Its shard.
    pub shard: u16,
    /// Its tier-0 frames by size class, and after them its window frames, if it has any.
    pub frames: Vec<u32>,
}

/// A slab: one memfd of this space alone.
#[derive(Debug)]
pub(crate) struct Granted {
    /// Numbers, as engines get them.
    pub slab: Slab,
    /// The memory.
    pub memfd: Memfd,
    /// The daemon's map of it, where there is an NVMe tier.
    pub memory: Option<Arc<Memory>>,
}

/// A region of a disk: a slab of this space alone.
#[derive(Debug)]
pub(crate) struct Region {
    /// Where it is.
    pub grant: DiskGrant,
    /// Generations of its slots up to this one were in use before.
    pub generation: u32,
    /// How its pages are stored, if not as they are.
    pub code: Option<Arc<SlabCode>>,
    /// What an earlier run left there, if it was adopted.
    pub blocks: Option<Blocks>,
}

/// What a space that ends leaves in a region of a disk.
#[derive(Debug)]
pub(crate) struct Left {
    /// Its slab there.
    pub slab: u32,
    /// What is recorded.
    pub blocks: Blocks,
    /// Generations of its slots up to this one have been in use.
    pub generation: u32,
}

/// From a core thread to the control thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// Nothing lives in the space any more; it has seen `attaches` newcomers so far.
    Vacant {
        /// Number of the space.
        space: u32,
        /// Newcomers seen.
        attaches: u64,
    },
    /// The last session of the space has left; it has seen `attaches` newcomers so far.
    Left {
        /// Number of the space.
        space: u32,
        /// Newcomers seen.
        attaches: u64,
    },
    /// The thread has ended.
    Ended {
        /// Number of the space.
        space: u32,
    },
}
