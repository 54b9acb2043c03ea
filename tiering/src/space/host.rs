//! Host frames for pages: where the next one comes from, and what gives way when there is none.

use super::Core;
use crate::api::{Action, BlockId, NONE};
use crate::lists::Linked;
use crate::mutants::{self, Mutant};
use crate::pages::{Block, BlockState, FrameState, HostOn, On};
use crate::plan::IO_TRIES;
use crate::sessions::{Life, Session};

/// For whom a page is stored: what gives way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// Nobody yet.
    Later,
    /// A publish that waits: what is cached gives way, and what is held twice and not published; if that is not enough the publish is
    /// told so. What is published and held twice does not: stored again for the next publish, it would take the frame back.
    Publish,
    /// A lane, a request, a shrink: what is cached gives way, and what is held twice.
    Waiting,
}

/// A node that refused is asked again after this time, whatever has happened: what others hold has fallen idle, perhaps, and they give it
/// back when it is asked for.
pub(crate) const ASK_AGAIN_US: u64 = 100_000;

/// How much of what is granted stays free in a space, beyond what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spare {
    /// What is given back need soon be asked for again.
    Tenth,
    /// Another space needs it now.
    None,
}

impl Spare {
    pub(crate) fn of(self, granted: u64) -> u64 {
        match self {
            Spare::Tenth => granted / 10,
            Spare::None => 0,
        }
    }
}

impl Core {
    /// A host frame for a page that is to be stored.
    pub(crate) fn take_host(&mut self, s: u16, page: u32, to: For) -> Option<u32> {
        let class = self.geo.class_of_page(page);
        let must = to != For::Later;
        if !must && self.host.classes[usize::from(class)].squeezed {
            // The next one is for who waits.
            return None;
        }
        if let Some(at) = self.host.alloc(class, page) {
            return Some(at);
        }
        self.host_wanted = true;
        if self.ask_slab(class) {
            // Whoever is cached or held twice need not give way before the node has answered.
            return None;
        }
        if self.has_nvme() {
            let [clean, ahead] = self.last_in_host(class);
            if self.evict_spare_host(class) || must && (self.evict_host(clean) || self.evict_host(ahead)) {
                return self.host.alloc(class, page);
            }
        }
        if must && self.shed_windows(class) {
            return None;
        }
        if must && !self.starve_host(class) {
            match to {
                For::Waiting => self.squeeze_host(s, class),
                _ => self.squeeze_unpublished(s, class),
            }
            if to == For::Publish && self.host.free_frames(class) == 0 && !self.is_busy(class) {
                self.no_room_for(self.geo.block_of(page));
            }
        }
        let at = self.host.alloc(class, page);
        if at.is_some() {
            self.host.classes[usize::from(class)].squeezed = false;
        }
        at
    }

    /// Whether some host frame of the class is in no list: a transfer, a load, a block on its way out or not yet full holds it, and
    /// gives it up without anybody's doing.
    fn is_busy(&self, class: u8) -> bool {
        let c = &self.host.classes[usize::from(class)];
        let listed = [&c.dirty, &c.clean, &c.double, &c.ahead, &c.spare].map(|list| u64::from(list.len));
        c.used > listed.iter().sum()
    }

    /// Somebody waits for a host frame of which none can be evicted. True if what is in flight, or writing down, will make some
    /// evictable: then nobody else need give way.
    fn starve_host(&mut self, class: u8) -> bool {
        if !self.has_nvme() {
            return false;
        }
        self.disk_woken = true;
        let slots = self.disk.free_slots() > 0 || self.slots_to_come();
        let storing = self.sessions.iter().any(|s| s.classes.get(usize::from(class)).is_some_and(|c| c.storing > 0));
        let reading = self.transfers.in_flight() > self.transfers.writes;
        let c = &mut self.host.classes[usize::from(class)];
        c.starved += 1;
        let writable = c.writing > 0 || !c.dirty.is_empty() && (slots || !self.disk.exhausted);
        storing || reading || c.loading > 0 || c.gathering > 0 || writable && self.disk.write_fails < IO_TRIES
    }

    /// Makes a host frame free at the cost of others: what is cached goes, then what is held twice.
    fn squeeze_host(&mut self, s: u16, class: u8) {
        self.squeeze_cached(class);
        if self.host.free_frames(class) > 0 || self.drop_part_in_tier0(s, class) {
            return;
        }
        match self.second_copy(s, class) {
            Some(page) => self.drop_second_copy(page),
            // Every page that others keep in host alone, though they have room for it in tier 0, is one too many.
            None if !std::mem::replace(&mut self.host.classes[usize::from(class)].squeezed, true) => self.wake_all(),
            // Neither helps: pages that several sessions read and that one has evictable are stored again when another needs them.
            None => {
                if let Some(page) = self.any_session(s, |core, s| core.evictable_twice(s, class, |b| b.refs() > 0)) {
                    self.drop_second_copy(page);
                }
            }
        }
    }

