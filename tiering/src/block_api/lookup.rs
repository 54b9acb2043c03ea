//! Lookups of cached prefixes, and leases on them.
//!
//! A block is cached only if its ancestors are. An engine can therefore search: it sends some hashes of one chain, ascending, and
//! the last cached one proves that all before it are cached.

use crate::actions::ActionBuf;
use crate::api::{NONE, SeqId, Status};
use crate::block_api::BlockApi;
use crate::blocks::NEUTRAL_PRIORITY;
use crate::disk::Admit;
use crate::mutants::{self, Mutant};
use crate::sessions::{Life, Phase, Who, Work};
use crate::tables::index::ShardCopy;
use kvtide_types::LEASE_SHARE;

/// Words of a lease's completion list.
pub(crate) const LEASE_WORDS: u32 = 3;

/// Maximum number of cache entries that one lookup checks for windows.
const WINDOW_LOOKS_MAX: u32 = 1 << 14;

/// Delay in microseconds after which an expired lease is checked again while a load uses it.
pub(crate) const LEASE_AGAIN_US: u64 = 10_000;

/// Arguments of a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub seq: SeqId,
    /// Hash of the prefix's last block.
    pub hash: u128,
    /// Blocks of the prefix.
    pub count: u32,
    pub lease_us: u64,
}

