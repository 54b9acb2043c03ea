//! The slabs that a space holds, and the messages that describe them to engines.

use super::messages::Granted;
use crate::session::Notice;
use kvtide_nvme::Memory;
use kvtide_wire::error::Error as WireError;
use kvtide_wire::hello::SlabGone;
use kvtide_wire::os::memfd::Memfd;
use std::sync::Arc;

/// Slabs by id.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    /// Indexed by id, for transfers.
    held: Vec<Option<Held>>,
    /// Number of slabs returned so far.
    pub returned: u64,
}

#[derive(Debug)]
struct Held {
    notice: Notice,
    bytes: u64,
    memory: Option<Arc<Memory>>,
}

impl Slabs {
    /// Add a slab; return the message for all sessions.
    pub fn add(&mut self, granted: Granted) -> Result<Notice, WireError> {
        let Granted { slab, memfd, memory } = granted;
        let notice = Notice { message: slab.encode()?.into(), memfd: Some(Arc::new(memfd)) };
        let id = slab.slab as usize;
        if self.held.len() <= id {
            self.held.resize_with(id + 1, || None);
        }
        self.held[id] = Some(Held { notice: notice.clone(), bytes: slab.bytes, memory });
        Ok(notice)
    }

    /// Remove a slab; return its memory and the message for all sessions.
    pub fn remove(&mut self, slab: u32) -> (Option<Arc<Memfd>>, Notice) {
        let held = self.held.get_mut(slab as usize).and_then(Option::take);
        self.returned += 1;
        (held.and_then(|held| held.notice.memfd), Notice { message: SlabGone { slab }.encode().into(), memfd: None })
    }

    /// Remove all slabs, when the space ends.
    pub fn take_all(&mut self) -> impl Iterator<Item = (u32, Option<Arc<Memfd>>)> {
        let held = std::mem::take(&mut self.held);
        held.into_iter().zip(0..).filter_map(|(held, slab)| Some((slab, held?.notice.memfd)))
    }

    /// Return the messages for a new session, in order of ids.
    pub fn notices(&self) -> impl Iterator<Item = &Notice> {
        self.held.iter().flatten().map(|held| &held.notice)
    }

    /// Return the daemon's map of a slab, for transfers.
    pub fn memory(&self, slab: u32) -> Option<&Arc<Memory>> {
        self.held.get(slab as usize)?.as_ref()?.memory.as_ref()
    }

    /// Return the number of slabs.
    pub fn len(&self) -> usize {
        self.held.iter().flatten().count()
    }

    /// Return the bytes of all slabs.
    pub fn bytes(&self) -> u64 {
        self.held.iter().flatten().map(|held| held.bytes).sum()
    }
}
