//! Log requests: records, erasures and flushes that the core requests from the disks' index logs.

use super::DiskHandle;
use super::Nvme;
use super::table::DiskSlab;
use crate::error::Error;
use kvtide_nvme::{LogMessage, LogRequest, LogRequestKind, SlotKey};
use kvtide_rt::mail::{Mailbox, mailbox};
use kvtide_tiering::api::{DiskSlot, SpaceConfig, Status};
use std::collections::HashSet;

/// Words of a hash in an action's list.
const HASH: usize = 4;
/// Id of the first disk's flush; others count down. The core numbers its requests from 0.
const FLUSHES: u32 = u32::MAX;

/// A log request of the core.
#[derive(Clone, Copy, Debug)]
pub(in crate::space) enum Wanted<'a> {
    /// Record the block in a slot: shard; hash, parent and planes in the core's list format.
    Record(DiskSlot, u16, &'a [u32]),
    /// Record that the slot is empty.
    Erase(DiskSlot),
}

/// Result of a log request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::space) struct LogEnded {
    /// Its id.
    pub id: u32,
    /// Its status.
    pub status: Status,
}

/// The log requests of a space.
#[derive(Debug)]
pub(super) struct LogRequests {
    ended: Mailbox<Box<LogRequest>>,
    #[expect(clippy::vec_box, reason = "boxes are sent between threads")]
    idle: Vec<Box<LogRequest>>,
    /// One box per disk for flushes, present while no flush is in flight.
    flushes: Vec<Option<Box<LogRequest>>>,
    /// Requests of the core in flight, without flushes.
    on_their_way: HashSet<u32>,
    /// Flush requests of the core answered by the current round, and by the next one.
    flushing: Vec<u32>,
    to_flush: Vec<u32>,
    /// Result of the current round so far.
    flushed: Status,
    /// Requests that ended, not reported to the core yet.
    unreported: Vec<LogEnded>,
}

impl LogRequests {
    /// Allocate as many requests as the space's limits allow, and one flush per disk.
    pub fn new(space: u32, config: &SpaceConfig, disks: usize) -> Result<LogRequests, Error> {
        let most = if disks == 0 { 1 } else { config.limits.log_requests_max as usize };
        let failed = |source| Error::Wire { action: "create a space's mailbox for log requests", source };
        let (reply, ended) = mailbox(most + disks).map_err(failed)?;
        let planes = config.planes.len();
        let blank = |kind, id| {
            Box::new(LogRequest {
                space,
                id,
                kind,
                urgent: true,
                key: SlotKey::default(),
                shard: 0,
                hash: 0,
                parent: 0,
                salt: 0,
                present: Vec::with_capacity(planes.div_ceil(32)),
                crcs: Vec::with_capacity(planes),
                // These grow with the first coded or encrypted slab.
                sectors: Vec::new(),
                tags: Vec::new(),
                reply: reply.clone(),
                status: Status::Ok,
                errno: 0,
            })
        };
        let ids = || Vec::with_capacity(most);
        Ok(LogRequests {
            idle: (0..most).map(|_| blank(LogRequestKind::Record, 0)).collect(),
            flushes: (0..disks as u32).map(|disk| Some(blank(LogRequestKind::Flush, FLUSHES - disk))).collect(),
            ended,
            on_their_way: HashSet::with_capacity(most),
            flushing: ids(),
            to_flush: ids(),
            flushed: Status::Ok,
            unreported: Vec::with_capacity(most),
        })
    }

    /// Take a request that will not be sent.
    pub fn blank(&mut self) -> Option<Box<LogRequest>> {
        self.idle.pop()
    }

    fn end(&mut self, id: u32, status: Status) {
        self.unreported.push(LogEnded { id, status });
    }
}

impl Nvme {
    /// Send a request to the log of its slot's disk. An invalid request of the core is logged and fails.
    pub fn submit_log_request(&mut self, id: u32, urgent: bool, wanted: Wanted<'_>) {
        let Some(mut request) = self.log_requests.idle.pop() else {
            return self.refuse_log_request(id, "more log requests are in flight than the space allows", wanted);
        };
        (request.id, request.urgent) = (id, urgent);
        let filled = self.describe(&mut request, wanted);
        let handle = filled.as_ref().ok().and_then(|disk| self.disks.get_mut(*disk));
        match (filled, handle) {
            (Ok(_), Some(handle)) => {
                self.log_requests.on_their_way.insert(id);
                handle.log.post(LogMessage::LogRequest(request));
            }
            (filled, _) => {
                self.log_requests.idle.push(request);
                self.refuse_log_request(id, filled.err().unwrap_or("its slab is not on a disk"), wanted);
            }
        }
    }

    fn refuse_log_request(&mut self, id: u32, why: &str, wanted: Wanted<'_>) {
        tracing::error!("space {}: cannot send log request {id}: {why}: {wanted:?}", self.space);
        self.log_requests.end(id, Status::Io);
    }

