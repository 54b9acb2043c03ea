//! Committed memory of sessions, and admission of new requests.
//!
//! Every live page must always have a place. The tier 0 of a session may hold pages of its home blocks that have no other copy:
//! at most one per frame, less the scan frames. Each further page of home blocks needs a host frame, and so does every page of a
//! block that several sessions refer to. `committed` of a class is the sum of these host frames. Admission keeps it within the
//! granted frames. At least `scan` frames of a full tier 0 are then clean, or a host frame is free, so steps never wait for
//! memory.
//!
//! A session may have a guarantee of N blocks. It is then charged as if it had that many blocks of its own, so that requests up to N
//! need no further admission. `promised` is the number of block ids that sessions have yet to take of their guarantees.
//!
//! With an NVMe tier, a class that exceeds this still fits if its blocks fit on disk. Each referenced block must have a slot
//! there, or be able to get one from evicted entries. The exception is as many blocks as fit into host as a whole, beside the
//! frames through which the other blocks stream. A block takes its slot when it is first written.

use super::Core;
use crate::api::Status;
use crate::mutants::{self, Mutant};
use crate::sessions::Life;

/// Decision about the start of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admit {
    Yes,
    /// Work in flight may make room.
    Wait,
    No(Status),
}

impl Core {
    /// Add the block's pages that are not out of window to the pages charged to `session`, or remove them. `None`: shared pages,
    /// charged to host.
    pub(crate) fn charge(&mut self, session: Option<u16>, block: u32, add: bool) {
        if let Some(s) = session {
            let before = self.unclaimed(s);
            let own = &mut self.sessions[usize::from(s)].own_blocks;
            *own = if add { *own + 1 } else { *own - 1 };
            self.blocks.promised = self.blocks.promised + self.unclaimed(s) - before;
        }
        if self.blocks[block].partial {
            for plane in 0..self.geo.planes.len() as u16 {
                if !self.pages[self.geo.page(block, plane) as usize].out_of_window() {
                    self.charge_pages(session, self.geo.class_of(plane), 1, add);
                }
            }
        } else {
            for class in 0..self.geo.classes.len() {
                self.charge_pages(session, class as u8, u64::from(self.geo.classes[class].planes), add);
            }
        }
    }

    pub(crate) fn charge_pages(&mut self, session: Option<u16>, class: u8, pages: u64, add: bool) {
        let (before, now) = match session {
            None if add => (0, pages),
            None => (pages, 0),
            Some(s) => {
                let c = &mut self.sessions[usize::from(s)].classes[usize::from(class)];
                let before = c.committed_in_host();
                c.committed = if add { c.committed + pages } else { c.committed - pages };
                (before, c.committed_in_host())
            }
        };
        self.host.commit(class, before, now);
    }

    /// Return the bytes of a block's pages that are not out of window.
    pub(crate) fn bytes_of_block(&self, block: u32) -> u64 {
        if !self.blocks[block].partial {
            return self.geo.classes.iter().map(|class| u64::from(class.planes) * u64::from(class.stride)).sum();
        }
        let in_window = |plane: &u16| !self.pages[self.geo.page(block, *plane) as usize].out_of_window();
        let planes = (0..self.geo.planes.len() as u16).filter(in_window);
        planes.map(|plane| u64::from(self.geo.classes[usize::from(self.geo.class_of(plane))].stride)).sum()
    }

    /// Remove the charge of a page that is out of window.
    pub(crate) fn uncharge_page(&mut self, block: u32, class: u8) {
        if self.blocks[block].leases > 0 {
            self.blocks.leased_bytes -= u64::from(self.geo.classes[usize::from(class)].stride);
        }
        let b = &self.blocks[block];
        match (b.refs_home, b.refs_other) {
            (0, 0) => {}
            (_, 0) => self.charge_pages(Some(b.home), class, 1, false),
            _ => self.charge_pages(None, class, 1, false),
        }
    }

    /// Decide whether `blocks` new blocks fit beside all live ones, `unsealed` of them with pages that stay in tier 0.
    pub(crate) fn admit(&mut self, s: u16, blocks: u64, unsealed: u64) -> Admit {
        let mut decision = Admit::Yes;
        let beyond_guarantee = blocks.saturating_sub(self.unclaimed(s).into());
        for class in 0..self.geo.classes.len() {
            let planes = u64::from(self.geo.classes[class].planes);
            let c = &self.sessions[usize::from(s)].classes[class];
            let (pages, stay) = (blocks * planes, unsealed * planes);
            if stay > c.room() {
                return Admit::No(Status::TooBig);
            }
            if c.held() + stay > c.room() {
                // Only the engine can change that; nothing in flight can.
                return Admit::No(Status::NoSpace);
            }
            let more_pages = c.committed_with(c.committed + pages, c.guaranteed, c.room()) - c.committed_in_host();
            match self.admit_host(class as u8, more_pages, beyond_guarantee) {
                Admit::Yes => {}
                Admit::Wait => decision = Admit::Wait,
                no => return no,
            }
        }
        decision
    }

