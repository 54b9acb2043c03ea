//! The daemon's side of one channel: tags in flight; each request is taken once and answered once.

use super::Violation;
use crate::trace::OpenSpan;
use kvtide_wire::entry::{Completion, Submission, TRACED};
use kvtide_wire::lists::{List, TRACE_WORDS};
use kvtide_wire::os::session::DaemonChannel;
use kvtide_wire::ring::PushError;
use kvtide_wire::status::Status;
use kvtide_wire::trace::TraceContext;

/// No request with this tag is in flight. Wider than an operation code, since an engine may write any operation code.
const FREE: u32 = u32::MAX;

/// A channel of a session.
#[derive(Debug)]
pub(crate) struct Channel {
    wire: DaemonChannel,
    index: u16,
    /// Operation code in flight, by tag.
    ops: Box<[u32]>,
    /// Time at which the request was taken, by tag.
    taken_us: Box<[u64]>,
    /// Spans of the traced requests in flight, by tag; empty before the first one.
    spans: Vec<Option<Box<OpenSpan>>>,
    in_flight: u32,
    answered: bool,
}

/// An answered request.
#[derive(Debug)]
pub(crate) struct Answered {
    /// Operation code as written by the engine.
    pub op: u16,
    /// Time at which it was taken.
    pub taken_us: u64,
    /// Its span, if it is traced.
    pub span: Option<Box<OpenSpan>>,
}

impl Channel {
    /// Create a channel with empty rings.
    pub fn new(index: u16, wire: DaemonChannel) -> Channel {
        let depth = wire.completions.capacity() as usize;
        let (ops, taken_us) = (vec![FREE; depth].into_boxed_slice(), vec![0; depth].into_boxed_slice());
        Channel { wire, index, ops, taken_us, spans: Vec::new(), in_flight: 0, answered: false }
    }

    /// Take the next request and copy its list into `list`. A list longer than its area is left empty; its length then does not
    /// match. Return its trace context too, if it has one.
    pub fn take(
        &mut self,
        now_us: u64,
        list: &mut List,
    ) -> Result<Option<(Submission, Option<TraceContext>)>, Violation> {
        let Some(submission) = self.wire.submissions.pop()? else { return Ok(None) };
        let (channel, tag) = (self.index, submission.tag);
        let depth = self.ops.len();
        let place = self.ops.get_mut(usize::from(tag)).ok_or(Violation::Tag { channel, tag, depth })?;
        if *place != FREE {
            return Err(Violation::TagInFlight { channel, tag });
        }
        *place = u32::from(submission.op);
        self.taken_us[usize::from(tag)] = now_us;
        self.in_flight += 1;
        let is_traced = submission.trace == TRACED;
        let len = submission.list_len.saturating_add(if is_traced { TRACE_WORDS as u32 } else { 0 });
        if self.wire.requests.copy_out(tag, len, list).is_err() {
            *list = List::default();
        }
        let context = if is_traced { list.take_trace() } else { None };
        Ok(Some((submission, context)))
    }

    /// Keep the span of the request in flight with a tag until its answer.
    pub fn open(&mut self, tag: u16, span: OpenSpan) {
        self.spans.resize_with(self.ops.len(), || None);
        self.spans[usize::from(tag)] = Some(Box::new(span));
    }

    /// Take the spans of the requests that are not answered.
    pub fn take_spans(&mut self) -> impl Iterator<Item = Box<OpenSpan>> {
        self.spans.iter_mut().filter_map(Option::take)
    }

    /// Return true if a request waits. A broken ring counts as waiting, so that it is examined.
    pub fn has_requests(&mut self) -> bool {
        self.wire.submissions.available().map_or(true, |count| count > 0)
    }

    /// Answer the request of a tag and return it. `None` if none is in flight; this is a bug of the daemon, and the engine must not
    /// see a second answer.
    pub fn complete(
        &mut self,
        tag: u16,
        status: Status,
        value: u64,
        words: &[u32],
    ) -> Result<Option<Answered>, Violation> {
        let Some(place) = self.ops.get_mut(usize::from(tag)).filter(|place| **place != FREE) else { return Ok(None) };
        let op = std::mem::replace(place, FREE) as u16;
        self.in_flight -= 1;
        // The list area is as large as the core's lists (asserted when the core is created), so this never fails because of the
        // length.
        let list_len = self.wire.answers.write(tag, words)?;
        let completion = Completion { value, list_len, ..Completion::new(op, tag, status) };
        self.wire.completions.push(&completion).map_err(|error| match error {
            PushError::Full => Violation::AnswersUnread { channel: self.index },
            PushError::Broken(index) => index.into(),
        })?;
        self.answered = true;
        let span = self.spans.get_mut(usize::from(tag)).and_then(Option::take);
        Ok(Some(Answered { op, taken_us: self.taken_us[usize::from(tag)], span }))
    }

    /// Wake the engine's thread if answers were sent since the last call.
    pub fn wake(&mut self) {
        if std::mem::take(&mut self.answered) {
            self.wire.waker.wake();
        }
    }

    /// Return the number of requests in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }
}
