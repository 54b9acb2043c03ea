//! Spans of the requests that carry a trace context (W3C): what was asked, what was found in which tier, how long it took.
//!
//! A core thread opens a span when it takes such a request, and hands it over when it answers (`kvtide_trace`). Requests without a
//! context, which are all of them while tracing is off, cost one comparison.

use crate::answer::Answer;
use kvtide_tiering::api::{Cause, Request, Status};
use kvtide_trace::{Finished, Spans};
use kvtide_wire::entry::Op;
use kvtide_wire::trace::TraceContext;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

/// Requests of which a space remembers the last lookup, 160 bytes each.
const REMEMBERED_MAX: usize = 4096;

/// The thread that sends the spans of all spaces.
pub(crate) type Exporter = kvtide_trace::Exporter<Span>;

/// What all spans of a space have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Name of the space.
    pub space: String,
    /// Name of its domain.
    pub domain: String,
    /// Tokens of a block.
    pub page_tokens: u32,
    /// Bytes of a block.
    pub block_bytes: u64,
}

/// A request with a trace context, in flight.
#[derive(Debug)]
pub(crate) struct OpenSpan {
    session: u32,
    context: TraceContext,
    began: SystemTime,
    /// `None`: the request is none that this daemon knows.
    op: Option<Op>,
    /// Blocks that it asks for.
    asked: u32,
    /// Hashes that it looks for; empty if it reports no hits.
    hashes: Box<[u128]>,
    /// It is a later lookup of one prompt: a long one takes several.
    continues: bool,
}

impl OpenSpan {
    /// Open the span of a request of a session that was just taken. `op`: as the engine wrote it; `request`: unless it is refused.
    pub fn new(session: u32, context: TraceContext, op: u16, request: Option<&Request<'_>>) -> OpenSpan {
        let (asked, hashes) = match request {
            Some(Request::Lookup { hashes, range, .. }) => (*range, *hashes),
            Some(Request::Lease { hash, count, .. }) => (*count, std::slice::from_ref(hash)),
            Some(Request::LoadBlocks { engine, .. }) => (engine.len() as u32, &[][..]),
            Some(
                Request::StoreBlocks { hashes, .. }
                | Request::Publish { hashes, .. }
                | Request::AttachPrefix { hashes, .. },
            ) => (hashes.len() as u32, &[][..]),
            _ => (0, &[][..]),
        };
        let op = Op::from_code(op);
        let continues = matches!(request, Some(Request::Lookup { asked: 0, .. }));
        OpenSpan { session, context, began: SystemTime::now(), op, asked, hashes: hashes.into(), continues }
    }

    /// Return the name of the span.
    fn name(&self) -> &'static str {
        match self.op {
            Some(Op::Lookup) => "lookup",
            Some(Op::Lease) => "lease",
            Some(Op::LoadBlocks) => "load",
            Some(Op::StoreBlocks) => "store",
            Some(Op::AttachPrefix) => "attach_prefix",
            Some(Op::Publish) => "publish",
            Some(op) => op.name(),
            None => "unknown",
        }
    }

    /// Return how many blocks the first `found` hashes of a lookup stand for: they divide the blocks into equal parts.
    fn reached(&self, found: u32) -> u32 {
        let (asked, parts) = (u64::from(self.asked), self.hashes.len().max(1) as u64);
        (asked * u64::from(found)).div_ceil(parts).min(asked) as u32
    }

    /// Return what the request found; `None` if it looked for nothing.
    fn hit(&self, answer: Option<&Answer<'_>>) -> Option<Hit> {
        let answer = answer.filter(|answer| answer.status == Status::Ok);
        match (self.op?, answer) {
            (Op::Lookup | Op::Lease, None) => Some(Hit::default()),
            (Op::Lookup, Some(&Answer { value, .. })) => {
                let (found, host) = (self.reached(value as u32), self.reached((value >> 32) as u32));
                Some(Hit { host, nvme: found.saturating_sub(host), elsewhere: None })
            }
            (Op::Lease, Some(&Answer { words: &[host, nvme, elsewhere], .. })) => {
                Some(Hit { host, nvme, elsewhere: Some(elsewhere) })
            }
            _ => None,
        }
    }

    /// Return the hash of the first block that the request did not find.
    pub fn missing(&self, answer: &Answer<'_>) -> Option<u128> {
        match (self.op?, answer.status) {
            (Op::Lookup, Status::Ok) => self.hashes.get(answer.value as u32 as usize).copied(),
            (Op::Lease, Status::NotFound) => self.hashes.first().copied(),
            _ => None,
        }
    }

    /// Return what a lookup found of its blocks; `None` if this is none.
    pub fn lookup(&self, answer: &Answer<'_>, now_us: u64) -> Option<(u128, TracedLookup)> {
        let Some(Op::Lookup) = self.op.filter(|_| answer.status == Status::Ok) else { return None };
        let found = answer.value as u32 as usize;
        let hash = |at: Option<usize>| self.hashes.get(at?).copied();
        let (found, missing) = (hash(found.checked_sub(1)), hash(Some(found)));
        Some((self.context.trace, TracedLookup { found, missing, continues: self.continues, at_us: now_us }))
    }

    /// Return how many blocks the request copied; `None` if it is no copy.
    fn copied(&self, answer: Option<&Answer<'_>>) -> Option<u32> {
        let (Op::LoadBlocks | Op::StoreBlocks) = self.op? else { return None };
        // The list holds the blocks that failed. An error without a list is one of the request.
        let some = answer.filter(|answer| answer.status == Status::Ok || !answer.words.is_empty());
        Some(some.map_or(0, |answer| self.asked.saturating_sub(answer.words.len() as u32)))
    }
}

