//! Consistency checks of all tables. Slow; for tests and the simulator.

mod entries;
mod lower;

use crate::api::NONE;
use crate::blocks::{Block, BlockState, FrameState, On};
use crate::counters::Reason;
use crate::error::ensure;
use crate::requests::Requests;
use crate::sessions::{Acquire, JobRec, Life, Op, Phase, Task, Work};
use std::collections::BTreeMap;

/// Results of a full count, to compare with the counters.
#[derive(Default)]
pub(crate) struct Seen {
    in_flight: BTreeMap<u32, u32>,
    loads: BTreeMap<u32, u16>,
    invalidating: BTreeMap<u32, u16>,
    copying_out: BTreeMap<u32, u32>,
    refs: BTreeMap<u32, BTreeMap<u16, u32>>,
    leases: BTreeMap<u32, u32>,
    host_targets: BTreeMap<u32, u32>,
    /// Host frames that transfers read or write, and the page of each.
    reading: BTreeMap<u32, u32>,
    writing: BTreeMap<u32, u32>,
    /// Mapped frames on each page.
    mappings: BTreeMap<u32, u16>,
    /// Late copies on each host frame.
    late: BTreeMap<u32, u16>,
}

impl Requests {
    /// Check that all tables agree. Each frame has at most one owner and is in one list. Reference counts and in-flight counts
    /// match their holders. Free lists are disjoint, and sums add up.
    ///
    /// # Errors
    /// A description of the first violated rule and its location.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut seen = Seen::default();
        for s in 0..self.sessions().len() {
            for &at in &self.lost()[s].late_frames {
                *seen.late.entry(at).or_default() += 1;
            }
            for &page in &self.lost()[s].reading {
                *seen.loads.entry(page).or_default() += 1;
                *seen.in_flight.entry(self.geo().block_of(page)).or_default() += 1;
            }
            if self.session(s).life == Life::Live {
                self.check_jobs(s, &mut seen)?;
                self.check_frames(s, &mut seen)?;
                self.check_seqs(s, &mut seen)?;
            }
        }
        self.check_transfers(&mut seen)?;
        self.check_blocks(&mut seen)?;
        self.check_pages(&seen)?;
        self.check_host(&seen)?;
        self.check_host_lists()?;
        self.check_disk()?;
        self.check_entries()?;
        self.check_persisting()?;
        self.disk.check()?;
        self.check_committed()
    }

    fn check_jobs(&self, s: u16, seen: &mut Seen) -> Result<(), String> {
        let mut pending: BTreeMap<u32, u32> = BTreeMap::new();
        for (slot, job) in self.session(s).jobs.recs.iter().enumerate().filter(|(_, j)| j.live) {
            let mut add = |page: u32| *seen.in_flight.entry(self.geo().block_of(page)).or_default() += 1;
            if job.op != NONE {
                *pending.entry(job.op).or_default() += 1;
            }
            match job.task {
                Task::Gather | Task::Scatter if job.late => *seen.late.entry(job.host).or_default() += 1,
                Task::Cancel => {}
                Task::Drop => add(job.page),
                Task::Evict => {
                    add(job.page);
                    *seen.invalidating.entry(job.page).or_default() += 1;
                }
                Task::Move => {
                    add(job.page);
                    let (to, from) =
                        (&self.tier0(s).frames[job.frame as usize], &self.tier0(s).frames[job.source as usize]);
                    ensure!(
                        to.state == FrameState::Incoming && to.job == slot as u32 && to.page == job.page,
                        "session {s}: move {slot} and frame {} disagree: {to:?}",
                        job.frame
                    );
                    ensure!(
                        from.state == FrameState::Invalidating && from.job == slot as u32 && from.page == job.page,
                        "session {s}: move {slot} and frame {} disagree: {from:?}",
                        job.source
                    );
                }
                Task::Scatter => {
                    add(job.page);
                    *seen.loads.entry(job.page).or_default() += 1;
                }
                Task::Gather => {
                    add(job.page);
                    *seen.copying_out.entry(job.page).or_default() += 1;
                    *seen.host_targets.entry(job.host).or_default() += 1;
                }
                Task::CopyOut => {
                    add(job.page);
                    *seen.copying_out.entry(job.page).or_default() += 1;
                    *seen.host_targets.entry(job.host).or_default() += 1;
                    ensure!(
                        self.tier0(s).frames[job.frame as usize].job == slot as u32,
                        "session {s}: store {slot} lost its frame"
                    );
                }
                Task::Install | Task::CopyIn | Task::Copy | Task::CopyInAs => {
                    add(job.page);
                    if job.victim != NONE {
                        add(job.victim);
                        *seen.invalidating.entry(job.victim).or_default() += 1;
                    }
                    match job.task {
                        Task::CopyIn => *seen.loads.entry(job.page).or_default() += 1,
                        Task::CopyInAs => {
                            add(job.source);
                            *seen.loads.entry(job.source).or_default() += 1;
                        }
                        Task::Copy => add(self.tier0(s).frames[job.source as usize].page),
                        _ => {}
                    }
                    if job.frame != NONE {
                        let f = &self.tier0(s).frames[job.frame as usize];
                        if self.tier0(s).is_mapped_frame(job.frame) {
                            ensure!(
                                job.task == Task::CopyIn,
                                "session {s}: job {slot} writes mapped frame {}",
                                job.frame
                            );
                            for page in [job.page, job.victim].into_iter().filter(|&page| page != NONE) {
                                *seen.mappings.entry(page).or_default() += 1;
                            }
                        }
                        ensure!(
                            f.state == FrameState::Incoming && f.job == slot as u32 && f.page == job.page,
                            "session {s}: job {slot} and frame {} disagree: {f:?}",
                            job.frame
                        );
                    }
                }
            }
        }
        let copied = |j: &&JobRec| j.live && matches!(j.task, Task::Gather | Task::Scatter);
        let stride = |page: u32| u64::from(self.geo().classes[usize::from(self.geo().class_of_page(page))].stride);
        let bytes: u64 = self.session(s).jobs.recs.iter().filter(copied).map(|j| stride(j.page)).sum();
        ensure!(
            self.session(s).copy_bytes == bytes,
            "session {s}: {} bytes in copies, counted {bytes}",
            self.session(s).copy_bytes
        );
        let late = |j: &&JobRec| j.live && j.late && !matches!(j.task, Task::CopyIn | Task::CopyInAs);
        let bytes: u64 = self.session(s).jobs.recs.iter().filter(late).map(|j| stride(j.page)).sum();
        ensure!(
            self.session(s).late_bytes == bytes,
            "session {s}: {} late bytes, counted {bytes}",
            self.session(s).late_bytes
        );
        let scheduled = |j: &&JobRec| j.live && j.task == Task::CopyIn && j.reason == Reason::Scheduled;
        let (count, kept) =
            (self.session(s).jobs.recs.iter().filter(scheduled).count(), self.pagers[s].scheduled.loads_in_flight());
        ensure!(count == kept as usize, "session {s}: {kept} prefetch loads in flight, counted {count}");
        for (i, op) in self.session(s).ops.recs.iter().enumerate().filter(|(_, o)| o.phase != Phase::Free) {
            let jobs = pending.get(&(i as u32)).copied().unwrap_or(0);
            ensure!(op.pending == jobs, "session {s}: op {i} waits for {} jobs, counted {jobs}", op.pending);
            for b in op.blocks.iter(&self.blocks().recs) {
                *seen.refs.entry(b).or_default().entry(s).or_default() += 1;
            }
            let mut copying = 0;
            let copies = self.copies_of(s, i as u32).list;
            for copy in copies.iter(&self.copiers[s].copies.recs).map(|at| self.copiers[s].copies[at]) {
                copying += u32::from(copy.pending);
                if copy.block != NONE && !matches!(op.work, Work::Store(_)) {
                    *seen.in_flight.entry(copy.block).or_default() += 1;
                }
            }
            let fits = op.phase != Phase::Copying || copying == jobs;
            ensure!(fits, "session {s}: op {i} has {jobs} copy jobs, its blocks count {copying}");
        }
        Ok(())
    }

    fn check_frames(&self, s: u16, seen: &mut Seen) -> Result<(), String> {
        let mut listed = vec![On::Nothing; self.tier0(s).frames.len()];
        let mut enter = |list: &crate::lists::List, on: On| -> Result<(), String> {
            let mut count = 0;
            for f in list.iter(&self.tier0(s).frames) {
                ensure!(listed[f as usize] == On::Nothing, "session {s}: frame {f} is in two lists");
                ensure!(
                    self.tier0(s).frames[f as usize].on == on,
                    "session {s}: frame {f} is in list {on:?} but not marked so"
                );
                listed[f as usize] = on;
                count += 1;
            }
            ensure!(count == list.len, "session {s}: wrong length of list {on:?}");
            Ok(())
        };
        for (class, c) in self.tier0(s).classes.iter().enumerate() {
            enter(&c.free, On::Free)?;
            enter(&c.clean, On::Clean)?;
            enter(&c.refused, On::Refused)?;
            enter(&c.dirty, On::Dirty)?;
            enter(&c.early, On::Early)?;
            enter(&c.outgoing, On::Outgoing)?;
            enter(&c.moving, On::Move)?;
            enter(&c.mapped_free, On::MappedFree)?;
            enter(&c.mapped, On::Mapped)?;
            for lane in &self.tier0(s).lanes {
                enter(&lane.stream_lists[class], On::Stream)?;
            }
        }
        enter(&self.tier0(s).evicts, On::Evict)?;
        enter(&self.tier0(s).evicts_later, On::EvictLater)?;
        enter(&self.tier0(s).drops, On::Drop)?;
        let mut pinned = vec![0u64; self.tier0(s).classes.len()];
        let mut unsealed = vec![0u64; self.tier0(s).classes.len()];
        let mut beyond = vec![0u32; self.tier0(s).classes.len()];
        let mut invalidating = beyond.clone();
        for (f, frame) in self.tier0(s).frames.iter().enumerate() {
            let class = usize::from(self.tier0(s).class_of_frame(f as u32));
            ensure!(
                listed[f] == frame.on,
                "session {s}: frame {f} is marked {:?}, but is in list {:?}",
                frame.on,
                listed[f]
            );
            let mapped = self.tier0(s).classes[class].is_mapped_frame(f as u32);
            let free = if mapped { On::MappedFree } else { On::Free };
            ensure!((frame.state == FrameState::Free) == (frame.on == free), "session {s}: frame {f}: {frame:?}");
            if mapped {
                self.check_mapped(s, f as u32, seen)?;
                invalidating[class] += u32::from(frame.state == FrameState::Invalidating);
            }
            pinned[class] += u64::from(frame.pins > 0);
            let outside = self.tier0(s).classes[class].is_beyond(f as u32);
            beyond[class] += u32::from(outside && frame.state != FrameState::Away);
            let inside_only = frame.state == FrameState::Present
                && matches!(frame.on, On::Clean | On::Refused | On::Dirty | On::Stream);
            let outside_only = frame.state == FrameState::Away || matches!(frame.on, On::Outgoing | On::Move);
            ensure!(
                if outside { frame.state != FrameState::Free && !inside_only } else { !outside_only },
                "session {s}: frame {f} of {} in use of its class: {frame:?}",
                self.tier0(s).classes[class].count
            );
            match frame.state {
                FrameState::Free | FrameState::Away => {}
                FrameState::Invalidating => {
                    let waits = matches!(frame.on, On::Evict | On::EvictLater);
                    ensure!(waits || frame.job != NONE, "session {s}: frame {f} is invalidated without a job");
                    if waits {
                        *seen.in_flight.entry(self.geo().block_of(frame.page)).or_default() += 1;
                        *seen.invalidating.entry(frame.page).or_default() += 1;
                    }
                }
                FrameState::Incoming | FrameState::Present => {
                    ensure!(
                        usize::from(self.geo().class_of_page(frame.page)) == class,
                        "session {s}: frame {f} and page {} differ in size class",
                        frame.page
                    );
                    ensure!(
                        self.find_copy(frame.page, s) == Some(f as u32),
                        "session {s}: page {} does not link to frame {f}",
                        frame.page
                    );
                    if frame.on == On::Drop {
                        *seen.in_flight.entry(self.geo().block_of(frame.page)).or_default() += 1;
                    }
                    self.check_listing(s, f as u32)?;
                }
            }
        }
        for b in 0..self.blocks().recs.len() as u32 {
            let block = self.block(b);
            if block.state == BlockState::Unsealed && !block.parked && block.home == s {
                for (sum, class) in unsealed.iter_mut().zip(&self.geo().classes) {
                    *sum += u64::from(class.planes);
                }
            }
        }
        for (i, c) in self.tier0(s).classes.iter().enumerate() {
            let acquires = self.session(s).ops.recs.iter().filter_map(|o| match o.work {
                Work::Acquire(acquire) if o.phase != Phase::Free => Some(acquire),
                _ => None,
            });
            let committed: u64 = acquires
                .map(|Acquire { range, pinned }| {
                    let planes = u32::from(range.planes);
                    (pinned..range.count * planes)
                        .filter(|j| usize::from(self.geo().class_of(range.plane + (j % planes) as u16)) == i)
                        .count() as u64
                })
                .sum();
            let jobs = &self.session(s).jobs.recs;
            let stores = jobs.iter().filter(|j| j.live && !j.late && j.task == Task::CopyOut);
            let copying_out = stores.filter(|j| usize::from(self.tier0(s).class_of_frame(j.frame)) == i).count();
            ensure!(
                c.copying_out as usize == copying_out,
                "session {s} class {i}: {} stores, counted {copying_out}",
                c.copying_out
            );
            ensure!(c.beyond == beyond[i], "session {s} class {i}: {} beyond, counted {}", c.beyond, beyond[i]);
            ensure!(
                c.mapped_invalidating == invalidating[i],
                "session {s} class {i}: {} mapped frames being invalidated",
                c.mapped_invalidating
            );
            ensure!(
                c.committed_pins == committed,
                "session {s} class {i}: pins to come {}, counted {committed}",
                c.committed_pins
            );
            ensure!(c.pinned == pinned[i], "session {s} class {i}: pinned {}, counted {}", c.pinned, pinned[i]);
            ensure!(
                c.unsealed == unsealed[i],
                "session {s} class {i}: unsealed {}, counted {}",
                c.unsealed,
                unsealed[i]
            );
        }
        Ok(())
    }

    /// Check that a mapped frame shows a sealed page, and that only evictions and loads affect it.
    fn check_mapped(&self, s: u16, f: u32, seen: &mut Seen) -> Result<(), String> {
        let frame = self.frame(s, f);
        let listed = match frame.state {
            FrameState::Free => On::MappedFree,
            FrameState::Present if frame.job == NONE => On::Mapped,
            FrameState::Invalidating if frame.job == NONE => frame.on,
            _ => On::Nothing,
        };
        let fits = !matches!(frame.state, FrameState::Away) && frame.pins == 0 && frame.on == listed;
        ensure!(fits, "session {s}: mapped frame {f}: {frame:?}");
        if matches!(frame.state, FrameState::Present | FrameState::Invalidating) {
            *seen.mappings.entry(frame.page).or_default() += 1;
            let state = self.block(self.geo().block_of(frame.page)).state;
            let whole = matches!(state, BlockState::Sealed | BlockState::Dying);
            ensure!(whole, "session {s}: mapped frame {f} shows a page of a {state:?} block");
        }
        Ok(())
    }

    /// Check that a frame in an evictable list shows a page that may be evicted.
    fn check_listing(&self, s: u16, f: u32) -> Result<(), String> {
        let frame = self.frame(s, f);
        let block = self.block(self.geo().block_of(frame.page));
        let page = self.page(frame.page);
        if !matches!(frame.on, On::Clean | On::Refused | On::Dirty | On::Early | On::Stream | On::Outgoing)
            || frame.state == FrameState::Incoming
        {
            return Ok(());
        }
        let may = block.state == BlockState::Sealed || block.state == BlockState::Unsealed && block.parked;
        ensure!(may, "session {s}: frame {f} of a {:?} block must not be evictable", block.state);
        let pinned = frame.pins > 0 && frame.on != On::Early;
        ensure!(!pinned && frame.job == NONE, "session {s}: frame {f} is in use and must not be evictable");
        ensure!(
            !page.below() == matches!(frame.on, On::Dirty | On::Early),
            "session {s}: frame {f} is in list {:?}, host frame of its page {}",
            frame.on,
            page.host
        );
        Ok(())
    }

    fn check_seqs(&self, s: u16, seen: &mut Seen) -> Result<(), String> {
        for (i, q) in self.lists(s).seqs.iter().enumerate() {
            ensure!(q.is_live() || q.blocks() == 0, "session {s}: dead sequence {i} has blocks");
            // A lease that is being loaded from is checked again later.
            let watched = self.copiers[s].lease_ends_at
                <= q.leased_until.max(self.now().saturating_add(crate::block_api::LEASE_AGAIN_US));
            ensure!(!q.is_live() || !q.is_lease() || watched, "session {s}: no timer covers lease {i}");
            ensure!(
                q.tokens <= u64::from(q.blocks()) * self.geo().page_tokens,
                "session {s}: sequence {i} has more tokens than its blocks hold"
            );
            for index in 0..q.blocks() {
                let b = self.seq_block(s, i as u32, index);
                *seen.refs.entry(b).or_default().entry(s).or_default() += 1;
                if q.leased_until != u64::MAX {
                    *seen.leases.entry(b).or_default() += 1;
                }
            }
        }
        let leases = self.lists(s).seqs.iter().filter(|q| q.is_live() && q.is_lease()).count();
        ensure!(
            self.copiers[s].leases as usize == leases,
            "session {s}: counted {leases} leases, recorded {}",
            self.copiers[s].leases
        );
        Ok(())
    }

    fn check_blocks(&self, seen: &mut Seen) -> Result<(), String> {
        let free = self.blocks().free.iter(&self.blocks().recs).count();
        let (mut dying, mut referred) = (0, 0);
        for (b, block) in self.blocks().recs.iter().enumerate() {
            let b = b as u32;
            let refs = seen.refs.remove(&b).unwrap_or_default();
            let home = refs.get(&block.home).copied().unwrap_or(0);
            let all: u32 = refs.values().sum();
            ensure!(
                block.refs_home == home && block.refs() == u64::from(all),
                "block {b}: {block:?} has references {refs:?}"
            );
            let leases = seen.leases.get(&b).copied().unwrap_or(0);
            ensure!(block.leases == leases, "block {b}: {} leases, counted {leases}", block.leases);
            let in_flight = seen.in_flight.get(&b).copied().unwrap_or(0) + self.op_in_flight(b);
            ensure!(
                block.in_flight == in_flight,
                "block {b}: in-flight count {}, counted {in_flight}",
                block.in_flight
            );
            referred += u32::from(all > 0);
            dying += u32::from(matches!(block.state, BlockState::Dying | BlockState::Dropping));
            match block.state {
                BlockState::Free => ensure!(in_flight == 0, "free block {b} has operations in flight"),
                BlockState::Dying => ensure!(in_flight > 0, "dying block {b} has nothing in flight"),
                BlockState::Dropping => ensure!(in_flight > 0, "dropping block {b} has no drop in flight"),
                BlockState::Unsealed | BlockState::Sealed => {
                    ensure!(all > 0 || block.entry != NONE, "live block {b} is neither referenced nor published");
                }
            }
        }
        let free_state = self.blocks().recs.iter().filter(|b| b.state == BlockState::Free).count();
        ensure!(
            free == free_state && free == self.blocks().free.len as usize,
            "free blocks: {free} listed, counted {free_state}"
        );
        ensure!(dying == self.blocks().dying, "dying blocks: {}, counted {dying}", self.blocks().dying);
        let leased: u64 = seen.leases.keys().map(|&b| self.bytes_of_block(b)).sum();
        let before = self.blocks().leased_bytes;
        ensure!(leased == before, "bytes of leased blocks: {before}, counted {leased}");
        ensure!(
            referred == self.blocks().referred,
            "referenced blocks: {}, counted {referred}",
            self.blocks().referred
        );
        Ok(())
    }

    fn check_pages(&self, seen: &Seen) -> Result<(), String> {
        for (p, page) in self.pages().iter().enumerate() {
            let p = p as u32;
            let b = self.geo().block_of(p);
            let loads = seen.loads.get(&p).copied().unwrap_or(0);
            ensure!(page.loads == loads, "page {p}: {} loads, counted {loads}", page.loads);
            let invalidating = seen.invalidating.get(&p).copied().unwrap_or(0);
            ensure!(
                page.invalidating == invalidating,
                "page {p}: {} being invalidated, counted {invalidating}",
                page.invalidating
            );
            ensure!(
                page.copying_out() == seen.copying_out.contains_key(&p),
                "page {p}: copying out {}",
                page.copying_out()
            );
            if page.host != NONE {
                ensure!(self.host.page_of(page.host) == p, "host frame {} is not assigned to page {p}", page.host);
            }
            let (mut s, mut f) = (page.session, page.frame);
            while f != NONE {
                let frame = self.frame(s, f);
                ensure!(
                    frame.page == p && matches!(frame.state, FrameState::Present | FrameState::Incoming),
                    "page {p} links to frame {f} of session {s}: {frame:?}"
                );
                (s, f) = (frame.copy_session, frame.copy_frame);
            }
            if self.block(b).state == BlockState::Sealed && self.block(b).refs() > 0 {
                let somewhere = page.below() || page.frame != NONE || page.lost() || page.out_of_window();
                ensure!(somewhere, "page {p} of block {b} is in no tier");
            }
        }
        Ok(())
    }

    /// Check the pages charged to sessions and the host frames committed to them.
    fn check_committed(&self) -> Result<(), String> {
        let classes = self.geo().classes.len();
        let mut charged = vec![vec![0u64; classes]; usize::from(self.sessions().len())];
        let mut committed = vec![0u64; classes];
        let mut promised = 0;
        for (b, block) in self.blocks().recs.iter().enumerate().filter(|(_, b)| b.refs() > 0) {
            for page in self.pages_of(b as u32) {
                let class = usize::from(self.geo().class_of_page(page));
                if self.page(page).out_of_window() {
                    continue;
                }
                match block.refs_other {
                    0 => charged[usize::from(block.home)][class] += 1,
                    _ => committed[class] += 1,
                }
            }
        }
        for (s, tier0) in self.tier0s().iter().enumerate() {
            for (class, c) in tier0.classes.iter().enumerate() {
                ensure!(
                    c.committed == charged[s][class],
                    "session {s} class {class}: charged {}, counted {}",
                    c.committed,
                    charged[s][class]
                );
                let pages = u64::from(tier0.guaranteed_blocks) * u64::from(self.geo().classes[class].planes);
                ensure!(c.guaranteed == pages, "session {s} class {class}: guaranteed {}, not {pages}", c.guaranteed);
                committed[class] += charged[s][class].max(pages).saturating_sub(c.room());
            }
            let own = |b: &&Block| b.refs_home > 0 && b.refs_other == 0 && usize::from(b.home) == s;
            let own = self.blocks().recs.iter().filter(own).count() as u32;
            ensure!(tier0.own_blocks == own, "session {s}: {} blocks of its own, counted {own}", tier0.own_blocks);
            promised += tier0.guaranteed_blocks.saturating_sub(own);
        }
        ensure!(self.blocks().promised == promised, "blocks promised: {}, counted {promised}", self.blocks().promised);
        for (class, counted) in (0..).zip(committed) {
            let [.., committed] = self.host.counts(class);
            ensure!(committed == counted, "host class {class}: committed {committed}, counted {counted}");
        }
        Ok(())
    }

    /// Return the in-flight counts of requests that have yet to copy from the block.
    fn op_in_flight(&self, b: u32) -> u32 {
        let ops = self.sessions().iter().flat_map(|s| &s.ops.recs);
        let source = |op: &&Op| match op.work {
            Work::Fork(fork) => fork.copy.source == b,
            Work::Truncate(truncate) => truncate.copy.source == b,
            _ => false,
        };
        ops.filter(|op| op.phase != Phase::Free).filter(source).count() as u32
    }
}
