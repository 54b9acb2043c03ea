//! The host frame of a page: the list that it is in, loads that read it, and requests for host memory.

use crate::api::{Action, BlockId, IoClass, NONE};
use crate::blocks::{Block, BlockTable, FrameState, On};
use crate::error::Error;
use crate::mutants::{self, Mutant};
use crate::sessions::{JobRec, Task};
use crate::tables::host::HostOn;

impl BlockTable {
    /// Return whether the page must be read from disk before a session can load it.
    pub(crate) fn only_on_disk(&self, page: u32) -> bool {
        let p = &self.pages[page as usize];
        p.host == NONE && p.on_disk()
    }

    /// Return the minimum number of host frames of a class through which pages on NVMe stream: those of one block for a transfer,
    /// and one per lane for its fault.
    pub(crate) fn stream_frames(&self, class: usize) -> u64 {
        u64::from(self.geo().classes[class].planes) + self.live_lanes()
    }

    /// Return the number of lanes of all live sessions.
    fn live_lanes(&self) -> u64 {
        self.tier0.iter().map(|tier0| tier0.lanes.len() as u64).sum()
    }

    /// Put the host frame of a page into the list where it belongs.
    pub(crate) fn settle_host(&mut self, page: u32) {
        let at = self.pages[page as usize].host;
        if at != NONE && self.disk.exists() && self.host.list_of(at) != HostOn::Moving {
            let on = self.host_list_of(page, at);
            self.host.enlist(at, on, self.clock());
        }
    }

    pub(crate) fn settle_hosts_of(&mut self, b: BlockId) {
        if self.disk.exists() {
            self.pages_of(b).for_each(|page| self.settle_host(page));
        }
    }

    /// Return the list for a page's host frame `at` while no transfer writes it.
    pub(crate) fn host_list_of(&self, page: u32, at: u32) -> HostOn {
        let p = &self.pages[page as usize];
        let block = &self.blocks[self.geo().block_of(page)];
        if p.loads > 0 && !mutants::on(Mutant::EvictHostWhileLoading)
            || self.host.late(at) > 0
            || p.out_of_window()
            || !block.live()
        {
            // The frame is in use, or its page was given up. A given-up page's frame is freed once no mapped frame shows it.
            // Eviction of a frame that a late copy reads would not free it.
            HostOn::Nothing
        } else if p.writing() {
            // The transfer writes another frame, which the page showed before.
            HostOn::Nothing
        } else if !p.on_disk() && !mutants::on(Mutant::EvictDirtyHost) {
            match block.may_leave() {
                true if self.is_mapped(page) => HostOn::Dirty,
                true if block.not_admitted && block.refs() == 0 => HostOn::NotAdmitted,
                true => HostOn::Dirty,
                false => HostOn::Nothing,
            }
        } else if self.is_mapped(page) {
            HostOn::Nothing
        } else if self.host.is_read_ahead(at) {
            HostOn::ReadAhead
        } else if self.stays_in_tier0(page, block) {
            HostOn::AlsoInTier0
        } else {
            HostOn::Clean
        }
    }

    /// Return whether the page is in tier 0 of the only session that reads it, and is not streamed there.
    fn stays_in_tier0(&self, page: u32, block: &Block) -> bool {
        if block.refs_other > 0 || block.refs_home == 0 {
            return false;
        }
        let frame = self.find_copy(page, block.home).map(|f| self.frame(block.home, f));
        frame.is_some_and(|f| f.state == FrameState::Present && !matches!(f.on, On::Stream | On::Outgoing))
    }

    /// Drop the host copy of a page unless a load or a mapped frame reads it. If a transfer still writes the frame, it is freed
    /// when that transfer ends.
    pub(crate) fn drop_host_copy(&mut self, page: u32) {
        let mapped = self.is_mapped(page);
        let p = &mut self.pages[page as usize];
        if p.host == NONE || p.loads > 0 || mapped {
            return;
        }
        let at = std::mem::replace(&mut p.host, NONE);
        self.counters.transitions += 1;
        if self.host.list_of(at) == HostOn::Moving && !mutants::on(Mutant::FreeWhileWriting) {
            // The transfer that writes the frame frees it when it ends.
            return;
        }
        self.host.free(at);
        self.host_freed();
    }

    /// Wake the callers that wait for a host frame, since one was freed.
    pub(crate) fn host_freed(&mut self) {
        if self.host.take_wanted() && !mutants::on(Mutant::FreedHostWakesNobody) {
            self.wake_all();
        }
    }

    /// Raise the urgency of the read of a page of block `b`. Return its id, unless none is in flight or it was as urgent before.
    pub(crate) fn urge_transfer(&mut self, b: BlockId, page: u32, class: IoClass) -> Option<u32> {
        let host = &self.host;
        self.disk.urge(class, |t| t.block == b && host.in_transfer(&t.frames).any(|(_, p)| p == page))
    }

    /// Add a slab that the node granted.
    pub(crate) fn slab_granted(&mut self, class: u8, slab: u32, frames: u32) -> Result<(), Error> {
        self.host.slab_granted(class, slab, frames, &self.below.geo().classes)
    }

    /// Ask the node for memory of a class, unless it cannot help now. Return true while an answer is pending.
    pub(crate) fn ask_slab(&mut self, class: u8) -> bool {
        let lanes = self.disk.exists().then(|| self.live_lanes());
        let below = &self.below;
        if self.host.ask(class, below.now(), &below.geo().classes, lanes, below.cfg().limits.host_bytes_max) {
            self.act(Action::NeedSlab { class });
        }
        // After a refusal, continue without waiting for a second answer.
        self.host.awaits_grant(class)
    }

    /// Mark a copy between host and an engine's own block as late, and release its page.
    pub(crate) fn copy_is_late(&mut self, s: u16, slot: u32, job: JobRec) {
        self.set_job_late(s, slot, true);
        self.host.begin_late(job.host);
        match job.task {
            Task::Gather => {
                self.host.count_copying(self.geo().class_of_page(job.page), false);
                self.pages[job.page as usize].set_copying_out(false);
                self.host.free(job.host);
                self.host_freed();
                self.settle_page(job.page);
            }
            _ => self.host_read(job.page),
        }
        self.counters.quarantined_total += 1;
        let bytes = self.late_bytes_of(job);
        self.charge_late(s, bytes);
        self.remove_in_flight(self.geo().block_of(job.page));
    }

    /// Take a host frame out of quarantine: its late copy has ended, or the process has exited.
    pub(crate) fn end_late(&mut self, at: u32) {
        self.host.end_late(at);
        if let Some(page) = self.host.page_in(at, self.host.class_of(at)) {
            self.settle_host(page);
        }
        self.host_freed();
        self.wake_admission();
    }

    /// Return true if host frames of a class are in quarantine and will probably be free soon.
    pub(crate) fn are_frames_coming(&self, class: u8) -> bool {
        self.host.has_quarantined(class) && self.is_quarantine_ending()
    }
}
