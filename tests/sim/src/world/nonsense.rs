//! Invalid requests, each of which must be refused without effect, and cancels of requests in flight.

use super::context::Context;
use super::requests::request;
use super::session::Session;
use crate::coverage::Met;
use kvtide_wire::entry::{NONE_U32, Op, Submission};

/// Codes from here on are of no request. It stays when requests are added, and with it the hashes of all episodes.
const UNKNOWN: u16 = 1 << 10;
const _: () = assert!((Op::ALL[Op::ALL.len() - 1] as u16) < UNKNOWN);
/// Codes of deleted requests.
const DELETED: [u16; 2] = [4, 26];

impl Session {
    /// Send an invalid request.
    pub(super) fn send_nonsense(&mut self, cx: &mut Context, channel: usize) {
        let limits = cx.geometry.config.limits;
        let nobody = limits.seqs_max + cx.rng.below(3) as u32;
        let idle: Vec<u32> = self.idle_seqs(channel).collect();
        let somebody = if idle.is_empty() { nobody } else { cx.rng.pick(&idle) };
        let known = self.seq(somebody).cloned();
        let blocks = known.as_ref().map_or(0, |seq| seq.blocks.len() as u32);
        let written = known.as_ref().map_or(0, |seq| seq.text.len());
        let garbage = cx.rng.bits();
        let mut list: Vec<u32> = Vec::new();
        let mut entry = Submission { seq: nobody, ..Submission::default() };
        let op = match cx.rng.below(32) {
            0 => {
                entry.op = UNKNOWN + (garbage % 1000) as u16;
                None
            }
            1 => Some(Op::SeqCreate),
            2 => {
                entry.seq = somebody;
                Some(Op::SeqCreate)
            }
            3 => Some(Op::SeqDrop),
            4 => {
                entry.count = 1;
                Some(Op::Reserve)
            }
            5 => {
                (entry.seq, entry.count) = (NONE_U32, u32::MAX - (garbage % 3) as u32);
                Some(Op::Reserve)
            }
            6 => {
                (entry.seq, entry.op) = (somebody, cx.rng.pick(&DELETED));
                None
            }
            7 => {
                let room = u64::from(blocks) * u64::from(cx.geometry.config.page_tokens);
                (entry.seq, entry.value) = (somebody, room + 1 + garbage % 100);
                Some(Op::Commit)
            }
            8 => {
                (entry.seq, entry.block) = (somebody, nobody);
                Some(Op::Fork)
            }
            9 => {
                (entry.seq, entry.block) = (somebody, somebody);
                Some(Op::Fork)
            }
            10 => {
                let room = u64::from(blocks) * u64::from(cx.geometry.config.page_tokens);
                (entry.seq, entry.value) = (somebody, room.max(written) + 1 + garbage % 100);
                Some(Op::Truncate)
            }
            11 => {
                (entry.seq, entry.first, entry.count, list) = (somebody, blocks, 1, vec![1, 2, 3, 4]);
                Some(Op::Publish)
            }
            12 => {
                (entry.seq, entry.count, list) = (somebody, 2, vec![1, 2, 3, 4]);
                Some(Op::AttachPrefix)
            }
            13 => Some(Op::Resume),
            14 => {
                (entry.seq, entry.first, entry.count) = (somebody, blocks, 1);
                Some(Op::Advise)
            }
            15 => {
                (entry.seq, entry.first, entry.count, entry.flags) = (somebody, 0, blocks + 1, 1);
                Some(Op::Acquire)
            }
            16 => {
                (entry.seq, entry.count, entry.lane, entry.flags) = (somebody, 1, cx.geometry.planes(), 1);
                Some(Op::Acquire)
            }
            17 => {
                (entry.seq, entry.first, entry.count, entry.flags) = (somebody, blocks, 1, 1);
                Some(Op::Release)
            }
            18 => {
                (entry.lane, entry.value, entry.count, list) = (limits.lanes_max, garbage, 1, vec![somebody]);
                Some(Op::Step)
            }
            19 => {
                (entry.seq, entry.lane, entry.flags) = (somebody, 0, cx.geometry.planes() + (garbage % 9) as u16);
                Some(Op::Fault)
            }
            21 => {
                let class = garbage as usize % (cx.geometry.tier0.len() + 1);
                entry.first = class as u32;
                entry.count = cx.geometry.tier0.get(class).map_or(2, |frames| frames + 1 + (garbage >> 32) as u32 % 9);
                Some(Op::Tier0Resize)
            }
            20 => {
                entry.value = u64::from(cx.geometry.depth) + garbage % 100;
                Some(Op::Cancel)
            }
            23..32 => Some(self.nonsense_of_blocks(cx, (somebody, blocks), &mut entry, &mut list)),
            _ => {
                (entry.seq, list) = (somebody, vec![cx.geometry.frames() + (garbage % 99) as u32]);
                entry.value = garbage;
                Some(Op::Declare)
            }
        };
        entry.op = op.map_or(entry.op, |op| op as u16);
        let (_, mut pending) = request(op.unwrap_or(Op::Nop), nobody);
        pending.nonsense = true;
        if self.send(cx, channel, entry, &list, pending) {
            cx.coverage.met(Met::NonsenseRequest);
        }
    }

