//! Engines with a guarantee: while they have no more blocks, a reserve is not refused for want of space below tier 0.

use super::context::{Check, Context, wrong};
use super::requests::request;
use super::session::{Pending, Session};
use crate::coverage::Met;
use crate::failure::Caught;
use kvtide_wire::entry::{NONE_U32, Op};
use kvtide_wire::status::Status;

impl Session {
    /// Request a guarantee, or give one up, unless a request for one is in progress.
    pub(super) fn guarantee(&mut self, cx: &mut Context, channel: usize) {
        if self.asks_guarantee {
            return;
        }
        let most = u64::from(cx.geometry.seq_blocks * cx.geometry.seqs);
        let blocks = if self.draining { 0 } else { cx.rng.between(0, most) as u32 };
        let (mut entry, mut pending) = request(Op::Guarantee, NONE_U32);
        (entry.count, pending.count) = (blocks, u64::from(blocks));
        self.asks_guarantee = self.send(cx, channel, entry, &[], pending);
    }

    /// Handle the response: a refusal says how many blocks could be guaranteed, and the last guarantee holds.
    pub(super) fn guarantee_answered(
        &mut self,
        cx: &mut Context,
        pending: &Pending,
        status: Status,
        value: u64,
    ) -> Check {
        self.asks_guarantee = false;
        match status {
            Status::Ok if value == pending.count => {
                self.guaranteed = pending.count as u32;
                cx.coverage.met(Met::Guarantee);
            }
            Status::Ok => return self.impossible(pending, format!("{value} of {} blocks", pending.count)),
            Status::NoSpace if value >= pending.count => {
                let detail = format!("s{}: {} blocks refused, {value} possible", self.index, pending.count);
                return wrong(Caught::WrongAnswer, detail);
            }
            _ => {}
        }
        Ok(())
    }

    /// Return whether the guarantee covers a reserve together with all blocks that the session has or may get meanwhile, and tier 0
    /// has room for all of them.
    pub(super) fn guarantee_covers(&self, cx: &Context, reserve: &Pending) -> bool {
        let changes = |op| {
            matches!(
                op,
                Op::Fork | Op::Truncate | Op::SeqDrop | Op::AttachPrefix | Op::Lease | Op::Guarantee | Op::Tier0Resize
            )
        };
        let in_flight = || self.channels.iter().flat_map(|channel| channel.pending.iter().flatten());
        if self.pinned || !cx.faults.disk.works() || in_flight().any(|pending| changes(pending.op)) {
            return false;
        }
        let reserves =
            in_flight().filter(|pending| pending.op == Op::Reserve).map(|pending| pending.count).sum::<u64>();
        let held = self.seqs.iter().flatten().map(|seq| seq.blocks.len()).sum::<usize>();
        let blocks = held as u64 + reserves + reserve.count;
        let fits = |(size, planes): (&u32, &u32)| blocks * u64::from(*planes) <= u64::from(*size / 2);
        blocks <= u64::from(self.guaranteed) && self.sizes.iter().zip(&cx.geometry.class_planes).all(fits)
    }
}
