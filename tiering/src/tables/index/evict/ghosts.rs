//! The ghosts of a space: one for each policy at the size of the cache, from which `auto` chooses, and some at other sizes with
//! the active policy.

use super::advice::{Advice, Curve, SIZES};
use super::ghost::Ghost;
use super::reuse::{Reuse, Values};
use super::{BANDS, Rule, mix};
use crate::api::Eviction;
use serde::{Deserialize, Serialize};

/// Maximum keys of the ghost of a policy, and of a size.
const NAMES: (u32, u32) = (4096, 1024);
/// Keys followed to learn reuse times; half of them are only remembered.
const FOLLOWED: u32 = 8192;
/// The followed keys are those of a cache of this many times the size.
const FOLLOWED_SIZE: u64 = 4;
/// The policies that `auto` chooses from: all others. Each has a ghost of its own.
pub(super) const POLICIES: [Eviction; Eviction::ALL.len() - 1] = {
    let mut policies = [Eviction::Lru; Eviction::ALL.len() - 1];
    let (mut from, mut to) = (0, 0);
    while from < Eviction::ALL.len() {
        if !matches!(Eviction::ALL[from], Eviction::Auto) {
            policies[to] = Eviction::ALL[from];
            to += 1;
        }
        from += 1;
    }
    policies
};
/// Limits of the epoch length, in uses: half the capacity of the cache, within these bounds.
const EPOCH: (u64, u64) = (1 << 10, 1 << 16);
/// Weight of one epoch's hits relative to the next.
const KEEP: f64 = 0.95;
/// Relative gain in hits above which `auto` changes the policy.
const BETTER: f64 = 1.0 / 128.0;
/// Minimum uses that a ghost must have seen before its estimate is used.
const SEEN: f64 = 256.0;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Ghosts {
    policies: [Ghost; POLICIES.len()],
    sizes: [Ghost; SIZES],
    followed: Ghost,
    reuse: Reuse,
    pub values: Values,
    /// The policy with the most hits, by the ghosts.
    pub best: Eviction,
    /// Recent uses of all entries, and hits among them.
    uses: f64,
    found: f64,
    /// All uses so far.
    uses_total: u64,
    /// Capacity of the cache in entries, and of host memory (0 if host memory is the only tier).
    entries: (u64, u64),
    epoch_ends: u64,
}

impl Ghosts {
    /// Create the ghosts of a space of at most `entries_max` entries.
    pub fn new(entries_max: u32) -> Ghosts {
        let ghost = |names: u32| Ghost::new(names.min(entries_max.saturating_mul(4)));
        Ghosts {
            policies: POLICIES.map(|_| ghost(NAMES.0)),
            sizes: [(); SIZES].map(|()| ghost(NAMES.1)),
            followed: Ghost::new(FOLLOWED.min(entries_max.saturating_mul(2))),
            reuse: Reuse::new(),
            values: Values::new(),
            best: Eviction::CostAware,
            uses: 0.0,
            found: 0.0,
            uses_total: 0,
            entries: (0, 0),
            epoch_ends: EPOCH.0,
        }
    }

    /// Set the capacity in entries: of the cache, and of host memory.
    pub fn set_size(&mut self, entries: u64, host: u64) {
        if self.entries == (entries, host) {
            return;
        }
        self.entries = (entries, host);
        self.policies.iter_mut().for_each(|g| g.set_size(entries));
        for (ghost, size) in self.sizes.iter_mut().zip(sizes(entries, host)) {
            ghost.set_size(size);
        }
        self.followed.set_size(entries.saturating_mul(FOLLOWED_SIZE));
    }

    /// Start a new prefix.
    pub fn begin_prefix(&mut self) {
        self.policies.iter_mut().chain(&mut self.sizes).for_each(Ghost::begin_prefix);
    }

    /// Record a use of an entry, which moves it to `queue`. The queue is that of the cache itself, which remembers more than the
    /// ghosts do. `found`: the use hit the cache.
    pub fn used(&mut self, hash: u128, queue: u8, follow: Eviction, now: u64, found: bool) {
        let mixed = mix(hash);
        let mixed = mixed ^ mixed >> 32;
        self.uses += 1.0;
        self.found += f64::from(u8::from(found));
        self.uses_total += 1;
        let rule = |policy, values| Rule { policy, used_once: 0, values, saved_us: &[1.0; BANDS] };
        for (ghost, policy) in self.policies.iter_mut().zip(POLICIES) {
            if ghost.sees(mixed) {
                ghost.used(mixed, queue, rule(policy, &self.values), now, None);
            }
        }
        for ghost in &mut self.sizes {
            if ghost.sees(mixed) {
                ghost.used(mixed, queue, rule(follow, &self.values), now, None);
            }
        }
        if self.followed.sees(mixed) {
            self.followed.used(mixed, queue, rule(Eviction::Lru, &self.values), now, Some(&mut self.reuse));
        }
    }

    /// At the end of an epoch, learn reuse values and choose the best policy. Return whether the epoch ended.
    pub fn look(&mut self, now: u64, horizon: f64) -> bool {
        if now < self.epoch_ends {
            return false;
        }
        self.epoch_ends = now + (self.entries.0 / 2).clamp(EPOCH.0, EPOCH.1);
        self.reuse.learn(self.followed.followed(now), horizon, &mut self.values);
        let of = |policy: Eviction| POLICIES.iter().position(|&p| p == policy).map_or(0.0, |i| self.policies[i].hits);
        let most = POLICIES.into_iter().fold(self.best, |best, p| if of(p) > of(best) { p } else { best });
        if self.policies[0].uses >= SEEN && of(most) > of(self.best) * (1.0 + BETTER) {
            self.best = most;
        }
        self.policies.iter_mut().chain(&mut self.sizes).for_each(|g| g.age(KEEP));
        self.uses *= KEEP;
        self.found *= KEEP;
        true
    }

    /// Return the share for entries used once that ARC would choose.
    pub fn used_once(&self) -> u32 {
        self.policies[2].used_once()
    }

    /// Return the estimates.
    pub fn advice(&self, configured: Eviction, follow: Eviction) -> Advice {
        let share = |g: &Ghost| (g.uses >= SEEN).then(|| g.share(self.uses));
        let (entries, host) = self.entries;
        let found = (self.uses >= SEEN).then(|| self.found / self.uses);
        let uses = self.uses_total;
        let mut advice = Advice { configured, follow, entries, host, found, uses, ..Advice::default() };
        for ((at, ghost), policy) in advice.policies.iter_mut().zip(&self.policies).zip(POLICIES) {
            *at = (policy, share(ghost));
        }
        for ((at, ghost), entries) in advice.curve.iter_mut().zip(&self.sizes).zip(sizes(entries, host)) {
            *at = Curve { entries, hits: share(ghost) };
        }
        advice
    }

    pub fn bytes(&self) -> usize {
        let ghosts = self.policies.iter().chain(&self.sizes).chain([&self.followed]);
        ghosts.map(Ghost::bytes).sum::<usize>() + self.reuse.bytes()
    }
}

/// Return the sizes of the `sizes` ghosts: fractions and multiples of the whole cache, then of host memory.
fn sizes(entries: u64, host: u64) -> [u64; SIZES] {
    [entries / 4, entries / 2, entries.saturating_mul(2), entries.saturating_mul(4), host, host.saturating_mul(2)]
}
