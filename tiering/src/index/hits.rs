//! Figures of hits: tokens that engines asked for, found and loaded, and the time that this saved.

use crate::api::{BlockId, NONE, SeqId};
use crate::counters::Hits;
use crate::index::PrefixIndex;
use serde::{Deserialize, Serialize};

/// Tier from which an engine got a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Tier0,
    Host,
    Nvme,
}

/// What is known of a session that reads the cache.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Reader {
    /// It is a relay that follows the feed.
    pub follows: bool,
    /// Tokens that it asked for, found and loaded.
    pub hits: Hits,
}

impl PrefixIndex {
    /// Return the figures of a session since it attached; `None` if there is no such session.
    pub(crate) fn hits(&self, session: u16) -> Option<Hits> {
        self.readers.get(session).map(|reader| reader.hits)
    }

    /// Change the figures of a session, and those of the space if the session's shard counts for it.
    fn count_hits(&mut self, s: u16, change: impl Fn(&mut Hits)) {
        change(&mut self.readers[s].hits);
        if self.session(s).shard == 0 {
            change(&mut self.counters.hits);
        }
    }

    /// Count one request of a lookup: `found` of its `probes` are cached, which divide `range` blocks into equal parts.
    pub(crate) fn count_lookup(&mut self, s: u16, asked: u32, range: u32, (found, probes): (u32, u32)) {
        let found = (u64::from(range) * u64::from(found)).div_ceil(u64::from(probes.max(1)));
        let tokens = found.saturating_mul(self.geo().page_tokens);
        self.count_asked(s, asked);
        self.count_hits(s, |hits| hits.found_tokens = hits.found_tokens.saturating_add(tokens));
    }

    /// Count a lookup that found `found` of these blocks, by the cause of the first missing one.
    pub(crate) fn count_miss(&mut self, s: u16, hashes: &[u128], found: u32) {
        if let Some(absence) = hashes.get(found as usize).and_then(|&hash| self.absence(hash)) {
            self.count_hits(s, |hits| hits.missed[usize::from(absence.cause.code())] += 1);
        }
    }

    /// Count blocks that an engine asked for.
    pub(crate) fn count_asked(&mut self, s: u16, blocks: u32) {
        let tokens = u64::from(blocks).saturating_mul(self.geo().page_tokens);
        self.count_hits(s, |hits| hits.asked_tokens = hits.asked_tokens.saturating_add(tokens));
    }

    /// Count a block that was loaded, at this index of its prefix.
    pub(crate) fn count_loaded(&mut self, s: u16, index: u32, from: From) {
        self.count_got(s, index, from, 0);
    }

    fn count_got(&mut self, s: u16, index: u32, from: From, load_us: u64) {
        let tokens = self.geo().page_tokens;
        let recompute_us = self.cfg().policy.retention.recompute_us(u64::from(index) * tokens, tokens);
        self.count_hits(s, |hits| {
            let loaded = match from {
                From::Tier0 => &mut hits.loaded_tokens.tier0,
                From::Host => &mut hits.loaded_tokens.host,
                From::Nvme => &mut hits.loaded_tokens.nvme,
            };
            *loaded += tokens;
            hits.recompute_us += recompute_us;
            hits.load_us += load_us;
        });
    }

    /// Count the blocks that were attached to a sequence, from index `first` on. Their pages are loaded when steps read them, among
    /// others, so the time for that is estimated.
    pub(crate) fn count_attached(&mut self, s: u16, seq: SeqId, (first, count): (u32, u32), looked_up: bool) {
        for index in first..first + count {
            let from = self.whereabouts(s, self.seq_block(s, seq, index));
            let us = |rate: f32| if rate > 0.0 { self.disk.slot_bytes() as f64 / f64::from(rate) } else { 0.0 };
            let bus = us(self.tier0(s).link.rate);
            let load_us = match from {
                From::Tier0 => 0.0,
                From::Host => bus,
                From::Nvme => us(self.disk.read_rate()).max(bus),
            };
            self.count_got(s, index, from, load_us as u64);
        }
        if !looked_up {
            let tokens = u64::from(count) * self.geo().page_tokens;
            self.count_hits(s, |hits| hits.found_tokens = hits.found_tokens.saturating_add(tokens));
        }
    }

    /// Return the highest tier that has the pages of a block which its sequence needs.
    fn whereabouts(&self, s: u16, block: BlockId) -> From {
        if self.is_far(block) {
            return From::Nvme;
        }
        let needed = self.pages_of(block).map(|page| self.page(page)).filter(|page| !page.out_of_window());
        let resident = needed.into_iter().all(|page| page.frame != NONE && page.session == s);
        if resident { From::Tier0 } else { From::Host }
    }
}