    /// The same, at the cost of what is cached alone.
    fn squeeze_cached(&mut self, class: u8) {
        while self.host.free_frames(class) == 0 && self.drop_hot_content() {}
    }

    /// The same, and of what is held twice at the cost of what no publish would store again.
    fn squeeze_unpublished(&mut self, s: u16, class: u8) {
        self.squeeze_cached(class);
        if self.host.free_frames(class) == 0 {
            let unpublished = |block: &Block| block.refs_other == 0 && block.refs_home > 0 && block.content == NONE;
            if let Some(page) = self.any_session(s, |core, s| core.evictable_twice(s, class, unpublished)) {
                self.drop_second_copy(page);
            }
        }
    }

    /// A host frame for a page that somebody waits to read from disk.
    pub(crate) fn take_host_to_read(&mut self, page: u32) -> Option<u32> {
        let class = self.geo.class_of_page(page);
        let home = self.blocks[self.geo.block_of(page)].home;
        let s = if usize::from(home) < self.sessions.len() { home } else { 0 };
        // Nobody who waits for a page waits for the node too.
        self.ask_slab(class);
        let [clean, ahead] = self.last_in_host(class);
        let had = self.evict_spare_host(class) || self.evict_host(clean) || self.evict_host(ahead);
        if !had && self.shed_windows(class) {
            return None;
        }
        if !had && !self.starve_host(class) && !self.host.classes[usize::from(class)].asked {
            self.squeeze_host(s, class);
        }
        let at = self.host.alloc(class, page);
        if at.is_some() {
            self.host.classes[usize::from(class)].squeezed = false;
        }
        at
    }

    /// The clean host frame that is needed last, and the one that was read ahead last, but for those whose page a lane waits for: it would
    /// be read again, into the frame of what took its place, for as long as it finds no frame in tier 0.
    pub(crate) fn last_in_host(&self, class: u8) -> [u32; 2] {
        let c = &self.host.classes[usize::from(class)];
        [c.clean.tail, c.ahead.tail].map(|mut at| {
            while at != NONE && self.is_awaited(self.host.recs[at as usize].page) {
                at = self.host.recs[at as usize].links().prev;
            }
            at
        })
    }

    /// Whether a lane waits for the page at a fault, of which it has one. What a session asks for beyond that protects nothing.
    fn is_awaited(&self, page: u32) -> bool {
        let waits = |s: &Session| s.ops.faults.iter(&s.ops.recs).take(s.lanes.len()).any(|op| s.ops[op].at == page);
        self.sessions.iter().any(waits)
    }

    /// Evicts a host frame that costs nobody anything: its page is on disk and in tier 0 to stay, or no live step needs it, or it is of
    /// a content that was refused on disk and that nobody refers to.
    pub(crate) fn evict_spare_host(&mut self, class: u8) -> bool {
        let c = &self.host.classes[usize::from(class)];
        let (double, clean, ahead) = (c.double.head, c.clean.head, c.ahead.head);
        if self.evict_host(double) {
            return true;
        }
        let limit = self.host_unneeded_before();
        let stamp = |core: &Core, at: u32| if at == NONE { u32::MAX } else { core.host.recs[at as usize].stamp };
        let spare = self.host.classes[usize::from(class)].spare.head;
        if spare != NONE && stamp(self, spare) < stamp(self, clean) && self.drop_spare(class) {
            return true;
        }
        stamp(self, clean) < limit && self.evict_host(clean)
            || stamp(self, ahead) < limit && self.evict_host(ahead)
            || self.drop_spare(class)
    }

    /// Steps in which a page was needed last before this are over, on every lane of every session with a plan.
    fn host_unneeded_before(&self) -> u32 {
        let lanes = self.sessions.iter().flat_map(|s| &s.lanes);
        lanes.filter(|l| l.live).map(|l| l.host_epochs[2]).min().unwrap_or(u32::MAX)
    }

    /// Takes an evictable page's host frame from it: the page is on disk. False when there is none.
    pub(crate) fn evict_host(&mut self, at: u32) -> bool {
        if at == NONE {
            return false;
        }
        let page = self.host.recs[at as usize].page;
        let p = &mut self.pages[page as usize];
        debug_assert!(p.host == at && p.on_disk() && p.loads == 0);
        p.host = NONE;
        self.counters.transitions += 1;
        self.counters.host_evictions += 1;
        self.counters.prefetch_wasted += u64::from(self.host.is_ahead(at));
        self.host.free(at);
        true
    }

