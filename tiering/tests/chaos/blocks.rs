//! Engines with KV in their own memory: they store, look up, lease and load blocks.

use super::{Asked, Chaos, SEQS};
use kvtide_fake::Done;
use kvtide_tiering::api::*;

impl Chaos {
    pub fn use_blocks(&mut self, s: SessionId) {
        let seq = self.rng.below(u64::from(SEQS)) as u32;
        match self.rng.below(8) {
            6..=7 if self.leases.contains_key(&(s, seq)) => self.load(s, seq),
            6..=7 => self.lease(s, seq),
            0..=1 => self.store(s),
            2 if self.leases.contains_key(&(s, seq)) && self.rng.one_in(3) => self.end_lease(s, seq),
            2..=3 if self.leases.contains_key(&(s, seq)) => self.load(s, seq),
            2..=3 => self.lease(s, seq),
            _ => self.look_up(s),
        }
    }

    /// Return new blocks of the engine's own memory.
    fn new_engine_blocks(&mut self, count: usize) -> Vec<u32> {
        let from = self.engine_blocks;
        self.engine_blocks += count as u32;
        (from..self.engine_blocks).collect()
    }

    /// Return the hashes of a chain that the session's shard has published.
    fn chain(&mut self, s: SessionId) -> Vec<u128> {
        let root = self.rng.below(self.roots.len() as u64 + 1) as usize;
        let Some(&root) = self.roots.get(root) else { return Vec::new() };
        (root..).take_while(|&h| self.published.contains_key(&(h, s % self.shards))).take(12).collect()
    }

    /// Store blocks that the engine computed again, whether they are cached or not.
    fn store_again(&mut self, s: SessionId) {
        let (shard, mut hashes) = (s % self.shards, self.chain(s));
        if hashes.is_empty() {
            return;
        }
        hashes.truncate(1 + self.rng.below(hashes.len() as u64) as usize);
        let first = self.rng.below(hashes.len() as u64) as usize;
        let parent = if first == 0 { 0 } else { hashes[first - 1] };
        let hashes = hashes.split_off(first);
        let engine = self.new_engine_blocks(hashes.len());
        for (hash, &block) in hashes.iter().zip(&engine) {
            self.w.put_engine(s, block, &self.published[&(*hash, shard)]);
        }
        let level = [Level::Published, Level::Stored, Level::Durable][self.rng.below(3) as usize];
        let request = Request::StoreBlocks { first: first as u32, parent, hashes: &hashes, engine: &engine, level };
        self.ask(s, request, Asked::Store { hashes: hashes.clone(), engine: engine.clone(), level });
    }

    fn store(&mut self, s: SessionId) {
        if self.rng.one_in(2) {
            return self.store_again(s);
        }
        // Continue a chain or begin a new one; sometimes continue a chain of another shard.
        let shard = s % self.shards;
        let chain = if self.rng.one_in(2) { self.chain(s) } else { Vec::new() };
        let other = self.roots.iter().copied().find(|&root| !self.published.contains_key(&(root, shard)));
        let start = match chain.last() {
            Some(last) => last + 1,
            None if self.shards > 1 && other.is_some() && self.rng.one_in(2) => other.unwrap(),
            None => self.next_hash + 1,
        };
        let count = 1 + self.rng.below(4) as usize;
        let hashes: Vec<u128> = (0..count as u128).map(|i| start + i).collect();
        if chain.len() >= 12 || hashes.iter().any(|&h| self.published.contains_key(&(h, shard))) {
            return;
        }
        self.next_hash = self.next_hash.max(start + count as u128 + 20);
        let engine = self.new_engine_blocks(count);
        if !self.roots.contains(&start) && chain.is_empty() {
            self.roots.push(start);
        }
        for (&hash, &block) in hashes.iter().zip(&engine) {
            let contents = self.w.write_engine(s, block);
            self.published.insert((hash, shard), contents);
        }
        let level = [Level::Published, Level::Stored, Level::Durable][self.rng.below(3) as usize];
        let (first, parent) = (chain.len() as u32, chain.last().copied().unwrap_or(0));
        let request = Request::StoreBlocks { first, parent, hashes: &hashes, engine: &engine, level };
        self.ask(s, request, Asked::Store { hashes: hashes.clone(), engine: engine.clone(), level });
    }

    /// Overwrite the engine's blocks at once.
    fn reuse(&mut self, s: SessionId, engine: &[u32]) {
        let Some(agent) = self.w.agents.get(&s) else { return };
        for (_, job) in &agent.jobs {
            if let Job::Gather { engine: block, .. } | Job::Scatter { engine: block, .. } = job {
                assert!(!engine.contains(block), "a request has ended, and {job:?} of it is under way");
            }
        }
        engine.iter().for_each(|&block| _ = self.w.write_engine(s, block));
    }

