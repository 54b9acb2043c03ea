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

use crate::api::Status;
use crate::disk::Admit;
use crate::host::HostTier;
use crate::mutants::{self, Mutant};

impl HostTier {
    /// Decide whether `blocks` new blocks fit beside all live ones, `unsealed` of them with pages that stay in tier 0.
    pub(crate) fn admit(&mut self, s: u16, blocks: u64, unsealed: u64) -> Admit {
        let mut decision = Admit::Yes;
        let beyond_guarantee = blocks.saturating_sub(self.unclaimed(s).into());
        for class in 0..self.geo().classes.len() {
            let planes = u64::from(self.geo().classes[class].planes);
            let c = &self.tier0(s).classes[class];
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
        let planes = u64::from(self.geo().classes[usize::from(class)].planes);
        let stream = self.stream_frames(usize::from(class));
        let blocks = u64::from(self.blocks().referred + self.blocks().promised) + more;
        let in_host = blocks.saturating_sub(u64::from(self.disk.usable()));
        in_host * planes + stream <= self.host.usable(class)
    }
}
