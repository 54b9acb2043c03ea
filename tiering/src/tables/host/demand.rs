//! What callers lack, and what the node was asked for.

use super::{Host, HostOn};
use crate::config::Class;
use crate::error::Error;

/// Interval after which a node that refused memory is asked again, in microseconds, even if nothing else has changed. Memory of
/// other spaces may have become idle since, and is returned on request.
const ASK_AGAIN_US: u64 = 100_000;

impl Host {
    /// Note that a caller waits for a frame.
    pub fn want_frame(&mut self) {
        self.wanted = true;
    }

    /// Return whether callers wait for a frame, which are now told.
    pub fn take_wanted(&mut self) -> bool {
        std::mem::take(&mut self.wanted)
    }

    /// Return whether the node was asked for memory of a class and has not answered.
    pub fn is_asked(&self, class: u8) -> bool {
        self.of(class).asked
    }

    /// Return whether the node was asked and a caller should wait for the answer: after a refusal it should not.
    pub fn awaits_grant(&self, class: u8) -> bool {
        self.of(class).asked && !self.of(class).refused
    }

    /// Request memory of a class, unless that cannot help now, or exceeds `limit` bytes. Return whether to send the request.
    /// `lanes`: with an NVMe tier, the lanes whose pages stream through host.
    pub fn ask(&mut self, class: u8, now: u64, classes: &[Class], lanes: Option<u64>, limit: u64) -> bool {
        let stride = |c: usize| u64::from(classes[c].stride);
        // Leave the other classes the frames that they need to stream at all. A class that lacks this minimum itself does not
        // wait for them: two classes would wait for each other.
        let missing = |c: usize, lanes: u64| {
            (u64::from(classes[c].planes) + lanes).saturating_sub(self.classes[c].granted) * stride(c)
        };
        let theirs = match lanes {
            Some(lanes) if missing(class.into(), lanes) == 0 => (0..classes.len()).map(|c| missing(c, lanes)).sum(),
            _ => 0,
        };
        // The node chooses the size of a grant; assume that the next one is as large as the largest so far.
        let next = if theirs > 0 { self.slab_bytes } else { 0 }.max(stride(class.into()));
        let fits = self.granted_bytes(classes) + theirs + next <= limit;
        let c = self.of_mut(class);
        let asks = fits && !c.asked && (!c.refused || c.ask_again_us <= now);
        c.asked |= asks;
        asks
    }

    /// Return whether the class has no frames.
    pub fn has_none(&self, class: u8) -> bool {
        self.of(class).granted == 0
    }

    pub fn slab_refused(&mut self, class: u8, now: u64) -> Result<(), Error> {
        let Some(c) = self.classes.get_mut(usize::from(class)) else {
            return Err(Error::Slab { slab: crate::api::NONE, why: "no such size class" });
        };
        (c.asked, c.refused, c.ask_again_us) = (false, true, now.saturating_add(ASK_AGAIN_US));
        c.refusals = c.refusals.saturating_add(1);
        Ok(())
    }

    /// Return when the node is asked again, if it has refused a class once.
    pub fn second_request_us(&self, class: u8) -> Option<u64> {
        let c = self.of(class);
        (c.refused && c.refusals == 1).then_some(c.ask_again_us)
    }

    /// Forget refusals after which the node may be asked again at `now`; at `u64::MAX`: all, since memory was freed somewhere.
    pub fn forget_refusals(&mut self, now: u64) {
        self.classes.iter_mut().for_each(|c| c.refused &= c.ask_again_us > now);
    }

    /// Return the bytes that frames can have: the limit, or what was granted if the node refused more.
    pub fn bytes_max(&self, classes: &[Class], limit: u64) -> u64 {
        if self.classes.iter().any(|c| c.refused) { self.granted_bytes(classes) } else { limit }
    }

    /// Return whether the class can spare a slab of `frames` for another space: it waits for no memory, and the others suffice for
    /// the admitted pages and for `stream`.
    pub fn can_spare(&self, class: u8, frames: u64, stream: u64) -> bool {
        let c = self.of(class);
        let left = self.usable(class).checked_sub(frames);
        left.is_some_and(|left| !c.asked && left >= c.committed.max(stream))
    }

    /// Count a caller that finds no frame to evict. Return true if copies in flight or write-back will make some frame evictable.
    /// `can_take`: a disk has room for dirty pages; `can_write`: writes succeed.
    pub fn register_shortage(&mut self, class: u8, can_take: bool, can_write: bool) -> bool {
        let c = self.of_mut(class);
        c.shortage += 1;
        let writable = c.writing > 0 || !c.lists[HostOn::Dirty as usize].is_empty() && can_take;
        c.copying > 0 || writable && can_write
    }

