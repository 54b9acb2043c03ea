//! The end of the block API's pending requests without success.

use crate::api::{Cause, NONE, Status};
use crate::block_api::BlockApi;
use crate::index::why_not_stored;
use crate::sessions::{Phase, Work};

impl BlockApi<'_> {
    /// End an op without success and release its resources.
    pub(crate) fn fail_op(&mut self, s: u16, op: u32, status: Status) {
        if self.op(s, op).phase == Phase::Free || self.end_copies(s, op, status) {
            return;
        }
        self.note_unstored(s, op, why_not_stored(status));
        self.undo_op(s, op);
        self.finish_plain(s, op, status);
        self.wake(s);
    }

    /// Release the resources of an op. Jobs in flight go on; their resources are released when they end.
    pub(crate) fn undo_op(&mut self, s: u16, op: u32) {
        while let Some(b) = self.pop_chain(s, op) {
            self.drop_ref(s, b);
        }
        self.release_parent(s, op);
        let rec = *self.op(s, op);
        match rec.work {
            Work::Lease => self.undo_lease(s, rec.seq),
            Work::Load(_) | Work::LoadHashed(_) => self.undo_load(s, op),
            Work::Store(_) => self.forget_copies(s, op),
            _ => {}
        }
    }

    /// If a request is a store, note that its blocks will not be published.
    pub(crate) fn note_unstored(&mut self, s: u16, op: u32, cause: Cause) {
        let mut at = match self.op(s, op).work {
            Work::Store(store) => store.copies.list.head,
            _ => NONE,
        };
        while at != NONE {
            let copy = self.copiers[s].copies[at];
            self.note_absent(copy.hash, cause);
            at = copy.links.next;
        }
    }
}
