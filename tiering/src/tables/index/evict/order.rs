//! Eviction order of one space: its queues, its ghosts, and its memory of entries that are gone.

use super::advice::Advice;
use super::age_marks::GAP;
use super::ages::Ages;
use super::cost::Costs;
use super::frequency::FrequencySketch;
use super::ghosts::Ghosts;
use super::queues::{Count, First, HELD, HIGH, LOW, Queues, Used};
use super::{Rule, SHARE, class_of, class_of_queue, queue_of, uses_of};
use crate::api::{Eviction, NONE, Retention};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Remembered entries for each possible entry, and their upper limit; two bytes each.
const REMEMBERED: (u32, u32) = (8, 1 << 18);

/// Order in which unreferenced entries are evicted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// By residency: first the leaves, then the entries with children.
    sets: [Queues; 6],
    /// All of them.
    count: Count,
    /// The same by residency.
    resident: [u32; 3],
    /// Number of uses so far: the clock of this module.
    now: u64,
    /// Parent of the entry that last went out of use.
    next: u32,
    policy: Eviction,
    retention: Retention,
    memory: FrequencySketch,
    ghosts: Ghosts,
    pub(in crate::tables::index) costs: Costs,
    ages: Ages,
}

/// What the shard copies of an entry have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residency {
    /// Slots only.
    Slot,
    /// A block and a slot.
    Both,
    /// Blocks only.
    Block,
}

/// Place of an unreferenced entry in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub residency: Residency,
    pub leaf: bool,
    pub queue: u8,
    /// A store in progress adds children to it.
    pub held: bool,
}

impl Standing {
    fn set(self) -> usize {
        set_of(self.residency, self.leaf)
    }

    fn queue(self) -> u8 {
        if self.held { HELD } else { self.queue }
    }
}

fn set_of(residency: Residency, leaf: bool) -> usize {
    residency as usize + if leaf { 0 } else { 3 }
}

/// A completed use of an entry. A prefix is used from its end to its beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub hash: u128,
    pub id: u32,
    /// Its parent.
    pub parent: u32,
    /// Tokens before it.
    pub position: u64,
    /// The queue assigned after its previous use.
    pub before: Option<u8>,
    /// It was the last of its prefix.
    pub end: bool,
    pub priority: Priority,
}

/// Retention priority of the sequence that used an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    Low,
    Neutral,
    High,
}

impl Order {
    /// Create the order for at most `entries_max` entries of `tokens` tokens each.
    pub fn new(entries_max: u32, tokens: u32, policy: Eviction, retention: Retention) -> Order {
        Order {
            sets: std::array::from_fn(|_| Queues::new(true)),
            count: Count::default(),
            resident: [0; 3],
            now: 0,
            next: NONE,
            policy,
            retention,
            memory: FrequencySketch::new(entries_max.saturating_mul(REMEMBERED.0).min(REMEMBERED.1)),
            ghosts: Ghosts::new(entries_max),
            costs: Costs::new(tokens, retention),
            ages: Ages::new(retention.ttl_us),
        }
    }

    /// Change the policy. An entry stays in its queue until its next use.
    pub fn configure(&mut self, now_us: u64, policy: Eviction, retention: Retention) {
        (self.policy, self.retention) = (policy, retention);
        self.costs.configure(retention);
        if self.ages.configure(retention.ttl_us, now_us, self.now) {
            self.now += GAP;
        }
    }

    /// Set the capacity in entries: of all tiers, and of host memory alone (0 if host memory is the only tier).
    pub fn set_size(&mut self, entries: u64, host: u64) {
        self.ghosts.set_size(entries, host);
    }

    /// Return the active policy.
    pub fn follow(&self) -> Eviction {
        match self.policy {
            Eviction::Auto => self.ghosts.best,
            policy => policy,
        }
    }

    /// Record a completed use of an entry. Return the queue for it.
    pub fn used(&mut self, ended: Use) -> u8 {
        let Use { hash, id, parent, position, before, end, priority } = ended;
        self.now += 1;
        if std::mem::replace(&mut self.next, parent) != id {
            self.ghosts.begin_prefix();
        }
        let remembered = self.memory.touch(hash);
        let at_least = before.filter(|&queue| queue < LOW).map_or(0, |queue| uses_of(class_of_queue(queue)));
        let class = class_of(remembered.max(at_least).saturating_add(1), end);
        let follow = self.follow();
        // The other policies do not use bands of depth.
        let deep = matches!(self.policy, Eviction::CostAware | Eviction::Auto);
        let queue = queue_of(class, if deep { self.costs.band(position) } else { 0 });
        self.ghosts.used(hash, queue, follow, self.now, before.is_some());
        let horizon = self.horizon();
        self.ghosts.look(self.now, horizon);
        match priority {
            Priority::Low => LOW,
            Priority::High => HIGH,
            // Plain LRU over all entries needs a single queue.
            Priority::Neutral if self.policy == Eviction::Lru => 0,
            Priority::Neutral => queue,
        }
    }

