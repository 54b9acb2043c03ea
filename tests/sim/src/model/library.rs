//! Knowledge that a space's engines share: common prompts, and publications.

use super::Text;
use crate::base::{Rng, mix};
use std::collections::HashMap;

/// Prompts of an episode; few, so that engines share them.
const PROMPTS: u64 = 4;
/// Recently published texts that may be attached.
const RECENT: usize = 12;

/// Maximum shards of a space.
const SHARDS_MAX: usize = 2;

/// State of the publication of a hash, by shard.
#[derive(Clone, Copy, Debug, Default)]
struct Publication {
    /// Requests that sent it, and may have made it findable.
    sent: [u32; SHARDS_MAX],
    /// Shards that know that it is published: it must be found if nothing was dropped.
    done: u32,
}

/// Prompts and publications of one space.
#[derive(Debug)]
pub struct Library {
    seed: u64,
    shards: u16,
    published: HashMap<u128, Publication>,
    /// Texts with the salts of their publishers.
    recent: Vec<(u64, Text)>,
}

impl Library {
    /// Create an empty library.
    #[must_use]
    pub fn new(seed: u64, shards: u16) -> Library {
        Library { seed, shards, published: HashMap::new(), recent: Vec::new() }
    }

    /// Return token `index` of prompt `prompt`.
    #[must_use]
    pub fn token(&self, prompt: u64, index: u64) -> u64 {
        mix(mix(self.seed, prompt), index)
    }

    /// Return a prompt to start with. Other salts have other prompts.
    pub fn prompt(&self, rng: &mut Rng, salt: u64) -> u64 {
        salt * PROMPTS + rng.below(PROMPTS)
    }

    /// Return a text of at most `blocks` whole blocks that an engine with this salt may have published, and its prompt if it is
    /// one.
    pub fn likely(&self, rng: &mut Rng, salt: u64, blocks: u32, page_tokens: u32) -> (Text, Option<u64>) {
        let tokens = u64::from(blocks) * u64::from(page_tokens);
        let ours: Vec<&Text> = self.recent.iter().filter(|(of, _)| *of == salt).map(|(_, text)| text).collect();
        if !ours.is_empty() && rng.chance(500) {
            let mut text = ours[rng.index(ours.len())].clone();
            text.truncate(tokens.min(text.len() / u64::from(page_tokens) * u64::from(page_tokens)), page_tokens);
            return (text, None);
        }
        let prompt = self.prompt(rng, salt);
        let mut text = Text::default();
        (0..tokens).for_each(|i| text.push(self.token(prompt, i), page_tokens));
        (text, Some(prompt))
    }

    /// Record that a shard sends a publication of `hash`.
    pub fn sent(&mut self, hash: u128, shard: u16) {
        self.published.entry(hash).or_default().sent[usize::from(shard)] += 1;
    }

    /// Record that a shard's publication failed for good.
    pub fn failed(&mut self, hash: u128, shard: u16) {
        if let Some(publication) = self.published.get_mut(&hash) {
            let sent = &mut publication.sent[usize::from(shard)];
            *sent = sent.saturating_sub(1);
        }
    }

    /// Record that a shard knows that `hash` is published.
    pub fn done(&mut self, hash: u128, shard: u16) {
        self.published.entry(hash).or_default().done |= 1 << shard;
    }

    /// Return whether a shard knows that its part of `hash` is published.
    #[must_use]
    pub fn is_done(&self, hash: u128, shard: u16) -> bool {
        self.published.get(&hash).is_some_and(|p| p.done & 1 << shard != 0)
    }

    /// Record a published text.
    pub fn remember(&mut self, rng: &mut Rng, salt: u64, text: Text) {
        if self.recent.len() < RECENT {
            self.recent.push((salt, text));
        } else {
            let at = rng.index(RECENT);
            self.recent[at] = (salt, text);
        }
    }

    /// Return whether a lookup may find `hash`: every shard has at least sent it.
    #[must_use]
    pub fn may_find(&self, hash: u128) -> bool {
        let shards = usize::from(self.shards);
        self.published.get(&hash).is_some_and(|p| p.sent[..shards].iter().all(|&sent| sent > 0))
    }

    /// Return whether a lookup must find `hash` if nothing was ever dropped: every shard knows that it is published.
    #[must_use]
    pub fn must_find(&self, hash: u128) -> bool {
        self.published.get(&hash).is_some_and(|p| p.done == self.all())
    }

    /// Return the blocks that a lookup must find if nothing was ever dropped, in any order.
    pub fn all_done(&self) -> impl Iterator<Item = u128> {
        self.published.iter().filter(|(_, p)| p.done == self.all()).map(|(hash, _)| *hash)
    }

    /// Forget all publications, because the daemon died.
    pub fn forget(&mut self) {
        self.published.clear();
    }

    fn all(&self) -> u32 {
        (1 << self.shards) - 1
    }
}
