//! Host frames for pages: where the next one comes from, and what gives way when there is none.

use super::Core;
use crate::api::{Action, NONE};
use crate::pages::BlockState;

impl Core {
    /// A host frame for a page that is to be stored. `must`: somebody waits, so what is cached or held twice gives way.
    pub(crate) fn take_host(&mut self, s: u16, page: u32, must: bool) -> Option<u32> {
        let class = self.geo.class_of_page(page);
        if let Some(at) = self.host.alloc(class, page) {
            return Some(at);
        }
        self.host_wanted = true;
        if self.ask_slab(class) {
            // Whoever is cached or held twice need not give way before the node has answered.
            return None;
        }
        while must && self.host.free_frames(class) == 0 && self.drop_idle_content() {}
        let short = must && self.host.free_frames(class) == 0;
        if short && !self.drop_any_second_copy(s, class) && !self.drop_copy_of_what_stays(class) {
            // Every page that others keep in host alone, though they have room for it in tier 0, is one too many.
            if !std::mem::replace(&mut self.host.classes[usize::from(class)].squeezed, true) {
                self.wake_all();
            }
        }
        let at = self.host.alloc(class, page);
        if at.is_some() {
            self.host.classes[usize::from(class)].squeezed = false;
        }
        at
    }

    fn drop_any_second_copy(&mut self, s: u16, class: u8) -> bool {
        let sessions = self.sessions.len() as u16;
        (0..sessions).map(|i| (s + i) % sessions).any(|s| {
            self.sessions[usize::from(s)].life == crate::sessions::Life::Live && self.drop_second_copy(s, class)
        })
    }

    /// The host copy of a page goes, if no load reads it.
    pub(crate) fn drop_host_copy(&mut self, page: u32) {
        let p = &mut self.pages[page as usize];
        if p.host == NONE || p.loads > 0 {
            return;
        }
        let at = std::mem::replace(&mut p.host, NONE);
        self.host.free(at);
        self.counters.transitions += 1;
        self.host_freed();
    }

    /// A host frame came free: who waits for one looks again.
    pub(crate) fn host_freed(&mut self) {
        if std::mem::take(&mut self.host_wanted) {
            self.wake_all();
        }
    }

    /// Exclusive tiers: the most recently used page that is in the session's tier 0 too gives up its host copy.
    fn drop_second_copy(&mut self, s: u16, class: u8) -> bool {
        let session = &self.sessions[usize::from(s)];
        let mut f = session.classes[usize::from(class)].clean.tail;
        while f != NONE {
            let frame = &session.frames[f as usize];
            let page = &self.pages[frame.page as usize];
            let block = &self.blocks[self.geo.block_of(frame.page)];
            // A page that other sessions refer to is read from host by them.
            if page.loads == 0 && block.refs_other == 0 && block.state == BlockState::Sealed && block.refs_home > 0 {
                let page = frame.page;
                self.drop_host_copy(page);
                self.settle_page(page);
                self.counters.exclusive_drops += 1;
                return true;
            }
            f = frame.links.prev;
        }
        false
    }

    /// Asks the node for memory of a class, unless that is hopeless now. True while an answer is to come.
    pub(crate) fn ask_slab(&mut self, class: u8) -> bool {
        let stride = |c: usize| u64::from(self.geo.classes[c].stride);
        let granted: u64 = self.host.classes.iter().enumerate().map(|(c, h)| h.granted * stride(c)).sum();
        let fits = granted + stride(usize::from(class)) <= self.cfg.limits.host_bytes_max;
        let c = &mut self.host.classes[usize::from(class)];
        if !c.asked && !c.refused && fits {
            c.asked = true;
            self.outbox.push_back(Action::NeedSlab { class });
        }
        self.host.classes[usize::from(class)].asked
    }

    /// Gives wholly free slabs back that no admitted page needs; keeps as many free frames as a tenth of what is granted.
    pub(crate) fn return_idle_slabs(&mut self, class: u8, spare: bool) {
        let c = &self.host.classes[usize::from(class)];
        let in_use = c.used + c.quarantined;
        let promised = (c.demand + c.quarantined).saturating_sub(in_use);
        let keep = promised.max(if spare { c.granted / 10 } else { 0 });
        if let Some(slab) = self.host.idle_slab(class, keep) {
            self.host.remove(slab);
            self.outbox.push_back(Action::ReturnSlab { slab });
        }
    }

    /// Over the high watermark, published blocks that nobody refers to go, least recently used first, until the low one.
    pub(crate) fn trim_host(&mut self) {
        let policy = self.cfg.policy;
        let (mut used, mut limit) = (0u64, 0u64);
        for (class, h) in self.geo.classes.iter().zip(&self.host.classes) {
            used += (h.used + h.quarantined) * u64::from(class.stride);
            limit += h.granted * u64::from(class.stride);
        }
        let refused = self.host.classes.iter().any(|h| h.refused);
        let limit = if refused { limit } else { self.cfg.limits.host_bytes_max };
        let high = u128::from(limit) * u128::from(policy.host_high_percent) / 100;
        let low = u128::from(limit) * u128::from(policy.host_low_percent) / 100;
        if u128::from(used) < high || high == 0 {
            return;
        }
        let block_bytes: u64 = self.geo.classes.iter().map(|c| u64::from(c.stride) * u64::from(c.planes)).sum();
        while u128::from(used) > low && self.drop_idle_content() {
            used = used.saturating_sub(block_bytes * u64::from(self.cfg.shards));
        }
    }
}
