//! What a lost session leaves behind: its jobs never end, and its tier 0 is gone with its process.

use crate::api::{Cause, NONE};
use crate::blocks::{FrameState, On};
use crate::host::HostTier;
use crate::lists::List;
use crate::mutants::{self, Mutant};
use crate::sessions::Task;
use serde::{Deserialize, Serialize};

/// What the process of a lost session may still access until it exits.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Lost {
    /// Host frames that it may still write.
    pub quarantine: List,
    /// Pages with host frames that it may still read. They keep their bytes.
    pub reading: Vec<u32>,
    /// Host frames of jobs that were late when the session was lost.
    pub late_frames: Vec<u32>,
}

impl Lost {
    /// Return whether the process cannot write or read any host frame any more.
    pub fn is_harmless(&self) -> bool {
        self.quarantine.is_empty() && self.reading.is_empty() && self.late_frames.is_empty()
    }
}

impl HostTier {
    /// Release what a lost session's process may have accessed: it has exited.
    pub(crate) fn release_lost(&mut self, s: u16) {
        let Lost { mut quarantine, reading, late_frames } = std::mem::take(&mut self.lost[s]);
        while self.host.unquarantine(&mut quarantine) {}
        for at in late_frames {
            self.end_late(at);
        }
        for page in reading.into_iter().filter(|_| !mutants::on(Mutant::ReadingOfLostKept)) {
            self.count_load(page, false);
            self.settle_host(page);
            let b = self.geo().block_of(page);
            self.remove_in_flight(b);
        }
    }

    /// Abandon jobs in flight, which never end. Their resources are released, except the host frames that CopyOut jobs write.
    pub(crate) fn abandon_jobs(&mut self, s: u16) {
        for slot in 0..self.session(s).jobs.recs.len() as u32 {
            let job = *self.job(s, slot);
            if !job.live || self.abandon_late(s, slot) {
                continue;
            }
            match job.task {
                Task::Install | Task::CopyIn | Task::Copy | Task::CopyInAs => {
                    if job.frame != NONE {
                        if job.victim != NONE
                            && self.in_mapped_frame(s, job.frame)
                            && !mutants::on(Mutant::NoQuarantine)
                        {
                            // The page may still be shown.
                            self.keep_reading(s, job.victim);
                        }
                        self.count_mapped(s, job.frame, job.page, false);
                        self.remove_copy(job.page, s, job.frame);
                        self.unlist(s, job.frame);
                        self.now_empty(s, job.frame);
                    }
                    self.keep_source(s, job);
                    self.end_place(s, slot, job);
                }
                Task::Scatter => {
                    self.keep_source(s, job);
                    self.host_read(job.page);
                    let block = self.geo().block_of(job.page);
                    self.remove_in_flight(block);
                }
                Task::CopyOut | Task::Gather => {
                    self.set_copying_out(job.page, false);
                    if job.task == Task::Gather {
                        let class = self.geo().class_of_page(job.page);
                        self.host.count_copying(class, false);
                    }
                    if mutants::on(Mutant::NoQuarantine) {
                        self.host.free(job.host);
                    } else {
                        let mut list = self.lost[s].quarantine;
                        self.host.quarantine(&mut list, job.host);
                        self.lost[s].quarantine = list;
                    }
                    if job.task == Task::CopyOut {
                        self.set_frame_job(s, job.frame, NONE);
                    }
                    let b = self.geo().block_of(job.page);
                    self.remove_in_flight(b);
                }
                // A page that was unsealed may be sealed and published now. It is released with the other frames.
                Task::Move => self.undo_move(s, slot, job),
                Task::Evict => {
                    self.unmapped_by_loss(s, job.frame, job.page);
                    self.invalidated(job.page);
                }
                Task::Drop => {
                    let b = self.geo().block_of(job.page);
                    self.dropped(s, b);
                }
                Task::Cancel => {}
            }
        }
    }

    /// Keep the source of a load in flight. The process may read the host frame, and install its bytes, until it exits; so the
    /// frame keeps its data until then.
    fn keep_source(&mut self, s: u16, job: crate::sessions::JobRec) {
        let page = match job.task {
            Task::CopyIn | Task::Scatter => job.page,
            Task::CopyInAs => job.source,
            _ => return,
        };
        if !job.in_flight || mutants::on(Mutant::NoQuarantine) {
            return;
        }
        self.keep_reading(s, page);
    }

    fn keep_reading(&mut self, s: u16, page: u32) {
        self.count_load(page, true);
        let b = self.geo().block_of(page);
        self.add_in_flight(b);
        self.lost[s].reading.push(page);
    }

    /// Keep the page of a lost session's mapped frame, which shows the page until the process exits. Other frames are ignored.
    fn unmapped_by_loss(&mut self, s: u16, f: u32, page: u32) {
        if page != NONE && self.tier0(s).is_mapped_frame(f) {
            if !mutants::on(Mutant::NoQuarantine) {
                self.keep_reading(s, page);
            }
            self.count_mapped(s, f, page, false);
        }
    }

    /// Release the tier-0 frames, which are lost with their process. Pages that were only there are lost.
    pub(crate) fn abandon_frames(&mut self, s: u16) {
        for f in 0..self.tier0(s).frames.len() as u32 {
            let frame = *self.frame(s, f);
            match frame.on {
                // A queued Evict or Drop has nothing left to do.
                On::Evict | On::EvictLater => {
                    self.unlist(s, f);
                    self.unmapped_by_loss(s, f, frame.page);
                    self.invalidated(frame.page);
                }
                On::Drop => {
                    let b = self.geo().block_of(frame.page);
                    self.unlist(s, f);
                    self.dropped(s, b);
                }
                _ => {}
            }
            let frame = *self.frame(s, f);
            if frame.state == FrameState::Present {
                self.unlist(s, f);
                self.unmapped_by_loss(s, f, frame.page);
                self.remove_copy(frame.page, s, f);
                self.now_empty(s, f);
                self.settle_host(frame.page);
                self.counters.transitions += 1;
                self.lose_if_nowhere(frame.page, Cause::EngineLost);
            }
        }
    }

    /// Abandon a job of a lost session. Return true for a late copy: its frame stays in quarantine until the process exits.
    pub(crate) fn abandon_late(&mut self, s: u16, slot: u32) -> bool {
        self.in_time_again(s, slot);
        let job = *self.job(s, slot);
        if job.late {
            self.lost[s].late_frames.push(job.host);
        }
        job.late
    }
}
