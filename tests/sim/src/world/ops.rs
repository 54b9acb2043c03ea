//! The requests: the message of each, and the data recorded for its response.

use super::context::Context;
use super::requests::request;
use super::session::{Seq, Session};
use crate::coverage::Met;
use kvtide_client::agent::attention::Contract;
use kvtide_client::agent::protocol::PageRange;
use kvtide_wire::entry::{Advice, LIST_WORDS, Level, NONE_U32, Op, Submission};

impl Session {
    pub(super) fn reserve(&mut self, cx: &mut Context, channel: usize, slot: u32, seq: &Seq) {
        let room = cx.geometry.seq_blocks.saturating_sub(seq.blocks.len() as u32).max(1);
        let count = cx.rng.between(1, u64::from(room.min(4))) as u32;
        let (mut entry, mut pending) = request(Op::Reserve, slot);
        entry.count = count;
        entry.timeout_us = hurry(cx);
        pending.count = u64::from(count);
        pending.covered = self.guarantee_covers(cx, &pending);
        self.send_exclusive(cx, channel, slot, entry, &[], pending);
    }

    pub(super) fn drop_seq(&mut self, cx: &mut Context, channel: usize, slot: u32) {
        let (entry, pending) = request(Op::SeqDrop, slot);
        if self.send(cx, channel, entry, &[], pending) {
            self.forget_pins(slot);
            // Already closed if it is parked.
            let _ = self.shared.seqs().close(slot);
            self.shared.seqs().free(slot);
            self.seqs[slot as usize] = None;
        }
    }

    /// Send the committed length of the sequence, without waiting for the response.
    pub(super) fn commit(&mut self, cx: &mut Context, slot: u32, tokens: u64) -> bool {
        let Some(channel) = self.seqs[slot as usize].as_ref().map(|seq| seq.channel) else { return true };
        let (mut entry, mut pending) = request(Op::Commit, slot);
        entry.value = tokens;
        pending.count = tokens;
        self.send(cx, channel, entry, &[], pending)
    }

    pub(super) fn fork(&mut self, cx: &mut Context, channel: usize, slot: u32) {
        let Some(child) = self.free_slot() else { return };
        let (mut entry, mut pending) = request(Op::Fork, slot);
        entry.block = child;
        entry.timeout_us = hurry(cx);
        pending.other = child;
        self.send_exclusive(cx, channel, slot, entry, &[], pending);
    }

    pub(super) fn truncate(&mut self, cx: &mut Context, channel: usize, slot: u32, seq: &Seq) {
        let tokens = cx.rng.between(0, seq.committed);
        let (mut entry, mut pending) = request(Op::Truncate, slot);
        entry.value = tokens;
        entry.timeout_us = hurry(cx);
        pending.count = tokens;
        self.send_exclusive(cx, channel, slot, entry, &[], pending);
    }

    pub(super) fn publish(&mut self, cx: &mut Context, channel: usize, slot: u32, seq: &Seq, sealed: u32) {
        let page_tokens = cx.geometry.config.page_tokens;
        let first = if cx.rng.chance(100) { 0 } else { seq.published };
        let last = cx.rng.between(u64::from(first) + 1, u64::from(sealed)) as u32;
        let hashes: Vec<u128> = (first..last).map_while(|block| seq.text.hash(block, page_tokens)).collect();
        let parent = if first == 0 { Some(0) } else { seq.text.hash(first - 1, page_tokens) };
        let (Some(parent), false) = (parent, hashes.is_empty()) else { return };
        let (mut entry, mut pending) = request(Op::Publish, slot);
        entry.first = first;
        entry.count = hashes.len() as u32;
        entry.flags = cx.rng.pick(&[Level::Published, Level::Stored, Level::Durable]) as u16;
        entry.hash = [parent as u64, (parent >> 64) as u64];
        entry.timeout_us = hurry(cx);
        pending.first = first;
        pending.count = u64::from(entry.count);
        if self.send_exclusive(cx, channel, slot, entry, &words(&hashes), pending) {
            hashes.iter().for_each(|hash| cx.library.sent(*hash, self.shard));
        }
    }

    pub(super) fn map(&mut self, cx: &mut Context, channel: usize, slot: u32) {
        let page_tokens = cx.geometry.config.page_tokens;
        let blocks = cx.rng.between(1, u64::from(cx.geometry.seq_blocks)) as u32;
        let salt = cx.geometry.own.salt(self.replica);
        let (text, prompt) = cx.library.likely(&mut cx.rng, salt, blocks, page_tokens);
        let (mut entry, mut pending) = request(Op::AttachPrefix, slot);
        let whole = (text.len() / u64::from(page_tokens)) as u32;
        let mut hashes: Vec<u128> = (0..whole).map_while(|block| text.hash(block, page_tokens)).collect();
        // A chain with a hole: nothing from there on may be found, whatever is cached.
        if cx.rng.chance(100) && !hashes.is_empty() {
            let at = cx.rng.index(hashes.len());
            hashes[at] = u128::from(cx.rng.bits()) << 64 | 1;
            pending.hole = Some(at as u32);
        }
        entry.count = hashes.len() as u32;
        entry.timeout_us = hurry(cx);
        pending.must_find = hashes.iter().take_while(|hash| cx.library.must_find(**hash)).count() as u32;
        pending.text = Some(text);
        if self.send_exclusive(cx, channel, slot, entry, &words(&hashes), pending)
            && let Some(seq) = &mut self.seqs[slot as usize]
        {
            seq.prompt = prompt;
        }
    }

