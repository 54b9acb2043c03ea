//! The requests on blocks: the message of each, and the data recorded for its response.

use super::Asked;
use crate::coverage::Met;
use crate::model::Text;
use crate::world::context::Context;
use crate::world::ops::{hurry, range, words};
use crate::world::requests::request;
use crate::world::session::{Pending, Session};
use kvtide_wire::entry::{Level, NONE_U32, Op};

/// Maximum blocks of one store.
const STORE_BLOCKS: u64 = 6;
/// Found prefixes that an engine remembers.
const FOUND_MAX: usize = 4;

impl Session {
    /// Send a request about blocks from the engine thread of `channel`.
    pub(in crate::world) fn use_blocks(&mut self, cx: &mut Context, channel: usize) {
        let leases: Vec<u32> =
            self.own.leases.iter().filter(|(_, l)| l.channel == channel).map(|(slot, _)| *slot).collect();
        let page_tokens = cx.geometry.config.page_tokens;
        let sealed =
            |slot: &u32| self.seq(*slot).is_some_and(|seq| !seq.parked && !seq.doomed && seq.sealed(page_tokens) > 0);
        let sequences: Vec<u32> = self.idle_seqs(channel).filter(sealed).collect();
        let room = (self.own.leases.len() as u32) < cx.geometry.own.leases;
        let some = |yes: bool, weight: u32| if yes { weight } else { 0 };
        let weights = [
            15,                             // 0 lookup
            some(room, 25),                 // 1 lease
            25,                             // 2 store
            some(!leases.is_empty(), 35),   // 3 load
            some(!leases.is_empty(), 8),    // 4 end of a lease
            some(!sequences.is_empty(), 6), // 5 load of a sequence
        ];
        match cx.rng.weighted(&weights) {
            0 => self.look_up(cx, channel, &leases),
            1 => self.lease(cx, channel),
            2 => self.store(cx, channel),
            3 => {
                let slot = cx.rng.pick(&leases);
                self.load_leased(cx, channel, slot);
            }
            4 => {
                let slot = cx.rng.pick(&leases);
                self.end_lease(cx, channel, slot);
            }
            _ => {
                let slot = cx.rng.pick(&sequences);
                self.load_sequence(cx, channel, slot);
            }
        }
    }

    /// Return a text of whole blocks that an engine may have stored, and their hashes; `own`: it may continue with tokens of no
    /// other engine.
    fn chain(&self, cx: &mut Context, own: bool) -> (Text, Vec<u128>) {
        let page_tokens = cx.geometry.config.page_tokens;
        let blocks = cx.rng.between(1, u64::from(cx.geometry.seq_blocks)) as u32;
        let salt = cx.geometry.own.salt(self.replica);
        let (mut text, _) = cx.library.likely(&mut cx.rng, salt, blocks, page_tokens);
        // Few if all of it must stay cached.
        if own && cx.rng.chance(if cx.geometry.roomy { 100 } else { 300 }) {
            let most = u64::from(cx.geometry.seq_blocks) * u64::from(page_tokens);
            while text.len() < most && (!text.len().is_multiple_of(page_tokens.into()) || cx.rng.chance(800)) {
                text.push(cx.rng.bits(), page_tokens);
            }
        }
        let whole = (text.len() / u64::from(page_tokens)) as u32;
        let hashes: Vec<u128> = (0..whole).map_while(|block| text.hash(block, page_tokens)).collect();
        text.reject(hashes.len() as u64 * u64::from(page_tokens), page_tokens);
        (text, hashes)
    }

