//! Creation of sequences.

use crate::api::{SeqId, Status};
use crate::blocks::NEUTRAL_PRIORITY;
use crate::paging::Paging;

impl Paging<'_> {
    pub(crate) fn seq_create(&mut self, s: u16, seq: SeqId) -> Status {
        match self.lists(s).seqs.get(seq as usize) {
            None => Status::Range,
            Some(q) if q.is_live() || q.busy != 0 => Status::State,
            Some(_) => {
                self.begin_seq(s, seq).priority = NEUTRAL_PRIORITY;
                Status::Ok
            }
        }
    }
}
