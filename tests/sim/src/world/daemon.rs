//! The daemon: the shipped core and the shipped encoding between simulated rings, a node that grants slabs, and records that
//! detect a core which breaks its side of the protocol.

use super::context::{Check, Context, Ev, wrong};
use super::log_requests::Logs;
use super::session::Session;
use crate::coverage::Met;
use crate::disk::{Grants, Queue};
use crate::failure::Caught;
use crate::geometry::SLAB_FRAMES;
use crate::memory::{ArenaId, Place};
use kvtide_tiering::ActionBuf;
use kvtide_tiering::api::{Event, HostFrame, Job, SessionId};
use kvtide_tiering::{Core, Error, Recorder, Recording};
use kvtide_wire::entry::{JobDone, Op, Submission};
use kvtide_wire::job::{self, Ask};
use kvtide_wire::lists::{HASH_WORDS, hash_of};
use kvtide_wire::request::{self, Scratch};
use kvtide_wire::score::{ScoreReader, ScoreSlot};
use kvtide_wire::score_areas::{Joined, SCORES_TURN, ScoreAreas};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A grant of host memory.
#[derive(Clone, Copy, Debug)]
pub struct Slab {
    /// Arena of its frames.
    pub arena: ArenaId,
    /// Size class.
    pub class: u8,
}

/// The daemon's state of an attached session.
pub(super) struct Attached {
    /// Index in the world.
    pub session: usize,
    /// Jobs in flight, by id.
    pub jobs: BTreeMap<u32, Job>,
    /// Requests in flight, by channel and tag.
    pub requests: BTreeMap<(u16, u16), u16>,
    /// Attention scores of its lanes.
    scores: ScoreAreas<Arc<[ScoreSlot]>>,
    /// The session has ended.
    pub lost: bool,
}

/// One daemon, from its start to its death.
pub struct Daemon {
    pub(super) core: Core,
    pub(super) actions: ActionBuf,
    scratch: Scratch,
    pub(super) slots: Vec<Option<Attached>>,
    pub(super) slabs: Vec<Option<Slab>>,
    /// Number of this daemon in the episode.
    pub epoch: u32,
    pub(super) granted_bytes: u64,
    /// Its grants on NVMe.
    pub(super) grants: Grants,
    /// Its transfers.
    pub(super) transfers: Queue,
    /// Its index logs.
    pub(super) logs: Logs,
    /// In some episodes the core runs under the flight recorder.
    recorder: Option<Recorder>,
    /// Time of the next wake-up by the clock.
    pub(super) due_us: u64,
    /// Results of its own lookups.
    pub(super) probed: Vec<bool>,
}

impl Daemon {
    /// Start a daemon with empty state.
    pub fn start(cx: &mut Context, epoch: u32) -> Check<Daemon> {
        let config = cx.geometry.config.clone();
        let slots = (0..config.limits.sessions_max).map(|_| None).collect();
        let core = Core::new(config)
            .or_else(|e| wrong(Caught::Protocol, format!("the core refused its configuration: {e}")))?;
        let recorder = cx.rng.chance(250).then(|| Recorder::new(&core, cx.rng.between(20_000, 400_000) as usize));
        let actions = ActionBuf::new(cx.rng.between(1, 64) as usize, 0);
        Ok(Daemon {
            core,
            actions,
            scratch: Scratch::new(),
            slots,
            slabs: Vec::new(),
            epoch,
            granted_bytes: 0,
            grants: Grants::new(cx.geometry.planes()),
            logs: Logs::default(),
            transfers: Queue::new(cx.rng.pick(&[1, 2, 4, 16, 64])),
            recorder,
            due_us: 0,
            probed: Vec::new(),
        })
    }

    /// Return a session entry that is free.
    #[must_use]
    pub fn free_slot(&self) -> Option<SessionId> {
        self.slots.iter().position(Option::is_none).map(|slot| slot as SessionId)
    }

    /// Attach a session to a free slot.
    pub fn attach(&mut self, cx: &mut Context, sessions: &mut [Session], index: usize, slot: SessionId) -> Check {
        let (shard, lanes) = (sessions[index].shard, cx.geometry.lanes);
        let frames = cx.geometry.attached_frames(sessions[index].replica);
        let event = Event::Attach { session: slot, shard, lanes, frames: &frames };
        let lanes_of = sessions[index].lanes.iter();
        let scores = ScoreAreas::new(lanes_of.map(|lane| ScoreReader::new(lane.signals.slots())).collect());
        let (jobs, requests) = (BTreeMap::new(), BTreeMap::new());
        self.slots[usize::from(slot)] = Some(Attached { session: index, jobs, requests, scores, lost: false });
        self.handle(cx, sessions, event)?;
        cx.coverage.met(if sessions[index].bare { Met::AttachedBare } else { Met::SessionAttached });
        Ok(())
    }

