//! The daemon's disk: transfers of the core, checked against the records of slots and of host frames, executed on the simulated
//! device, and their ends reported to the core.

use super::actions::writes_host;
use super::context::{Check, Context, Ev, wrong};
use super::daemon::Daemon;
use super::session::Session;
use crate::coverage::Met;
use crate::disk::{DISK, DiskFault, Ended, Misuse, Part, Transfer, flip};
use crate::failure::Caught;
use crate::memory::{CopyFault, Outcome, Pace, Tag};
use crate::mutant::DaemonMutant;
use kvtide_tiering::api::{DiskSlot, Event, HostFrame, IoClass, IoKind, Job, Status};

/// Bits of a copy's token with the index of its page in the transfer.
const PART_BITS: u32 = 16;

/// The disk is slower than the bus.
const DRIVE: Pace = Pace { usual: (1, 30), late: (200, 3000) };

fn misused<T>(outcome: Result<T, Misuse>) -> Check<T> {
    outcome.or_else(|Misuse(what)| wrong(Caught::Disk, what))
}

impl Daemon {
    /// Request NVMe space for the core.
    pub(super) fn need_disk(&self, cx: &mut Context) {
        cx.trace.fold(&[8]);
        cx.say(|| "daemon -> node: needs a slab on NVMe".to_owned());
        let delay = cx.rng.delay(1, 50, 50);
        cx.queue.after(delay, Ev::Disk { epoch: self.epoch });
    }

    /// Answer a request for NVMe space: a region, as long as the quota has some.
    pub fn disk(&mut self, cx: &mut Context, sessions: &mut [Session]) -> Check {
        let (most, slots) = (cx.geometry.disk_slabs, cx.geometry.disk_slots);
        let (planes, tokens) = (cx.geometry.planes(), cx.geometry.slots());
        let refused = cx.rng.chance(cx.faults.refuse);
        let Context { regions, arenas, .. } = cx;
        let region = regions.take(if refused { 0 } else { most }, || arenas.add(slots * u32::from(planes), tokens));
        let Some(region) = region else {
            cx.coverage.met(Met::DiskRefused);
            cx.say(|| "node: no slab on NVMe".to_owned());
            return self.handle(cx, sessions, Event::DiskRefused);
        };
        let slab = self.grants.add(region, slots);
        cx.coverage.met(Met::DiskGranted);
        cx.say(|| format!("node: slab {slab} on NVMe granted, region {region}"));
        self.handle(cx, sessions, Event::DiskGranted { slab, slots, disk: 0, generation: 0 })
    }

    /// Handle the return of NVMe space by the core.
    pub(super) fn return_disk(&mut self, cx: &mut Context, slab: u32) -> Check {
        self.logs.returned(slab)?;
        let region = misused(self.grants.remove(slab))?;
        cx.regions.put_back(region);
        cx.coverage.met(Met::DiskReturned);
        cx.say(|| format!("node: slab {slab} on NVMe is back"));
        Ok(())
    }

    /// Start a transfer for the core.
    pub(super) fn io(
        &mut self,
        cx: &mut Context,
        id: u32,
        (kind, class): (IoKind, IoClass),
        at: DiskSlot,
        list: &[u32],
    ) -> Check {
        cx.trace.fold(&[9, u64::from(id), u64::from(at.slab), u64::from(at.slot), u64::from(at.generation)]);
        cx.say(|| format!("daemon -> disk transfer {id}: {kind:?} {class:?} at {at:?} pages {list:?}"));
        let ios_max = cx.geometry.config.limits.ios_max as usize;
        if self.transfers.len() >= ios_max || self.transfers.contains(id) {
            return wrong(
                Caught::Protocol,
                format!("transfer {id} is one too many: {} in flight", self.transfers.len()),
            );
        }
        let parts = self.parts(cx, kind, list)?;
        if kind == IoKind::Write {
            self.logs.written(at)?;
        }
        if misused(self.grants.enter(kind, at, &parts))? {
            cx.coverage.met(Met::SlotReused);
        }
        if kind == IoKind::Read && class == IoClass::WriteBack {
            return wrong(Caught::Protocol, format!("transfer {id} reads, and is said to write back"));
        }
        let transfer = Transfer {
            kind,
            class,
            at,
            parts,
            open: 0,
            fault: None,
            found: Vec::new(),
            ended: None,
            flipped: Vec::new(),
        };
        self.transfers.push(id, transfer);
        self.kick(cx)
    }

