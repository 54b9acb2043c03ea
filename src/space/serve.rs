//! What engines wrote, to the core; what the core wants, to engines, to the node and to the control thread.

use super::canary::Canary;
use super::clock::Clock;
use super::flight::Flight;
use super::letters::Report;
use super::nvme::{Ended, Noted, Nvme};
use super::restore::Arrival;
use super::seats::Seats;
use super::slabs::Slabs;
use super::status::SpaceStatus;
use crate::host::NodeLetter;
use crate::mail::Outbox;
use crate::published::Publisher;
use crate::session::{Answer, End, EndedJob, JobTimes, Registry, RequestTimes, Verdict, Violation};
use crate::translate::{self, SCORES_TURN, Scratch};
use kvtide_tiering::ActionBuf;
use kvtide_tiering::Error as CoreError;
use kvtide_tiering::LIST_MAX;
use kvtide_tiering::api::{Event, SessionId};
use kvtide_wire::entry::LIST_WORDS;
use kvtide_wire::lists::List;
use kvtide_wire::status::Status;
use serde::Serialize;

/// Requests of one channel that are taken before the next channel has its turn.
const TURN: usize = 32;
/// Completions handled in a row: jobs of one session, transfers, notes. Bounds how long a request waits behind them.
const ENDS_TURN: usize = 32;
/// How often a thread that never sleeps asks the core for its next deadline: they are milliseconds and more away.
const ASK_US: u64 = 100;
/// Actions that the buffer holds: what one event usually causes, many times over.
pub(super) const ACTIONS: usize = 1024;
/// List words that it holds.
pub(super) const WORDS: usize = 16 * LIST_MAX;

const _: () = assert!(LIST_MAX <= LIST_WORDS, "every list of the core fits a tag's area");

/// A space at work.
#[derive(Debug)]
pub(super) struct Space {
    pub number: u32,
    pub name: String,
    pub domain: String,
    pub core: Flight,
    pub seats: Seats,
    pub clock: Clock,
    /// When the last round began: how long things took is measured by rounds.
    pub now_us: u64,
    pub control: Outbox<Report>,
    pub node: Outbox<NodeLetter>,
    pub registry: Registry,
    pub slabs: Slabs,
    pub nvme: Nvme,
    pub canary: Canary,
    pub arrival: Arrival,
    /// Regions that the node was asked for and has not answered about: one that is granted to a space that has ended is nobody's.
    pub regions_asked: u32,
    /// Size of each plane's page.
    pub page_bytes: Vec<u32>,
    /// Newcomers seen.
    pub attaches: u64,
    /// Engines received at the last report that the space is vacant.
    pub told_vacant: u64,
    /// Engines received at the last report that the last session has left.
    pub told_left: u64,
    /// What the node said that it may write to NVMe a day.
    pub nvme_bytes_per_day: Option<u64>,
    /// When everything ends, if the daemon drains.
    pub drain_until_us: Option<u64>,
    /// When the core wants to be asked again at the latest.
    pub due_us: Option<u64>,
    /// When it was last asked for that.
    pub asked_us: u64,
    pub tally: Tally,
    pub figures: Publisher<SpaceStatus>,
    pub request_times: RequestTimes,
    pub job_times: JobTimes,
    pub actions: ActionBuf,
    pub list: List,
    pub scratch: Scratch,
    /// Sessions that shall end, and why: an engine's breach is found in the middle of other work.
    pub ending: Vec<(SessionId, End)>,
    /// The node asked for a slab; true: also for one with cached blocks.
    pub reclaim: Option<bool>,
    /// Slabs returned before the question that is being answered.
    pub returned_before: Option<u64>,
    /// It ends once nothing is in flight, for another space.
    pub retiring: bool,
    /// Slots whose descriptors the sleeper must watch from now on.
    pub seated: Vec<SessionId>,
}

/// What a space's shell has done.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Tally {
    /// Requests that engines made.
    pub requests: u64,
    /// Jobs that engines ended.
    pub jobs: u64,
    /// Bytes that those which succeeded moved.
    pub job_bytes: u64,
    /// Transfers between host memory and disks that ended.
    pub transfers: u64,
    /// Notes to the index logs of disks that ended.
    pub notes: u64,
    /// Blocks of an earlier run that the core was told of.
    pub restored: u64,
    /// Of them, those whose ancestors are gone.
    pub unreachable: u64,
}

impl Space {
    /// Takes what engines have written, each session in its turn. False if there was nothing.
    pub fn round(&mut self, now_us: u64) -> bool {
        self.now_us = now_us;
        let mut worked = false;
        let mut n = 0;
        while let Some(slot) = self.seats.live_slot(n) {
            match self.serve(slot, now_us) {
                Ok(some) => worked |= some,
                Err(violation) => self.ending.push((slot, End::Violation(violation))),
            }
            n += 1;
        }
        worked |= self.take_transfers(now_us);
        worked |= self.core.has_output();
        if worked {
            self.go_on(now_us);
        }
        if worked && now_us.saturating_sub(self.asked_us) >= ASK_US {
            self.ask_due(now_us);
        }
        if self.due_us.is_some_and(|due_us| due_us <= now_us) {
            self.tell(now_us, Event::Tick);
            self.ask_due(now_us);
        }
        worked |= self.end_all(now_us);
        for (_, session) in self.seats.sessions() {
            session.wake();
        }
        worked
    }