    /// Puts the host frame of a page into the list where it belongs.
    pub(crate) fn settle_host(&mut self, page: u32) {
        let at = self.pages[page as usize].host;
        if at != NONE && self.has_nvme() && self.host.recs[at as usize].on != HostOn::Moving {
            let on = self.host_list_of(page, at);
            if on == HostOn::Spare && self.host.recs[at as usize].on != on {
                self.host.recs[at as usize].stamp = self.clock;
            }
            self.host.enlist(at, on);
        }
    }

    pub(crate) fn settle_hosts_of(&mut self, b: BlockId) {
        if self.has_nvme() {
            self.pages_of(b).for_each(|page| self.settle_host(page));
        }
    }

    /// The list in which a page's host frame `at` belongs while no transfer writes it.
    pub(crate) fn host_list_of(&self, page: u32, at: u32) -> HostOn {
        let p = &self.pages[page as usize];
        let block = &self.blocks[self.geo.block_of(page)];
        if p.loads > 0 && !mutants::on(Mutant::EvictHostWhileLoading)
            || self.host.late(at) > 0
            || p.retired()
            || !block.live()
        {
            // Of a page that was given up: it is free once no window shows it. One that a late copy reads would not come free.
            HostOn::Nothing
        } else if p.writing() {
            // What it showed before, from another frame.
            HostOn::Nothing
        } else if !p.on_disk() && !mutants::on(Mutant::EvictDirtyHost) {
            match block.may_leave() {
                true if self.is_watched(page) => HostOn::Dirty,
                true if block.refused && block.refs() == 0 => HostOn::Spare,
                true => HostOn::Dirty,
                false => HostOn::Nothing,
            }
        } else if self.is_watched(page) {
            HostOn::Nothing
        } else if self.host.is_ahead(at) {
            HostOn::Ahead
        } else if self.stays_in_tier0(page, block) {
            HostOn::Double
        } else {
            HostOn::Clean
        }
    }

    /// Whether the page is in the tier 0 of the only session that reads it, and does not stream there.
    fn stays_in_tier0(&self, page: u32, block: &Block) -> bool {
        if block.refs_other > 0 || block.refs_home == 0 {
            return false;
        }
        let frame = self.find_copy(page, block.home).map(|f| self.frame(block.home, f));
        frame.is_some_and(|f| f.state == FrameState::Present && !matches!(f.on, On::Ring | On::Outgoing))
    }

    /// A page whose host copy can go since it is in a tier 0 too, that of session `s` first: the most recently used evictable
    /// one, else one that stays there.
    pub(crate) fn second_copy(&mut self, s: u16, class: u8) -> Option<u32> {
        let evictable =
            self.any_session(s, |core, s| core.evictable_twice(s, class, |b| b.refs_other == 0 && b.refs_home > 0));
        evictable.or_else(|| self.copy_of_what_stays(class))
    }

    /// What is found for the first session, from `s` on.
    fn any_session(&self, s: u16, find: impl Fn(&Core, u16) -> Option<u32>) -> Option<u32> {
        let sessions = self.sessions.len() as u16;
        let live = |s: &u16| self.sessions[usize::from(*s)].life == crate::sessions::Life::Live;
        (0..sessions).map(|i| (s + i) % sessions).filter(live).find_map(|s| find(self, s))
    }

    /// Exclusive tiers: the page's host copy goes, its tier-0 copy must be stored before it can go.
    fn drop_second_copy(&mut self, page: u32) {
        self.drop_host_copy(page);
        self.settle_page(page);
        self.counters.exclusive_drops += 1;
    }

    /// The host copy of a page goes, if no load and no window reads it; the frame is free once no transfer writes it either.
    pub(crate) fn drop_host_copy(&mut self, page: u32) {
        let watched = self.is_watched(page);
        let p = &mut self.pages[page as usize];
        if p.host == NONE || p.loads > 0 || watched {
            return;
        }
        let at = std::mem::replace(&mut p.host, NONE);
        self.counters.transitions += 1;
        if self.host.recs[at as usize].on == HostOn::Moving && !mutants::on(Mutant::FreeWhileWriting) {
            // The transfer that writes it frees it when it ends.
            return;
        }
        self.host.free(at);
        self.host_freed();
    }

    /// The host copy of a page is not what was stored there: it goes, and the page is had from elsewhere. While loads read it, the
    /// last of them that finds it bad says so.
    pub(crate) fn host_copy_is_bad(&mut self, page: u32) {
        if self.pages[page as usize].host == NONE || self.pages[page as usize].loads > 0 {
            return;
        }
        if self.is_watched(page) {
            // Who reads it there stops to; whoever finds it bad next says so.
            self.evict_windows_on(page);
            return;
        }
        self.counters.host_corrupt += 1;
        self.drop_host_copy(page);
        self.settle_page(page);
        self.lose_if_nowhere(page);
        self.wake_all();
    }