    fn look_up(&mut self, cx: &mut Context, channel: usize, leases: &[u32]) {
        let page_tokens = cx.geometry.config.page_tokens;
        let held = match leases.is_empty() || cx.rng.chance(600) {
            true => None,
            false => self.own.leases.get(&cx.rng.pick(leases)).cloned(),
        };
        let (text, mut hashes) = match &held {
            Some(lease) => {
                let hashes = (0..lease.blocks).map_while(|block| lease.text.hash(block, page_tokens)).collect();
                (lease.text.clone(), hashes)
            }
            None => self.chain(cx, false),
        };
        if hashes.is_empty() {
            return;
        }
        let (mut entry, mut pending) = request(Op::Lookup, NONE_U32);
        let mut asked = Asked { whole: hashes.len() as u32, ..Asked::default() };
        asked.known = hashes.iter().take_while(|hash| cx.library.must_find(**hash)).count() as u32;
        if let Some(lease) = held {
            (asked.known, asked.until_us) = (lease.blocks, lease.until_us);
        }
        // Another chain from some block on: nothing of it may be found, whatever is cached.
        if cx.rng.chance(150) {
            let at = cx.rng.index(hashes.len());
            hashes[at..].iter_mut().for_each(|hash| *hash = u128::from(cx.rng.bits()) << 64 | 1);
            pending.hole = Some(at as u32);
            asked.known = asked.known.min(at as u32);
        }
        let all = cx.rng.chance(500);
        let last = hashes.len() as u32 - 1;
        asked.probes = (0..=last).filter(|at| all || *at == last || cx.rng.chance(500)).collect();
        asked.hashes = asked.probes.iter().map(|at| hashes[*at as usize]).collect();
        entry.count = asked.hashes.len() as u32;
        let list = words(&asked.hashes);
        pending.text = Some(text);
        pending.blocks = Some(Box::new(asked));
        self.send(cx, channel, entry, &list, pending);
    }

    /// Remember a prefix that a lookup has found.
    pub(super) fn has_found(&mut self, cx: &mut Context, text: Text, blocks: u32) {
        match self.own.found.len() < FOUND_MAX {
            true => self.own.found.push((text, blocks)),
            false => self.own.found[cx.rng.index(FOUND_MAX)] = (text, blocks),
        }
    }

    fn lease(&mut self, cx: &mut Context, channel: usize) {
        let page_tokens = cx.geometry.config.page_tokens;
        let (text, blocks) = match self.own.found.pop() {
            Some(found) => found,
            None => {
                let (text, hashes) = self.chain(cx, false);
                (text, hashes.len() as u32)
            }
        };
        let Some(slot) = self.free_slot() else { return };
        let Some(hash) = blocks.checked_sub(1).and_then(|last| text.hash(last, page_tokens)) else { return };
        let (mut entry, mut pending) = request(Op::Lease, slot);
        let short = cx.rng.between(1, 300);
        let lease_us = cx.rng.pick(&[short, 2_000, 20_000, 1_000_000]);
        (entry.count, entry.hash, entry.value) = (blocks, [hash as u64, (hash >> 64) as u64], lease_us);
        entry.timeout_us = hurry(cx);
        // With another length it is another prefix, which cannot have been stored.
        if cx.rng.chance(cx.faults.nonsense.min(30)) {
            (entry.count, pending.nonsense) = (blocks + 1, true);
        }
        let known = (0..blocks).map_while(|block| text.hash(block, page_tokens));
        let known = known.take_while(|hash| cx.library.must_find(*hash)).count() as u32;
        let until_us = cx.now() + lease_us;
        pending.blocks = Some(Box::new(Asked { whole: blocks, known, until_us, channel, ..Asked::default() }));
        pending.text = Some(text);
        self.send(cx, channel, entry, &[], pending);
    }

    /// Drop a lease, even during a load from it.
    pub(in crate::world) fn end_lease(&mut self, cx: &mut Context, channel: usize, slot: u32) {
        let Some(lease) = self.own.leases.get(&slot) else { return };
        let (entry, mut pending) = request(Op::SeqDrop, slot);
        pending.blocks = Some(Box::new(Asked { until_us: lease.until_us, ..Asked::default() }));
        if !self.send(cx, channel, entry, &[], pending) {
            return;
        }
        self.own.leases.remove(&slot);
        let of_lease = |p: &&mut Pending| p.seq == slot && p.op == Op::LoadBlocks;
        for pending in self.channels.iter_mut().flat_map(|c| c.pending.iter_mut().flatten()).filter(of_lease) {
            if let Some(asked) = pending.blocks.as_mut().filter(|asked| !asked.of_sequence && !asked.dropped) {
                asked.dropped = true;
                cx.coverage.met(Met::LeaseDroppedInUse);
            }
        }
    }

    fn load_leased(&mut self, cx: &mut Context, channel: usize, slot: u32) {
        let Some(lease) = self.own.leases.get(&slot).cloned() else { return };
        let asked = Asked { whole: lease.blocks, until_us: lease.until_us, ..Asked::default() };
        self.load(cx, channel, slot, (lease.text, asked));
    }

