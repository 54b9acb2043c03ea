//! What engines wrote, to the core; what the core wants, to engines, to the node and to the control thread.

use super::clock::Clock;
use super::letters::{Granted, Letter, Report};
use super::seats::Seats;
use super::slabs::Slabs;
use crate::host::NodeLetter;
use crate::mail::Outbox;
use crate::session::{End, Registry, Violation};
use crate::translate::{self, Scratch};
use kvtide_tiering::ActionBuf;
use kvtide_tiering::LIST_MAX;
use kvtide_tiering::api::{Action, Event, SessionId};
use kvtide_tiering::{Core, Error as CoreError};
use kvtide_wire::entry::LIST_WORDS;
use kvtide_wire::lists::List;
use kvtide_wire::status::Status;

/// Requests of one channel that are taken before the next channel has its turn.
const TURN: usize = 32;
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
    pub core: Core,
    pub seats: Seats,
    pub clock: Clock,
    pub control: Outbox<Report>,
    pub node: Outbox<NodeLetter>,
    pub registry: Registry,
    pub slabs: Slabs,
    /// Size of each plane's page.
    pub page_bytes: Vec<u32>,
    /// Newcomers seen.
    pub attaches: u64,
    /// Newcomers seen when the control thread was last told that the space is vacant.
    pub told_vacant: u64,
    /// When everything ends, if the daemon drains.
    pub drain_until_us: Option<u64>,
    /// When the core wants to be asked again at the latest.
    pub due_us: Option<u64>,
    /// When it was last asked for that.
    pub asked_us: u64,
    pub tally: Tally,
    pub actions: ActionBuf,
    pub list: List,
    pub scratch: Scratch,
    /// Sessions that shall end, and why: an engine's breach is found in the middle of other work.
    pub ending: Vec<(SessionId, End)>,
    /// Slots whose descriptors the sleeper must watch from now on.
    pub seated: Vec<SessionId>,
}

/// What a space has done since it last told the metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    requests: u64,
    jobs: u64,
    job_bytes: u64,
}

impl Tally {
    /// Adds everything to the metrics and starts again.
    pub fn flush(&mut self) {
        let Tally { requests, jobs, job_bytes } = std::mem::take(self);
        for (name, count) in [
            ("kvtide_requests_total", requests),
            ("kvtide_jobs_ended_total", jobs),
            ("kvtide_job_bytes_total", job_bytes),
        ] {
            if count > 0 {
                metrics::counter!(name).increment(count);
            }
        }
    }
}

