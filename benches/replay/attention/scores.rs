//! Attention scores as an engine reports them: the best pages and the share of the rest, as binary16 logarithms.

use super::super::trace::Attention;
use super::baseline::top;
use kvtide_wire::half::F16;
use kvtide_wire::score::TOP_MAX;

/// Entries of one message to the core, and scratch space.
#[derive(Clone, Debug, Default)]
pub(super) struct Scores {
    chosen: Vec<u32>,
    shares: Vec<f32>,
    /// Page index and logarithm of its share.
    pub(super) top: Vec<(u32, u16)>,
    /// Logarithm of the share of all other pages.
    pub(super) rest: u16,
}

fn logarithm(share: f32) -> u16 {
    F16::nearest(share.clamp(0.0, 1.0).ln()).0
}

impl Scores {
    /// Set the entries to the pages with the largest of these shares, which sum to 1.
    pub(super) fn of(&mut self, shares: &[f32]) {
        top(shares, TOP_MAX, &mut self.chosen);
        self.chosen.retain(|page| shares[*page as usize] > 0.0);
        self.top.clear();
        self.top.extend(self.chosen.iter().map(|page| (*page, logarithm(shares[*page as usize]))));
        let named: f32 = self.chosen.iter().map(|page| shares[*page as usize]).sum();
        self.rest = if self.top.len() == shares.iter().filter(|share| **share > 0.0).count() {
            F16::NEG_INFINITY.0
        } else {
            logarithm(1.0 - named)
        };
    }

    /// Set the entries to the attention of a step over the pages it read of a plane. Shares are relative to these pages, head by
    /// head, because the attention of missing pages is unknown.
    pub(super) fn of_read(&mut self, trace: &Attention, (step, plane): (usize, usize), read: &[bool]) {
        let mut shares = std::mem::take(&mut self.shares);
        shares.clear();
        shares.resize(read.len(), 0.0);
        for head in 0..trace.kv_heads {
            let there = || (0..read.len()).filter(|page| read[*page]);
            let sum: f32 = there().map(|page| trace.head_mass(step, plane, head, page)).sum();
            if sum > 0.0 {
                for page in there() {
                    shares[page] += trace.head_mass(step, plane, head, page) / (sum * trace.kv_heads as f32);
                }
            }
        }
        self.of(&shares);
        self.shares = shares;
    }
}
