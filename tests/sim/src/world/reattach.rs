//! After a daemon's death: a surviving engine attaches to the next one and declares the pages in its tier 0, as the client does:
//! new tables, then block after block, each installed again once the daemon has assigned its id.

use super::World;
use super::context::{Check, Context, Ev, wrong};
use super::requests::request;
use super::session::{Pending, Session};
use super::steps::Lane;
use crate::coverage::Met;
use crate::failure::Caught;
use kvtide_client::agent::attention::Contract;
use kvtide_client::agent::protocol::{Mover, Shared};
use kvtide_wire::entry::{NONE_U32, Op};
use kvtide_wire::status::Status;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Declarations that are left.
pub struct Declaring {
    /// The table before the daemon's death.
    old: Arc<Shared>,
    /// Sequences, each to be created (`None`) before its blocks are declared one by one.
    todo: VecDeque<(u32, Option<u32>)>,
    /// New ids by old ones.
    ids: BTreeMap<u32, u32>,
    /// A request is in flight.
    waiting: bool,
}

impl World {
    /// Attach a surviving session again, as soon as nothing accesses its tier 0 and there is a daemon.
    pub(super) fn reattach(&mut self, index: usize) -> Check {
        let World { cx, daemon, sessions, .. } = self;
        let session = &mut sessions[index];
        if !session.alive || session.slot.is_some() {
            return Ok(());
        }
        if session.stuck {
            cx.queue.after(0, Ev::Die { session: index });
            return Ok(());
        }
        let slot = daemon.as_ref().and_then(|daemon| daemon.free_slot());
        let busy = session.copies.iter().any(Option::is_some);
        let (Some(daemon), Some(slot), false) = (daemon, slot, busy) else {
            cx.queue.after(1000, Ev::Reattach { session: index });
            return Ok(());
        };
        cx.say(|| format!("s{index}: attaches again, to slot {slot}"));
        session.start_over(cx)?;
        session.slot = Some(slot);
        daemon.attach(cx, sessions, index, slot)
    }
}

impl Session {
    /// Discard the dead daemon's state, and record the declarations to make.
    fn start_over(&mut self, cx: &mut Context) -> Check {
        for lane in 0..self.lanes.len() {
            self.abandon(lane);
        }
        let shared = Shared::new(self.shared.geometry().clone()).map(Arc::new).ok();
        let parts = shared.and_then(|shared| {
            let lanes = (0..cx.geometry.lanes).map(|lane| Lane::new(&shared, lane)).collect::<Option<Vec<Lane>>>()?;
            Some((Mover::new(shared.clone())?, lanes, shared))
        });
        let Some((mover, lanes, shared)) = parts else {
            return wrong(Caught::Protocol, format!("s{}: the agent has no room for its tables", self.index));
        };
        let old = std::mem::replace(&mut self.shared, shared);
        (self.mover, self.lanes) = (mover, lanes);
        self.reset_rings(cx);
        let mut todo = VecDeque::new();
        for (slot, entry) in self.seqs.iter_mut().enumerate() {
            let Some(seq) = entry else { continue };
            if seq.parked || seq.doomed {
                *entry = None;
                continue;
            }
            seq.committed = seq.owed.take().unwrap_or(seq.committed);
            (seq.busy, seq.closed, seq.lane, seq.published) = (false, false, None, 0);
            seq.contract = Contract::Exact;
            seq.pins.clear();
            todo.push_back((slot as u32, None));
            todo.extend((0..seq.blocks.len() as u32).map(|block| (slot as u32, Some(block))));
        }
        self.declaring = Some(Declaring { old, todo, ids: BTreeMap::new(), waiting: false });
        Ok(())
    }

