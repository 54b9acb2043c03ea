//! Write-back from tier 0: sealed pages are stored in host, the least recently used first, so that evicting them later moves no
//! bytes.

use crate::actions::ActionBuf;
use crate::api::{FrameId, NONE, Status};
use crate::counters::Reason;
use crate::host::For;
use crate::mutants::{self, Mutant};
use crate::paging::{CHANCES, Paging};
use crate::sessions::JobRec;
use crate::tables::disk::IO_TRIES;

impl Paging<'_> {
    /// Start `CopyOut` jobs for classes with too few frames that are free or clean, or where a request found none.
    pub(crate) fn issue_cleaning(&mut self, s: u16, buf: &mut ActionBuf) {
        for class in 0..self.geo().classes.len() {
            let policy = self.cfg().policy;
            let jobs_max = self.cfg().limits.jobs_max;
            let c = &self.tier0(s).classes[class];
            if c.dirty.is_empty() && c.early.is_empty() {
                continue;
            }
            let ready = c.free.len + c.clean.len + c.copying_out;
            let low = u64::from(c.count) * u64::from(policy.clean_low_percent) / 100;
            let high = u64::from(c.count) * u64::from(policy.clean_high_percent) / 100;
            let cleaning = u64::from(ready) < if c.cleaning { high } else { low };
            // Write-back ahead of need leaves job entries for the jobs that lanes wait for.
            let ahead = if cleaning { (high as u32).saturating_sub(ready).min((jobs_max / 4).max(1)) } else { 0 };
            let shortage = c.shortage.saturating_sub(c.copying_out);
            let early = c.early.len.min((jobs_max / 4).max(1));
            // Pages that a publish waits for, including ancestors, take host frames like pages that a lane waits for. So do pages
            // that block a shrink.
            let shrinks = c.beyond > 0;
            self.set_cleaning(s, class, cleaning);
            let waited = if early > 0 && shrinks { early } else { 0 };
            let published = if early > 0 && self.publishes_wait() { early } else { 0 };
            for i in 0..ahead.max(shortage).max(early) {
                let to = match i {
                    i if i < shortage.max(waited) => For::Waiting,
                    i if i < published => For::Publish,
                    _ => For::Later,
                };
                if !self.can_send_last(s, buf) || !self.clean_coldest(s, class as u8, to, buf) {
                    break;
                }
            }
        }
    }

    fn clean_coldest(&mut self, s: u16, class: u8, to: For, buf: &mut ActionBuf) -> bool {
        let c = &self.tier0(s).classes[usize::from(class)];
        let early = c.early.head;
        let f = match early {
            NONE if to == For::Later => self.coldest_that_stays(s, class),
            NONE => c.dirty.head,
            _ => early,
        };
        f != NONE && self.copy_out(s, f, Reason::Clean, NONE, to, buf)
    }

    /// Return the least recently used dirty frame that is worth writing ahead of need, if a bounded search finds one. Pages used
    /// only by a nearly finished sequence will be freed soon without a write, so they move behind all others.
    fn coldest_that_stays(&mut self, s: u16, class: u8) -> FrameId {
        for _ in 0..CHANCES {
            let f = self.tier0(s).classes[usize::from(class)].dirty.head;
            if f == NONE {
                return NONE;
            }
            let block = self.block(self.geo().block_of(self.tier0(s).frames[f as usize].page));
            let own = block.home == s && block.entry == NONE && block.refs() == 1;
            let ending = self.cfg().policy.retention.ending_tokens;
            if !own || !self.lists(s).seqs.get(block.seq as usize).is_some_and(|q| q.is_live() && q.is_ending(ending)) {
                return f;
            }
            self.move_to_back(s, f);
        }
        NONE
    }

    /// Record the end of a `CopyOut` job: the host frame is the page's copy, or free again.
    pub(crate) fn copied_out(&mut self, s: u16, slot: u32, job: JobRec, status: Status) {
        self.release_job(s, slot);
        let class = usize::from(self.tier0(s).class_of_frame(job.frame));
        self.end_copy_out(s, job.frame);
        self.set_copying_out(job.page, false);
        let ok = status == Status::Ok || mutants::on(Mutant::FailedCopyOutIsSuccess);
        let fails = self.page(job.page).copy_out_fails;
        if ok && self.page(job.page).host == NONE {
            self.came_to_host(job.page, job.host);
            self.set_copy_out_fails(job.page, 0);
            let bytes = self.geo().classes[class].page_bytes;
            self.counters.tier0_to_host.add(job.reason, bytes);
        } else {
            self.set_copy_out_fails(job.page, fails.saturating_add(u8::from(!ok)));
            self.host.free(job.host);
            self.host_freed();
            self.counters.tier0_to_host.failed += u64::from(!ok);
        }
        if self.disk.exists() {
            // The page can now be written back to NVMe.
            self.host_freed();
            self.disk.wake();
        }
        self.settle_page(job.page);
        let block = self.geo().block_of(job.page);
        self.update_persist(block);
        if job.op != NONE {
            let lasting = !ok && self.page(job.page).copy_out_fails >= IO_TRIES;
            match lasting {
                true => self.op_job_failed(s, job.op, Status::Io),
                false => self.op_job_done(s, job.op),
            }
        }
        if !ok && self.page(job.page).copy_out_fails >= IO_TRIES {
            self.set_copy_out_fails(job.page, 0);
            self.page_failed_elsewhere(s, job.page);
        } else {
            self.wake_readers_elsewhere(s, job.page);
        }
        let b = self.geo().block_of(job.page);
        self.remove_in_flight(b);
    }
}
