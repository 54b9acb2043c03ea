//! Read-ahead: reads from disk the pages that a lane's steps will load from host, ahead of the walk that loads them, in the same
//! order.
//!
//! While host frames are free or hold pages that no live step needs, this is plain prefetching. Otherwise the steps need more than
//! tier 0 and host together, and host becomes the second stage of the cyclic scan: pages in host stay, and the rest streams through
//! a bounded number of frames. Each page read takes the frame of the page loaded last, because its next use is the farthest away.
//! At most `host_scan_frames` pages are read ahead and not yet loaded, so the fixed part loses no more than that. A step reads
//! `needed - tier 0 - host + streaming frames`, the minimum except for the streaming frames.

use crate::actions::ActionBuf;
use crate::api::{IoClass, NONE};
use crate::counters::Reason;
use crate::host::{Fetch, Take, Want};
use crate::paging::{Paging, WALK_MAX};

impl Paging<'_> {
    /// Continue a lane's read-ahead. Return false if it stopped only because it had checked the maximum number of pages.
    pub(crate) fn walk_read_ahead(&mut self, s: u16, lane: u16, buf: &mut ActionBuf) -> bool {
        let on_disk = self.disk.used() > 0;
        let w = &mut self.pagers[s].walks[usize::from(lane)];
        if !on_disk || !w.cursor.running {
            return true;
        }
        if w.read_ahead.order() < w.cursor.order() {
            w.read_ahead = w.cursor;
        }
        for _ in 0..WALK_MAX {
            let Some(page) = self.next_read_ahead_page(s, lane) else { return true };
            if !self.read_ahead_page(s, lane, page, buf) {
                return true;
            }
            self.pagers[s].walks[usize::from(lane)].read_ahead.index += 1;
        }
        false
    }

    /// Read a page that is only on disk. Return false if the walk must wait.
    fn read_ahead_page(&mut self, s: u16, lane: u16, page: u32, buf: &mut ActionBuf) -> bool {
        let p = *self.page(page);
        if p.host != NONE {
            let clock = self.clock();
            self.host.touch(p.host, clock);
        }
        if p.host != NONE || !p.on_disk() || p.reading() || self.find_copy(page, s).is_some() {
            return true;
        }
        let step = self.pagers[s].walks[usize::from(lane)].read_ahead.step;
        let reason =
            if self.tier0(s).lanes[usize::from(lane)].is_active(step) { Reason::Step } else { Reason::Prefetch };
        let want = Want { class: IoClass::Prefetch, reason, take: Take::Stream, planes: (0, 0) };
        self.read_in(page, want, buf) == Fetch::UnderWay
    }

    /// Return the page at the cursor. Advance over ends of sequences and planes, and into the step after the loaded one.
    fn next_read_ahead_page(&mut self, s: u16, lane: u16) -> Option<u32> {
        let planes = self.geo().planes.len() as u16;
        loop {
            let w = &mut self.pagers[s].walks[usize::from(lane)];
            let Some(&q) = w.batch.seqs.get(w.read_ahead.pos as usize) else {
                let last = w.read_ahead.plane + 1 == planes || w.batch.seqs.is_empty();
                let changes = w.has_next && w.next.seqs != w.batch.seqs;
                if last && (w.read_ahead.step > w.cursor.step || changes || w.batch.seqs.is_empty()) {
                    return None;
                }
                let (step, plane) =
                    if last { (w.read_ahead.step + 1, 0) } else { (w.read_ahead.step, w.read_ahead.plane + 1) };
                (w.read_ahead.step, w.read_ahead.plane, w.read_ahead.pos, w.read_ahead.index) = (step, plane, 0, NONE);
                continue;
            };
            let at = w.read_ahead;
            let (seq, index) = self.first_of_walk(s, q, at);
            let (c, plane) = (&mut self.pagers[s].walks[usize::from(lane)].read_ahead, at.plane);
            if !seq.is_live() || seq.parked || index >= seq.blocks() {
                (c.pos, c.index) = (at.pos + 1, NONE);
                continue;
            }
            c.index = index;
            let from = self.walk_from(s, &seq, plane, index);
            if from != index {
                self.pagers[s].walks[usize::from(lane)].read_ahead.index = from;
                continue;
            }
            return Some(self.geo().page(self.seq_block(s, q, index), plane));
        }
    }
}
