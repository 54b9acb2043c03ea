//! Declare: after a reattach, an engine names the frames in which it still holds a block's pages.

use crate::api::{BlockId, FrameId, NONE, SeqId, Status};
use crate::blocks::{BlockState, FrameState};
use crate::disk::Admit;
use crate::paging::Paging;
use crate::sessions::{Declare, Phase, Who};

impl Paging<'_> {
    pub(crate) fn declare(&mut self, who: Who, seq: SeqId, index: u32, tokens: u64, frames: &[FrameId], due: u64) {
        match self.try_declare(who.session, seq, index, tokens, frames) {
            Err(status) => self.complete(who, status, 0),
            Ok(b) => {
                if let Some(op) = self.new_op(who, seq, Declare { block: b }, due) {
                    self.enter(who.session, op, Phase::Ready);
                }
            }
        }
    }

    fn try_declare(
        &mut self,
        s: u16,
        seq: SeqId,
        index: u32,
        tokens: u64,
        frames: &[FrameId],
    ) -> Result<BlockId, Status> {
        let q = *self.live_seq(s, seq).ok_or(Status::NotFound)?;
        if q.parked || q.busy != 0 || index != q.blocks() {
            return Err(Status::State);
        }
        if frames.len() != self.geo().planes.len() {
            return Err(Status::Invalid);
        }
        if !self.list_fits(s, seq, 1) || self.session(s).ops.live() >= self.cfg().limits.requests_max {
            return Err(Status::Limit);
        }
        let end = (u64::from(index) + 1) * self.geo().page_tokens;
        let sealed = tokens >= end;
        self.check_frames_declared(s, frames)?;
        let b = match self.declared_before(s, frames) {
            Some(b) if self.block(b).state == BlockState::Sealed && sealed => {
                self.add_ref(s, b);
                b
            }
            Some(_) => return Err(Status::State),
            None => self.declare_block(s, index, tokens, frames, sealed)?,
        };
        if !self.append_block(s, seq, b) {
            self.drop_ref(s, b);
            return Err(Status::Limit);
        }
        let q = self.seq_mut(s, seq);
        q.tokens = q.tokens.max(tokens.min(end));
        Ok(b)
    }

    /// Check that the frames are of their planes' classes, and that each is named once.
    fn check_frames_declared(&self, s: u16, frames: &[FrameId]) -> Result<(), Status> {
        let session = self.tier0(s);
        for (plane, &f) in frames.iter().enumerate().filter(|&(_, &f)| f != NONE) {
            let c = &session.classes[usize::from(self.geo().class_of(plane as u16))];
            if f < c.base || f - c.base >= c.count {
                return Err(Status::Range);
            }
            if frames[..plane].contains(&f) {
                return Err(Status::Invalid);
            }
        }
        Ok(())
    }

    /// Return the block shown in exactly these frames.
    fn declared_before(&self, s: u16, frames: &[FrameId]) -> Option<BlockId> {
        let (plane, &f) = frames.iter().enumerate().find(|&(_, &f)| f != NONE)?;
        let frame = self.frame(s, f);
        if frame.state != FrameState::Present || self.geo().plane_of(frame.page) != plane as u16 {
            return None;
        }
        let b = self.geo().block_of(frame.page);
        let same = frames
            .iter()
            .enumerate()
            .all(|(plane, &f)| self.find_copy(self.geo().page(b, plane as u16), s).unwrap_or(NONE) == f);
        same.then_some(b)
    }

    fn declare_block(
        &mut self,
        s: u16,
        index: u32,
        tokens: u64,
        frames: &[FrameId],
        sealed: bool,
    ) -> Result<BlockId, Status> {
        if frames.iter().any(|&f| f != NONE && self.frame(s, f).state != FrameState::Free) {
            return Err(Status::Busy);
        }
        let admitted = match self.admit_ids(s, 1) {
            Admit::Yes => self.admit(s, 1, u64::from(!sealed)),
            other => other,
        };
        match admitted {
            Admit::Yes => {}
            // The list of frames does not outlive the call, so the engine must repeat the request.
            Admit::Wait => return Err(Status::Again),
            Admit::No(status) => return Err(status),
        }
        let shard = self.session(s).shard;
        let b = self.alloc_block(shard).ok_or(Status::NoSpace)?;
        self.add_ref(s, b);
        self.count_unsealed(s, true);
        for (plane, &f) in frames.iter().enumerate() {
            let page = self.geo().page(b, plane as u16);
            if f != NONE {
                self.unlist(s, f);
                self.now_shows(s, f);
                self.add_copy(page, s, f);
                self.counters.transitions += 1;
                self.settle(s, f);
            } else if u64::from(index) < self.geo().first_needed(plane as u16, tokens) {
                self.leave_window(page);
                let class = self.geo().class_of(plane as u16);
                self.uncharge_page(b, class);
            } else {
                self.set_lost(page);
                self.counters.pages_lost += 1;
            }
        }
        if sealed {
            self.seal(s, b);
        }
        Ok(b)
    }
}
