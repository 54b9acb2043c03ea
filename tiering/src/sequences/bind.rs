//! Bind: moves a block from the session's own reserve to the end of a sequence.

use crate::api::{BlockId, SeqId, Status};
use crate::space::Core;

impl Core {
    pub(crate) fn bind(&mut self, s: u16, seq: SeqId, b: BlockId) -> Status {
        match self.live_seq(s, seq) {
            None => return Status::NotFound,
            Some(q) if q.parked || q.busy != 0 => return Status::State,
            Some(_) => {}
        }
        match self.blocks.recs.get(b as usize) {
            Some(block) if block.reserved && block.home == s => {}
            _ => return Status::NotFound,
        }
        if !self.list_fits(s, seq, 1) {
            return Status::Limit;
        }
        let reserve = &mut self.sessions[usize::from(s)].reserve;
        reserve.remove(&mut self.blocks.recs, b);
        self.blocks[b].reserved = false;
        // The reserve's reference becomes the sequence's.
        if self.append_block(s, seq, b) { Status::Ok } else { Status::Limit }
    }
}
