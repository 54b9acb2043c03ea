//! Reads from NVMe: a page that is only on NVMe is read into host first; from there it moves like any other page.

use crate::actions::ActionBuf;
use crate::api::{IoClass, IoKind, NONE};
use crate::counters::Reason;
use crate::disk::IO_PAGES_MAX;
use crate::error::Error;
use crate::host::HostTier;
use crate::lists::List;

/// Which host frames a read may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// Frames that are free, or hold pages that no live step needs or that are resident in tier 0.
    Spare,
    /// Also frames of a scan: pages that were read last and will be needed last, up to the number of frames that a scan streams
    /// through.
    Stream,
    /// Any frame that can be freed at once: the page is the next one that a scan loads.
    Next,
    /// Any frame: a request waits.
    Any,
}

/// Time in microseconds during which stores leave free host frames to a demand read that found none. The read asks again whenever a
/// frame becomes free, which takes a busy disk a few milliseconds.
const READER_US: u64 = 20_000;

/// Purpose of a read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub class: IoClass,
    pub reason: Reason,
    pub take: Take,
    /// Range of planes (from, to). Their pages are read in the same request if they are not in host either.
    pub planes: (u16, u16),
}

/// Result of an attempt to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetch {
    /// The read is in flight.
    UnderWay,
    /// It cannot start now; the waiting requests are woken later.
    Later,
    /// No host frame is available.
    NoFrame,
}

impl HostTier {
    /// Read a page that is only on disk into host, together with the other wanted pages of its block.
    pub(crate) fn read_in(&mut self, page: u32, want: Want, buf: &mut ActionBuf) -> Fetch {
        if self.page(page).reading() {
            if want.class == IoClass::Demand {
                self.urge(page, want.class, buf);
            }
            return Fetch::UnderWay;
        }
        if !self.can_move(want.class, buf) {
            return Fetch::Later;
        }
        if let Some(at) = self.disk.reads_paused_until(self.now()) {
            self.set_timer(at);
            return Fetch::Later;
        }
        let b = self.geo().block_of(page);
        if self.is_slot_gone(b) {
            // Transfers in flight from there still end.
            return Fetch::Later;
        }
        let Some(first) = self.frame_to_read(page, want.take) else { return Fetch::NoFrame };
        self.set_reading(page, true);
        let mut frames = List::default();
        let (from, to) = if self.page(page).read_fails() > 0 { (0, 0) } else { want.planes };
        for plane in 0..self.geo().planes.len() as u16 {
            let other = self.geo().page(b, plane);
            let at = if other == page {
                first
            } else {
                let p = self.page(other);
                // A page that failed before is read alone, so that one bad page does not fail others.
                let fits = self.only_on_disk(other) && !p.reading() && p.frame == NONE && p.read_fails() == 0;
                let full = frames.len as usize + 1 >= IO_PAGES_MAX && plane < self.geo().plane_of(page)
                    || frames.len as usize >= IO_PAGES_MAX;
                if !fits || full || plane < from || plane >= to {
                    continue;
                }
                // The first page is needed; the others are read only if that costs no other request a frame.
                let Some(at) = self.frame_to_read(other, want.take) else { continue };
                self.set_reading(other, true);
                at
            };
            self.host.begin_transfer(&mut frames, at, IoKind::Read);
        }
        self.move_pages((IoKind::Read, want.class, want.reason), b, frames, buf);
        Fetch::UnderWay
    }

    /// Take a host frame for a page to read, and mark it as read ahead unless a request waits for it.
    fn frame_to_read(&mut self, page: u32, take: Take) -> Option<u32> {
        let class = self.geo().class_of_page(page);
        let at = match self.host.alloc(class, page) {
            Some(at) => at,
            None => {
                // The read-ahead continues with the next page that its session loads.
                if matches!(take, Take::Next | Take::Any) {
                    self.host.want_frame();
                }
                match take {
                    Take::Any => match self.take_host_to_read(page) {
                        Some(at) => at,
                        None => {
                            let until = self.now().saturating_add(READER_US);
                            self.host.leave_to_reader(class, until);
                            self.set_timer(until);
                            return None;
                        }
                    },
                    _ if self.ask_slab(class) || !self.evict_host_for_walk(class, take) => {
                        if take == Take::Next {
                            self.unmap_some(class);
                        }
                        return None;
                    }
                    _ => self.host.alloc(class, page)?,
                }
            }
        };
        if take == Take::Any {
            self.host.leave_to_reader(class, 0);
        }
        let clock = self.clock();
        self.host.touch(at, clock);
        self.host.set_read_ahead(at, take != Take::Any);
        Some(at)
    }

    fn evict_host_for_walk(&mut self, class: u8, take: Take) -> bool {
        if self.evict_host_at_no_cost(class) {
            return true;
        }
        let [clean, ahead] = self.last_in_host(class);
        let scan = self.cfg().policy.host_scan_frames;
        match take {
            Take::Stream if clean != NONE && self.host.stream_over(class, scan) => {
                self.evict_host(clean);
                self.disk.wake();
                true
            }
            Take::Next => self.evict_host(clean) || self.evict_host(ahead),
            Take::Stream | Take::Spare | Take::Any => false,
        }
    }

    pub(crate) fn disk_adopted(&mut self, slab: u32, slots: u32, disk: u16, generation: u32) -> Result<(), Error> {
        if !self.disk.exists() {
            return Err(Error::Slab { slab, why: "the space has no NVMe tier" });
        }
        self.disk.grant(slab, slots, disk, generation)?;
        self.disk.empty_budget();
        // Request host memory now, so that the first hit does not wait for the grant, the mapping and the registration with the
        // disk.
        for class in 0..self.geo().classes.len() as u8 {
            if self.host.has_none(class) {
                self.ask_slab(class);
            }
        }
        Ok(())
    }
}