    /// Make an invalid request about blocks. No copy into the engine's existing blocks is requested.
    fn nonsense_of_blocks(
        &self,
        cx: &mut Context,
        (somebody, blocks): (u32, u32),
        entry: &mut Submission,
        list: &mut Vec<u32>,
    ) -> Op {
        let hash = vec![cx.rng.bits() as u32, 2, 3, 4];
        match cx.rng.below(8) {
            0 => {
                (entry.count, *list) = (2, hash);
                Op::Lookup
            }
            1 => {
                // An existing sequence, or an impossible one; no blocks, or no time.
                (entry.seq, entry.count, entry.value) = (somebody, cx.rng.below(2) as u32, cx.rng.below(2));
                Op::Lease
            }
            2 => {
                (entry.count, *list) = (1, vec![0]);
                Op::LoadBlocks
            }
            3 => {
                (entry.seq, entry.first, entry.count, *list) = (somebody, blocks, 1, vec![0]);
                Op::LoadBlocks
            }
            4 => {
                (entry.seq, entry.count, *list) = (somebody, 1, vec![NONE_U32]);
                Op::LoadBlocks
            }
            5 => {
                // A root has no parent, and other blocks have one.
                let root = cx.rng.chance(500);
                (entry.first, entry.hash) = if root { (0, [1, 2]) } else { (1, [0, 0]) };
                (entry.count, *list) = (1, [hash, vec![0]].concat());
                Op::StoreBlocks
            }
            6 => {
                (entry.count, entry.flags, *list) = (1, 3 + cx.rng.below(9) as u16, [hash, vec![0]].concat());
                Op::StoreBlocks
            }
            _ => {
                // More hashes than blocks, or an incomplete hash.
                let none = vec![0, 0, 0, 0, 0];
                (entry.count, *list) = if cx.rng.chance(500) { (2, [hash.clone(), hash].concat()) } else { (1, none) };
                Op::StoreBlocks
            }
        }
    }

    /// Cancel a request in flight of the channel, if there is one.
    pub(super) fn cancel_something(&mut self, cx: &mut Context, channel: usize) -> bool {
        let pending = &self.channels[channel].pending;
        let open = |tag: &usize| pending[*tag].as_ref().is_some_and(|p| !p.nonsense && cancellable(p.op));
        let open: Vec<usize> = (0..pending.len()).filter(open).collect();
        if open.is_empty() {
            return false;
        }
        let tag = cx.rng.pick(&open);
        let (mut entry, note) = request(Op::Cancel, NONE_U32);
        entry.value = tag as u64;
        let sent = self.send(cx, channel, entry, &[], note);
        if let (true, Some(pending)) = (sent, &mut self.channels[channel].pending[tag]) {
            pending.cancelled = true;
        }
        sent
    }
}

/// Return whether the engine can continue after a cancel of this request; other requests are sent without waiting.
fn cancellable(op: Op) -> bool {
    use Op::{
        Acquire, AttachPrefix, Follow, Fork, Lease, LoadBlocks, Park, Publish, Reserve, Resume, StoreBlocks, Truncate,
    };
    let blocks = matches!(op, Lease | LoadBlocks | StoreBlocks);
    blocks || matches!(op, Follow | Reserve | Fork | Truncate | Publish | AttachPrefix | Park | Resume | Acquire)
}
