//! What spaces share: one thread that owns the node, makes slabs of host memory and hands out regions of disks, so that neither
//! allocating nor prefaulting stalls a core thread.
//!
//! A slab is one memfd of one space and one size class, allocated whole at once (charged to the daemon's cgroup; a full machine
//! is an error here and not a SIGBUS there) and sealed. Which space gets one is the node's decision (`kvtide_tiering::node`).
//! Where there is an NVMe tier the daemon maps slabs, for its devices to read and write; it touches no byte itself. What earlier
//! runs left in regions is kept there ([`regions`]) until the space comes whose it is.
//! It must not know sessions.

mod needs;
mod pool;
mod regions;
mod thread;

pub(crate) use regions::bytes_per_day;

use crate::config::{Config, HostTier};
use crate::error::Error;
use crate::io::{Disk, DiskEvent};
use crate::mail::{Address, Mailbox, mailbox};
use crate::published::published;
use crate::space::{Left, Letter};
use crate::status::Roll;
use crate::supervisor;
use kvtide_tiering::log::{Recovered, SlabHeader};
use kvtide_tiering::node;
use kvtide_wire::os::memfd::Memfd;
use pool::Pool;
use serde::Serialize;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;
use thread::Host;

/// Letters that may wait for the host thread; senders that must not block keep theirs meanwhile.
const LETTERS: usize = 1024;

/// To the host thread.
#[derive(Debug)]
pub(crate) enum NodeLetter {
    /// A space begins.
    Join {
        /// Its number.
        space: u32,
        /// Index of its domain.
        domain: usize,
        /// Its size classes.
        classes: Vec<node::FrameClass>,
        /// What its slabs on NVMe look like; region and number of the grant are filled in here.
        slab: Box<SlabHeader>,
        /// Where its slabs go.
        to: Address<Letter>,
    },
    /// A space wants memory; answered by [`Letter::Granted`] or [`Letter::Refused`].
    Need {
        /// Its number.
        space: u32,
        /// For which size class.
        class: u8,
    },
    /// The answer to [`Letter::Reclaim`].
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
    /// A space gives a slab back.
    Return {
        /// Its number.
        space: u32,
        /// Which one.
        slab: u32,
        /// Its memory, if it was ever made: engines may still map it, so it is emptied and not only dropped.
        memfd: Option<Arc<Memfd>>,
    },
    /// A space wants a region of a disk; answered by [`Letter::DiskGranted`] or [`Letter::DiskRefused`], as soon as the disks
    /// have written one.
    NeedDisk {
        /// Its number.
        space: u32,
        /// On which disk it would rather have it.
        wanted: Option<u32>,
    },
    /// A space gives a region back, to which nothing is under way any more: nothing of what is there counts.
    ReturnDisk {
        /// Its number.
        space: u32,
        /// Which slab it was.
        slab: u32,
    },
    /// A space ends and has no transfer to the region in flight: the recorded blocks stay.
    KeepDisk {
        /// Its number.
        space: u32,
        /// The region with its recorded blocks.
        left: Box<Left>,
    },
    /// A space has ended; all its slabs come back.
    Leave {
        /// Its number.
        space: u32,
    },
    /// Domains may hold this much from now on, by index; there may be new domains. What is held beyond it comes back when its
    /// space gives it back.
    Quotas {
        /// Their names.
        names: Vec<String>,
        /// Bytes of host memory.
        host: Vec<u64>,
        /// Bytes of NVMe space.
        nvme: Vec<u64>,
        /// Bytes that may be written to each disk a day, if it has a bound.
        bytes_per_day: Vec<Option<u64>>,
    },
    /// Something happened to a disk.
    Disk(DiskEvent),
    /// End.
    End,
}

impl From<DiskEvent> for NodeLetter {
    fn from(event: DiskEvent) -> NodeLetter {
        NodeLetter::Disk(event)
    }
}

/// How the host tier stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct HostStatus {
    /// Bytes configured.
    pub capacity_bytes: u64,
    /// Bytes granted to spaces.
    pub granted_bytes: u64,
    /// Bytes that were taken before any space asked for them, and still wait.
    pub pooled_bytes: u64,
    /// Slabs granted.
    pub slabs: usize,
    /// Slabs ever granted.
    pub slabs_granted: u64,
    /// Times a space asked and nothing was left for it.
    pub slabs_refused: u64,
    /// Disks of the NVMe tier.
    pub disks: Vec<node::DiskStatus>,
    /// Bytes of a region of a disk: what a space gets at once.
    pub region_bytes: u64,
}

/// The running host thread.
#[derive(Debug)]
pub(crate) struct HostThread {
    address: Address<NodeLetter>,
    thread: JoinHandle<()>,
}

impl HostThread {
    /// The address of a host thread that [`HostThread::spawn`] will start.
    pub fn mailbox() -> Result<(Address<NodeLetter>, Mailbox<NodeLetter>), Error> {
        mailbox(LETTERS).map_err(|source| Error::Wire { action: "make the host thread's mailbox", source })
    }

    /// Takes the host tier's memory, if that is to be taken before spaces ask for it, and starts the thread. `recovered` is what each
    /// disk's log told.
    ///
    /// # Errors
    /// The machine does not have the memory, or no thread.
    pub fn spawn(
        config: &Config,
        disks: &[Disk],
        recovered: Vec<Recovered>,
        (address, letters): (Address<NodeLetter>, Mailbox<NodeLetter>),
        roll: &Roll,
    ) -> Result<HostThread, Error> {
        let (mut publisher, figures) = published();
        roll.serve_host(figures);
        let pool = if config.host.prefault { prefault(&config.host, roll)? } else { Pool::empty() };
        let mut host = Host::new(config, pool, disks, recovered);
        // Prefaulting may have lasted.
        publisher.round();
        let builder = std::thread::Builder::new().name("kvtide-host".into());
        let thread = builder.spawn(move || {
            letters.awake();
            while host.read(&letters, &mut publisher) {}
        });
        Ok(HostThread { address, thread: thread.map_err(|e| Error::system("start the host thread", e))? })
    }

    /// Where letters to it go.
    pub fn address(&self) -> Address<NodeLetter> {
        self.address.clone()
    }

    /// Ends the thread, after all spaces have ended.
    pub fn end(self) {
        if self.address.send(NodeLetter::End).is_err() || self.thread.join().is_err() {
            tracing::error!("the host thread had ended before");
        }
    }
}

/// Takes the whole tier, and says how far it is.
fn prefault(tier: &HostTier, roll: &Roll) -> Result<Pool, Error> {
    let began = Instant::now();
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let all = gib(tier.capacity_bytes);
    let pool = Pool::fill(tier.capacity_bytes, tier.slab_bytes, &mut |bytes| {
        let progress = format!("host tier: {:.2} of {all:.2} GiB taken", gib(bytes));
        tracing::info!("{progress}");
        roll.progress(&progress);
        supervisor::starting(&progress);
    })?;
    let (seconds, huge) = (began.elapsed().as_secs_f64(), gib(pool.huge_bytes()));
    tracing::info!("host tier: {all:.2} GiB taken in {seconds:.2} s, {huge:.2} GiB of it on huge pages");
    Ok(pool)
}

#[cfg(test)]
mod tests;
