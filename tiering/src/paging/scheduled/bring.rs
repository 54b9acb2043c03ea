//! Moves of pages that engines will need, after all moves for running steps: reads from NVMe, and loads into unneeded frames.

use super::{ScheduledPrefetch, is_expected};
use crate::actions::ActionBuf;
use crate::api::{Contract, IoClass, IoKind, NONE};
use crate::blocks::{NO_LANE, NewJob, Pick, Seq};
use crate::counters::Reason;
use crate::host::{Fetch, Take, Want};
use crate::mutants::{self, Mutant};
use crate::paging::{Paging, burst_frames};
use crate::sessions::Task;

/// Maximum number of blocks read from NVMe at a time.
const BLOCKS_AHEAD: usize = 8;

/// Maximum number of blocks from the next one to load to the last one to read.
const READ_AHEAD: u32 = 16;

/// Maximum transfer time in microseconds of these loads in flight: a demand load behind them waits no longer.
const AHEAD_US: u64 = 1_000;

/// Maximum loads in flight before the link is measured; `LOADS_MIN` is the minimum afterwards.
const UNMEASURED_LOADS: u64 = 8;

const LOADS_MIN: u64 = 2;

/// Delay in microseconds (some steps) of work that found no room.
const NO_ROOM_US: u64 = 10_000;

/// Maximum number of frames checked for one that may be taken, the least recently used first.
const CANDIDATES: usize = 64;

/// Maximum number of pages that one call checks before it returns to the daemon.
const LOOKS_MAX: u32 = 4096;

/// Progress of a scheduled prefetch.
enum Brought {
    All,
    /// It waits for an event that wakes the session.
    Waiting,
    /// An operation on its own sequence must end first.
    Busy,
    /// No frame may be taken now.
    NoRoom,
}

