//! Creation of sequences.

use crate::api::{SeqId, Status};
use crate::blocks::{NEUTRAL_PRIORITY, Seq};
use crate::paging::Paging;

impl Paging<'_> {
    pub(crate) fn seq_create(&mut self, s: u16, seq: SeqId) -> Status {
        match self.lists[s].seqs.get_mut(seq as usize) {
            None => Status::Range,
            Some(q) if q.live || q.busy != 0 => Status::State,
            Some(q) => {
                *q = Seq { live: true, priority: NEUTRAL_PRIORITY, ..Seq::default() };
                Status::Ok
            }
        }
    }
}
