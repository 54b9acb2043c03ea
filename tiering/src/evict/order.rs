//! The order of one space: its queues, its ghosts, and what it remembers of contents that are gone.

use super::advice::Advice;
use super::ages::Ages;
use super::cost::Costs;
use super::ghosts::Ghosts;
use super::marks::GAP;
use super::queues::{First, HIGH, LOW, Queues};
use super::touches::Touches;
use super::{Rule, SHARE, class_of, class_of_queue, queue_of, uses_of};
use crate::api::{Eviction, NONE, Retention};
use crate::lists::Linked;
use serde::{Deserialize, Serialize};

/// Contents that are remembered for each that there may be, and most of all: two bytes each.
const REMEMBERED: (u32, u32) = (8, 1 << 18);

/// In which order contents are given up that nobody refers to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Those of which a part has a block.
    pub idle: Queues,
    /// Those only on NVMe.
    pub cold: Queues,
    /// Uses so far: the clock of everything here.
    now: u64,
    /// What the content stands on whose use ended last.
    next: u32,
    policy: Eviction,
    retention: Retention,
    memory: Touches,
    ghosts: Ghosts,
    pub costs: Costs,
    ages: Ages,
}

/// A use of a content that is over. A prefix is used from its end to its beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub hash: u128,
    pub id: u32,
    /// What it stands on.
    pub parent: u32,
    /// Tokens before it.
    pub position: u64,
    /// The queue that it was told to stand in after the use before this one.
    pub before: Option<u8>,
    /// It was the last of its prefix.
    pub end: bool,
    pub care: Care,
}

/// How much a sequence cares for its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Care {
    Low,
    Neutral,
    High,
}

impl Order {
    /// For so many contents at most, of so many tokens each.
    pub fn new(contents_max: u32, tokens: u32, policy: Eviction, retention: Retention) -> Order {
        Order {
            idle: Queues::new(true),
            cold: Queues::new(true),
            now: 0,
            next: NONE,
            policy,
            retention,
            memory: Touches::new(contents_max.saturating_mul(REMEMBERED.0).min(REMEMBERED.1)),
            ghosts: Ghosts::new(contents_max),
            costs: Costs::new(tokens, retention),
            ages: Ages::new(retention.ttl_us),
        }
    }

    /// The policy is another from now on. What stands in a queue stays there until it is used.
    pub fn configure(&mut self, now_us: u64, policy: Eviction, retention: Retention) {
        (self.policy, self.retention) = (policy, retention);
        self.costs.configure(retention);
        if self.ages.configure(retention.ttl_us, now_us, self.now) {
            self.now += GAP;
        }
    }

    /// All tiers hold so many contents, host memory so many of them (0: it is all there is).
    pub fn set_size(&mut self, contents: u64, host: u64) {
        self.ghosts.set_size(contents, host);
    }

    /// The policy that is followed.
    pub fn follow(&self) -> Eviction {
        match self.policy {
            Eviction::Auto => self.ghosts.best,
            policy => policy,
        }
    }

    /// A use of a content is over. Returns the queue to stand in.
    pub fn used(&mut self, ended: Use) -> u8 {
        let Use { hash, id, parent, position, before, end, care } = ended;
        self.now += 1;
        if std::mem::replace(&mut self.next, parent) != id {
            self.ghosts.begin_prefix();
        }
        let remembered = self.memory.touch(hash);
        let at_least = before.filter(|&queue| queue < LOW).map_or(0, |queue| uses_of(class_of_queue(queue)));
        let class = class_of(remembered.max(at_least).saturating_add(1), end);
        let follow = self.follow();
        // The other rules do not tell depths apart.
        let deep = matches!(self.policy, Eviction::CostAware | Eviction::Auto);
        let queue = queue_of(class, if deep { self.costs.band(position) } else { 0 });
        self.ghosts.used(hash, queue, follow, self.now, before.is_some());
        let horizon = self.horizon();
        self.ghosts.look(self.now, horizon);
        match care {
            Care::Low => LOW,
            Care::High => HIGH,
            // Least recently used, to the last one: all in one queue.
            Care::Neutral if self.policy == Eviction::Lru => 0,
            Care::Neutral => queue,
        }
    }

    /// Uses that come within a TTL, by the rate of the last one.
    fn horizon(&self) -> f64 {
        self.ages.limit().map_or(f64::MAX, |begun| (self.now - begun).max(1) as f64)
    }

    /// Puts a content that came to be idle, or cold, into its queue.
    pub fn enter<T: Linked>(&mut self, items: &mut [T], at: u32, queue: u8, cold: bool, since: u64) {
        let set = if cold { &mut self.cold } else { &mut self.idle };
        set.push(items, at, queue, since.min(self.now), self.now);
    }

    pub fn leave<T: Linked>(&mut self, items: &mut [T], at: u32, queue: u8, cold: bool) {
        let set = if cold { &mut self.cold } else { &mut self.idle };
        set.remove(items, at, queue);
    }

    /// Now, on the clock of uses.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// What goes first of the idle ones, and of the cold ones.
    pub fn first(&mut self) -> [Option<First>; 2] {
        let policy = self.follow();
        let high = self.retention.high_share_percent;
        let high = u32::from(high) * SHARE / 100;
        let (values, saved_us) = (&self.ghosts.values, self.costs.saved_us());
        let rule = Rule { policy, once: self.ghosts.once(), values, saved_us };
        let idle = self.idle.first(rule, Some(&self.cold), high, self.now);
        [idle, self.cold.first(rule, Some(&self.idle), high, self.now)]
    }

    /// Time has passed; to be told before the next use.
    pub fn advance(&mut self, now_us: u64) {
        if self.ages.is_due(now_us) {
            let now = self.now;
            // What comes in a later period is told apart from what came in this one.
            self.now += GAP * self.ages.note(now_us, |taken| now + GAP * taken);
        }
    }

    /// A content that has not been used for the whole of the TTL.
    pub fn expired(&mut self) -> Option<u32> {
        let limit = self.ages.limit();
        let found = limit.and_then(|limit| self.cold.used_before(limit).or_else(|| self.idle.used_before(limit)));
        if found.is_none() {
            self.ages.looked();
        }
        found
    }

    /// When there may be one; 0: now.
    pub fn expires_us(&self) -> Option<u64> {
        self.ages.due_us().filter(|_| self.idle.len() + self.cold.len() > 0)
    }

    /// What the ghosts say.
    pub fn advice(&self) -> Advice {
        self.ghosts.advice(self.policy, self.follow())
    }

    pub fn bytes(&self) -> usize {
        self.memory.bytes() + self.ghosts.bytes() + self.idle.bytes() + self.cold.bytes()
    }
}