    /// Decide whether `more` pages of a class, from `blocks` new blocks beyond guarantees, have a place at any time.
    pub(crate) fn admit_host(&mut self, class: u8, more: u64, blocks: u64) -> Admit {
        if self.fits_host(class, more, blocks) || mutants::on(Mutant::ReserveOverCapacity) {
            return Admit::Yes;
        }
        if self.ask_slab(class) || self.slots_would_help(class) && self.ask_disk() {
            return Admit::Wait;
        }
        // The node has been asked again after a refusal. Unlike work in flight, this request can wait for the answer.
        if self.host.is_asked(class) || self.is_quarantine_ending() {
            return Admit::Wait;
        }
        Admit::No(self.disk.failing().unwrap_or(Status::NoSpace))
    }

    /// Return whether `more` pages of a class fit into the granted memory. They belong to `blocks` new blocks beyond guarantees.
    pub(crate) fn fits_host(&self, class: u8, more: u64, blocks: u64) -> bool {
        let nothing = more == 0 && (blocks == 0 || !self.disk.exists());
        nothing || self.host.fits(class, more) || self.fits_on_disk(class, blocks)
    }

    /// Return the minimum number of host frames of a class through which pages on NVMe stream: those of one block for a transfer,
    /// and one per lane for its fault.
    pub(crate) fn stream_frames(&self, class: usize) -> u64 {
        u64::from(self.geo.classes[class].planes) + self.live_lanes()
    }

    /// Return the number of lanes of all live sessions.
    pub(crate) fn live_lanes(&self) -> u64 {
        self.sessions.iter().filter(|s| s.life == Life::Live).map(|s| s.lanes.len() as u64).sum()
    }

    /// Return true if more NVMe space could make a class fit: host memory is large enough to stream pages through.
    fn slots_would_help(&self, class: u8) -> bool {
        let stream = self.stream_frames(usize::from(class));
        self.disk.exists() && self.disk.failing().is_none() && stream <= self.host.usable(class)
    }

    /// Return whether all referenced blocks and `more` new ones have a place: a slot on NVMe, or all their pages of the class in
    /// host beside the frames through which the others stream.
    fn fits_on_disk(&self, class: u8, more: u64) -> bool {
        if !self.disk.exists() || more > 0 && self.disk.failing().is_some() {
            return false;
        }
        let planes = u64::from(self.geo.classes[usize::from(class)].planes);
        let stream = self.stream_frames(usize::from(class));
        let blocks = u64::from(self.blocks.referred + self.blocks.promised) + more;
        let in_host = blocks.saturating_sub(u64::from(self.disk.usable()));
        in_host * planes + stream <= self.host.usable(class)
    }

    /// Return the number of blocks that the session has yet to take of its guarantee.
    pub(crate) fn unclaimed(&self, s: u16) -> u32 {
        let session = &self.sessions[usize::from(s)];
        session.guaranteed_blocks.saturating_sub(session.own_blocks)
    }

    /// Return whether `more` block ids are neither referenced nor promised.
    pub(crate) fn ids_suffice(&self, more: u32) -> bool {
        let taken = u64::from(self.blocks.referred) + u64::from(self.blocks.promised);
        taken + u64::from(more) <= u64::from(self.blocks.max)
    }

    /// Decide whether `count` block ids are free for the session, now or soon.
    pub(crate) fn admit_ids(&mut self, s: u16, count: u32) -> Admit {
        let beyond_guarantee = count.saturating_sub(self.unclaimed(s));
        if beyond_guarantee > 0 && !self.ids_suffice(beyond_guarantee) {
            // Evicting all cached blocks would not free enough ids.
            return Admit::No(Status::NoSpace);
        }
        if self.ids_wanted > 0 && self.ids_short(count) > 0 && self.is_writing_entries() {
            // An earlier search found too few ids, and the blocks that it waits for are not recorded yet. Another search would
            // find no more.
            return Admit::Wait;
        }
        while self.ids_short(count) > 0 && self.drop_idle_blocks(count) {}
        if self.ids_short(count) > 0 && self.is_writing_entries() {
            // A recorded block gives its id up, so nothing has to be dropped unwritten.
            self.ids_wanted = self.ids_short(count);
            return Admit::Wait;
        }
        while self.ids_short(count) > 0 && self.drop_entry_with_block() {}
        if self.blocks.free_ids() >= count {
            Admit::Yes
        } else if self.ids_short(count) == 0 {
            Admit::Wait
        } else {
            Admit::No(Status::NoSpace)
        }
    }

    /// Return whether blocks are being written to NVMe, by disks that accept writes.
    fn is_writing_entries(&self) -> bool {
        let room = self.disk.free_slots() > 0 || self.disk.slots_to_come();
        let some = self.disk.writes() + self.disk.log_requests_in_flight() + self.blocks.to_record.len > 0
            || room && self.blocks.to_write_count() > 0;
        self.disk.exists() && some && self.disk.failing().is_none()
    }

    /// Count a block that was recorded or failed to be written. Retry the requests that wait for ids once enough ids can be free,
    /// or nothing more is being written.
    pub(crate) fn ids_may_be_free(&mut self) {
        if self.ids_wanted == 0 {
            return;
        }
        self.ids_wanted -= 1;
        if self.ids_wanted == 0 || !self.is_writing_entries() {
            self.ids_wanted = 0;
            self.wake_admission();
        }
    }
}