    /// Set a request's fields; return its disk.
    pub(super) fn describe(&self, request: &mut LogRequest, wanted: Wanted<'_>) -> Result<usize, &'static str> {
        request.present.clear();
        request.crcs.clear();
        request.sectors.clear();
        request.tags.clear();
        let (Wanted::Record(at, ..) | Wanted::Erase(at)) = wanted;
        let slab = self.slab(at)?;
        request.key = SlotKey { region: slab.region, slot: at.slot, generation: at.generation };
        match wanted {
            Wanted::Erase(_) => request.kind = LogRequestKind::Erase,
            Wanted::Record(_, shard, list) => {
                let (hashes, present) = list.split_at_checked(2 * HASH).ok_or("the list is too short")?;
                let number = |words: &[u32]| words.iter().rev().fold(0, |all, word| all << 32 | u128::from(*word));
                (request.kind, request.shard) = (LogRequestKind::Record, shard);
                (request.hash, request.parent) = (number(&hashes[..HASH]), number(&hashes[HASH..]));
                request.present.extend_from_slice(present);
                slab.describe(request);
            }
        }
        Ok(slab.disk)
    }

    /// Flush everything that ended before, on every disk with slabs of the space.
    pub fn flush_disks(&mut self, id: u32) {
        self.log_requests.to_flush.push(id);
        self.begin_flushes();
    }

    /// Start a round of flushes for the waiting requests, unless one is in flight: that one may not cover requests that ended since
    /// it started.
    fn begin_flushes(&mut self) {
        let LogRequests { flushes, flushing, to_flush, flushed, .. } = &mut self.log_requests;
        if !flushing.is_empty() || to_flush.is_empty() {
            return;
        }
        std::mem::swap(flushing, to_flush);
        *flushed = Status::Ok;
        for (disk, (handle, flush)) in self.disks.iter_mut().zip(flushes).enumerate() {
            let held = |slab: &DiskSlab| slab.disk == disk && !slab.gone;
            if self.slabs.iter().flatten().any(held)
                && let Some(request) = flush.take()
            {
                handle.log.post(LogMessage::LogRequest(request));
            }
        }
        self.end_flushes();
    }

    /// Answer the flush requests of the current round if it has ended, and start the next.
    fn end_flushes(&mut self) {
        let LogRequests { flushes, flushing, flushed, unreported, .. } = &mut self.log_requests;
        if flushing.is_empty() || flushes.iter().any(Option::is_none) {
            return;
        }
        unreported.extend(flushing.drain(..).map(|id| LogEnded { id, status: *flushed }));
        self.begin_flushes();
    }

    /// Return the next request that has ended.
    pub fn next_log_ended(&mut self) -> Option<LogEnded> {
        loop {
            if let Some(log_ended) = self.log_requests.unreported.pop() {
                return Some(log_ended);
            }
            let request = self.log_requests.ended.take()?;
            self.log_ended(request);
        }
    }

    /// Handle an answer.
    pub(super) fn log_ended(&mut self, request: Box<LogRequest>) {
        let (id, status) = (request.id, self.status_of(&request));
        if request.kind == LogRequestKind::Flush {
            if status != Status::Ok {
                self.log_requests.flushed = status;
            }
            if let Some(home) = self.log_requests.flushes.get_mut((FLUSHES - id) as usize) {
                *home = Some(request);
            }
            return self.end_flushes();
        }
        self.log_requests.idle.push(request);
        match self.log_requests.on_their_way.remove(&id) {
            true => self.log_requests.end(id, status),
            false => tracing::error!("space {}: log request {id} ended but was not in flight", self.space),
        }
    }

    fn status_of(&self, request: &LogRequest) -> Status {
        match request.status {
            status @ (Status::Ok | Status::Io | Status::NoSpace) => status,
            status => {
                tracing::error!(
                    "space {}: log request {} was refused ({status:?}): {request:?}",
                    self.space,
                    request.id
                );
                Status::Io
            }
        }
    }

    /// Send the waiting requests. Return true if no log's mailbox is full.
    pub(super) fn flush_log_requests(&mut self) -> bool {
        let mut all = true;
        for disk in 0..self.disks.len() {
            let mut lost = Vec::new();
            let DiskHandle { disk, log, .. } = &mut self.disks[disk];
            all &= log.flush_or(|message| {
                if let LogMessage::LogRequest(request) = message {
                    lost.push(request);
                }
            });
            let number = disk.number();
            for mut request in lost {
                // The log's thread ends before its spaces only because of a bug.
                tracing::error!(
                    "space {}: log request {} failed: the log thread of disk {number} has ended",
                    self.space,
                    request.id
                );
                request.status = Status::Io;
                self.log_ended(request);
            }
        }
        all
    }

    /// Return the requests in flight.
    pub fn log_requests_in_flight(&self) -> usize {
        let LogRequests { on_their_way, flushing, to_flush, unreported, .. } = &self.log_requests;
        on_their_way.len() + flushing.len() + to_flush.len() + unreported.len()
    }

    /// Return true if no answer waits.
    pub(super) fn log_is_quiet(&self) -> bool {
        self.log_requests.unreported.is_empty() && self.log_requests.ended.is_empty()
    }

    /// Return the mailbox that receives answers.
    pub fn log_bell(&self) -> &Mailbox<Box<LogRequest>> {
        &self.log_requests.ended
    }
}