    /// Return the expected number of uses within a TTL, from the current rate of use.
    fn horizon(&self) -> f64 {
        self.ages.limit().map_or(f64::MAX, |begun| (self.now - begun).max(1) as f64)
    }

    /// Add an unreferenced entry.
    pub fn enter<T: Used>(&mut self, items: &mut [T], at: u32, stands: Standing) {
        self.sets[stands.set()].insert(items, at, stands.queue(), self.now());
        self.count.add(stands.queue);
        self.resident[stands.residency as usize] += 1;
    }

    pub fn leave<T: Used>(&mut self, items: &mut [T], at: u32, stands: Standing) {
        self.sets[stands.set()].remove(items, at, stands.queue());
        self.count.subtract(stands.queue);
        self.resident[stands.residency as usize] -= 1;
    }

    /// Return how many unreferenced entries have this residency.
    pub fn resident(&self, residency: Residency) -> u32 {
        self.resident[residency as usize]
    }

    /// Return the current time on the clock of uses.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Return the entry to evict first of those with one of these residencies, among the leaves, the entries with children, or both.
    pub fn first(&mut self, of: &[Residency], leaves: &[bool]) -> Option<u32> {
        let policy = self.follow();
        let high = self.retention.high_share_percent;
        let high = u32::from(high) * SHARE / 100;
        let (values, saved_us) = (&self.ghosts.values, self.costs.saved_us());
        let rule = Rule { policy, used_once: self.ghosts.used_once(), values, saved_us };
        let mut first: Option<First> = None;
        for set in leaves.iter().flat_map(|&leaf| of.iter().map(move |&residency| set_of(residency, leaf))) {
            let head = self.sets[set].first(rule, self.count, high, self.now());
            first = head.filter(|head| first.is_none_or(|first| head.before(first))).or(first);
        }
        first.map(|first| first.at)
    }

    /// Return the unreferenced entries with one of these residencies, leaves before others, each queue from its least recently used on.
    pub fn iter<'a, T: Used>(&'a self, items: &'a [T], of: &'a [Residency]) -> impl Iterator<Item = u32> + 'a {
        let sets = [true, false].into_iter().flat_map(move |leaf| of.iter().map(move |&r| &self.sets[set_of(r, leaf)]));
        sets.flat_map(|set| set.iter(items).map(|(_, at)| at))
    }

    /// Check that these are the unreferenced entries, and where they stand.
    pub fn check<T: Used>(&self, items: &[T], mut stand: BTreeMap<u32, Standing>) -> Result<(), String> {
        let (mut count, mut resident) = (Count::default(), [0; 3]);
        for (set, queues) in self.sets.iter().enumerate() {
            for (queue, at) in queues.iter(items) {
                let Some(stands) = stand.remove(&at).filter(|s| (s.set(), s.queue()) == (set, queue)) else {
                    return Err(format!("entry {at} must not be in queue {queue} of set {set}"));
                };
                count.add(stands.queue);
                resident[stands.residency as usize] += 1;
            }
        }
        if !stand.is_empty() || (count, resident) != (self.count, self.resident) {
            return Err(format!("not in their queues: {stand:?}; {count:?} and {resident:?} counted"));
        }
        Ok(())
    }

    /// Advance the wall clock; call it before the next use.
    pub fn advance(&mut self, now_us: u64) {
        if self.ages.is_due(now_us) {
            let now = self.now;
            // Separate entries used in a later period from those of this one.
            self.now += GAP * self.ages.note(now_us, |taken| now + GAP * taken);
        }
    }

    /// Return a leaf that has not been used for a whole TTL.
    pub fn expired(&mut self) -> Option<u32> {
        let limit = self.ages.limit();
        let found = limit.and_then(|limit| self.sets[..3].iter().find_map(|leaves| leaves.used_before(limit)));
        if found.is_none() {
            self.ages.looked();
        }
        found
    }

    /// Return when such an entry may exist, in microseconds; 0: now.
    pub fn expires_us(&self) -> Option<u64> {
        self.ages.due_us().filter(|_| self.count.all > 0)
    }

    /// Return the estimates of the ghosts.
    pub fn advice(&self) -> Advice {
        self.ghosts.advice(self.policy, self.follow())
    }

    pub fn bytes(&self) -> usize {
        self.memory.bytes() + self.ghosts.bytes() + self.sets.iter().map(Queues::bytes).sum::<usize>()
    }
}