    /// Read the rings of a session.
    pub fn drain(&mut self, cx: &mut Context, sessions: &mut [Session], index: usize) -> Check {
        let Some(slot) = sessions[index].slot else { return Ok(()) };
        while let Some(done) = sessions[index].done.pop(cx.now()) {
            if self.serves(slot, index) {
                self.job_done(cx, sessions, slot, &done)?;
            }
        }
        for channel in 0..sessions[index].channels.len() {
            while let Some((entry, list)) = sessions[index].channels[channel].submissions.pop(cx.now()) {
                if !self.serves(slot, index) {
                    continue;
                }
                self.request(cx, sessions, slot, channel as u16, &entry, &list)?;
            }
        }
        self.take_scores(cx, sessions, slot, index)
    }

    /// Pass the attention scores of the session's lanes to the core.
    fn take_scores(&mut self, cx: &mut Context, sessions: &mut [Session], slot: SessionId, index: usize) -> Check {
        for lane in 0..sessions[index].lanes.len() {
            for _ in 0..SCORES_TURN {
                let serves = self.serves(slot, index);
                let Some(attached) = self.attached(slot).filter(|_| serves) else { return Ok(()) };
                let Some(Joined { seq, plane, step, kind, rest }) = attached.scores.next(lane) else { break };
                let top = attached.scores.top().to_vec();
                cx.trace.fold(&[8, index as u64, u64::from(seq), step, kind as u64]);
                let event = Event::Scores { session: slot, seq, plane, step, kind, rest, top: &top };
                self.handle(cx, sessions, event)?;
            }
        }
        Ok(())
    }

    fn request(
        &mut self,
        cx: &mut Context,
        sessions: &mut [Session],
        slot: SessionId,
        channel: u16,
        entry: &Submission,
        list: &[u32],
    ) -> Check {
        let Some(attached) = self.attached(slot) else { return Ok(()) };
        let index = attached.session;
        attached.requests.insert((channel, entry.tag), entry.op);
        let mut scratch = std::mem::take(&mut self.scratch);
        let outcome = match request::decode(entry, list, &mut scratch) {
            Ok(request) => {
                let (tag, timeout_us) = (entry.tag, entry.timeout_us);
                self.handle(cx, sessions, Event::Request { session: slot, channel, tag, timeout_us, request })
            }
            Err(status) => {
                let answer = kvtide_wire::entry::Completion::new(entry.op, entry.tag, status);
                self.attached(slot).map(|a| a.requests.remove(&(channel, entry.tag)));
                sessions[index].complete(cx, channel, (answer, Vec::new()))
            }
        };
        self.scratch = scratch;
        outcome?;
        if entry.op == Op::Lookup as u16 && cx.rng.chance(150) && list.len() == entry.count as usize * HASH_WORDS {
            let hashes: Vec<u128> = list.as_chunks::<HASH_WORDS>().0.iter().copied().map(hash_of).collect();
            return self.is_closed(cx, sessions, slot, &hashes);
        }
        Ok(())
    }

    fn job_done(&mut self, cx: &mut Context, sessions: &mut [Session], slot: SessionId, done: &JobDone) -> Check {
        let planes = cx.geometry.config.planes.clone();
        let Some(job) = self.attached(slot).and_then(|a| a.jobs.remove(&done.id)) else {
            return self.nonsense_done(cx, sessions, slot, done);
        };
        let bytes = job::copied_bytes(job, |plane| planes[usize::from(plane)].page_bytes);
        match job::job_done(done, bytes, Ask::Nothing) {
            Ok((status, _)) => {
                cx.coverage.job(job.code(), status);
                self.handle(cx, sessions, Event::JobDone { session: slot, job: done.id, status })
            }
            Err(_) => self.expel(cx, sessions, slot),
        }
    }

    /// Handle a completion of a job that is not in flight: its sender is not a valid agent, and its session ends.
    fn nonsense_done(&mut self, cx: &mut Context, sessions: &mut [Session], slot: SessionId, done: &JobDone) -> Check {
        let status = kvtide_tiering::api::Status::Ok;
        let event = Event::JobDone { session: slot, job: done.id, status };
        match self.feed(cx.now(), event) {
            Err(Error::Agent { .. }) => self.expel(cx, sessions, slot),
            other => wrong(
                Caught::Protocol,
                format!("the core took the end of job {}, which is not in flight: {other:?}", done.id),
            ),
        }
    }
}

impl Daemon {
    /// End the session of a peer that broke the protocol.
    fn expel(&mut self, cx: &mut Context, sessions: &mut [Session], slot: SessionId) -> Check {
        let Some(index) = self.attached(slot).map(|a| a.session) else { return Ok(()) };
        cx.say(|| format!("daemon: s{index} broke the protocol"));
        cx.queue.after(0, Ev::Die { session: index });
        self.lost(cx, sessions, index)
    }