    /// Return the pages of a list: by ascending plane, each with a host frame of its class that nothing else uses.
    fn parts(&self, cx: &Context, kind: IoKind, list: &[u32]) -> Check<Vec<Part>> {
        let (pages, rest) = list.as_chunks::<3>();
        if pages.is_empty() || !rest.is_empty() || !pages.is_sorted_by(|a, b| a[0] < b[0]) {
            return wrong(Caught::Protocol, format!("a transfer of pages {list:?}"));
        }
        let mut parts: Vec<Part> = Vec::with_capacity(pages.len());
        for [plane, slab, slot] in pages {
            let host = HostFrame { slab: *slab, slot: *slot };
            let class = cx.geometry.class_of.get(*plane as usize);
            let granted = self.slabs.get(*slab as usize).copied().flatten().filter(|s| Some(&s.class) == class);
            let (Some(_), Some(memory)) = (granted, self.place(host)) else {
                return wrong(
                    Caught::Protocol,
                    format!("a transfer of plane {plane} with {host:?}, no frame of its class"),
                );
            };
            if parts.iter().any(|part| part.host == host) {
                return wrong(Caught::Overlap, format!("a transfer of two pages with {host:?}"));
            }
            if let Some(other) = self.user_of(host, kind == IoKind::Read) {
                return wrong(Caught::Overlap, format!("{kind:?} of plane {plane} with {host:?} beside {other}"));
            }
            parts.push(Part { plane: *plane as u16, host, memory });
        }
        Ok(parts)
    }

    /// Return the current user of a host frame that conflicts with a new use, which `writes` it or not, among everything the core
    /// has in flight.
    fn user_of(&self, frame: HostFrame, writes: bool) -> Option<String> {
        let moves = |kind: IoKind| writes || kind == IoKind::Read;
        let transfer = self.transfers.iter().find(|(_, t)| moves(t.kind) && t.parts.iter().any(|p| p.host == frame));
        if let Some((id, transfer)) = transfer {
            return Some(format!("transfer {id}, a {:?}", transfer.kind));
        }
        let clash = |job: &&Job| job.host_frame() == Some(frame) && (writes || writes_host(job));
        self.slots.iter().flatten().flat_map(|a| a.jobs.values()).find(clash).map(|job| format!("{job:?}"))
    }

    /// Return a transfer in flight that conflicts with a job's use of a host frame.
    pub(super) fn transfer_with(&self, frame: HostFrame, writes: bool) -> Option<u32> {
        let clash = |t: &Transfer| (writes || t.kind == IoKind::Read) && t.parts.iter().any(|p| p.host == frame);
        self.transfers.iter().find(|(_, t)| clash(t)).map(|(id, _)| id)
    }

    /// Return whether a transfer in flight names a frame of a slab.
    pub(super) fn transfers_in(&self, slab: u32) -> bool {
        self.transfers.iter().any(|(_, t)| t.parts.iter().any(|p| p.host.slab == slab))
    }

    /// Make a transfer more urgent.
    pub(super) fn urge(&mut self, cx: &mut Context, id: u32, class: IoClass) -> Check {
        let waits = self.transfers.waits(id);
        let Some(transfer) = self.transfers.get_mut(id) else {
            return wrong(Caught::Protocol, format!("transfer {id} is urged and not in flight"));
        };
        if class >= transfer.class {
            let detail = format!("transfer {id} is urged from {:?} to {class:?}", transfer.class);
            return wrong(Caught::Protocol, detail);
        }
        transfer.class = class;
        cx.coverage.met(if waits { Met::IoUrged } else { Met::IoUrgedLate });
        Ok(())
    }

    /// Let the device begin as many transfers as it has room for.
    fn kick(&mut self, cx: &mut Context) -> Check {
        while let Some(id) = self.transfers.next(&mut cx.rng) {
            self.begin_transfer(cx, id)?;
        }
        Ok(())
    }

