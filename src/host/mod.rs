//! Host memory: one thread that owns the node and makes slabs, so that neither allocating nor prefaulting stalls a core thread.
//!
//! A slab is one memfd of one space and one size class, allocated whole at once (charged to the daemon's cgroup; a full machine
//! is an error here and not a SIGBUS there) and sealed. Which space gets one is the node's decision (`kvtide_tiering::node`);
//! the daemon never maps a slab. It must not know sessions.

use crate::config::Config;
use crate::error::Error;
use crate::mail::{Address, Mailbox, mailbox};
use crate::space::{Granted, Letter};
use crossbeam::channel::Sender;
use kvtide_tiering::node::{Grant, Node, NodeConfig};
use kvtide_wire::hello::Slab;
use kvtide_wire::os::memfd::Memfd;
use rustix::fs::{FallocateFlags, fallocate};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;

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
        /// Frame size of each of its size classes.
        strides: Vec<u32>,
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
    /// A space gives a slab back.
    Return {
        /// Its number.
        space: u32,
        /// Which one.
        slab: u32,
        /// Its memory, if it was ever made: engines may still map it, so it is emptied and not only dropped.
        memfd: Option<Arc<Memfd>>,
    },
    /// A space has ended; all its slabs come back.
    Leave {
        /// Its number.
        space: u32,
    },
    /// Tell how things stand.
    Status(Sender<HostStatus>),
    /// End.
    End,
}

/// How the host tier stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct HostStatus {
    /// Bytes configured.
    pub capacity_bytes: u64,
    /// Bytes granted to spaces.
    pub granted_bytes: u64,
    /// Slabs granted.
    pub slabs: usize,
    /// Slabs ever granted.
    pub slabs_granted: u64,
    /// Times a space asked and nothing was left for it.
    pub slabs_refused: u64,
}

/// The running host thread.
#[derive(Debug)]
pub(crate) struct HostThread {
    address: Address<NodeLetter>,
    thread: JoinHandle<()>,
}

impl HostThread {
    /// Starts it; no memory is taken before a space asks.
    pub fn spawn(config: &Config) -> Result<HostThread, Error> {
        let wire = |source| Error::Wire { action: "make the host thread's mailbox", source };
        let (address, letters) = mailbox(LETTERS).map_err(wire)?;
        let mut host = Host::new(config);
        let builder = std::thread::Builder::new().name("kvtide-host".into());
        let thread = builder.spawn(move || while host.read(&letters) {});
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

/// What the host thread owns.
struct Host {
    node: Node,
    spaces: BTreeMap<u32, Address<Letter>>,
    slabs_granted: u64,
    slabs_refused: u64,
}

impl Host {
    fn new(config: &Config) -> Host {
        let quotas = config.domains.iter().map(|domain| domain.host_bytes).collect();
        let node = Node::new(NodeConfig {
            capacity_bytes: config.host.capacity_bytes,
            slab_bytes: config.host.slab_bytes,
            quotas_bytes: quotas,
        });
        Host { node, spaces: BTreeMap::new(), slabs_granted: 0, slabs_refused: 0 }
    }

    /// Reads the next letter. False if it was the last.
    fn read(&mut self, letters: &Mailbox<NodeLetter>) -> bool {
        match letters.wait() {
            Some(NodeLetter::Join { space, domain, strides, to }) => {
                if !self.node.join(space, domain, &strides) {
                    tracing::error!("space {space}: the node does not take it; it gets no host memory");
                }
                self.spaces.insert(space, to);
            }
            Some(NodeLetter::Need { space, class }) => self.need(space, class),
            Some(NodeLetter::Return { space, slab, memfd }) => {
                if let Some(memfd) = memfd {
                    empty(space, slab, &memfd);
                }
                self.take_back(space, slab);
            }
            Some(NodeLetter::Leave { space }) => {
                self.node.leave(space);
                self.spaces.remove(&space);
            }
            // Whoever asked and does not wait any more has its answer dropped.
            Some(NodeLetter::Status(reply)) => drop(reply.try_send(self.status())),
            Some(NodeLetter::End) | None => return false,
        }
        true
    }

    fn need(&mut self, space: u32, class: u8) {
        let Some(to) = self.spaces.get(&space).cloned() else { return };
        let answer = match self.node.grant(space, class) {
            None => {
                self.slabs_refused += 1;
                Letter::Refused { class }
            }
            Some(grant) => match allocate(space, class, grant) {
                Ok(granted) => {
                    self.slabs_granted += 1;
                    Letter::Granted(granted)
                }
                Err(error) => {
                    tracing::error!("space {space}: a slab of {} bytes cannot be made: {error}", grant.bytes);
                    self.take_back(space, grant.slab);
                    Letter::Refused { class }
                }
            },
        };
        if to.send(answer).is_err() {
            tracing::debug!("space {space} has ended before its answer came");
        }
    }

    fn take_back(&mut self, space: u32, slab: u32) {
        if !self.node.take_back(space, slab) {
            tracing::error!("space {space}: slab {slab} was given back and is not its own");
        }
    }

    fn status(&self) -> HostStatus {
        HostStatus {
            capacity_bytes: self.node.capacity_bytes(),
            granted_bytes: self.node.granted_bytes(),
            slabs: self.node.slabs(),
            slabs_granted: self.slabs_granted,
            slabs_refused: self.slabs_refused,
        }
    }
}

/// Frees a slab's memory though engines may still map it: what they touch from now on is charged to them.
fn empty(space: u32, slab: u32, memfd: &Memfd) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if let Err(errno) = fallocate(memfd, flags, 0, memfd.bytes()) {
        tracing::error!("space {space}: slab {slab} keeps its memory while an engine maps it: {errno}");
    }
}

fn allocate(space: u32, class: u8, grant: Grant) -> Result<Granted, kvtide_wire::error::Error> {
    let memfd = Memfd::shared(&format!("kvtide-host-{space}-{}", grant.slab), grant.bytes)?;
    let Grant { slab, frames, stride, bytes } = grant;
    Ok(Granted { slab: Slab { slab, class: class.into(), frames, stride, bytes }, memfd })
}
