//! A ghost cache: keys only, without data. It estimates the hit rate of a policy at a given size. A large ghost sees a sample of
//! the entries and is smaller in proportion (SHARDS, Waldspurger et al., FAST 2015). The estimate is within a few thousandths of
//! the whole.

use super::queues::Queues;
use super::reuse::Reuse;
use super::{Rule, SHARE, class_of_queue, is_used_once};
use crate::api::Eviction;
use crate::lists::{Links, List, linked};
use serde::{Deserialize, Serialize};

/// One key.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Entry {
    links: Links,
    key: u64,
    /// Time of its last use.
    used: u64,
    queue: u8,
    /// In the simulated cache, not only remembered.
    kept: bool,
}

linked!(Entry.links);

/// A simulated cache of keys, and a memory of as many evicted keys.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Ghost {
    entries: Vec<Entry>,
    /// Id plus one by key, open addressing, at most half full; 0: empty.
    table: Vec<u32>,
    free: List,
    kept: Queues,
    gone: Queues,
    max: u32,
    /// Keys that it keeps, after sampling.
    cap: u32,
    /// Sampling: one entry in 2^`shift` is seen.
    shift: u32,
    /// ARC: target number of keys used once.
    used_once: f64,
    pub hits: f64,
    pub uses: f64,
    /// Hits of the current prefix so far, counted from its deepest entry. A missing ancestor resets them to zero.
    prefix_hits: f64,
}

impl Ghost {
    /// Create a ghost of at most `max` keys. It ignores depth: it does not know parents, so it could evict the beginning of a
    /// prefix before the rest.
    pub fn new(max: u32) -> Ghost {
        Ghost {
            entries: Vec::with_capacity(2 * max as usize + 1),
            table: vec![0; (4 * max as usize + 4).next_power_of_two()],
            free: List::default(),
            kept: Queues::new(false),
            gone: Queues::new(false),
            max,
            cap: 0,
            shift: 0,
            used_once: 0.0,
            hits: 0.0,
            uses: 0.0,
            prefix_hits: 0.0,
        }
    }

    /// Set the size, in entries, of the cache that it simulates.
    pub fn set_size(&mut self, entries: u64) {
        let before =
            std::mem::replace(&mut self.shift, u64::BITS - (entries / (u64::from(self.max) + 1)).leading_zeros());
        // Scale the counts of the previous sample to the rate of the new one. Both are powers of two, so the quotient is exact on
        // every machine.
        let by = (1u64 << before) as f64 / (1u64 << self.shift) as f64;
        (self.hits, self.uses, self.prefix_hits) = (self.hits * by, self.uses * by, self.prefix_hits * by);
        self.cap = ((entries >> self.shift) as u32).min(self.max);
        self.used_once = self.used_once.min(f64::from(self.cap));
    }

    /// Return whether an entry is in the sample. `mixed`: its hash with all bits mixed.
    pub fn sees(&self, mixed: u64) -> bool {
        self.cap > 0 && mixed.trailing_zeros() >= self.shift
    }

    /// Return the share for keys used once that ARC would choose, in units of 1/[`SHARE`].
    pub fn used_once(&self) -> u32 {
        (self.used_once * f64::from(SHARE) / f64::from(self.cap.max(1))) as u32
    }

    /// Start a new prefix: count the hits of the previous one.
    pub fn begin_prefix(&mut self) {
        self.hits += std::mem::take(&mut self.prefix_hits);
    }

    /// Record a use of an entry, which moves it to `queue`. Return whether it was in the cache. Report the time since its
    /// previous use to `reuse`.
    pub fn used(&mut self, mixed: u64, queue: u8, rule: Rule<'_>, now: u64, reuse: Option<&mut Reuse>) -> bool {
        let found = self.find(mixed);
        let (id, hit) = match found {
            Some(id) => {
                let entry = self.entries[id as usize];
                if let Some(reuse) = reuse {
                    reuse.saw(entry.queue, now - entry.used, true);
                }
                if !entry.kept {
                    self.adapt(is_used_once(usize::from(class_of_queue(entry.queue))));
                }
                self.leave(id);
                (id, entry.kept)
            }
            None => {
                self.make_room(reuse, now);
                (self.insert(mixed), false)
            }
        };
        let entry = &mut self.entries[id as usize];
        (entry.used, entry.queue) = (now, queue);
        self.enter(id, true, now, now);
        self.shrink(rule, now);
        self.prefix_hits = if hit { self.prefix_hits + 1.0 } else { 0.0 };
        self.uses += 1.0;
        hit
    }