impl Space {
    /// Takes what engines have written, each session in its turn. False if there was nothing.
    pub fn round(&mut self, now_us: u64) -> bool {
        let mut worked = false;
        let mut n = 0;
        while let Some(slot) = self.seats.live_slot(n) {
            match self.serve(slot, now_us) {
                Ok(some) => worked |= some,
                Err(violation) => self.ending.push((slot, End::Violation(violation))),
            }
            n += 1;
        }
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
        while let Some((job, status, bytes)) = self.job_done(slot)? {
            worked = true;
            self.tally.jobs += 1;
            self.tally.job_bytes += bytes;
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
        Ok(worked)
    }

    fn job_done(&mut self, slot: SessionId) -> Result<Option<(u32, kvtide_tiering::api::Status, u64)>, Violation> {
        match self.seats.session(slot) {
            Some(session) => session.job_done(),
            None => Ok(None),
        }
    }

    /// Takes one request. False if there is none.
    fn request(&mut self, slot: SessionId, channel: usize, now_us: u64) -> Result<bool, Violation> {
        let draining = self.drain_until_us.is_some();
        let Space { seats, list, scratch, core, actions, .. } = self;
        let Some(session) = seats.session(slot) else { return Ok(false) };
        let Some(submission) = session.channels[channel].take(list)? else { return Ok(false) };
        self.tally.requests += 1;
        let request = match translate::request(&submission, list.words(), scratch) {
            _ if draining => Err(Status::Daemon),
            request => request,
        };
        match request {
            Err(status) => {
                session.channels[channel].complete(submission.tag, status, 0, &[])?;
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
        let result = self.core.handle(now_us, event, &mut self.actions);
        self.after(result);
    }

    fn after(&mut self, result: Result<(), CoreError>) {
        match result {
            Ok(()) => {}
            Err(error @ (CoreError::Agent { session, .. } | CoreError::Overrun { session, .. })) => {
                self.ending.push((session, End::Violation(Violation::Core(error))));
            }
            Err(error) => tracing::error!("space {}: the core refused an event: {error}", self.number),
        }
        self.deliver();
    }

    /// Lets the core go on with what found no room in the buffer, once.
    fn go_on(&mut self, now_us: u64) {
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

    pub fn deliver(&mut self) {
        let Space { actions, seats, page_bytes, ending, slabs, node, registry, number, .. } = self;
        for action in actions.actions() {
            match *action {
                Action::Job { session, id, job } => {
                    let Some(live) = seats.session(session) else { continue };
                    let bytes_of = |plane: u16| page_bytes.get(usize::from(plane)).copied().unwrap_or(0);
                    if let Err(end) = live.post(id, &job, bytes_of) {
                        ending.push((session, end));
                    }
                }
                Action::Complete { session, channel, tag, status, value, list } => {
                    let Some(live) = seats.session(session) else { continue };
                    let Some(channel) = live.channels.get_mut(usize::from(channel)) else { continue };
                    match channel.complete(tag, translate::to_wire(status), value, actions.list(list)) {
                        Ok(true) => {}
                        Ok(false) => {
                            tracing::error!("space {number}: request {tag} of session {session} completed twice")
                        }
                        Err(violation) => ending.push((session, End::Violation(violation))),
                    }
                }
                Action::NeedSlab { class } => node.send(NodeLetter::Need { space: *number, class }),
                Action::ReturnSlab { slab } => {
                    let (memfd, notice) = slabs.remove(slab);
                    node.send(NodeLetter::Return { space: *number, slab, memfd });
                    for (session, live) in seats.sessions() {
                        if let Err(end) = live.notify(notice.clone()) {
                            ending.push((session, end));
                        }
                    }
                }
                Action::SessionGone { session } => {
                    if let Some(guest) = seats.vacate(session) {
                        registry.remove(guest.number);
                        tracing::debug!("session {}: nothing of it is left", guest.number);
                    }
                }
            }
        }
        actions.clear();
    }

    /// Ends the sessions that shall end. False if there were none.
    fn end_all(&mut self, now_us: u64) -> bool {
        let mut any = false;
        while let Some((slot, end)) = self.ending.pop() {
            any = true;
            self.end(now_us, slot, &end);
        }
        any
    }

    /// Ends a session's lease; a slot without a live session is left as it is.
    pub fn end(&mut self, now_us: u64, slot: SessionId, end: &End) {
        let Some(session) = self.seats.lose(slot) else { return };
        if let Some(guest) = self.seats.guest(slot) {
            let (number, pid) = (guest.number, guest.peer.pid);
            self.registry.lost(number);
            match end {
                End::Violation(_) | End::System(_) => {
                    metrics::counter!("kvtide_sessions_expelled_total").increment(1);
                    tracing::warn!("session {number} (pid {pid}) ends: {end}");
                }
                End::Closed | End::Exited | End::Shutdown => {
                    tracing::info!("session {number} (pid {pid}) ends: {end}")
                }
            }
        }
        metrics::counter!("kvtide_sessions_ended_total").increment(1);
        session.say_bye(end);
        drop(session);
        self.tell(now_us, Event::SessionLost { session: slot });
    }

    /// The process behind a slot has exited: the lease is over, and so is whatever it might still have written.
    pub fn exited(&mut self, now_us: u64, slot: SessionId) {
        self.end(now_us, slot, &End::Exited);
        let Some(guest) = self.seats.guest(slot).filter(|guest| !guest.exited) else { return };
        guest.exited = true;
        self.tell(now_us, Event::SessionExited { session: slot });
    }

    /// Reads a letter. True if the thread shall end.
    pub fn read(&mut self, now_us: u64, letter: Letter) -> bool {
        match letter {
            Letter::Attach(newcomer) => self.attach(now_us, *newcomer),
            Letter::Granted(granted) => self.granted(now_us, granted),
            Letter::Refused { class } => self.tell(now_us, Event::SlabRefused { class }),
            Letter::Drain { until } => self.drain_until_us = Some(self.clock.of(until)),
            Letter::Retire => return self.is_vacant(),
            // Whoever asked and does not wait any more has its answer dropped.
            Letter::Status(reply) => drop(reply.try_send(self.status())),
        }
        false
    }

    fn granted(&mut self, now_us: u64, granted: Granted) {
        let (id, class, frames) = (granted.slab.slab, granted.slab.class as u8, granted.slab.frames);
        let notice = match self.slabs.add(granted) {
            Ok(notice) => notice,
            Err(error) => {
                tracing::error!("space {}: slab {id} cannot be used: {error}", self.number);
                self.node.send(NodeLetter::Return { space: self.number, slab: id, memfd: None });
                return self.tell(now_us, Event::SlabRefused { class });
            }
        };
        // Engines are told before the first job that names it.
        for (slot, session) in self.seats.sessions() {
            if let Err(end) = session.notify(notice.clone()) {
                self.ending.push((slot, end));
            }
        }
        self.tell(now_us, Event::SlabGranted { class, slab: id, frames });
    }
}
