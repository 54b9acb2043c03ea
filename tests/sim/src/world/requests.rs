//! The engine thread of a channel: it picks the next request for its sequences and sends it.

use super::context::{Context, Ev};
use super::session::{Pending, Seq, Session};
use crate::coverage::Met;
use kvtide_client::agent::attention::Contract;
use kvtide_wire::entry::{NONE_U32, Op, Submission};

/// Simulated microseconds that a request may take beyond its deadline before it counts as hung: rings, ticks and late copies.
const SLACK_US: u64 = 60_000;

impl Session {
    /// Return a free tag of a channel if its submission ring has room.
    pub fn free_tag(&self, channel: usize) -> Option<u16> {
        let channel = &self.channels[channel];
        let tag = channel.pending.iter().position(Option::is_none)?;
        (!channel.submissions.is_full()).then_some(tag as u16)
    }

    /// Send a request by `channel`; return false, without effect, if no more fits.
    pub fn send(
        &mut self,
        cx: &mut Context,
        channel: usize,
        mut entry: Submission,
        list: &[u32],
        pending: Pending,
    ) -> bool {
        let Some(tag) = self.free_tag(channel) else {
            cx.coverage.met(Met::RingFull);
            return false;
        };
        entry.tag = tag;
        entry.list_len = list.len() as u32;
        let timeout_us =
            if entry.timeout_us == 0 { cx.geometry.config.policy.request_timeout_us } else { entry.timeout_us };
        let now = cx.now();
        let pending = Pending { code: entry.op, sent_us: now, until_us: now + timeout_us + SLACK_US, ..pending };
        cx.ops += 1;
        cx.trace.fold(&[1, self.index as u64, channel as u64, u64::from(entry.op), u64::from(entry.seq), entry.value]);
        let me = self.index;
        cx.say(|| {
            format!(
                "s{me}.c{channel} -> {:?} tag {tag} seq {} first {} count {} block {} value {} list {list:?}",
                pending.op, entry.seq as i32, entry.first, entry.count, entry.block, entry.value
            )
        });
        let at = now + cx.hop();
        let line = &mut self.channels[channel];
        line.pending[usize::from(tag)] = Some(pending);
        let seen = line.submissions.push(at, (entry, list.to_vec())).unwrap_or(now);
        cx.queue.at(seen, Ev::Drain { session: me });
        true
    }

    /// Let the engine thread of `channel` act once.
    pub fn act(&mut self, cx: &mut Context, channel: usize) {
        if cx.rng.chance(cx.faults.nonsense) {
            return self.send_nonsense(cx, channel);
        }
        if cx.rng.chance(cx.faults.cancel) && self.cancel_something(cx, channel) {
            return;
        }
        if self.reader.is_some() {
            return self.read_feed(cx, channel);
        }
        if self.bare || cx.rng.chance(cx.geometry.own.share) {
            return self.use_blocks(cx, channel);
        }
        if !self.draining && cx.rng.chance(cx.geometry.resizes) && self.resize(cx, channel) {
            return;
        }
        let guarantees = cx.geometry.guarantees;
        if guarantees > 0 && cx.rng.chance(guarantees) {
            return self.guarantee(cx, channel);
        }
        let mine: Vec<u32> = self.idle_seqs(channel).collect();
        let live = self.seqs.iter().flatten().count() as u32;
        let create = live < cx.geometry.seqs && cx.rng.chance(if mine.is_empty() { 700 } else { 150 });
        if create {
            return self.create(cx, channel);
        }
        if mine.is_empty() {
            let nop = request(Op::Nop, NONE_U32);
            self.send(cx, channel, nop.0, &[], nop.1);
            return;
        }
        let seq = cx.rng.pick(&mine);
        self.act_on(cx, channel, seq);
    }

    /// Return the sequences of the channel that are available for a request.
    pub(super) fn idle_seqs(&self, channel: usize) -> impl Iterator<Item = u32> {
        let idle = move |seq: &Seq| seq.channel == channel && !seq.busy;
        self.seqs.iter().enumerate().filter(move |(_, seq)| seq.as_ref().is_some_and(idle)).map(|(slot, _)| slot as u32)
    }

