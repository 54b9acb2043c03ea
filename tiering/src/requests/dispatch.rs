//! Routing of events by kind and by request. Data from an engine is untrusted: the function that takes it validates it.

use crate::api::{Event, Policy, Request, SeqId, Status};
use crate::block_api::{Lease, StoreArgs};
use crate::config::check_policy;
use crate::error::Error;
use crate::paging::{PublishArgs, Scores};
use crate::requests::Requests;
use crate::sessions::{Pin, Who};
use crate::tables::host::Spare;

/// Return the sequence that a request changes or pins. It must not be a lease: blocks of a lease may only be loaded.
pub(crate) fn changed(request: &Request<'_>) -> Option<SeqId> {
    match *request {
        Request::Reserve { seq, .. }
        | Request::Commit { seq, .. }
        | Request::Fork { parent: seq, .. }
        | Request::Truncate { seq, .. }
        | Request::Publish { seq, .. }
        | Request::AttachPrefix { seq, .. }
        | Request::Park { seq, .. }
        | Request::Resume { seq }
        | Request::Acquire { seq, .. }
        | Request::Contract { seq, .. }
        | Request::Declare { seq, .. } => Some(seq),
        _ => None,
    }
}

impl Requests {
    pub(crate) fn dispatch(&mut self, event: Event<'_>) -> Result<(), Error> {
        match event {
            Event::Attach { session, shard, lanes, frames } => self.attach(session, shard, lanes, frames),
            Event::Request { session, channel, tag, timeout_us, request } => {
                self.live(session)?;
                self.request(Who { session, channel, tag }, timeout_us, request)
            }
            Event::JobDone { session, job, status } => {
                self.live(session)?;
                self.job_done(session, job, status)
            }
            Event::SlabGranted { class, slab, frames } => {
                let result = self.slab_granted(class, slab, frames);
                self.slab_answered(result)
            }
            Event::SlabRefused { class } => {
                let now = self.now();
                let result = self.host.slab_refused(class, now);
                self.slab_answered(result)
            }
            Event::DiskGranted { slab, slots, disk, generation } => self.disk_granted(slab, slots, disk, generation),
            Event::DiskAdopted { slab, slots, disk, generation } => self.disk_adopted(slab, slots, disk, generation),
            Event::Restored { at, shard, hash, parent, planes } => self.restored(at, shard, hash, parent, planes),
            Event::LogDone { id, status } => self.log_done(id, status),
            Event::DiskGone { slab } => self.disk_gone(slab),
            Event::DiskRefused => self.disk_refused(),
            Event::IoDone { id, status, bad } => self.io_done(id, status, bad),
            Event::Scores { session, seq, plane, step, kind, rest, top } => {
                self.live(session)?;
                self.paging().scores(session, &Scores { seq, plane, step, kind, rest, top });
                Ok(())
            }
            Event::SessionLost { session } => self.session_lost(session),
            Event::SessionExited { session } => self.session_exited(session),
            Event::Reconfigure { policy, host_bytes_max, nvme_bytes_max } => {
                self.reconfigure(policy, host_bytes_max, nvme_bytes_max)
            }
            Event::Reclaim { cached } => {
                self.reclaim(cached);
                Ok(())
            }
            Event::Freed => {
                self.host.forget_refusals(u64::MAX);
                self.wake_all();
                Ok(())
            }
            Event::Pin { hash, pinned } => {
                let pinned_max = self.pinned_max();
                self.index.set_pinned(hash, pinned, pinned_max);
                Ok(())
            }
            Event::Evict { hash } => {
                self.evict_some(hash);
                Ok(())
            }
            Event::Tick => {
                self.tick();
                Ok(())
            }
            Event::Ending => {
                self.admit_last();
                Ok(())
            }
        }
    }