    fn serve(&mut self, slot: SessionId, now_us: u64) -> Result<bool, Violation> {
        let mut worked = false;
        for _ in 0..ENDS_TURN {
            let Some(EndedJob { id: job, status, bytes, verdict }) = self.job_done(slot)? else { break };
            worked = true;
            self.tally.jobs += 1;
            self.tally.job_bytes += bytes;
            if let Some(verdict) = verdict {
                self.heed_canary(slot, verdict);
            }
            self.tell(now_us, Event::JobDone { session: slot, job, status });
        }
        let channels = self.seats.session(slot).map_or(0, |session| session.channels.len());
        for channel in 0..channels {
            for _ in 0..TURN {
                if !self.request(slot, channel, now_us)? {
                    break;
                }
                worked = true;
            }
        }
        Ok(worked | self.take_scores(slot, now_us))
    }

    /// Tells the core what a session's lanes say of attention. False if they said nothing.
    fn take_scores(&mut self, slot: SessionId, now_us: u64) -> bool {
        let mut any = false;
        let lanes = self.seats.session(slot).map_or(0, |session| session.scores.lanes());
        for lane in 0..lanes {
            for _ in 0..SCORES_TURN {
                let Space { seats, core, actions, .. } = self;
                let Some(session) = seats.session(slot) else { return any };
                let Some(told) = session.scores.next(lane) else { break };
                any = true;
                let result = core.handle(now_us, told.event(slot, session.scores.top()), actions);
                self.after(result);
            }
        }
        if let Some(session) = self.seats.session(slot).filter(|_| any) {
            let missed = session.scores.missed();
            (session.tally.scores_lost, session.tally.scores_malformed) = (missed.lost + missed.torn, missed.malformed);
        }
        any
    }

    /// The canary remembers and counts; what is not what was stored is said at once.
    fn heed_canary(&mut self, slot: SessionId, verdict: Verdict) {
        self.canary.heed(verdict);
        if let Verdict::Different { at, stored, loaded } = verdict {
            let (space, session) = (self.number, self.seats.guest(slot).map_or(0, |guest| guest.number));
            tracing::error!(
                "space {space}: a page is not what was stored: slab {}, frame {}, digest {stored:#010x}, loaded by session {session} \
                 with {loaded:#010x}; it was not shown",
                at.slab,
                at.slot
            );
        }
    }

    /// Tells the core of transfers and notes that have ended, some at a time. False if there were none.
    fn take_transfers(&mut self, now_us: u64) -> bool {
        let mut any = false;
        for _ in 0..ENDS_TURN {
            let Some(Ended { id, status }) = self.nvme.next_ended(&mut self.canary) else { break };
            any = true;
            self.tally.transfers += 1;
            let event = Event::IoDone { id, status, bad: self.nvme.bad() };
            let result = self.core.handle(now_us, event, &mut self.actions);
            self.after(result);
        }
        for _ in 0..ENDS_TURN {
            let Some(Noted { id, status }) = self.nvme.next_noted() else { break };
            any = true;
            self.tally.notes += 1;
            self.tell(now_us, Event::LogDone { id, status });
        }
        self.return_lost();
        any
    }

    fn job_done(&mut self, slot: SessionId) -> Result<Option<EndedJob>, Violation> {
        match self.seats.session(slot) {
            Some(session) => session.job_done(self.now_us, &mut self.job_times),
            None => Ok(None),
        }
    }

    /// Takes one request. False if there is none.
    fn request(&mut self, slot: SessionId, channel: usize, now_us: u64) -> Result<bool, Violation> {
        let draining = self.drain_until_us.is_some();
        let Space { seats, list, scratch, core, actions, request_times, .. } = self;
        let Some(session) = seats.session(slot) else { return Ok(false) };
        let Some(submission) = session.channels[channel].take(now_us, list)? else { return Ok(false) };
        self.tally.requests += 1;
        let request = match translate::request(&submission, list.words(), scratch) {
            _ if draining => Err(Status::Daemon),
            request => request,
        };
        match request {
            Err(status) => {
                let (channel, tag) = (channel as u16, submission.tag);
                session.answer(&Answer { channel, tag, status, value: 0, words: &[] }, now_us, request_times)?;
            }
            Ok(request) => {
                let (tag, timeout_us) = (submission.tag, submission.timeout_us);
                let event = Event::Request { session: slot, channel: channel as u16, tag, timeout_us, request };
                let result = core.handle(now_us, event, actions);
                self.after(result);
            }
        }
        Ok(true)
    }

    /// Tells the core something and does what it wants done.
    pub fn tell(&mut self, now_us: u64, event: Event<'_>) {
        self.figures.changed();
        let result = self.core.handle(now_us, event, &mut self.actions);
        self.after(result);
    }

    fn after(&mut self, result: Result<(), CoreError>) {
        match result {
            Ok(()) => {}
            Err(error @ (CoreError::Agent { session, .. } | CoreError::Overrun { session, .. })) => {
                self.ending.push((session, End::Violation(Violation::Core(error))));
            }
            Err(error) => {
                tracing::error!("space {}: the core refused an event: {error}", self.number);
                self.core.failed();
            }
        }
        self.deliver();
    }

    /// Lets the core go on with what found no room in the buffer, once.
    pub fn go_on(&mut self, now_us: u64) {
        if self.core.has_output() {
            self.core.poll(now_us, &mut self.actions);
            self.deliver();
        }
    }

    /// Asks when the core wants to be asked again.
    pub fn ask_due(&mut self, now_us: u64) {
        self.asked_us = now_us;
        self.due_us = self.core.next_deadline();
    }
}