    fn load_sequence(&mut self, cx: &mut Context, channel: usize, slot: u32) {
        let page_tokens = cx.geometry.config.page_tokens;
        let Some(seq) = self.seq(slot) else { return };
        let whole = seq.sealed(page_tokens);
        let asked = Asked { whole, until_us: u64::MAX, of_sequence: true, ..Asked::default() };
        self.load(cx, channel, slot, (seq.text.clone(), asked));
    }

    /// Load some of a prefix's blocks into the engine's own.
    fn load(&mut self, cx: &mut Context, channel: usize, slot: u32, (text, mut asked): (Text, Asked)) {
        let (first, count) = range(cx, asked.whole);
        let count = count.min(self.own.free() as u32);
        let Some(names) = self.own.take(&mut cx.rng, count as usize) else { return };
        self.own.spoil(&mut cx.arenas, &names);
        asked.names = names;
        let (mut entry, mut pending) = request(Op::LoadBlocks, slot);
        (entry.first, entry.count, entry.timeout_us) = (first, count, hurry(cx));
        (pending.first, pending.count, pending.text) = (first, u64::from(count), Some(text));
        let (names, exclusive) = (asked.names.clone(), asked.of_sequence);
        pending.blocks = Some(Box::new(asked));
        let sent = match exclusive {
            true => self.send_exclusive(cx, channel, slot, entry, &names, pending),
            false => self.send(cx, channel, entry, &names, pending),
        };
        if !sent {
            self.own.give(&names);
        }
    }

    fn store(&mut self, cx: &mut Context, channel: usize) {
        let (text, hashes) = self.chain(cx, true);
        let whole = hashes.len() as u32;
        if whole == 0 {
            return;
        }
        // Mostly new blocks; sometimes blocks stored before, or blocks with a parent that was never stored.
        let new = hashes.iter().take_while(|hash| cx.library.is_done(**hash, self.shard)).count() as u32;
        let first = if cx.rng.chance(700) { new } else { cx.rng.below(whole.into()) as u32 }.min(whole - 1);
        let most = u64::from(whole - first).min(STORE_BLOCKS).min(self.own.free() as u64);
        if most == 0 {
            return;
        }
        let count = cx.rng.between(1, most) as usize;
        let Some(names) = self.own.take(&mut cx.rng, count) else { return };
        self.write_own(cx, &text, first, &names);
        let hashes = &hashes[..first as usize + count];
        let parent = (first as usize).checked_sub(1).map_or(0, |above| hashes[above]);
        let level = cx.rng.pick(&[Level::Published, Level::Published, Level::Stored, Level::Durable]);
        let (mut entry, mut pending) = request(Op::StoreBlocks, NONE_U32);
        (entry.first, entry.count, entry.flags) = (first, count as u32, level as u16);
        (entry.hash, entry.timeout_us) = ([parent as u64, (parent >> 64) as u64], hurry(cx));
        (pending.first, pending.count, pending.text) = (first, count as u64, Some(text));
        let sent = &hashes[first as usize..];
        let list: Vec<u32> = words(sent).into_iter().chain(names.iter().copied()).collect();
        // Number of ancestors that this shard knows to be published.
        let known =
            hashes[..first as usize].iter().filter(|hash| cx.library.is_done(**hash, self.shard)).count() as u32;
        let (hashes, level) = (sent.to_vec(), Some(level));
        pending.blocks = Some(Box::new(Asked { names: names.clone(), hashes, known, level, ..Asked::default() }));
        let sent = sent.to_vec();
        if self.send(cx, channel, entry, &list, pending) {
            sent.iter().for_each(|hash| cx.library.sent(*hash, self.shard));
        } else {
            self.own.give(&names);
        }
    }

    /// Write the blocks of a text, from block `first` on, to the engine's own memory.
    fn write_own(&self, cx: &mut Context, text: &Text, first: u32, names: &[u32]) {
        let page_tokens = cx.geometry.config.page_tokens;
        self.own.spoil(&mut cx.arenas, names);
        for (index, name) in (first..).zip(names) {
            for plane in 0..cx.geometry.planes() {
                let Some(place) = self.own.place(*name, plane) else { continue };
                let spec = cx.geometry.config.planes[usize::from(plane)];
                for slot in 0..cx.geometry.slots() {
                    let tag = text.expected(&spec, plane, self.shard, (index, slot), text.len(), page_tokens);
                    cx.arenas.write(place, slot, tag.unwrap_or(0));
                }
            }
        }
    }
}