    pub fn store_ended(&mut self, s: SessionId, hashes: &[u128], engine: &[u32], level: Level, done: &Done) {
        self.reuse(s, engine);
        if done.status == Status::Ok && level == Level::Published {
            assert_eq!((done.value, done.list.len()), (hashes.len() as u64, 0), "{done:?}");
        } else if done.status == Status::Ok {
            assert_eq!((done.value, done.list.len()), (level as u64, 0), "{done:?}");
        }
        assert!(done.list.iter().all(|&i| (i as usize) < hashes.len()), "{done:?}");
        // After a failed block, no later block of the chain can be found.
        assert!(done.list.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{done:?}");
        assert!(done.list.last().is_none_or(|&last| last as usize + 1 == hashes.len()), "{done:?}");
        if done.status == Status::Ok && level > Level::Published {
            self.stored += 1;
        }
    }

    fn look_up(&mut self, s: SessionId) {
        let mut hashes = self.chain(s);
        let known = hashes.len();
        hashes.push(u128::MAX);
        let found = self.w.ok(s, Request::Lookup { hashes: &hashes, asked: 0, range: 0 }).value;
        let (found, in_host) = (found as u32 as usize, (found >> 32) as usize);
        assert!(found <= known && in_host <= found, "{found} of {known}, {in_host} in host");
        let each: Vec<bool> = hashes
            .iter()
            .map(|h| self.w.ok(s, Request::Lookup { hashes: &[*h], asked: 0, range: 0 }).value as u32 == 1)
            .collect();
        let alone = each.iter().rposition(|found| *found).map_or(0, |last| last + 1);
        assert!(alone <= found, "{found} are found, {alone} alone");
        if self.kinds.iter().all(|kind| *kind == PlaneKind::Full) {
            assert!(each[..found].iter().all(|found| *found), "{found} are found, and alone {each:?}");
        }
        // Without the last hash all are cached: the result is the last one that can be leased.
        let all = self.w.ok(s, Request::Lookup { hashes: &hashes[..known], asked: 0, range: 0 }).value as u32 as usize;
        assert_eq!(all, if found == known { alone } else { found }, "of {known}, alone {each:?}");
    }

    fn lease(&mut self, s: SessionId, seq: SeqId) {
        let taken = self.seqs.contains_key(&(s, seq)) || self.busy.contains(&(s, seq));
        let mut hashes = self.chain(s);
        if self.rng.below(8) > 0 {
            // Lease the cached part only, as an engine does.
            let found = self.w.ok(s, Request::Lookup { hashes: &hashes, asked: 0, range: 0 }).value as u32;
            hashes.truncate(found as usize);
        }
        let asked = |a: &Asked| matches!(a, Asked::Lease { seq: other, .. } if *other == seq);
        if taken || hashes.is_empty() || self.pending.iter().any(|(k, a)| k.0 == s && asked(a)) {
            return;
        }
        let (hash, count) = (hashes[hashes.len() - 1], hashes.len() as u32);
        let count = if self.rng.one_in(20) { count + 1 } else { count };
        let lease_us = 1 + self.rng.below(20_000);
        self.busy.insert((s, seq));
        let request = Request::Lease { seq, hash, count, lease_us };
        if self.ask_within(s, request, Asked::Lease { seq, hashes: hashes.clone() }, 0).is_none() {
            self.busy.remove(&(s, seq));
        }
    }

    pub fn lease_ended(&mut self, s: SessionId, seq: SeqId, hashes: Vec<u128>, done: &Done) {
        self.busy.remove(&(s, seq));
        if done.status != Status::Ok {
            return;
        }
        assert_eq!(done.list.iter().sum::<u32>() as usize, hashes.len(), "{done:?}");
        self.leases.insert((s, seq), hashes);
    }

    /// Drop a lease; an expired one does not exist any more.
    pub fn end_lease(&mut self, s: SessionId, seq: SeqId) {
        let status = self.w.call(s, Request::SeqDrop { seq }).status;
        self.collect();
        assert!(matches!(status, Status::Ok | Status::NotFound), "{status:?}");
        self.leases.remove(&(s, seq));
    }

    fn range(&mut self, s: SessionId, seq: SeqId) -> (usize, Vec<u128>) {
        let hashes = &self.leases[&(s, seq)];
        let first = self.rng.below(hashes.len() as u64) as usize;
        let count = 1 + self.rng.below((hashes.len() - first) as u64) as usize;
        (first, hashes[first..first + count].to_vec())
    }

    fn load(&mut self, s: SessionId, seq: SeqId) {
        let (first, hashes) = self.range(s, seq);
        let whole = self.leases[&(s, seq)].len();
        let engine = self.new_engine_blocks(hashes.len());
        let request = Request::LoadBlocks { seq, first: first as u32, engine: &engine };
        self.ask(s, request, Asked::Load { hashes: hashes.clone(), engine: engine.clone(), first, whole });
    }

    /// Check loaded blocks: those from index `first` on, of a prefix of `whole` blocks.
    pub fn load_ended(
        &mut self,
        s: SessionId,
        (first, whole): (usize, usize),
        (hashes, engine): (&[u128], &[u32]),
        done: &Done,
    ) {
        let shard = s % self.shards;
        assert_eq!(done.status == Status::Ok, done.value == hashes.len() as u64 && done.list.is_empty(), "{done:?}");
        let refused = done.value == 0 && done.list.is_empty();
        for (i, (&hash, &block)) in hashes.iter().zip(engine).enumerate() {
            if refused || done.list.contains(&(i as u32)) {
                continue;
            }
            let contents = &self.published[&(hash, shard)];
            for plane in 0..self.planes {
                let read = self.w.read_engine(s, block, plane);
                // Pages outside the window of the whole prefix may be missing; the others must be loaded.
                let needed = self.first_needed(plane, whole as u64 * self.page_tokens);
                let gone = read.is_none() && ((first + i) as u64) < needed;
                assert!(gone || read == Some(contents[usize::from(plane)]), "{read:?} of {contents:?}, plane {plane}");
            }
            self.loaded += 1;
        }
        self.reuse(s, engine);
    }
}