    fn begin_transfer(&mut self, cx: &mut Context, id: u32) -> Check {
        let Some(region) = self.transfers.get_mut(id).and_then(|t| self.grants.region(t.at.slab)) else {
            return Ok(());
        };
        let Some(transfer) = self.transfers.get_mut(id) else { return Ok(()) };
        let (now, planes, tokens) = (cx.now(), cx.geometry.planes(), cx.geometry.slots());
        let fault = cx.faults.disk.pick(&mut cx.rng, transfer.kind, now);
        transfer.fault = fault;
        cx.count_disk_fault(fault);
        cx.say(|| format!("disk: transfer {id} begins, fault {fault:?}"));
        if let Some(DiskFault::Rejected(status)) = fault {
            transfer.ended = Some(Ended { status, bad: Vec::new(), written: None });
            self.transfers.ended();
            let at = cx.rng.delay(1, 60, 50);
            cx.queue.after(at, Ev::IoDone { epoch: self.epoch, id });
            return Ok(());
        }
        let stuck_us = if fault == Some(DiskFault::Stuck) { cx.rng.between(50_000, 700_000) } else { 0 };
        let broken = cx.rng.index(transfer.parts.len());
        transfer.open = transfer.parts.len();
        let mut starts = Vec::with_capacity(transfer.parts.len());
        for (at, part) in transfer.parts.iter().enumerate() {
            let place = cx.regions.place(region, transfer.at.slot, part.plane, planes);
            let tags = cx.arenas.get(part.memory.arena).map(|arena| arena.frame(part.memory.frame).into());
            let tags: Box<[Tag]> = tags.unwrap_or_default();
            let (from, to) = match transfer.kind {
                IoKind::Read => (place, part.memory),
                IoKind::Write => (part.memory, place),
            };
            if at == 0 {
                let known = match transfer.kind {
                    IoKind::Read => self.grants.written(transfer.at, part.plane),
                    IoKind::Write => Some(&*tags),
                };
                if known.is_some_and(|tags| cx.ledger.failed(tags)) {
                    cx.coverage.met(Met::IoRetried);
                }
            }
            if transfer.kind == IoKind::Write {
                cx.ledger.fresh(place);
                transfer.found.push(tags);
            }
            starts.push((from, to, copy_fault(cx, fault, at == broken)));
        }
        for (at, (from, to, fault)) in starts.into_iter().enumerate() {
            if let Some(other) = cx.devices.conflict(from, to, |owner| !cx.dead.contains(&owner)) {
                let detail =
                    format!("transfer {id} copies {from:?} to {to:?} while {} still copies there", other.says());
                return wrong(Caught::Overlap, detail);
            }
            let token = u64::from(id) << PART_BITS | at as u64;
            let (copy, delay) = cx.devices.start(&mut cx.rng, (DISK, token), (from, to), tokens, fault, DRIVE);
            cx.queue.after(delay + stuck_us, Ev::Copy { copy });
        }
        if cx.daemon_mutant == Some(DaemonMutant::EarlyIoDone) {
            self.end_transfer(cx, id)?;
        }
        Ok(())
    }

    /// Handle the end of a page's copy on the device.
    pub(super) fn disk_copied(&mut self, cx: &mut Context, token: u64, _: Outcome) -> Check {
        let id = (token >> PART_BITS) as u32;
        let Some(transfer) = self.transfers.get_mut(id) else { return Ok(()) };
        transfer.open = transfer.open.saturating_sub(1);
        match transfer.open == 0 && transfer.ended.is_none() {
            true => self.end_transfer(cx, id),
            false => Ok(()),
        }
    }

    fn end_transfer(&mut self, cx: &mut Context, id: u32) -> Check {
        let Some(fault) = self.transfers.get_mut(id).map(|t| t.fault) else { return Ok(()) };
        let status = match fault {
            Some(DiskFault::Short) if cx.daemon_mutant == Some(DaemonMutant::ShortIsOk) => Status::Ok,
            Some(DiskFault::Short) => Status::Io,
            Some(DiskFault::Failed(status)) => status,
            _ => Status::Ok,
        };
        if fault == Some(DiskFault::Flipped) {
            self.flip_some(cx, id);
        }
        let ended = match self.transfers.get_mut(id) {
            Some(transfer) if transfer.kind == IoKind::Write => {
                let found = std::mem::take(&mut transfer.found);
                if status != Status::Ok {
                    found.iter().for_each(|tags| cx.ledger.fail(tags));
                }
                let written = (status == Status::Ok).then_some(found);
                Ended { status, bad: Vec::new(), written }
            }
            _ => self.verify(cx, id, status)?,
        };
        cx.ledger.errors += u64::from(status != Status::Ok);
        cx.say(|| format!("disk: transfer {id} has ended with {:?}, bad {:?}", ended.status, ended.bad));
        if let Some(transfer) = self.transfers.get_mut(id) {
            transfer.ended = Some(ended);
        }
        self.transfers.ended();
        let at = cx.hop();
        cx.queue.after(at, Ev::IoDone { epoch: self.epoch, id });
        self.kick(cx)
    }

    /// Flip bits of some pages of a transfer: of a read in host memory, of a write on the disk, where they stay.
    fn flip_some(&mut self, cx: &mut Context, id: u32) {
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        let Some(region) = self.grants.region(transfer.at.slab) else { return };
        let sure = cx.rng.index(transfer.parts.len());
        for (at, part) in transfer.parts.iter().enumerate() {
            if at != sure && cx.rng.chance(700) {
                continue;
            }
            let slot = cx.rng.index(cx.geometry.slots());
            match transfer.kind {
                IoKind::Read => {
                    flip(&mut cx.arenas, part.memory, slot);
                    transfer.flipped.push(part.plane);
                }
                IoKind::Write => {
                    let place = cx.regions.place(region, transfer.at.slot, part.plane, cx.geometry.planes());
                    cx.ledger.rot(&mut cx.arenas, place, slot);
                }
            }
        }
    }

