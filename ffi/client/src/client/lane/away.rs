//! A lane owned by the copy thread, which completes the boundaries that the lane's stream waits for, in order, and then returns it.

use super::State;
use crate::agent::{
    background_tasks::{BackgroundTask, Turn},
    session::Session,
    stream::{LaneStream, Wait},
};
use kvtide_wire::status::Status;
use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How long a caller that waits for the lane sleeps before it checks and helps again.
const NAP: Duration = Duration::from_micros(200);

/// A boundary that the stream waits for.
struct Item {
    plane: u16,
    wait: Wait,
}

/// How far a gated step is: planes that the device may pass, and planes with every page in the lane's table.
#[derive(Clone, Copy, Default)]
pub(super) struct Gated {
    told: u16,
    gathered: u16,
}

impl Gated {
    /// Let the device pass all planes, with an error.
    pub fn fail(&self, stream: &LaneStream, status: Status) {
        stream.complete_gates(self.told..self.gathered, Err(status));
    }
}

/// Complete the planes of a gated step that are readable now, together: the device then reads one plane's words for all of them.
/// Return true if none is left.
pub(super) fn pass_gates(
    stream: &LaneStream,
    state: &mut State,
    gated: &mut Gated,
    session: &Session,
) -> Result<bool, Status> {
    let asked = state.gather_gated(session, &mut gated.gathered);
    if gated.gathered > gated.told && stream.may_complete().map_err(|error| crate::memory::cuda::status_of(&error))? {
        let over = stream.complete_gates(gated.told..gated.gathered, Ok(()));
        gated.told = gated.gathered;
        if over {
            return Ok(true);
        }
    }
    asked.map(|()| false)
}

/// State shared with the copy thread.
struct Inner {
    state: Option<Box<State>>,
    queue: VecDeque<Item>,
    /// The gated step, in place of a queue.
    gated: Option<Gated>,
    /// When the front of the queue became the front.
    since: Instant,
    /// Why the step's remaining boundaries fail.
    failed: Option<Status>,
}

/// A lane's boundaries in the copy thread.
pub(crate) struct Away {
    stream: Arc<LaneStream>,
    inner: Mutex<Inner>,
    /// Signalled when the queue becomes empty.
    empty: Condvar,
}

impl Away {
    pub fn new(stream: &Arc<LaneStream>) -> Away {
        let inner = Inner { state: None, queue: VecDeque::new(), gated: None, since: Instant::now(), failed: None };
        Away { stream: Arc::clone(stream), inner: Mutex::new(inner), empty: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn stream(&self) -> &Arc<LaneStream> {
        &self.stream
    }

    /// Give the lane to the copy thread, for a boundary that its stream waits for already.
    pub fn leave(&self, state: Box<State>, plane: u16, wait: Wait) {
        let mut inner = self.lock();
        inner.state = Some(state);
        inner.since = Instant::now();
        inner.failed = None;
        inner.queue.push_back(Item { plane, wait });
    }

    /// Give the lane to the copy thread, for the planes of a gated step that are left.
    pub fn leave_gated(&self, state: Box<State>, gated: Gated) {
        let mut inner = self.lock();
        inner.state = Some(state);
        inner.since = Instant::now();
        inner.gated = Some(gated);
    }

    /// Queue one more boundary behind the pending ones; false: none is pending.
    pub fn queue(&self, plane: u16) -> Result<bool, Status> {
        let mut inner = self.lock();
        if inner.queue.is_empty() {
            return Ok(false);
        }
        match self.stream.wait() {
            Ok(Some(wait)) => inner.queue.push_back(Item { plane, wait }),
            Ok(None) => return Err(Status::Again),
            Err(error) => return Err(crate::memory::cuda::status_of(&error)),
        }
        Ok(true)
    }

    /// Wait until the boundaries are complete, and take the lane back. Helps with copies meanwhile. Each boundary has the session's
    /// timeout; after one has failed the others fail at once.
    pub fn come_home(&self, session: &Session) -> Result<Box<State>, Status> {
        let helping = session.helping();
        let deadline = Instant::now() + 2 * session.timeout.min(Duration::from_secs(3600)) + Duration::from_secs(1);
        loop {
            session.try_round();
            let turn = self.go_on(session);
            let mut inner = self.lock();
            if inner.queue.is_empty()
                && inner.gated.is_none()
                && let Some(state) = inner.state.take()
            {
                drop(helping);
                return Ok(state);
            }
            if Instant::now() > deadline {
                return Err(Status::TimedOut);
            }
            if !turn.progress {
                // The sleep has a short bound: the loop checks everything again.
                drop(self.empty.wait_timeout(inner, NAP));
            }
        }
    }

    /// Check the first boundary. `None`: it is still pending.
    fn look(&self, inner: &mut Inner, session: &Session) -> Option<Result<(), Status>> {
        let (Some(item), Some(state)) = (inner.queue.front(), inner.state.as_deref_mut()) else { return None };
        if let Some(status) = inner.failed {
            return Some(Err(status));
        }
        self.stream.defer(&item.wait);
        let may_complete = || self.stream.may_complete().map_err(|error| crate::memory::cuda::status_of(&error));
        match state.gather(session, item.plane).and_then(|found| Ok(found && may_complete()?)) {
            Ok(true) => Some(Ok(())),
            Ok(false) => self.late(inner, session),
            Err(status) => Some(Err(status)),
        }
    }

    /// Continue the gated step. Return whether there was progress.
    fn pass_gates(&self, inner: &mut Inner, session: &Session) -> bool {
        let (Some(mut gated), Some(state)) = (inner.gated, inner.state.as_deref_mut()) else { return false };
        let before = gated.told;
        let passed = pass_gates(&self.stream, state, &mut gated, session);
        let over = match passed {
            Ok(false) if gated.told == before => self.late(inner, session).map(Result::err),
            Ok(over) => over.then_some(None),
            Err(status) => Some(Some(status)),
        };
        if let Some(Some(status)) = over {
            gated.fail(&self.stream, status);
        }
        inner.gated = Some(gated).filter(|_| over.is_none());
        let progress = gated.told != before || over.is_some();
        if progress {
            session.counters.stalled(inner.since);
            inner.since = Instant::now();
        }
        progress
    }

    fn late(&self, inner: &Inner, session: &Session) -> Option<Result<(), Status>> {
        (inner.since.elapsed() >= session.timeout).then_some(Err(Status::TimedOut))
    }
}

impl BackgroundTask for Away {
    fn go_on(&self, session: &Session) -> Turn {
        let mut inner = self.lock();
        let mut progress = self.pass_gates(&mut inner, session);
        while let Some(result) = self.look(&mut inner, session) {
            let Some(item) = inner.queue.pop_front() else { break };
            self.stream.complete(&item.wait, result);
            session.counters.stalled(inner.since);
            inner.failed = inner.failed.or(result.err());
            inner.since = Instant::now();
            progress = true;
        }
        let left = !inner.queue.is_empty() || inner.gated.is_some();
        if !left {
            self.empty.notify_all();
        }
        Turn { progress, left }
    }
}