    /// Adapt ARC's target: a returning key that was used once raises it, any other returning key lowers it.
    fn adapt(&mut self, used_once: bool) {
        let (ones, all) = (f64::from(self.gone.count().used_once), f64::from(self.gone.count().all));
        let more = all - ones;
        let step = if used_once { (more / ones.max(1.0)).max(1.0) } else { -(ones / more.max(1.0)).max(1.0) };
        self.used_once = (self.used_once + step).clamp(0.0, f64::from(self.cap));
    }

    fn shrink(&mut self, rule: Rule<'_>, now: u64) {
        let rule = match rule.policy {
            Eviction::Arc => Rule { used_once: self.used_once(), ..rule },
            _ => rule,
        };
        while self.kept.count().all > self.cap {
            let Some(first) = self.kept.first(rule, self.kept.count(), 0, now) else { return };
            let used = self.entries[first.at as usize].used;
            self.leave(first.at);
            self.enter(first.at, false, used, now);
        }
    }

    /// Forget remembered keys until there is room for one more. Kept and remembered keys together are at most twice the cache
    /// size.
    fn make_room(&mut self, mut reuse: Option<&mut Reuse>, now: u64) {
        while self.kept.count().all + self.gone.count().all >= 2 * self.cap.max(1) && self.gone.count().all > 0 {
            // ARC's rule: keys used once, kept or remembered, are at most as many as the cache holds.
            let used_once = self.kept.count().used_once + self.gone.count().used_once >= self.cap;
            let oldest = self.gone.oldest_used_once(used_once).or(self.gone.least_recent());
            let Some(id) = oldest else { return };
            let entry = self.entries[id as usize];
            if let Some(reuse) = reuse.as_deref_mut() {
                reuse.saw(entry.queue, now - entry.used, false);
            }
            self.leave(id);
            self.forget(id);
        }
    }