    /// Compare the content delivered by a read with the written content, as the daemon does by checksum.
    fn verify(&mut self, cx: &mut Context, id: u32, status: Status) -> Check<Ended> {
        let nothing = Ended { status, bad: Vec::new(), written: None };
        let Some(transfer) = self.transfers.get_mut(id) else { return Ok(nothing) };
        let Some(region) = self.grants.region(transfer.at.slab) else { return Ok(nothing) };
        let blind = matches!(
            cx.daemon_mutant,
            Some(DaemonMutant::ShortIsOk | DaemonMutant::UncheckedRead | DaemonMutant::EarlyIoDone)
        );
        let mut bad = Vec::new();
        for part in &transfer.parts {
            let Some(written) = self.grants.written(transfer.at, part.plane) else { continue };
            let Some(arena) = cx.arenas.get(part.memory.arena) else { continue };
            let right = arena.frame(part.memory.frame) == written;
            let place = cx.regions.place(region, transfer.at.slot, part.plane, cx.geometry.planes());
            let explained = transfer.flipped.contains(&part.plane) || cx.ledger.is_rotten(place);
            if status == Status::Ok && !right && !explained && cx.daemon_mutant.is_none() {
                let detail = format!("transfer {id} delivers other bytes of plane {} than were written", part.plane);
                return wrong(Caught::WrongContent, detail);
            }
            if status != Status::Ok || (!right && !blind) {
                cx.ledger.harm(written);
                cx.ledger.fail(written);
            }
            if status == Status::Ok && !right && !blind {
                bad.push(u32::from(part.plane));
                cx.coverage.met(Met::BadPage);
            } else if status == Status::Ok {
                cx.count_read(written);
            }
        }
        Ok(Ended { bad, ..nothing })
    }

    /// Report the end of a transfer to the core.
    pub fn io_done(&mut self, cx: &mut Context, sessions: &mut [Session], id: u32) -> Check {
        let Some(transfer) = self.transfers.remove(id) else { return Ok(()) };
        let Some(ended) = transfer.ended else { return Ok(()) };
        self.grants.leave(transfer.kind, transfer.at, &transfer.parts, ended.written);
        if ended.status == Status::Ok {
            cx.coverage.met(match (transfer.kind, transfer.class) {
                (IoKind::Write, IoClass::WriteBack) => Met::IoWritten,
                (IoKind::Write, _) => Met::IoWrittenUrgent,
                (IoKind::Read, IoClass::Demand) => Met::IoReadDemand,
                (IoKind::Read, _) => Met::IoReadPrefetch,
            });
        }
        let (status, bad) = (ended.status, &ended.bad);
        cx.trace.fold(&[10, u64::from(id), status as u64, bad.len() as u64]);
        cx.say(|| format!("disk -> transfer {id} ended with {status:?}, bad {bad:?}"));
        self.handle(cx, sessions, Event::IoDone { id, status, bad })
    }

    /// At the death of the daemon: stop its device and free its regions.
    pub(super) fn drop_disk(&mut self, cx: &mut Context) {
        if !self.transfers.is_empty() {
            cx.coverage.met(Met::DaemonDiedTransferring);
        }
        cx.devices.stop(DISK);
        cx.regions.put_back_all();
    }
}

/// Draw the fault of a page of a transfer.
fn copy_fault(cx: &mut Context, fault: Option<DiskFault>, sure: bool) -> Option<CopyFault> {
    match fault? {
        DiskFault::Failed(_) if sure || cx.rng.chance(300) => Some(CopyFault::Failed),
        DiskFault::Short if sure || cx.rng.chance(300) => Some(CopyFault::Short),
        DiskFault::Late => Some(CopyFault::Late),
        _ => None,
    }
}

impl Context {
    fn count_disk_fault(&mut self, fault: Option<DiskFault>) {
        let Some(fault) = fault else { return };
        self.coverage.met(match fault {
            DiskFault::Failed(Status::NoSpace) => Met::IoNoSpace,
            DiskFault::Failed(_) => Met::IoFailed,
            DiskFault::Short => Met::IoShort,
            DiskFault::Rejected(_) => Met::IoRejected,
            DiskFault::Flipped => Met::IoFlipped,
            DiskFault::Stuck => Met::IoStuck,
            DiskFault::Late => Met::IoLate,
        });
    }

    /// Count a page that was read correctly.
    fn count_read(&mut self, tags: &[Tag]) {
        if self.ledger.was_found(tags) {
            self.coverage.met(Met::AttachedFromDisk);
        }
        if tags.first().is_some_and(|tag| self.ledger.harmed(*tag)) {
            self.coverage.met(Met::ReadAfterHarm);
        }
    }
}
