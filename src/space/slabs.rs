//! The slabs that a space holds now, and the messages that tell engines of them.

use super::letters::Granted;
use crate::session::Notice;
use kvtide_wire::error::Error as WireError;
use kvtide_wire::hello::SlabGone;
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

    /// Gives one up; the message that every session must get.
    pub fn remove(&mut self, slab: u32) -> Notice {
        self.held.remove(&slab);
        Notice { message: SlabGone { slab }.encode().into(), memfd: None }
    }

    /// What a new session must get, in order of ids.
    pub fn notices(&self) -> impl Iterator<Item = &Notice> {
        self.held.values().map(|(notice, _)| notice)
    }

    /// Ids held.
    pub fn ids(&self) -> Vec<u32> {
        self.held.keys().copied().collect()
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.held.values().map(|(_, bytes)| bytes).sum()
    }
}
