//! Log requests (`LogRequest`) in flight to the index logs of the disks.

use crate::api::NONE;
use crate::lists::{Links, List, linked};
use serde::{Deserialize, Serialize};

/// Kind of log request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LogRequestKind {
    Record,
    Erase,
    Flush,
}

/// One log request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct LogRequest {
    links: Links,
    live: bool,
    /// High half of its id, so that a stale id is detected.
    generation: u16,
    pub kind: LogRequestKind,
    /// The slot that it is about; none for a flush.
    pub slot: u32,
    /// Record: the log held no record of the slot before.
    pub fresh: bool,
}

impl Default for LogRequest {
    fn default() -> Self {
        let (links, kind) = (Links::default(), LogRequestKind::Flush);
        LogRequest { links, live: false, generation: 0, kind, slot: NONE, fresh: false }
    }
}

impl LogRequest {
    pub fn new(kind: LogRequestKind, slot: u32, fresh: bool) -> LogRequest {
        LogRequest { kind, slot, fresh, ..LogRequest::default() }
    }
}

linked!(LogRequest.links);

/// Table of all log requests; its size limits how many are in flight.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct LogRequests {
    recs: Vec<LogRequest>,
    free: List,
}

impl LogRequests {
    pub fn new(count: u32) -> LogRequests {
        let mut log_requests =
            LogRequests { recs: vec![LogRequest::default(); count as usize], ..LogRequests::default() };
        for i in 0..count {
            log_requests.free.push_back(&mut log_requests.recs, i);
        }
        log_requests
    }

    /// Return how many log requests may still be sent.
    pub fn free(&self) -> u32 {
        self.free.len
    }

    pub fn in_flight(&self) -> u32 {
        self.recs.len() as u32 - self.free.len
    }

    /// Take a free record and return the request's id. Return `None` if all are in flight.
    pub fn launch(&mut self, request: LogRequest) -> Option<u32> {
        let at = self.free.pop_front(&mut self.recs)?;
        let generation = self.recs[at as usize].generation.wrapping_add(1);
        self.recs[at as usize] = LogRequest { live: true, generation, ..request };
        Some(u32::from(generation) << 16 | at)
    }

    /// Free the record of a request that ended, and return it. Return `None` for a stale id.
    pub fn release(&mut self, id: u32) -> Option<LogRequest> {
        let at = id & 0xffff;
        let rec = *self.recs.get(at as usize).filter(|n| n.live && u32::from(n.generation) == id >> 16)?;
        self.recs[at as usize] = LogRequest { generation: rec.generation, ..LogRequest::default() };
        self.free.push_back(&mut self.recs, at);
        Some(rec)
    }

    /// Return the requests in flight.
    pub fn live(&self) -> impl Iterator<Item = &LogRequest> {
        self.recs.iter().filter(|n| n.live)
    }

    pub fn bytes(&self) -> usize {
        self.recs.capacity() * size_of::<LogRequest>()
    }
}