/// Blocks that were found, by tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hit {
    /// In host memory.
    pub host: u32,
    /// On NVMe only; of a lookup also in other sessions' tier 0 only.
    pub nvme: u32,
    /// In other sessions' tier 0 only; not known of a lookup.
    pub elsewhere: Option<u32>,
}

/// A finished span.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    place: Arc<Place>,
    session: u32,
    context: TraceContext,
    began: SystemTime,
    ended: SystemTime,
    name: &'static str,
    status: Option<Status>,
    asked: u32,
    hit: Option<Hit>,
    /// Why its first missing block is not cached.
    missing: Option<Cause>,
    /// Blocks that were copied.
    copied: Option<u32>,
}

impl Finished for Span {
    fn span(self) -> kvtide_trace::Span {
        let Span { place, session, context, began, ended, name, status, asked, hit, missing, copied } = self;
        let tokens = |blocks: u32| i64::from(blocks) * i64::from(place.page_tokens);
        let status_name = status.map_or("SessionEnded".to_owned(), |status| format!("{status:?}"));
        let mut attributes = vec![
            ("kvtide.space", place.space.clone().into()),
            ("kvtide.domain", place.domain.clone().into()),
            ("kvtide.session", i64::from(session).into()),
            ("kvtide.status", status_name.clone().into()),
            ("kvtide.asked_blocks", i64::from(asked).into()),
            ("kvtide.asked_tokens", tokens(asked).into()),
        ];
        if let Some(hit) = hit {
            attributes.extend([
                ("kvtide.hit_tokens", tokens(hit.host + hit.nvme + hit.elsewhere.unwrap_or(0)).into()),
                ("kvtide.hit_tokens_host", tokens(hit.host).into()),
                ("kvtide.hit_tokens_nvme", tokens(hit.nvme).into()),
            ]);
            attributes.extend(hit.elsewhere.map(|hit| ("kvtide.hit_tokens_elsewhere", tokens(hit).into())));
        }
        if let Some(cause) = missing {
            attributes.push(("kvtide.miss_reason", cause.name().into()));
        }
        if let Some(copied) = copied {
            attributes.push(("kvtide.copied_blocks", i64::from(copied).into()));
            attributes.push(("kvtide.copied_bytes", (i64::from(copied) * place.block_bytes as i64).into()));
        }
        // A miss is no error.
        let error = match status {
            Some(Status::Ok | Status::NotFound | Status::NotAdmitted | Status::OverBudget) => None,
            _ => Some(status_name),
        };
        kvtide_trace::Span { context, name, began, ended, error, attributes }
    }
}

/// The last lookup of a trace, for `kvtide why`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TracedLookup {
    /// Last block that it found.
    pub found: Option<u128>,
    /// The next one that it asked for, which it did not find.
    pub missing: Option<u128>,
    /// It continues the one before.
    continues: bool,
    /// When it was answered.
    pub at_us: u64,
}

/// What a core thread needs to make spans.
#[derive(Debug)]
pub(crate) struct Tracer {
    spans: Spans<Span>,
    place: Arc<Place>,
    lookups: HashMap<u128, TracedLookup>,
    /// Their traces, the oldest first.
    order: VecDeque<u128>,
}

impl Tracer {
    /// Make spans of a space.
    pub fn new(exporter: &Exporter, place: Place) -> Tracer {
        Tracer { spans: exporter.spans(), place: Arc::new(place), lookups: HashMap::new(), order: VecDeque::new() }
    }

    /// Remember a lookup of a trace.
    pub fn remember(&mut self, trace: u128, lookup: TracedLookup) {
        let before = self.lookups.get(&trace).copied();
        let continued = before.filter(|_| lookup.continues);
        let found = lookup.found.or(continued.and_then(|before| before.found));
        let missing = lookup.missing.or(continued.and_then(|before| before.missing));
        self.lookups.insert(trace, TracedLookup { found, missing, ..lookup });
        if before.is_none() {
            self.order.push_back(trace);
            if self.order.len() > REMEMBERED_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.lookups.remove(&oldest);
            }
        }
    }

    /// Return the last lookup of a trace.
    pub fn lookup_of(&self, trace: u128) -> Option<TracedLookup> {
        self.lookups.get(&trace).copied()
    }

    /// Finish the span of a request. Without an answer: its session ended before. `missing`: why its first missing block is not cached.
    pub fn finish(&self, open: &OpenSpan, answer: Option<&Answer<'_>>, missing: Option<Cause>) {
        self.spans.send(Span {
            place: Arc::clone(&self.place),
            session: open.session,
            context: open.context,
            began: open.began,
            ended: SystemTime::now(),
            name: open.name(),
            status: answer.map(|answer| answer.status),
            asked: open.asked,
            hit: open.hit(answer),
            missing,
            copied: open.copied(answer),
        });
    }
}