    fn create(&mut self, cx: &mut Context, channel: usize) {
        let Some(slot) = self.free_slot() else { return };
        let (entry, pending) = request(Op::SeqCreate, slot);
        if self.send(cx, channel, entry, &[], pending) {
            let salt = cx.geometry.own.salt(self.replica);
            let prompt = cx.rng.chance(700).then(|| cx.library.prompt(&mut cx.rng, salt));
            self.seqs[slot as usize] = Some(Seq::new(channel, prompt));
            self.shared.seqs().create(slot);
        }
    }

    pub(super) fn free_slot(&self) -> Option<u32> {
        // A slot with a drop or fork in flight is not free: the daemon may see the two in another order.
        let taken = |slot: u32| {
            let named = |p: &Pending| p.other == slot || (matches!(p.op, Op::SeqDrop | Op::Lease) && p.seq == slot);
            self.own.leases.contains_key(&slot)
                || self.channels.iter().flat_map(|c| c.pending.iter().flatten()).any(named)
        };
        (0..self.seqs.len() as u32).find(|slot| self.seqs[*slot as usize].is_none() && !taken(*slot))
    }

    fn act_on(&mut self, cx: &mut Context, channel: usize, slot: u32) {
        let Some(seq) = self.seqs[slot as usize].clone() else { return };
        if seq.owed.is_some() {
            return self.pay(cx, slot);
        }
        // A sequence read by a lane may grow and be pinned, nothing else.
        let idle = seq.lane.is_none();
        if seq.doomed {
            return if idle {
                self.drop_seq(cx, channel, slot)
            };
        }
        if seq.parked {
            return if cx.rng.chance(800) { self.resume(cx, channel, slot) } else { self.drop_seq(cx, channel, slot) };
        }
        let empty = seq.blocks.is_empty();
        let full = seq.blocks.len() as u32 >= cx.geometry.seq_blocks;
        let sealed = seq.sealed(cx.geometry.config.page_tokens);
        let some = |yes: bool, weight: u32| if yes { weight } else { 0 };
        let weights = [
            some(!full, 30),                                                                     // 0 reserve
            some(idle && empty, 30),                                                             // 1 attach a prefix
            some(idle && seq.committed > 0, 8),                                                  // 2 fork
            some(idle && seq.committed > 0 && seq.pins.is_empty(), 6),                           // 3 truncate
            some(sealed > seq.published, 25),                                                    // 4 publish
            some(idle && !empty && seq.pins.is_empty(), 5),                                      // 5 park
            some(!empty, 8),                                                                     // 6 advise
            some(cx.geometry.pins && sealed > 0 && seq.pins.len() < 3, 12),                      // 7 acquire
            some(!seq.pins.is_empty(), 30),                                                      // 8 release
            some(idle, 2 + some(full, 20)),                                                      // 9 drop
            2,                                                                                   // 10 nop
            some(true, if seq.contract == Contract::Exact { cx.geometry.contracts } else { 1 }), // 11 contract
        ];
        match cx.rng.weighted(&weights) {
            0 => self.reserve(cx, channel, slot, &seq),
            1 => self.map(cx, channel, slot),
            2 => self.fork(cx, channel, slot),
            3 => self.truncate(cx, channel, slot, &seq),
            4 => self.publish(cx, channel, slot, &seq, sealed),
            5 => self.park(cx, channel, slot),
            6 => self.advise(cx, channel, slot, &seq),
            7 => self.pin(cx, channel, slot, sealed),
            8 => self.release(cx, channel, slot),
            9 => self.drop_seq(cx, channel, slot),
            10 => {
                let (entry, pending) = request(Op::Nop, NONE_U32);
                self.send(cx, channel, entry, &[], pending);
            }
            _ => self.contract(cx, channel, slot),
        }
    }
}

/// Return a submission of `op` on `seq` and the record of its purpose.
pub(super) fn request(op: Op, seq: u32) -> (Submission, Pending) {
    (Submission { op: op as u16, seq, ..Submission::default() }, Pending::new(op, seq))
}