    /// Return whether dirty frames of a class must be written: `Some(true)` if a caller waits. Else forget who lacked frames.
    /// Write-back begins below the first, and continues until the second percentage of frames that are free or clean.
    pub fn must_write(&mut self, class: u8, (low, high): (u8, u8)) -> Option<bool> {
        let (free, usable) = (self.free_frames(class), self.usable(class));
        let c = self.of_mut(class);
        let ready = free + c.evictable() + u64::from(c.writing);
        let percent = if c.cleaning { high } else { low };
        c.cleaning = c.short || ready < usable * u64::from(percent) / 100;
        let shortage = c.shortage > c.writing;
        if !c.cleaning && !shortage || c.lists[HostOn::Dirty as usize].is_empty() {
            self.forget_shortage(class);
            return None;
        }
        Some(shortage)
    }

    /// Forget the callers that found no frame: nothing can be written for them.
    pub fn forget_shortage(&mut self, class: u8) {
        let c = self.of_mut(class);
        (c.shortage, c.short) = (0, false);
    }

    /// Return the number of frames that a scan may stream pages through.
    pub fn scan_frames(&self, class: u8, policy: u32) -> u64 {
        u64::from(policy).min(self.of(class).granted / 2).max(1)
    }

    /// Return whether a scan may evict a page that will be needed again, to read ahead into its frame.
    pub fn stream_over(&mut self, class: u8, policy: u32) -> bool {
        let may = u64::from(self.of(class).read_ahead_frames) < self.scan_frames(class, policy);
        self.of_mut(class).short |= may;
        may
    }

    /// Return whether a caller finds no frame, and pages that are only in host move back to tier 0.
    pub fn is_reclaiming(&self, class: u8) -> bool {
        self.of(class).reclaiming
    }

    /// Let pages that are only in host move back to tier 0. Return false if they do already.
    pub fn start_reclaiming(&mut self, class: u8) -> bool {
        !std::mem::replace(&mut self.of_mut(class).reclaiming, true)
    }

    /// Assign a free frame to the page of a caller that waited, if there is one.
    pub fn alloc_reclaimed(&mut self, class: u8, page: u32) -> Option<u32> {
        let at = self.alloc(class, page);
        self.of_mut(class).reclaiming &= at.is_none();
        at
    }

    /// Until that time, leave the next frames of a class to a demand read that found none; 0: it got one.
    pub fn leave_to_reader(&mut self, class: u8, until: u64) {
        self.of_mut(class).reader_waits_until = until;
    }

    /// Return whether stores must leave free frames of a class to a demand read.
    pub fn reader_waits(&self, class: u8, now: u64) -> bool {
        now < self.of(class).reader_waits_until
    }

    /// End the priority of demand reads that did not ask again: they may have been canceled. Return whether there were any, and when
    /// the next priority ends.
    pub fn readers_due(&mut self, now: u64) -> (bool, Option<u64>) {
        let (mut ended, mut next) = (false, None);
        for c in self.classes.iter_mut().filter(|c| c.reader_waits_until != 0) {
            match c.reader_waits_until {
                until if until > now => next = Some(next.map_or(until, |at: u64| at.min(until))),
                _ => (c.reader_waits_until, ended) = (0, true),
            }
        }
        (ended, next)
    }

    /// Return the number of frames of a class shown by mapped frames.
    pub fn mapped(&self, class: u8) -> u64 {
        self.of(class).mapped.into()
    }

    /// Return whether pages of a class may be mapped: no caller lacks a frame, or lacked one in the last steps.
    pub fn may_map(&self, class: u8, clock: u32) -> bool {
        let c = self.of(class);
        c.no_mapping_until.wrapping_sub(clock).cast_signed() <= 0 && !c.reclaiming
    }

    /// Map no page of a class until that step: a caller waits for a frame. Return false if no page is mapped.
    pub fn pause_mapping(&mut self, class: u8, until: u32) -> bool {
        let c = self.of_mut(class);
        if c.mapped == 0 {
            return false;
        }
        c.no_mapping_until = until;
        self.wanted = true;
        true
    }

    /// Let `frames` mapped frames be unmapped.
    pub fn request_unmaps(&mut self, class: u8, frames: u32) {
        self.of_mut(class).to_unmap = frames;
    }

    /// Return the number of mapped frames to unmap: those requested, or above the quota.
    pub fn unmaps_due(&mut self, class: u8, quota: u64) -> u64 {
        let c = self.of_mut(class);
        if c.mapped == 0 {
            c.to_unmap = 0;
        }
        u64::from(c.to_unmap).max(u64::from(c.mapped).saturating_sub(quota))
    }

    pub fn unmapped(&mut self, class: u8) {
        let c = self.of_mut(class);
        c.to_unmap = c.to_unmap.saturating_sub(1);
    }
}
