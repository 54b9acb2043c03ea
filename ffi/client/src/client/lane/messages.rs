//! What a lane tells the daemon, and the daemon's answers.

use crate::agent::{
    port::Port,
    protocol::step::{Fault, Reader},
    session::Session,
};
use kvtide_types::Request as WireRequest;
use kvtide_wire::{
    entry::LIST_WORDS,
    half::F16,
    os::session::LaneWriter,
    score::{ScoreKind, Scores, TOP_MAX, Top},
    status::Status,
};
use std::{os::fd::AsFd, time::Duration};

/// What a report of scores is about: their kind, the sequence and the plane.
pub(super) type Reported = (ScoreKind, u32, u16);

/// A lane's messages to the daemon and its words in shared memory. A message that does not fit into the ring is sent later: the
/// end of the last step first, then the begin of the open one, then its fault.
pub(super) struct Messages {
    port: Port,
    words: LaneWriter,
    /// Fault in flight of each tag.
    faults: Vec<Option<Fault>>,
    /// The last announced step, if the daemon does not know yet that it ended.
    unended: Option<u64>,
    /// True if a step began that the daemon does not know yet.
    unannounced: bool,
    /// A fault that did not fit into the ring.
    unsent: Option<Fault>,
    /// The largest shares of a report.
    top: Vec<Top>,
}

impl Messages {
    pub fn new(port: Port, words: LaneWriter) -> Messages {
        let faults = vec![None; port.room() + 1];
        Messages { port, words, faults, unended: None, unannounced: false, unsent: None, top: Vec::new() }
    }

    /// Publish the reader's position.
    pub fn position(&self, reader: &Reader) {
        self.words.position(reader.view().position());
    }

    /// Report that a step has begun. `announce`: with a message too.
    pub fn begun(&mut self, session: &Session, reader: &Reader, announce: bool) {
        self.unsent = None;
        self.unannounced = announce;
        self.words.steps(reader.step(), reader.step() - 1);
        self.position(reader);
        if announce || self.unended.is_some() {
            // The ring is full or the daemon is gone: the first boundary that misses a page tries again, and reports the error.
            let sent = self.catch_up(session, reader).is_ok();
            session.counters.messages_before_steps.add(u64::from(announce && sent));
            self.port.ring();
            session.lane_moved();
        }
    }

    /// Report that the step has ended. `announced`: its begin had to be announced.
    pub fn ended(&mut self, session: &Session, reader: &mut Reader, announced: bool) {
        self.words.steps(reader.step(), reader.step());
        self.unsent = None;
        let told = !std::mem::take(&mut self.unannounced);
        if announced && told {
            self.unended = Some(reader.step());
        }
        if self.port.in_flight() > 0 {
            let _ = self.answers(session, reader, u16::MAX); // their results are not needed
        }
        if self.unended.is_some() {
            let _ = self.catch_up(session, reader); // full or gone: the next begin tries again
            self.port.ring();
        }
    }

    /// Send the messages that did not fit into the ring before.
    fn catch_up(&mut self, session: &Session, reader: &Reader) -> Result<(), Status> {
        let lane = reader.view().lane();
        if let Some(step) = self.unended {
            self.port.send(session, WireRequest::StepEnd { lane, step }, Duration::ZERO)?;
            self.unended = None;
        }
        if self.unannounced {
            let mut list = [0; LIST_WORDS];
            let members = reader.members();
            let count = members.len().min(LIST_WORDS);
            list.iter_mut().zip(members).for_each(|(word, seq)| *word = seq);
            let request = WireRequest::Step { lane, step: reader.step(), seqs: &list[..count] };
            self.port.send(session, request, Duration::ZERO)?;
            self.unannounced = false;
        }
        if let Some(fault) = self.unsent {
            let Fault { seq, index, plane, use_pos, whole } = fault;
            let request = WireRequest::Fault { lane, use_pos, seq, index, plane, whole };
            let tag = self.port.send(session, request, Duration::ZERO)?;
            self.faults[usize::from(tag)] = Some(fault);
            self.unsent = None;
            session.counters.faults.add(1);
        }
        Ok(())
    }

    /// Process the daemon's answers. Return the error of a fault that this boundary waits for.
    pub fn answers(&mut self, session: &Session, reader: &mut Reader, plane: u16) -> Result<(), Status> {
        while let Some(answer) = self.port.next(session)? {
            let Some(fault) = self.faults.get_mut(usize::from(answer.tag)).and_then(Option::take) else { continue };
            reader.fault_answered(&fault);
            let current = fault.use_pos == reader.view().position() && fault.plane == plane;
            match answer.status {
                // The page is resident, was evicted again, or the fault's deadline has passed: the boundary checks, and sends the
                // fault again.
                Status::Ok | Status::TimedOut | Status::Again | Status::Canceled | Status::Busy => {}
                status if current => return Err(status),
                _ => {}
            }
        }
        Ok(())
    }

    /// Report a boundary's missing page to the daemon. `begun`: and the begin of the step.
    pub fn ask(&mut self, session: &Session, reader: &Reader, begun: bool, fault: Option<Fault>) -> Result<(), Status> {
        self.unannounced |= begun;
        self.unsent = fault.or(self.unsent);
        session.usable()?;
        match self.catch_up(session, reader) {
            Ok(()) | Err(Status::Again) => {}
            Err(status) => return Err(status),
        }
        self.port.ring();
        Ok(())
    }

    /// Sleep until the table changes, the daemon answers or is gone, or the timeout has passed.
    pub fn sleep(&mut self, session: &Session, reader: &Reader, timeout: Duration) {
        let waker = &session.lanes[usize::from(reader.view().lane())];
        waker.announce(1);
        let moved = || reader.view().behind() || !session.alive();
        self.port.sleep(session, Some(waker.as_fd()), timeout, moved);
        waker.awake();
    }

    /// Report shares of attention, of pages from `first` on, for a step that may be over: the largest shares by page, the rest as a
    /// sum. A NaN share says nothing about its page.
    pub fn scores(
        &mut self,
        session: &Session,
        reader: &Reader,
        of: Reported,
        (step, first): (u64, u32),
        shares: &[f32],
    ) {
        let (kind, seq, plane) = of;
        let top = &mut self.top;
        let logarithm = |share: f32| F16::nearest(share.clamp(0.0, 1.0).ln());
        top.clear();
        let said = shares.iter().enumerate().filter(|(_, share)| **share > 0.0);
        top.extend(said.map(|(at, share)| Top { index: first + at as u32, log_mass: logarithm(*share) }));
        if top.len() > TOP_MAX {
            let larger =
                |a: &Top, b: &Top| b.log_mass.to_f32().total_cmp(&a.log_mass.to_f32()).then(a.index.cmp(&b.index));
            top.select_nth_unstable_by(TOP_MAX - 1, larger);
        }
        let rest = top.iter().skip(TOP_MAX).map(|t| t.log_mass.to_f32().exp()).sum::<f32>();
        top.truncate(TOP_MAX);
        if let Some(scores) = Scores::new(kind, seq, plane, step, top, logarithm(rest)) {
            self.words.scores.write(&scores);
            session.counters.scores.add(1);
            // Look-ahead scores are needed one plane later, so wake the daemon now. It sees all other scores at the step's end or
            // with the next message.
            if kind == ScoreKind::Ahead && reader.is_announced() {
                self.port.wake_daemon();
            }
        }
    }
}
