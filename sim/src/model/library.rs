//! What a space's engines know in common: prompts that several of them use, and what was published.

use super::Text;
use crate::base::{Rng, mix};
use std::collections::HashMap;

/// Prompts of an episode; few, so that engines meet on them.
const PROMPTS: u64 = 4;
/// Texts that were published lately and may be mapped.
const RECENT: usize = 12;

/// How far the publication of a hash has come, by shard.
#[derive(Clone, Copy, Debug, Default)]
struct Publication {
    /// Shards that sent it: it may be found from now on.
    sent: u32,
    /// Shards that were told that it is published: it must be found, if nothing was dropped.
    done: u32,
}

/// Prompts and publications of one space.
#[derive(Debug)]
pub struct Library {
    seed: u64,
    shards: u16,
    published: HashMap<u128, Publication>,
    recent: Vec<Text>,
}

impl Library {
    /// An empty library.
    #[must_use]
    pub fn new(seed: u64, shards: u16) -> Library {
        Library { seed, shards, published: HashMap::new(), recent: Vec::new() }
    }

    /// Token `index` of prompt `prompt`.
    #[must_use]
    pub fn token(&self, prompt: u64, index: u64) -> u64 {
        mix(mix(self.seed, prompt % PROMPTS), index)
    }

    /// A prompt to start with.
    pub fn prompt(&self, rng: &mut Rng) -> u64 {
        rng.below(PROMPTS)
    }

    /// A text of at most `blocks` whole blocks that somebody may have published, and its prompt if it is one.
    pub fn likely(&self, rng: &mut Rng, blocks: u32, page_tokens: u32) -> (Text, Option<u64>) {
        let tokens = u64::from(blocks) * u64::from(page_tokens);
        if !self.recent.is_empty() && rng.chance(500) {
            let mut text = self.recent[rng.index(self.recent.len())].clone();
            text.truncate(tokens.min(text.len() / u64::from(page_tokens) * u64::from(page_tokens)), page_tokens);
            return (text, None);
        }
        let prompt = self.prompt(rng);
        let mut text = Text::default();
        (0..tokens).for_each(|i| text.push(self.token(prompt, i), page_tokens));
        (text, Some(prompt))
    }

    /// A shard sends a publication of `hash`.
    pub fn sent(&mut self, hash: u128, shard: u16) {
        self.published.entry(hash).or_default().sent |= 1 << shard;
    }

    /// A shard was told that `hash` is published.
    pub fn done(&mut self, hash: u128, shard: u16) {
        self.published.entry(hash).or_default().done |= 1 << shard;
    }

    /// Remembers a text that was published.
    pub fn remember(&mut self, rng: &mut Rng, text: Text) {
        if self.recent.len() < RECENT {
            self.recent.push(text);
        } else {
            let at = rng.index(RECENT);
            self.recent[at] = text;
        }
    }

    /// Whether a lookup may find `hash`: every shard has at least sent it.
    #[must_use]
    pub fn may_find(&self, hash: u128) -> bool {
        self.published.get(&hash).is_some_and(|p| p.sent == self.all())
    }

    /// Whether a lookup must find `hash` if nothing was ever dropped: every shard was told that it is published.
    #[must_use]
    pub fn must_find(&self, hash: u128) -> bool {
        self.published.get(&hash).is_some_and(|p| p.done == self.all())
    }

    /// The daemon died: what is published is findable no more.
    pub fn forget(&mut self) {
        self.published.clear();
    }

    fn all(&self) -> u32 {
        (1 << self.shards) - 1
    }
}