    pub(super) fn park(&mut self, cx: &mut Context, channel: usize, slot: u32) {
        let (mut entry, pending) = request(Op::Park, slot);
        entry.value = cx.rng.pick(&[0, 100, 5000]);
        self.send_exclusive(cx, channel, slot, entry, &[], pending);
    }

    pub(super) fn resume(&mut self, cx: &mut Context, channel: usize, slot: u32) {
        let (mut entry, pending) = request(Op::Resume, slot);
        entry.timeout_us = hurry(cx);
        self.send_exclusive(cx, channel, slot, entry, &[], pending);
    }

    pub(super) fn advise(&mut self, cx: &mut Context, channel: usize, slot: u32, seq: &Seq) {
        let (mut entry, pending) = request(Op::Advise, slot);
        let (first, count) = range(cx, seq.blocks.len() as u32);
        (entry.first, entry.count) = (first, count);
        let advice = cx.rng.pick(&[
            Advice::WillNeed,
            Advice::DontNeed,
            Advice::Sequential,
            Advice::Cold,
            Advice::Priority(0),
            Advice::Remaining(0),
            Advice::Remaining(0),
        ]);
        entry.flags = advice.code().0;
        entry.value = match advice {
            Advice::Priority(_) => cx.rng.below(256),
            Advice::Remaining(_) => remaining(cx),
            _ => 0,
        };
        self.send(cx, channel, entry, &[], pending);
    }

    /// Send a contract. Once the daemon knows it, steps read no more than it requires.
    pub(super) fn contract(&mut self, cx: &mut Context, channel: usize, slot: u32) {
        let contract = match cx.rng.below(8) {
            0 => Contract::Exact,
            1 | 2 => Contract::Approx { permille: cx.rng.between(1, 1000) as u16 },
            _ => Contract::Approx { permille: cx.rng.between(50, 400) as u16 },
        };
        let (mut entry, mut pending) = request(Op::Contract, slot);
        let (code, value) = contract.code();
        (entry.flags, entry.value, pending.count) = (code, value.into(), contract.word());
        self.send(cx, channel, entry, &[], pending);
    }

    pub(super) fn pin(&mut self, cx: &mut Context, channel: usize, slot: u32, sealed: u32) {
        let (first, count) = range(cx, sealed);
        let (plane, planes) = range(cx, u32::from(cx.geometry.planes()));
        let range = PageRange { seq: slot, first, count, plane: plane as u16, planes: planes as u16 };
        self.acquire(cx, channel, slot, range);
    }

    /// Send a request that blocks the sequence until it has ended.
    pub(super) fn send_exclusive(
        &mut self,
        cx: &mut Context,
        channel: usize,
        slot: u32,
        entry: Submission,
        list: &[u32],
        pending: super::session::Pending,
    ) -> bool {
        let sent = self.send(cx, channel, entry, list, pending);
        let op = Op::from_code(entry.op);
        if let (true, Some(seq)) = (sent, &mut self.seqs[slot as usize]) {
            seq.busy = true;
            if op.is_some_and(closing) && !seq.closed {
                seq.closed = true;
                // Lanes were checked before: no step contains the sequence.
                let closed = self.shared.seqs().close(slot);
                debug_assert_eq!(closed, Ok(()));
            }
        }
        sent
    }
}

/// Return whether a request keeps lanes away from its sequence while it is in flight.
pub(super) fn closing(op: Op) -> bool {
    matches!(op, Op::Fork | Op::Truncate | Op::AttachPrefix | Op::Park | Op::Resume)
}

/// Return a deadline: the default, or one that is likely to pass.
pub(super) fn hurry(cx: &mut Context) -> u64 {
    if cx.rng.chance(cx.faults.hurry) { cx.rng.between(1, 300) } else { 0 }
}

/// Return a non-empty range within `0..len`.
pub(super) fn range(cx: &mut Context, len: u32) -> (u32, u32) {
    let first = cx.rng.below(u64::from(len)) as u32;
    (first, cx.rng.between(1, u64::from(len - first)) as u32)
}

/// Return hashes in the format of the list area: four words each, low word first.
pub(super) fn words(hashes: &[u128]) -> Vec<u32> {
    let words = |hash: &u128| (0..4).map(|i| (*hash >> (32 * i)) as u32).collect::<Vec<u32>>();
    let words: Vec<u32> = hashes.iter().flat_map(words).collect();
    debug_assert!(words.len() <= LIST_WORDS);
    words
}

/// Return the number of tokens to come, as an engine might announce it: right or wrong, mostly few, sometimes unknown.
fn remaining(cx: &mut Context) -> u64 {
    match cx.rng.below(8) {
        0 => u64::from(NONE_U32),
        1 => cx.rng.below(u64::from(NONE_U32)),
        2 => cx.rng.below(1000),
        _ => {
            cx.coverage.met(Met::EndTold);
            cx.rng.below(16)
        }
    }
}