    fn request(&mut self, who: Who, timeout_us: u64, request: Request<'_>) -> Result<(), Error> {
        let s = who.session;
        let session = self.session(s);
        let max = self.cfg().limits.requests_max;
        if session.ops.live() + session.completions_waiting >= max {
            return Err(Error::Overrun { session: s, max });
        }
        self.counters.requests += 1;
        self.wake(s);
        let timeout = if timeout_us == 0 { self.cfg().policy.request_timeout_us } else { timeout_us };
        let due = self.now().saturating_add(timeout);
        if changed(&request).is_some_and(|seq| self.is_leased(s, seq)) {
            self.complete(who, Status::State, 0);
            return Ok(());
        }
        match request {
            Request::Nop {} => self.complete(who, Status::Ok, 0),
            Request::SeqCreate { seq } => {
                let status = self.paging().seq_create(s, seq);
                self.complete(who, status, 0);
            }
            Request::SeqDrop { seq } => {
                let status = self.seq_drop(s, seq);
                self.complete(who, status, 0);
            }
            Request::Reserve { seq, count } => self.paging().reserve(who, seq, count, due),
            Request::Commit { seq, tokens } => {
                let status = self.paging().commit(s, seq, tokens);
                self.complete(who, status, 0);
            }
            Request::Step { lane, step, seqs } => {
                let status = self.paging().step(who, lane, step, seqs);
                self.complete(who, status, 0);
            }
            Request::StepEnd { lane, step } => {
                let status = self.paging().step_end(who, lane, step);
                self.complete(who, status, 0);
            }
            Request::Fault { lane, use_pos, seq, index, plane, whole } => {
                self.paging().fault(who, (lane, use_pos), whole, (seq, index, plane), due);
            }
            Request::Cancel { tag } => {
                let status = self.cancel(s, who.channel, tag);
                self.complete(who, status, 0);
            }
            Request::Fork { parent, child } => self.paging().fork(who, parent, child, due),
            Request::Truncate { seq, tokens } => self.paging().truncate(who, seq, tokens, due),
            Request::Publish { seq, first, parent, hashes, level } => {
                self.paging().publish(who, PublishArgs { seq, first, parent, hashes, level }, due);
            }
            Request::AttachPrefix { seq, hashes, asked } => self.paging().attach_prefix(who, seq, hashes, asked, due),
            Request::Park { seq, due_us } => self.paging().park(who, seq, due_us, due),
            Request::Resume { seq } => self.paging().resume(who, seq, due),
            Request::Advise { seq, first, count, advice } => {
                let status = self.paging().advise(s, seq, first, count, advice);
                self.complete(who, status, 0);
            }
            Request::Acquire { seq, plane, planes, first, count } => {
                self.paging().acquire(who, Pin { seq, plane, planes, first, count }, due);
            }
            Request::Release { seq, plane, planes, first, count } => {
                let status = self.paging().release(s, Pin { seq, plane, planes, first, count });
                self.complete(who, status, 0);
            }
            Request::Declare { seq, index, tokens, frames } => {
                self.paging().declare(who, seq, index, tokens, frames, due)
            }
            Request::Tier0Resize { class, frames } => self.paging().resize(who, class, frames, due),
            Request::Guarantee { blocks } => self.paging().guarantee(who, blocks, due),
            Request::Contract { seq, contract } => {
                let status = self.paging().contract(s, seq, contract);
                self.complete(who, status, 0);
            }
            Request::Lookup { hashes, asked, range } => {
                let found = self.block_api().lookup(s, hashes);
                self.count_lookup(s, asked, range, (found as u32, hashes.len() as u32));
                // Only the first request of a lookup counts it.
                if asked > 0 {
                    self.count_miss(s, hashes, found as u32);
                }
                self.complete(who, Status::Ok, found);
            }
            Request::Lease { seq, hash, count, lease_us } => {
                self.block_api().lease(who, Lease { seq, hash, count, lease_us }, due);
            }
            Request::LoadBlocks { seq, first, engine } => self.block_api().load(who, (seq, first), engine, due),
            Request::Follow { from } => self.block_api().follow(who, from, due),
            Request::ListBlocks { cursor } => self.block_api().list_blocks(who, cursor, due),
            Request::LoadHashed { hashes, engine } => self.block_api().load_hashed(who, hashes, engine, due),
            Request::StoreBlocks { first, parent, hashes, engine, level } => {
                self.block_api().store_blocks(who, StoreArgs { first, parent, hashes, engine, level }, due);
            }
        }
        Ok(())
    }

    fn slab_answered(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        result?;
        self.disk.wake();
        self.wake_all();
        Ok(())
    }

    /// Apply a new policy and new limits. The number of tier-0 frames that a scan streams through is part of what sessions were
    /// promised when they attached, so each session keeps its own.
    fn reconfigure(&mut self, policy: Policy, host_bytes_max: u64, nvme_bytes_max: u64) -> Result<(), Error> {
        check_policy(&policy)?;
        let before = self.cfg().limits;
        // The daemon redistributes the write budget with every region that it grants. That change alone does not require
        // housekeeping.
        let housekeeping = (before.host_bytes_max, before.nvme_bytes_max) != (host_bytes_max, nvme_bytes_max)
            || Policy { nvme_bytes_per_day: self.cfg().policy.nvme_bytes_per_day, ..policy } != self.cfg().policy;
        let new_rule = self.cfg().policy.nvme_admission != policy.nvme_admission;
        self.configure(policy, host_bytes_max, nvme_bytes_max);
        let now = self.now();
        self.index.configure(now, policy.eviction, policy.retention);
        self.disk.set_budget(now, policy.nvme_bytes_per_day);
        if new_rule {
            self.disk.decide_again(now);
        }
        if housekeeping {
            self.tick();
        }
        Ok(())
    }

    /// Run housekeeping that is not urgent.
    fn tick(&mut self) {
        let now = self.now();
        self.disk.advance_budget(now);
        self.host.forget_refusals(now);
        for class in 0..self.geo().classes.len() as u8 {
            self.return_idle_slab(class, Spare::Tenth);
        }
        self.size_order();
        self.measure_load_costs();
        self.expire_entries();
        self.trim_host();
        self.admit_refilled();
        if self.disk.exists() {
            self.disk.forget_refusals();
            self.trim_blocks();
            self.trim_disk();
            self.return_idle_disk();
            self.disk.wake();
        }
        self.wake_all();
    }
}
