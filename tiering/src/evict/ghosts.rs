//! The ghosts of a space: one of each policy at the size of the cache, which `auto` follows, and some of other sizes that do what
//! the cache does.

use super::advice::{Advice, Curve, SIZES};
use super::ghost::Ghost;
use super::reuse::{Reuse, Values};
use super::{BANDS, Rule};
use crate::api::Eviction;
use serde::{Deserialize, Serialize};

/// Names that the ghost of a policy keeps at most, and that of a size.
const NAMES: (u32, u32) = (4096, 1024);
/// Names that are followed to learn from when they are used again, half of them remembered only.
const FOLLOWED: u32 = 8192;
/// The contents followed are those of a cache of this many times the size.
const FOLLOWED_SIZE: u64 = 4;
/// What the policies are, each with a ghost of its own.
pub(super) const POLICIES: [Eviction; 4] = [Eviction::Lru, Eviction::S3Fifo, Eviction::Arc, Eviction::CostAware];
/// Uses between looks at what the ghosts say: half of what the cache holds, within bounds.
const EPOCH: (u64, u64) = (1 << 10, 1 << 16);
/// What hits of one epoch count of those of the next.
const KEEP: f64 = 0.95;
/// `auto` follows another policy only if that hits more by a part of so many.
const BETTER: f64 = 1.0 / 128.0;
/// Uses that a ghost must have seen before it is believed.
const SEEN: f64 = 256.0;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Ghosts {
    policies: [Ghost; 4],
    sizes: [Ghost; SIZES],
    followed: Ghost,
    reuse: Reuse,
    pub values: Values,
    /// The policy that hits most, by the ghosts.
    pub best: Eviction,
    /// Recent uses, of all contents, and those of them that found their content.
    uses: f64,
    found: f64,
    /// All uses so far.
    uses_total: u64,
    /// Contents that the cache holds, and contents of host memory if that is not all of it.
    contents: (u64, u64),
    epoch_ends: u64,
}

impl Ghosts {
    /// For a space of so many contents at most.
    pub fn new(contents_max: u32) -> Ghosts {
        let ghost = |names: u32| Ghost::new(names.min(contents_max.saturating_mul(4)));
        Ghosts {
            policies: [(); 4].map(|()| ghost(NAMES.0)),
            sizes: [(); SIZES].map(|()| ghost(NAMES.1)),
            followed: Ghost::new(FOLLOWED.min(contents_max.saturating_mul(2))),
            reuse: Reuse::new(),
            values: Values::new(),
            best: Eviction::CostAware,
            uses: 0.0,
            found: 0.0,
            uses_total: 0,
            contents: (0, 0),
            epoch_ends: EPOCH.0,
        }
    }

    /// The cache holds so many contents, so many of them in host memory.
    pub fn set_size(&mut self, contents: u64, host: u64) {
        if self.contents == (contents, host) {
            return;
        }
        self.contents = (contents, host);
        self.policies.iter_mut().for_each(|g| g.set_size(contents));
        for (ghost, size) in self.sizes.iter_mut().zip(sizes(contents, host)) {
            ghost.set_size(size);
        }
        self.followed.set_size(contents.saturating_mul(FOLLOWED_SIZE));
    }

    /// What is used from now on belongs to another prefix.
    pub fn begin_prefix(&mut self) {
        self.policies.iter_mut().chain(&mut self.sizes).for_each(Ghost::begin_prefix);
    }

    /// A content was used, which puts it into a queue: that of the cache itself, which remembers more than ghosts do. `found`: the
    /// cache had it.
    pub fn used(&mut self, hash: u128, queue: u8, follow: Eviction, now: u64, found: bool) {
        let mixed = mix(hash);
        self.uses += 1.0;
        self.found += f64::from(u8::from(found));
        self.uses_total += 1;
        let rule = |policy, values| Rule { policy, once: 0, values, saved_us: &[1.0; BANDS] };
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

    /// Learns, and chooses, once an epoch. True if it did.
    pub fn look(&mut self, now: u64, horizon: f64) -> bool {
        if now < self.epoch_ends {
            return false;
        }
        self.epoch_ends = now + (self.contents.0 / 2).clamp(EPOCH.0, EPOCH.1);
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

    /// The share that ARC lets contents take that were used once.
    pub fn once(&self) -> u32 {
        self.policies[2].once()
    }

    /// What they say.
    pub fn advice(&self, configured: Eviction, follow: Eviction) -> Advice {
        let share = |g: &Ghost| (g.uses >= SEEN).then(|| g.share(self.uses));
        let (contents, host) = self.contents;
        let found = (self.uses >= SEEN).then(|| self.found / self.uses);
        let uses = self.uses_total;
        let mut advice = Advice { configured, follow, contents, host, found, uses, ..Advice::default() };
        for ((at, ghost), policy) in advice.policies.iter_mut().zip(&self.policies).zip(POLICIES) {
            *at = (policy, share(ghost));
        }
        for ((at, ghost), contents) in advice.curve.iter_mut().zip(&self.sizes).zip(sizes(contents, host)) {
            *at = Curve { contents, hits: share(ghost) };
        }
        advice
    }

    pub fn bytes(&self) -> usize {
        let ghosts = self.policies.iter().chain(&self.sizes).chain([&self.followed]);
        ghosts.map(Ghost::bytes).sum::<usize>() + self.reuse.bytes()
    }
}

/// The sizes that there are ghosts of beside that of the cache: other sizes of all of it, and of host memory.
fn sizes(contents: u64, host: u64) -> [u64; SIZES] {
    [contents / 4, contents / 2, contents.saturating_mul(2), contents.saturating_mul(4), host, host.saturating_mul(2)]
}

/// Hashes come from engines, which may make them of anything: all bits count.
fn mix(hash: u128) -> u64 {
    let folded =
        (hash as u64).wrapping_mul(0x9e37_79b1_85eb_ca87) ^ ((hash >> 64) as u64).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    let mixed = (folded ^ folded >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ mixed >> 32
}
