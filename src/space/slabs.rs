//! The slabs that a space holds now, and the messages that tell engines of them.

use super::letters::Granted;
use crate::session::Notice;
use kvtide_wire::error::Error as WireError;
use kvtide_wire::hello::SlabGone;
use kvtide_wire::os::memfd::Memfd;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Slabs by id.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    held: BTreeMap<u32, (Notice, u64)>,
}

impl Slabs {
    /// Takes one in; the message that every session must get.
    pub fn add(&mut self, granted: Granted) -> Result<Notice, WireError> {
        let Granted { slab, memfd } = granted;
        let notice = Notice { message: slab.encode()?.into(), memfd: Some(Arc::new(memfd)) };
        self.held.insert(slab.slab, (notice.clone(), slab.bytes));
        Ok(notice)
    }

    /// Gives one up: its memory, and the message that every session must get.
    pub fn remove(&mut self, slab: u32) -> (Option<Arc<Memfd>>, Notice) {
        let memfd = self.held.remove(&slab).and_then(|(notice, _)| notice.memfd);
        (memfd, Notice { message: SlabGone { slab }.encode().into(), memfd: None })
    }

    /// Gives all up, at the space's end.
    pub fn take_all(&mut self) -> impl Iterator<Item = (u32, Option<Arc<Memfd>>)> {
        std::mem::take(&mut self.held).into_iter().map(|(slab, (notice, _))| (slab, notice.memfd))
    }

    /// What a new session must get, in order of ids.
    pub fn notices(&self) -> impl Iterator<Item = &Notice> {
        self.held.values().map(|(notice, _)| notice)
    }

    /// Slabs held.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.held.values().map(|(_, bytes)| bytes).sum()
    }
}
