//! The slabs that a space holds now, and the messages that tell engines of them.

use super::letters::Granted;
use crate::io::Memory;
use crate::session::Notice;
use kvtide_wire::error::Error as WireError;
use kvtide_wire::hello::SlabGone;
use kvtide_wire::os::memfd::Memfd;
use std::sync::Arc;

/// Slabs by id.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    /// By id: transfers look them up.
    held: Vec<Option<Held>>,
    /// Slabs given up so far.
    pub returned: u64,
}

#[derive(Debug)]
struct Held {
    notice: Notice,
    bytes: u64,
    memory: Option<Arc<Memory>>,
}

impl Slabs {
    /// Takes one in; the message that every session must get.
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

    /// Gives one up: its memory, and the message that every session must get.
    pub fn remove(&mut self, slab: u32) -> (Option<Arc<Memfd>>, Notice) {
        let held = self.held.get_mut(slab as usize).and_then(Option::take);
        self.returned += 1;
        (held.and_then(|held| held.notice.memfd), Notice { message: SlabGone { slab }.encode().into(), memfd: None })
    }

    /// Gives all up, at the space's end.
    pub fn take_all(&mut self) -> impl Iterator<Item = (u32, Option<Arc<Memfd>>)> {
        let held = std::mem::take(&mut self.held);
        held.into_iter().zip(0..).filter_map(|(held, slab)| Some((slab, held?.notice.memfd)))
    }

    /// What a new session must get, in order of ids.
    pub fn notices(&self) -> impl Iterator<Item = &Notice> {
        self.held.iter().flatten().map(|held| &held.notice)
    }

    /// The daemon's map of one, for transfers to and from disks.
    pub fn memory(&self, slab: u32) -> Option<&Arc<Memory>> {
        self.held.get(slab as usize)?.as_ref()?.memory.as_ref()
    }

    /// Slabs held.
    pub fn len(&self) -> usize {
        self.held.iter().flatten().count()
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.held.iter().flatten().map(|held| held.bytes).sum()
    }
}