    /// Handle the end of a session's connection.
    pub fn lost(&mut self, cx: &mut Context, sessions: &mut [Session], index: usize) -> Check {
        let Some(slot) = sessions[index].slot else { return Ok(()) };
        let Some(attached) = self.attached(slot).filter(|a| a.session == index && !a.lost) else { return Ok(()) };
        attached.lost = true;
        attached.jobs.clear();
        self.handle(cx, sessions, Event::SessionLost { session: slot })?;
        // Requests of a dead session get no response.
        if let Some(attached) = self.attached(slot) {
            attached.requests.clear();
        }
        Ok(())
    }

    /// Handle the complete exit of a session's process.
    pub fn exited(&mut self, cx: &mut Context, sessions: &mut [Session], index: usize) -> Check {
        self.lost(cx, sessions, index)?;
        let Some(slot) = sessions[index].slot.take() else { return Ok(()) };
        match self.attached(slot).is_some_and(|a| a.session == index) {
            true => self.handle(cx, sessions, Event::SessionExited { session: slot }),
            false => Ok(()),
        }
    }

    /// Handle a tick of the clock.
    pub fn tick(&mut self, cx: &mut Context, sessions: &mut [Session]) -> Check {
        match self.core.next_deadline().is_some_and(|due_us| due_us <= cx.now()) {
            true => self.handle(cx, sessions, Event::Tick),
            false => self.carry_out(cx, sessions),
        }
    }

    /// Return the number of session entries in use.
    #[must_use]
    pub fn attached_count(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Pass an event to the core, through the recorder if there is one.
    pub(super) fn feed(&mut self, now_us: u64, event: Event<'_>) -> Result<(), Error> {
        match &mut self.recorder {
            Some(recorder) => recorder.handle(&mut self.core, now_us, event, &mut self.actions),
            None => self.core.handle(now_us, event, &mut self.actions),
        }
    }

    /// Let the core continue.
    pub(super) fn poll(&mut self, now_us: u64) {
        match &mut self.recorder {
            Some(recorder) => recorder.poll(&mut self.core, now_us, &mut self.actions),
            None => self.core.poll(now_us, &mut self.actions),
        }
    }

    /// At the end of this daemon: check that its recording replays to the same actions.
    pub fn replay(&self, cx: &mut Context) -> Check {
        self.count(cx);
        let Some(recorder) = &self.recorder else { return Ok(()) };
        let replayed = recorder.dump(&self.core).and_then(|dump| Recording::load(&dump)?.replay(|_, _, _| {}));
        match replayed {
            Ok(core) if core.trace() == self.core.trace() => {
                cx.coverage.met(Met::Replayed);
                Ok(())
            }
            Ok(_) => wrong(Caught::Replay, format!("{} recorded inputs replay to other actions", recorder.inputs())),
            Err(error) => wrong(Caught::Replay, error.to_string()),
        }
    }

    /// Count the attention events of its core.
    fn count(&self, cx: &mut Context) {
        let c = self.core.counters();
        let counts = [
            (c.scores_refused, Met::ScoresRefused),
            (c.scores_late, Met::ScoresLate),
            (c.attention_loads, Met::AttentionLoaded),
            (c.attention_used, Met::AttentionUsed),
            (c.attention_wasted, Met::AttentionWasted),
            (c.attention_late, Met::AttentionLate),
        ];
        counts.iter().filter(|(count, _)| *count > 0).for_each(|(_, met)| cx.coverage.met(*met));
    }

    /// Check the core's own invariants.
    pub fn check(&self) -> Check {
        self.core.check().or_else(|broken| wrong(Caught::Invariant, broken.to_string()))
    }

    /// With no session attached: check that only findable content is left, and that no process may still write there.
    pub fn all_back(&self) -> Check {
        let o = self.core.occupancy();
        let findable = (o.published - o.index_only) * u32::from(self.core.config().shards);
        let moving = o.transfers > 0 || o.log_requests > 0;
        if o.pins > 0 || o.host_frames_quarantined > 0 || o.blocks > findable && !moving {
            return wrong(Caught::Leak, format!("objects are left without an attached session: {o:?}"));
        }
        Ok(())
    }

    /// Return whether the slot belongs to that session, and the session has not ended.
    fn serves(&self, slot: SessionId, index: usize) -> bool {
        let attached = self.slots.get(usize::from(slot)).and_then(Option::as_ref);
        attached.is_some_and(|a| a.session == index && !a.lost)
    }

    pub(super) fn attached(&mut self, slot: SessionId) -> Option<&mut Attached> {
        self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut)
    }

    /// Return the place of a host frame.
    pub(super) fn place(&self, frame: HostFrame) -> Option<Place> {
        let slab = self.slabs.get(frame.slab as usize).copied().flatten()?;
        (frame.slot < SLAB_FRAMES).then_some(Place { arena: slab.arena, frame: frame.slot })
    }
}