impl Paging<'_> {
    /// Continue the scheduled prefetches in order of need. A later one never overtakes a waiting one: it would take the resources of that one.
    pub(crate) fn send_scheduled(&mut self, s: u16, buf: &mut ActionBuf) {
        let (now, mut at, mut looks) = (self.now(), 0, LOOKS_MAX);
        while let Some(&scheduled) = self.pagers[s].scheduled.list.get(at) {
            if scheduled.done {
                at += 1;
                continue;
            }
            if scheduled.starts_us > now || scheduled.again_us > now {
                return;
            }
            let brought = self.bring(s, at, &mut looks, buf);
            let list = &mut self.pagers[s].scheduled.list;
            match brought {
                Brought::Waiting => return,
                // It waits for its own sequence, and takes nothing from later ones.
                Brought::Busy => at += 1,
                // Advice that finds no room is dropped.
                Brought::All | Brought::NoRoom if scheduled.advised => _ = list.remove(at),
                Brought::All => list[at].done = true,
                Brought::NoRoom => {
                    list[at].again_us = now.saturating_add(NO_ROOM_US);
                    self.counters.scheduled_held += 1;
                    return self.set_timer(now.saturating_add(NO_ROOM_US));
                }
            }
        }
    }

    fn bring(&mut self, s: u16, at: usize, looks: &mut u32, buf: &mut ActionBuf) -> Brought {
        let planes = self.geo().planes.len() as u16;
        self.read_blocks(s, at, looks, buf);
        loop {
            let prefetch = self.pagers[s].scheduled.list[at];
            let Some(&q) = self.live_seq(s, prefetch.seq) else { return Brought::All };
            let (index, plane) = prefetch.next;
            if index >= prefetch.end.min(q.blocks()) {
                return Brought::All;
            }
            if *looks == 0 {
                self.wake(s);
                return Brought::Waiting;
            }
            *looks -= 1;
            if q.busy != 0 {
                return Brought::Busy;
            }
            if !self.can_send(s, buf) {
                return Brought::Waiting;
            }
            if let Some(stall) = self.bring_page(s, at, &q, looks, buf) {
                return stall;
            }
            let next = &mut self.pagers[s].scheduled.list[at].next;
            *next = if plane + 1 == planes { (index + 1, 0) } else { (index, plane + 1) };
        }
    }

    /// Load the next page; return the reason if it cannot be loaded now.
    fn bring_page(&mut self, s: u16, at: usize, q: &Seq, looks: &mut u32, buf: &mut ActionBuf) -> Option<Brought> {
        let prefetch = self.pagers[s].scheduled.list[at];
        let (index, plane) = prefetch.next;
        if u64::from(index) < self.geo().first_needed(plane, q.tokens) {
            return None;
        }
        let page = self.geo().page(self.seq_block(s, prefetch.seq, index), plane);
        if self.find_copy(page, s).is_some() {
            // The page was unused for long, or parking made it the first to be evicted: the next search for a frame would take it.
            let limit = self.unneeded_before(s);
            let unused = self.present(page, s).filter(|&f| self.frame(s, f).stamp < limit.max(1));
            unused.inspect(|&f| self.touch(s, f));
            return None;
        }
        if self.must_wait(s, page) {
            return Some(Brought::Waiting);
        }
        let state = *self.page(page);
        if state.host == NONE {
            // Without a copy on NVMe the page is in another session's tier 0, or lost.
            return match state.on_disk() {
                true if state.reading() => Some(Brought::Waiting),
                true => {
                    self.pagers[s].scheduled.list[at].read = index;
                    Some(match self.read_blocks(s, at, looks, buf) {
                        Fetch::NoFrame => Brought::NoRoom,
                        Fetch::UnderWay | Fetch::Later => Brought::Waiting,
                    })
                }
                false => None,
            };
        }
        let class = self.geo().class_of_page(page);
        if u64::from(self.pagers[s].scheduled.in_flight) >= self.loads_allowed(s, class) {
            return Some(Brought::Waiting);
        }
        let (sinks, from) = self.always_kept(q, plane);
        let chosen = matches!(q.contract, Contract::Approx { .. }) && index >= sinks && index < from;
        let Some(pick) = self.pick_for_scheduled(s, class, &prefetch, chosen) else {
            // A page that an approximate step can omit displaces no other page.
            return if chosen { None } else { Some(Brought::NoRoom) };
        };
        self.place(
            s,
            pick,
            NewJob { task: Task::CopyIn, page, reason: Reason::Scheduled, op: NONE, source: NONE },
            buf,
        );
        self.pagers[s].scheduled.in_flight += 1;
        if !prefetch.advised {
            self.brought_by_schedule(s, pick.frame);
            self.counters.scheduled_loads += 1;
        }
        None
    }

    /// Return the maximum number of loads in flight.
    fn loads_allowed(&self, s: u16, class: u8) -> u64 {
        let rate = self.tier0(s).link.rate;
        if rate <= 0.0 {
            return UNMEASURED_LOADS;
        }
        let percent = u64::from(self.cfg().policy.attention.bandwidth_percent);
        let page_bytes = u64::from(self.geo().classes[usize::from(class)].page_bytes);
        ((rate * AHEAD_US as f32) as u64 * percent / 100 / page_bytes).max(LOADS_MIN)
    }

    /// Pick a frame that is free, or holds a page that no live step and no sequence due earlier needs. `spare`: only a free one.
    fn pick_for_scheduled(&mut self, s: u16, class: u8, prefetch: &ScheduledPrefetch, spare: bool) -> Option<Pick> {
        let (prediction, c) = (&self.pagers[s].prediction, &self.tier0(s).classes[usize::from(class)]);
        // Frames kept free for look-aheads are not taken.
        let kept = if prediction.pressed { burst_frames(prediction.burst, c.count) } else { 0 };
        if c.free.len > kept {
            return self.pick_free(s, class);
        }
        let limit = self.unneeded_before(s).min(self.tier0(s).clock);
        let mut clean = c.clean.iter(&self.tier0(s).frames).take(CANDIDATES).filter(|_| !spare);
        let any = mutants::on(Mutant::ScheduledTakesNeeded);
        let frame = clean.find(|&f| any || self.may_take(s, f, limit, prefetch))?;
        Some(Pick { frame, after: self.use_of(s, frame, (NO_LANE, 0)), stream_lane: NO_LANE })
    }

    /// Return whether the page in a frame is needed neither by a running sequence nor by a parked one due no later. A referenced
    /// page touched since `limit` belongs to a running sequence.
    fn may_take(&self, s: u16, f: u32, limit: u32, prefetch: &ScheduledPrefetch) -> bool {
        let frame = &self.tier0(s).frames[f as usize];
        let block = self.block(self.geo().block_of(frame.page));
        if block.refs() == 0 {
            return true;
        }
        let old = frame.stamp < limit && self.tier0(s).lanes.iter().all(|l| l.fault_frame != f);
        match self.lists(s).seqs.get(block.seq as usize).filter(|q| block.home == s && q.is_live()) {
            // A page does not displace one loaded for the same sequence. A sequence that is being resumed is no longer due, but
            // needs its pages.
            Some(q) if q.parked && (block.seq == prefetch.seq || q.busy != 0) => false,
            Some(q) if q.parked => {
                !(is_expected(q, self.now()) && q.due_us <= prefetch.due_us) && (old || block.refs() == 1)
            }
            Some(q) => old && (frame.stamp == 0 || q.stamp < limit),
            None => old && !frame.scheduled,
        }
    }

    /// Read the next blocks that are only on NVMe into host, whole, as far as host frames are free. Return the result for the first
    /// one.
    fn read_blocks(&mut self, s: u16, at: usize, looks: &mut u32, buf: &mut ActionBuf) -> Fetch {
        if self.disk.used() == 0 {
            return Fetch::UnderWay;
        }
        let planes = (0, self.geo().planes.len() as u16);
        let want = Want { class: IoClass::Prefetch, reason: Reason::Scheduled, take: Take::Spare, planes };
        let mut first = None;
        let scheduled = |t: &&crate::tables::disk::Transfer| t.kind == IoKind::Read && t.reason == Reason::Scheduled;
        let mut in_flight = self.disk.transfers().filter(scheduled).count();
        loop {
            let prefetch = self.pagers[s].scheduled.list[at];
            // If blocks were read too far ahead, the last ones would evict the next ones to load from host.
            let end = prefetch.end.min(prefetch.next.0.saturating_add(READ_AHEAD));
            let Some(&q) = self.live_seq(s, prefetch.seq).filter(|q| prefetch.read < end.min(q.blocks())) else {
                break;
            };
            let b = self.seq_block(s, prefetch.seq, prefetch.read);
            *looks = looks.saturating_sub(planes.1.into());
            let needed =
                |page: &u32| u64::from(prefetch.read) >= self.geo().first_needed(self.geo().plane_of(*page), q.tokens);
            let missing = |page: &u32| {
                let known = self.page(*page).reading() || self.find_copy(*page, s).is_some();
                self.only_on_disk(*page) && !known && needed(page)
            };
            let Some(page) = self.pages_of(b).find(missing) else {
                if *looks == 0 {
                    break;
                }
                self.pagers[s].scheduled.list[at].read += 1;
                continue;
            };
            let fetch = match in_flight < BLOCKS_AHEAD {
                true => self.read_in(page, want, buf),
                false => {
                    self.disk.want_transfer();
                    Fetch::Later
                }
            };
            first = first.or(Some(fetch));
            if fetch != Fetch::UnderWay {
                break;
            }
            in_flight += 1;
        }
        first.unwrap_or(Fetch::UnderWay)
    }
}
