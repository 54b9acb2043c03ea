//! The index logs of the daemon's disks: the records that the core writes for its slots, checked against the written content, and
//! the ends of its log requests, in any order.

use super::context::{Check, Context, Ev, wrong};
use super::daemon::Daemon;
use super::session::Session;
use crate::coverage::Met;
use crate::disk::Transfer;
use crate::failure::Caught;
use kvtide_tiering::api::{Action, DiskSlot, Event, IoKind, Status};
use std::collections::BTreeMap;

/// Operation of a log request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogRequest {
    /// `fresh`: the log had no record of the slot before.
    Record {
        at: DiskSlot,
        fresh: bool,
    },
    Erase(DiskSlot),
    Flush,
}

/// Content of the logs, and requests in flight.
#[derive(Debug, Default)]
pub(super) struct Logs {
    flight: BTreeMap<u32, LogRequest>,
    /// Generation that is, or may be, recorded for a slot.
    recorded: BTreeMap<(u32, u32), u32>,
}

impl Logs {
    /// Check a slot that is about to be written under a generation.
    pub(super) fn written(&self, at: DiskSlot) -> Check {
        match self.recorded.get(&(at.slab, at.slot)) {
            Some(&generation) if generation != at.generation => {
                wrong(Caught::Disk, format!("{at:?} is written while its log may name generation {generation}"))
            }
            _ => Ok(()),
        }
    }

    /// Check a slab that is returned.
    pub(super) fn returned(&self, slab: u32) -> Check {
        let named =
            self.recorded.keys().any(|at| at.0 == slab) || self.flight.values().any(|request| request.slab() == slab);
        match named {
            true => wrong(Caught::Disk, format!("slab {slab} on NVMe given back while its log may name slots of it")),
            false => Ok(()),
        }
    }
}

impl LogRequest {
    fn slab(self) -> u32 {
        match self {
            LogRequest::Record { at, .. } | LogRequest::Erase(at) => at.slab,
            LogRequest::Flush => u32::MAX,
        }
    }
}

impl Daemon {
    /// Handle a log request of the core.
    pub(super) fn log_request(&mut self, cx: &mut Context, action: Action, list: &[u32]) -> Check {
        let (id, request) = match action {
            Action::Record { id, at, .. } => {
                let fresh = !self.logs.recorded.contains_key(&(at.slab, at.slot));
                (id, LogRequest::Record { at, fresh })
            }
            Action::Erase { id, at, .. } => (id, LogRequest::Erase(at)),
            Action::Flush { id } => (id, LogRequest::Flush),
            other => return wrong(Caught::Protocol, format!("{other:?} is no request")),
        };
        cx.trace.fold(&[11, u64::from(id), u64::from(request.slab())]);
        cx.say(|| format!("daemon -> log request {id}: {request:?} {list:?}"));
        let (flight, max) = (self.logs.flight.len(), cx.geometry.config.limits.log_requests_max as usize);
        if flight >= max || self.logs.flight.insert(id, request).is_some() {
            return wrong(Caught::Protocol, format!("request {id} is one too many: {flight} in flight"));
        }
        match request {
            LogRequest::Record { at, .. } => self.record(cx, at, list)?,
            LogRequest::Erase(at) => {
                let known = self.logs.recorded.get(&(at.slab, at.slot));
                if known != Some(&at.generation) {
                    return wrong(Caught::Disk, format!("{at:?} is erased, its log names generation {known:?}"));
                }
            }
            LogRequest::Flush => {}
        }
        let delay = cx.rng.delay(1, 200, 100);
        cx.queue.after(delay, Ev::LogDone { epoch: self.epoch, id });
        Ok(())
    }

    /// Check that the pages of a record are in its slot.
    fn record(&mut self, cx: &Context, at: DiskSlot, list: &[u32]) -> Check {
        let planes = cx.geometry.planes();
        if list.len() != 8 + usize::from(planes).div_ceil(32) || list[..4].iter().all(|&word| word == 0) {
            return wrong(Caught::Protocol, format!("a record of {at:?} says {list:?}"));
        }
        let named = |plane: &u16| list[8 + usize::from(*plane / 32)] >> (plane % 32) & 1 == 1;
        // A page out of its window may still be in flight: no record lists it.
        let coming = |plane: &u16| {
            let brings =
                |t: &Transfer| t.kind == IoKind::Write && t.at == at && t.parts.iter().any(|p| p.plane == *plane);
            self.transfers.iter().any(|(_, t)| brings(t))
        };
        let stands = |plane: &u16| self.grants.written(at, *plane).is_some() && !coming(plane);
        if let Some(plane) = (0..planes).filter(named).find(|plane| !stands(plane)) {
            return wrong(Caught::Disk, format!("{at:?} is recorded without the bytes of plane {plane} on the disk"));
        }
        self.logs.recorded.insert((at.slab, at.slot), at.generation);
        Ok(())
    }

    /// Report the end of a log request, successful or not.
    pub fn log_done(&mut self, cx: &mut Context, sessions: &mut [Session], id: u32) -> Check {
        let Some(request) = self.logs.flight.remove(&id) else { return Ok(()) };
        let now = cx.now();
        let status = cx.faults.disk.pick_log_status(&mut cx.rng, now);
        if status != Status::Ok {
            cx.ledger.errors += 1;
        }
        match (request, status) {
            (LogRequest::Erase(at), Status::Ok) => {
                self.logs.recorded.remove(&(at.slab, at.slot));
                cx.coverage.met(Met::SlotErased);
            }
            // A full log has accepted nothing.
            (LogRequest::Record { at, fresh: true }, Status::NoSpace) => {
                self.logs.recorded.remove(&(at.slab, at.slot));
            }
            (LogRequest::Record { .. }, Status::Ok) => cx.coverage.met(Met::BlockRecorded),
            (LogRequest::Flush, Status::Ok) => cx.coverage.met(Met::LogFlushed),
            _ => cx.coverage.met(Met::LogRequestFailed),
        }
        cx.trace.fold(&[12, u64::from(id), status as u64]);
        cx.say(|| format!("log -> request {id} ended with {status:?}"));
        self.handle(cx, sessions, Event::LogDone { id, status })
    }
}
