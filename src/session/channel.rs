//! One channel, daemon's side: which tags are in flight, requests taken once, answers given once.

use super::Violation;
use kvtide_wire::entry::{Completion, Submission};
use kvtide_wire::lists::List;
use kvtide_wire::os::session::DaemonChannel;
use kvtide_wire::ring::PushError;
use kvtide_wire::status::Status;

/// No request of this tag is in flight. Wider than an operation code, all of whose values an engine may write.
const FREE: u32 = u32::MAX;

/// A channel.
#[derive(Debug)]
pub(crate) struct Channel {
    wire: DaemonChannel,
    index: u16,
    /// Operation code in flight by tag.
    ops: Box<[u32]>,
    /// When it was taken, by tag.
    taken_us: Box<[u64]>,
    in_flight: u32,
    answered: bool,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answered {
    /// Its operation code, as the engine wrote it.
    pub op: u16,
    /// When it was taken.
    pub taken_us: u64,
}

impl Channel {
    /// A channel whose rings are empty.
    pub fn new(index: u16, wire: DaemonChannel) -> Channel {
        let depth = wire.completions.capacity() as usize;
        let (ops, taken_us) = (vec![FREE; depth].into_boxed_slice(), vec![0; depth].into_boxed_slice());
        Channel { wire, index, ops, taken_us, in_flight: 0, answered: false }
    }

    /// The next request, its list copied into `list`; a list that is longer than its area is left empty, which its length then
    /// contradicts.
    pub fn take(&mut self, now_us: u64, list: &mut List) -> Result<Option<Submission>, Violation> {
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
        if self.wire.requests.copy_out(tag, submission.list_len, list).is_err() {
            *list = List::default();
        }
        Ok(Some(submission))
    }

    /// Whether a request waits to be taken. A ring that is broken waits to be looked at.
    pub fn has_requests(&mut self) -> bool {
        self.wire.submissions.available().map_or(true, |count| count > 0)
    }

    /// Answers the request of a tag; what it was. `None` if none is in flight: a bug of ours, which the engine must not see
    /// twice.
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
        // The list area holds what the core's lists hold (asserted where the core is made), so this fails for no list.
        let list_len = self.wire.answers.write(tag, words)?;
        let completion = Completion { value, list_len, ..Completion::new(op, tag, status) };
        self.wire.completions.push(&completion).map_err(|error| match error {
            PushError::Full => Violation::AnswersUnread { channel: self.index },
            PushError::Broken(index) => index.into(),
        })?;
        self.answered = true;
        Ok(Some(Answered { op, taken_us: self.taken_us[usize::from(tag)] }))
    }

    /// Wakes the engine's thread if it was answered since the last call.
    pub fn wake(&mut self) {
        if std::mem::take(&mut self.answered) {
            self.wire.waker.wake();
        }
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }
}
