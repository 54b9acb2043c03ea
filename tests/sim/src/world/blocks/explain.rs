//! Errors that a request on blocks may return: those explained by an injected fault, or by a shortage drawn for the space.

use super::Asked;
use crate::world::context::Context;
use crate::world::session::{Pending, Session};
use kvtide_wire::entry::{Level, Op};
use kvtide_wire::status::Status;

/// Return whether nothing in this episode removes pinned data from host memory or NVMe.
pub(in crate::world) fn nothing_is_lost(cx: &Context) -> bool {
    let faults = &cx.faults;
    faults.copy + faults.endless + faults.die + faults.babble + faults.daemon == 0 && !cx.ledger.any_harm()
}

/// Return whether published blocks stay: there is room for everything.
pub(in crate::world) fn everything_stays(cx: &Context) -> bool {
    cx.geometry.roomy && cx.faults.none()
}

impl Session {
    /// Return whether a request on blocks may have ended with this status, besides the explanations for all requests.
    pub(in crate::world) fn blocks_explained(
        &self,
        cx: &Context,
        pending: &Pending,
        asked: &Asked,
        (status, list): (Status, &[u32]),
    ) -> bool {
        let over = cx.now() >= asked.until_us;
        match (pending.op, status) {
            // The lease has expired.
            (Op::SeqDrop, Status::NotFound) => over,
            // A request that began before the end of the lease is completed.
            (Op::LoadBlocks, Status::NotFound) => asked.dropped || over && list.is_empty(),
            (Op::LoadBlocks, Status::Lost) => self.text_harmed(cx, pending),
            // The prefix has made room in the meantime, was not complete over all shards yet, or lacks a window or a snapshot.
            (Op::Lease, Status::NotFound) => {
                !everything_stays(cx) || cx.geometry.discards() || asked.known < asked.whole
            }
            (Op::Lease, Status::Again) => !everything_stays(cx),
            (Op::StoreBlocks, Status::NotAdmitted) => {
                let kept = asked.level == Some(Level::Published) || cx.geometry.disk();
                !everything_stays(cx) || !kept || asked.known < pending.first
            }
            (Op::StoreBlocks, Status::NoSpace) => cx.ledger.errors > 0,
            _ => false,
        }
    }

    /// Return whether the disk failed to deliver a page of a request's text.
    fn text_harmed(&self, cx: &Context, pending: &Pending) -> bool {
        let Some(text) = &pending.text else { return false };
        let page_tokens = cx.geometry.config.page_tokens;
        let blocks = (text.len() / u64::from(page_tokens)) as u32;
        let harmed = |plane: u16, block: u32| {
            let spec = cx.geometry.config.planes[usize::from(plane)];
            let mut tags = (0..cx.geometry.slots())
                .filter_map(|at| text.expected(&spec, plane, self.shard, (block, at), text.len(), page_tokens));
            tags.any(|tag| cx.ledger.harmed(tag))
        };
        (0..cx.geometry.planes()).any(|plane| (0..blocks).any(|block| harmed(plane, block)))
    }
}