impl BlockApi<'_> {
    /// Return how many of the hashes are cached, from the first on, complete over all shards. If all are, count only up to the last
    /// one with all its own windows cached, because a lease may be no longer. Otherwise the prefix ends at an unknown block between
    /// two hashes, and so do its windows.
    ///
    /// The upper half is approximately how many of these have all pages of the session's shard in host. Deeper blocks leave host
    /// first, so a binary search finds both numbers.
    pub(crate) fn lookup(&self, s: u16, hashes: &[u128]) -> u64 {
        let shard = self.session(s).shard;
        let is_there = |c| self.index.is_whole(c) || mutants::on(Mutant::LookupTakesPartial);
        let found = hashes.partition_point(|&hash| self.index.find(hash).is_some_and(is_there));
        let found = if found == hashes.len() { self.last_with_windows(hashes) } else { found };
        let in_host = |&hash: &u128| self.index.find(hash).is_some_and(|c| self.is_in_host(c, shard));
        let hot = hashes[..found].partition_point(in_host);
        (hot as u64) << 32 | found as u64
    }

    /// Return how many of the hashes, all cached, remain up to the last one with cached windows. A longer prefix needs other
    /// pages of windows, so it may be readable while shorter ones are not.
    fn last_with_windows(&self, hashes: &[u128]) -> usize {
        if self.geo().windowed.is_empty() {
            return hashes.len();
        }
        let mut looks = WINDOW_LOOKS_MAX;
        let whole = |&hash: &u128| self.index.find(hash).is_some_and(|c| self.are_windows_whole(c, &mut looks));
        hashes.iter().rposition(whole).map_or(0, |last| last + 1)
    }

    /// Return whether the next token after the prefix that ends with `last` finds its windows, in all shards. Also return false if
    /// that takes more checks of cache entries than are left.
    fn are_windows_whole(&self, last: u32, looks: &mut u32) -> bool {
        // How many of the last blocks a plane needs, for the longest possible prefix.
        let most = u64::from(self.cfg().limits.seq_blocks_max);
        let needs = |plane: u16| most - self.geo().first_needed(plane, most * self.geo().page_tokens).min(most);
        let reach = self.geo().windowed.iter().map(|&plane| needs(plane)).max().unwrap_or(0);
        for (c, back) in self.index.prefix(last).zip(0..reach) {
            if *looks == 0 || self.copies(c).any(|copy| self.is_partial(copy, |plane| back < needs(plane))) {
                return false;
            }
            *looks -= 1;
        }
        true
    }

    fn is_in_host(&self, c: u32, shard: u16) -> bool {
        match self.copy_of(c, shard) {
            Some(ShardCopy::Block(b)) => self.pages_of(b).all(|page| {
                let page = self.page(page);
                page.host != NONE || page.out_of_window()
            }),
            _ => false,
        }
    }

    pub(crate) fn lease(&mut self, who: Who, lease: Lease, due: u64) {
        let s = who.session;
        let Lease { seq, hash, count, lease_us } = lease;
        match self.lists(s).seqs.get(seq as usize) {
            None => return self.complete(who, Status::Range, 0),
            Some(q) if q.is_live() || q.busy != 0 => return self.complete(who, Status::State, 0),
            Some(_) => {}
        }
        if count == 0 || lease_us == 0 {
            return self.complete(who, Status::Invalid, 0);
        }
        let lease_us_max = self.cfg().policy.lease_us_max;
        if lease_us > lease_us_max {
            return self.complete(who, Status::Limit, lease_us_max);
        }
        if !self.list_fits(s, seq, count) {
            return self.complete(who, Status::Limit, 0);
        }
        let Some(last) = self.index.find(hash).filter(|&c| self.index.is_whole(c)) else {
            return self.complete(who, Status::NotFound, 0);
        };
        let Some(op) = self.new_op(who, seq, Work::Lease, due) else { return };
        let lease_us = if mutants::on(Mutant::LeaseEndsEarly) { lease_us / 2 } else { lease_us };
        // `u64::MAX` marks a sequence that is no lease.
        let until = self.now().saturating_add(lease_us).min(u64::MAX - 1);
        let q = self.begin_seq(s, seq);
        (q.priority, q.busy, q.leased_until) = (NEUTRAL_PRIORITY, op + 1, until);
        let before = self.blocks().leased_bytes;
        let attached = self.attach_chain(s, seq, last, count);
        let (leased, share) = (self.blocks().leased_bytes, self.lease_share(s));
        match attached {
            // Blocks that are leased already cost no extra room.
            Ok(()) if leased > before && leased > share => {
                self.undo_op(s, op);
                self.finish_with(s, op, Status::Limit, LEASE_SHARE | share);
            }
            Ok(()) => self.enter(s, op, Phase::Admission),
            Err(status) => self.fail_op(s, op, status),
        }
    }

    /// Return the bytes of cache that leases of all sessions may pin, if this session asks for one more: a share of the tiers' capacity,
    /// because leased blocks cannot be evicted for the stores of others. A session that is alone on its shard may lease everything.
    fn lease_share(&self, s: u16) -> u64 {
        let shard = self.session(s).shard;
        if self.sessions().iter().filter(|x| x.life == Life::Live && x.shard == shard).count() < 2 {
            return u64::MAX;
        }
        let limits = &self.cfg().limits;
        let bytes = u128::from(limits.host_bytes_max) + u128::from(limits.nvme_bytes_max);
        u64::try_from(bytes * u128::from(self.cfg().policy.lease_percent) / 100).unwrap_or(u64::MAX)
    }

    /// Attach the chain of `count` cache entries that ends with `last`.
    fn attach_chain(&mut self, s: u16, seq: SeqId, last: u32, count: u32) -> Result<(), Status> {
        let hash = self.index.hash(last);
        let shard = self.session(s).shard;
        // Walk from the last entry to its ancestors, because only parent links exist. Until all are known the list holds cache
        // entries.
        let mut c = last;
        for _ in 0..count {
            if c == NONE || !self.append_word(s, seq, c) {
                self.forget_words(s, seq, 0);
                return Err(Status::Invalid);
            }
            c = self.index.parent(c);
        }
        if c != NONE {
            self.forget_words(s, seq, 0);
            return Err(Status::Invalid);
        }
        for i in 0..count / 2 {
            let (a, b) = (self.seq_block(s, seq, i), self.seq_block(s, seq, count - 1 - i));
            self.set_seq_word(s, seq, i, b);
            self.set_seq_word(s, seq, count - 1 - i, a);
        }
        let index_only = |core: &BlockApi<'_>, i| {
            let c = core.seq_block(s, seq, i);
            matches!(core.copy_of(c, shard), Some(ShardCopy::IndexOnly(_)))
        };
        let ids = (0..count).filter(|&i| index_only(self, i)).count() as u32;
        let admitted = self.admit_ids(s, ids);
        // Making room may have dropped entries of the prefix.
        let gone = self.index.find(hash) != Some(last) || !self.index.is_whole(last);
        if gone || admitted != Admit::Yes {
            self.forget_words(s, seq, 0);
            return Err(match admitted {
                _ if gone => Status::NotFound,
                Admit::No(status) => status,
                _ => Status::Again,
            });
        }
        for i in 0..count {
            let c = self.seq_block(s, seq, i);
            let found = match self.copy_of(c, shard) {
                Some(ShardCopy::Block(b)) => Some(b),
                Some(ShardCopy::IndexOnly(at)) => self.give_block(c, at),
                Some(ShardCopy::End) | None => None,
            };
            let Some(b) = found else {
                // No block id is free. The blocks before it are released.
                self.forget_words(s, seq, i);
                return Err(Status::NoSpace);
            };
            self.lease_block(s, (seq, i), (c, b));
        }
        self.seq_mut(s, seq).tokens = u64::from(count) * self.geo().page_tokens;
        // Windows of a shorter prefix may be gone while those of a longer one are cached.
        if self.windows_whole(s, seq, count) { Ok(()) } else { Err(Status::NotFound) }
    }

    /// Admit a lease if host memory can hold all its blocks. A space that is new beside full ones may be refused once, because their
    /// memory is in use just then; so the lease waits until the node has been asked a second time.
    pub(crate) fn admit_lease(&mut self) -> Admit {
        if !self.ids_suffice(0) {
            return Admit::No(Status::NoSpace);
        }
        for class in 0..self.geo().classes.len() as u8 {
            if self.host.fits(class, 0) {
                continue;
            }
            let decision = self.admit_host(class, 1, 0);
            match self.host.second_request_us(class) {
                _ if decision == Admit::Yes => {}
                Some(at) if decision == Admit::No(Status::NoSpace) => {
                    self.set_timer(at);
                    return Admit::Wait;
                }
                _ => return decision,
            }
        }
        Admit::Yes
    }

    /// Undo a failed lease: remove its sequence.
    pub(crate) fn undo_lease(&mut self, s: u16, seq: SeqId) {
        self.drop_tail(s, seq, 0);
        self.end_seq(s, seq);
    }

    /// Start the lease. The list holds the number of its blocks in host, only on NVMe, and only in another tier 0. The value is the
    /// estimated time to load them in microseconds, from measurements so far.
    pub(crate) fn complete_lease(&mut self, s: u16, op: u32, buf: &mut ActionBuf) -> (Status, u64) {
        let seq = self.op(s, op).seq;
        self.seq_mut(s, seq).busy = 0;
        let until = self.lists(s).seqs[seq as usize].leased_until;
        let session = &mut self.copiers[s];
        session.leases += 1;
        session.lease_ends_at = session.lease_ends_at.min(until);
        self.set_timer(until);
        let blocks = self.lists(s).seqs[seq as usize].blocks();
        self.announce_used(s, seq, blocks);
        let (mut host, mut nvme, mut elsewhere) = (0u32, 0u32, 0u32);
        for index in 0..blocks {
            let (mut absent, mut far) = (false, false);
            for page in self.pages_of(self.seq_block(s, seq, index)) {
                let p = self.page(page);
                absent |= p.host == NONE && !p.out_of_window();
                far |= self.only_on_disk(page);
            }
            match (absent, far) {
                (false, _) => host += 1,
                (true, true) => nvme += 1,
                (true, false) => elsewhere += 1,
            }
        }
        [host, nvme, elsewhere].into_iter().for_each(|n| buf.push_word(n));
        let us = |blocks: u32, rate: f32| match rate > 0.0 {
            true => u64::from(blocks) as f64 * self.disk.slot_bytes() as f64 / f64::from(rate),
            false => 0.0,
        };
        let bus = us(host + nvme + elsewhere, self.tier0(s).link.rate);
        (Status::Ok, us(nvme, self.disk.read_rate()).max(bus) as u64)
    }
}