    /// Send the next declaration.
    pub(super) fn declare_next(&mut self, cx: &mut Context) {
        let Some(declaring) = &self.declaring else { return };
        if declaring.waiting {
            return;
        }
        if self.declare_size(cx) {
            return;
        }
        let Some(declaring) = &self.declaring else { return };
        let Some((slot, block)) = declaring.todo.front().copied() else {
            cx.coverage.met(Met::Reattached);
            let me = self.index;
            cx.say(|| format!("s{me}: has declared its sequences"));
            self.declaring = None;
            cx.queue.after(0, Ev::CopyLoop { session: me });
            return;
        };
        let op = if block.is_some() { Op::Declare } else { Op::SeqCreate };
        let (mut entry, mut pending) = request(op, slot);
        let mut frames = Vec::new();
        if let (Some(block), Some(seq)) = (block, self.seq(slot)) {
            let old = seq.blocks[block as usize];
            // A page in a mapped frame is in the old daemon's memory.
            let held = |plane| declaring.old.resident(old, plane).filter(|_| declaring.old.in_tier0(old, plane));
            frames = (0..cx.geometry.planes()).map(|plane| held(plane).unwrap_or(NONE_U32)).collect();
            (entry.first, entry.value) = (block, seq.committed);
            (pending.first, pending.count) = (block, u64::from(old));
        }
        pending.declared = true;
        if self.send(cx, 0, entry, &frames, pending)
            && let Some(declaring) = &mut self.declaring
        {
            declaring.waiting = true;
        }
    }

    /// Send the size of a class that is smaller than when the session attached; return false if all have been sent.
    fn declare_size(&mut self, cx: &mut Context) -> bool {
        let smaller =
            |class: &usize| !self.bare && self.sizes[*class] < cx.geometry.tier0[*class] && !self.sizes_told[*class];
        let Some(class) = (0..self.sizes.len()).find(smaller) else { return false };
        let (mut entry, mut pending) = request(Op::Tier0Resize, NONE_U32);
        (entry.first, entry.count) = (class as u32, self.sizes[class]);
        (pending.first, pending.declared) = (class as u32, true);
        if self.send(cx, 0, entry, &[], pending)
            && let Some(declaring) = &mut self.declaring
        {
            declaring.waiting = true;
            self.sizes_told[class] = true;
        }
        true
    }

    /// Handle the response to a declaration.
    pub(super) fn declared(&mut self, pending: &Pending, status: Status, list: &[u32]) -> Check {
        let Some(declaring) = &mut self.declaring else { return Ok(()) };
        declaring.waiting = false;
        if pending.op == Op::Tier0Resize {
            return match status {
                Status::Ok => Ok(()),
                _ => wrong(Caught::WrongAnswer, format!("s{}: an empty tier 0 cannot shrink: {status:?}", self.index)),
            };
        }
        match status {
            Status::Again => return Ok(()),
            Status::Ok => {}
            _ => {
                // No room for it: the engine drops the sequence.
                declaring.todo.retain(|(slot, _)| *slot != pending.seq);
                if let Some(seq) = self.seq_mut(pending.seq) {
                    // Undeclared blocks keep no ids: the new daemon assigns those to others.
                    let declared = if pending.op == Op::Declare { pending.first as usize } else { 0 };
                    seq.blocks.truncate(declared);
                    seq.doomed = true;
                }
                return Ok(());
            }
        }
        declaring.todo.pop_front();
        if pending.op == Op::SeqCreate {
            self.shared.seqs().create(pending.seq);
            return Ok(());
        }
        let (old, me) = (pending.count as u32, self.index);
        let [new] = *list else {
            return wrong(Caught::WrongAnswer, format!("s{me}: a declaration answered with {list:?}"));
        };
        let known = declaring.ids.insert(old, new);
        let planes = self.shared.geometry().plane_count() as u16;
        let held: Vec<(u16, u32)> = (0..planes)
            .filter_map(|p| Some((p, declaring.old.resident(old, p).filter(|_| declaring.old.in_tier0(old, p))?)))
            .collect();
        let whole = held.len() == usize::from(planes);
        match known {
            Some(known) if known != new && !held.is_empty() => {
                return wrong(Caught::WrongAnswer, format!("s{me}: block {old} is declared as {known} and as {new}"));
            }
            Some(known) if known == new => {}
            _ => {
                for (plane, frame) in held {
                    if let Err(status) = self.mover.adopt(new, plane, frame) {
                        let detail = format!("s{me}: frame {frame} cannot show block {new} plane {plane}: {status:?}");
                        return wrong(Caught::Protocol, detail);
                    }
                }
            }
        }
        self.shared.seqs().push(pending.seq, new);
        let page_tokens = u64::from(self.shared.geometry().bounds().page_tokens);
        let Some(seq) = self.seq_mut(pending.seq) else { return Ok(()) };
        seq.blocks[pending.first as usize] = new;
        // An unsealed page that is gone cannot be extended.
        seq.doomed |= u64::from(pending.first) >= seq.committed / page_tokens && !whole;
        let committed = seq.committed;
        self.shared.seqs().commit(pending.seq, committed);
        Ok(())
    }
}