    /// A host frame came free: who waits for one looks again.
    pub(crate) fn host_freed(&mut self) {
        if std::mem::take(&mut self.host_wanted) {
            self.wake_all();
        }
    }

    /// The most recently used page that is evictable in the session's tier 0 and in host, of a block that passes.
    fn evictable_twice(&self, s: u16, class: u8, passes: impl Fn(&Block) -> bool) -> Option<u32> {
        let session = &self.sessions[usize::from(s)];
        let mut f = session.classes[usize::from(class)].clean.tail;
        while f != NONE {
            let frame = &session.frames[f as usize];
            let page = &self.pages[frame.page as usize];
            let block = &self.blocks[self.geo.block_of(frame.page)];
            let twice = page.host != NONE && page.loads == 0 && !page.writing() && !self.is_watched(frame.page);
            if twice && block.state == BlockState::Sealed && passes(block) {
                return Some(frame.page);
            }
            f = frame.links.prev;
        }
        None
    }

    /// Asks the node for memory of a class, unless that is hopeless now. True while an answer is to come.
    pub(crate) fn ask_slab(&mut self, class: u8) -> bool {
        let stride = |c: usize| u64::from(self.geo.classes[c].stride);
        let granted: u64 = self.host.classes.iter().enumerate().map(|(c, h)| h.granted * stride(c)).sum();
        // What the other classes need to stream through at all is theirs; of a class that has not got as much itself nobody may
        // demand that it waits for them, or two classes would wait for each other.
        let missing = |c: usize| self.stream_frames(c).saturating_sub(self.host.classes[c].granted) * stride(c);
        let theirs: u64 = match self.has_nvme() && missing(usize::from(class)) == 0 {
            true => (0..self.geo.classes.len()).filter(|&c| c != usize::from(class)).map(missing).sum(),
            false => 0,
        };
        // Grants have a size of the node's choice: the next one may be like the largest.
        let next = if theirs > 0 { self.host.slab_bytes } else { 0 }.max(stride(usize::from(class)));
        let fits = granted + theirs + next <= self.cfg.limits.host_bytes_max;
        let c = &mut self.host.classes[usize::from(class)];
        if !c.asked && (!c.refused || c.ask_again_us <= self.now) && fits {
            c.asked = true;
            self.outbox.push_back(Action::NeedSlab { class });
        }
        // Who was refused goes on without, and does not wait for a second answer.
        let c = &self.host.classes[usize::from(class)];
        c.asked && !c.refused
    }

    /// Gives a wholly free slab back that no admitted page needs. False if there was none.
    pub(crate) fn return_idle_slab(&mut self, class: u8, spare: Spare) -> bool {
        let c = &self.host.classes[usize::from(class)];
        let in_use = c.used + c.quarantined;
        let promised = (c.demand + c.quarantined).saturating_sub(in_use);
        // What is on NVMe comes back through host, now or soon: memory that is given away need not be had again.
        let live = self.sessions.iter().any(|s| s.life == Life::Live);
        let streams = self.has_nvme() && (live || spare == Spare::Tenth && self.disk.used > 0);
        let stream = if streams { self.stream_frames(usize::from(class)) } else { 0 };
        let keep = promised.max(spare.of(c.granted)).max(stream);
        let Some(slab) = self.host.idle_slab(class, keep) else { return false };
        self.host.remove(slab);
        self.outbox.push_back(Action::ReturnSlab { slab });
        true
    }

    /// Host copies of published blocks that nobody refers to go, if they are on disk too, until so many bytes are in use.
    fn demote_idle(&mut self, mut used: u64, low: u64) {
        for class in 0..self.geo.classes.len() {
            while used > low {
                let at = self.host.classes[class].clean.head;
                let idle = at != NONE && self.blocks[self.geo.block_of(self.host.recs[at as usize].page)].refs() == 0;
                if !idle || !self.evict_host(at) {
                    break;
                }
                used -= u64::from(self.geo.classes[class].stride);
            }
        }
        self.host_freed();
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
        if self.has_nvme() {
            return self.demote_idle(used, u64::try_from(low).unwrap_or(u64::MAX));
        }
        let block_bytes: u64 = self.geo.classes.iter().map(|c| u64::from(c.stride) * u64::from(c.planes)).sum();
        while u128::from(used) > low && self.drop_idle_content() {
            used = used.saturating_sub(block_bytes * u64::from(self.cfg.shards));
        }
    }
}