    /// Return the followed keys: queue, and uses since their last use.
    pub fn followed(&self, now: u64) -> impl Iterator<Item = (u8, u64)> + '_ {
        let all = self.kept.iter(&self.entries).chain(self.gone.iter(&self.entries));
        all.map(move |(_, id)| (self.entries[id as usize].queue, now - self.entries[id as usize].used))
    }

    /// Decay the counts to the share `keep`.
    pub fn age(&mut self, keep: f64) {
        self.hits *= keep;
        self.uses *= keep;
    }

    /// Return the estimated hit rate over `all` uses. The sample may hold too many or too few of the most used entries; those hit
    /// at any size, so the difference is corrected as hits (SHARDS-adj).
    pub fn share(&self, all: f64) -> f64 {
        let expected = all / (1u64 << self.shift) as f64;
        ((self.hits + expected - self.uses) / expected.max(1.0)).clamp(0.0, 1.0)
    }

    fn leave(&mut self, id: u32) {
        let Entry { queue, kept, .. } = self.entries[id as usize];
        let set = if kept { &mut self.kept } else { &mut self.gone };
        set.remove(&mut self.entries, id, queue);
    }

    fn enter(&mut self, id: u32, kept: bool, since: u64, now: u64) {
        self.entries[id as usize].kept = kept;
        let queue = self.entries[id as usize].queue;
        let set = if kept { &mut self.kept } else { &mut self.gone };
        set.push(&mut self.entries, id, queue, since, now);
    }

    fn home(&self, key: u64) -> usize {
        // The low bits select the sample, so use the high ones.
        (key >> 32) as usize & (self.table.len() - 1)
    }

    fn find(&self, key: u64) -> Option<u32> {
        let mut at = self.home(key);
        loop {
            match self.table[at] {
                0 => return None,
                id if self.entries[id as usize - 1].key == key => return Some(id - 1),
                _ => at = (at + 1) & (self.table.len() - 1),
            }
        }
    }

    fn insert(&mut self, key: u64) -> u32 {
        let id = self.free.pop_front(&mut self.entries).unwrap_or_else(|| {
            self.entries.push(Entry::default());
            self.entries.len() as u32 - 1
        });
        self.entries[id as usize] = Entry { key, ..Entry::default() };
        let mut at = self.home(key);
        while self.table[at] != 0 {
            at = (at + 1) & (self.table.len() - 1);
        }
        self.table[at] = id + 1;
        id
    }

    /// Remove a key by backward-shift deletion.
    fn forget(&mut self, id: u32) {
        let mask = self.table.len() - 1;
        let mut hole = self.home(self.entries[id as usize].key);
        while self.table[hole] != id + 1 {
            hole = (hole + 1) & mask;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            if self.table[at] == 0 {
                break;
            }
            let home = self.home(self.entries[self.table[at] as usize - 1].key);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.table[hole] = self.table[at];
                hole = at;
            }
        }
        self.table[hole] = 0;
        self.free.push_back(&mut self.entries, id);
    }

    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.table.capacity() * size_of::<u32>()
            + self.kept.bytes()
            + self.gone.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::super::reuse::Values;
    use super::super::{BANDS, class_of, queue_of};
    use super::*;

    /// Generate keys as a service does: some that are always in use, many that return for a while, many that never return.
    fn uses(n: u64) -> impl Iterator<Item = u64> {
        let mut seed = 1u64;
        (0..n).map(move |i| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let r = seed >> 33;
            match r % 8 {
                0 => r % 64,
                1..=4 => 1_000 + i / 200 * 50 + r % 400,
                _ => 1 << 40 | i,
            }
        })
    }

    fn mixed(n: u64) -> u64 {
        (n + 1).wrapping_mul(0x9e37_79b1_85eb_ca87).rotate_left(29).wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(32)
    }

    fn play(names: u32, entries: u64, policy: Eviction) -> f64 {
        let values = Values::new();
        let (mut ghost, mut all) = (Ghost::new(names), 0.0);
        let mut counts = std::collections::BTreeMap::<u64, u8>::new();
        ghost.set_size(entries);
        for (now, n) in uses(60_000).enumerate() {
            all += 1.0;
            let count = counts.entry(n).or_default();
            *count = count.saturating_add(1);
            if ghost.sees(mixed(n)) {
                let rule = Rule { policy, used_once: 0, values: &values, saved_us: &[1.0; BANDS] };
                ghost.used(mixed(n), queue_of(class_of(*count, false), 0), rule, now as u64, None);
                ghost.begin_prefix();
                let (kept, gone) = (ghost.kept.count().all, ghost.gone.count().all);
                assert!(kept <= ghost.cap && kept + gone <= 2 * ghost.cap);
            }
        }
        ghost.share(all)
    }

    /// Within 0.01 of an exact LRU list.
    #[test]
    fn hits_what_an_lru_of_the_size_hits() {
        let (mut list, mut hits) = (std::collections::VecDeque::new(), 0);
        for n in uses(60_000) {
            if let Some(i) = list.iter().position(|&m| m == n) {
                hits += 1;
                list.remove(i);
            } else if list.len() == 600 {
                list.pop_front();
            }
            list.push_back(n);
        }
        let (exact, ghost) = (f64::from(hits) / 60_000.0, play(1024, 600, Eviction::Lru));
        assert!((exact - ghost).abs() < 0.01, "estimated {ghost}, exact {exact}");
    }

    /// A hit behind a missing ancestor does not count.
    #[test]
    fn hits_are_of_whole_prefixes() {
        let values = Values::new();
        let mut ghost = Ghost::new(8);
        ghost.set_size(2);
        let mut now = 0;
        let mut prefix = |names: &[u64]| {
            ghost.begin_prefix();
            for &n in names {
                now += 1;
                ghost.used(
                    mixed(n),
                    0,
                    Rule { policy: Eviction::Lru, used_once: 0, values: &values, saved_us: &[1.0; BANDS] },
                    now,
                    None,
                );
            }
            ghost.begin_prefix();
            ghost.hits
        };
        // Used from the end to the beginning: 2 is a child of 1.
        assert_eq!(prefix(&[2, 1]), 0.0);
        assert_eq!(prefix(&[2, 1]), 2.0);
        // Then 1 is the least recently used, and is evicted.
        assert_eq!(prefix(&[2]), 3.0);
        assert_eq!(prefix(&[3]), 3.0);
        assert_eq!(prefix(&[2, 1]), 3.0, "2 is cached, its parent 1 is not");
    }

    #[test]
    fn a_sample_says_what_the_whole_says() {
        for policy in [Eviction::Lru, Eviction::S3Fifo, Eviction::Arc, Eviction::CostAware] {
            let (whole, sample) = (play(4096, 4000, policy), play(512, 4000, policy));
            assert!((whole - sample).abs() < 0.04, "{policy:?}: sample {sample}, whole {whole}");
        }
    }
}
