//! A lane on a stream of the device that tier 0 is on.

use super::{Lane, State, away::Away};
use crate::{
    Error, Result,
    agent::{
        protocol::{Tracks, step::Found},
        session::Session,
        stream::LaneStream,
    },
    memory::cuda::{error, status_of},
};
use kvtide_kernels::Stream;
use kvtide_wire::status::Status;
use std::sync::Arc;

/// Where a lane's words are on the device, for its life: CUDA graphs may hold these addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneDevice {
    /// The lane's table: `blocks_max × planes` entries of 4 bytes, as `kvtide_wire::table` describes them.
    pub table: u64,
    /// Entries of the table.
    pub entries: u32,
    /// 4 bytes: 0, or the status code of the step's first boundary that failed while the stream waited for it. Kernels that see
    /// it set emit nothing.
    pub status: u64,
}

impl Lane {
    /// Its number.
    pub(crate) fn index(&self) -> u16 {
        self.index
    }

    /// Its side on the device, if it is on a stream.
    pub(crate) fn on_stream(&self) -> Option<&Arc<LaneStream>> {
        self.stream().filter(|stream| stream.stream().is_some())
    }

    fn stream(&self) -> Option<&Arc<LaneStream>> {
        self.away.as_deref().map(Away::stream)
    }

    /// Binds the lane to a stream of the device that tier 0 is on: a `CUstream` (`cudaStream_t`, `torch.cuda.Stream.cuda_stream`);
    /// 1 is the legacy default stream, 2 the thread's own. Everything that reads or writes this lane's pages is to be enqueued
    /// there, between `begin` and `end`; what other streams do must be ordered with it by the engine. To be bound before the
    /// first `begin`; another stream may take over between steps, and comes after what the one before has enqueued.
    ///
    /// # Errors
    /// `State`: tier 0 is on no device, or a step is open. `Invalid`: 0, or a stream of another context. `Device`.
    ///
    /// # Safety
    /// `stream` is a stream that lives until the lane is dropped, or bound to another one whose work has come after its own.
    pub unsafe fn bind(&mut self, stream: u64) -> Result<()> {
        const DOING: &str = "bind to a stream lane";
        let index = u64::from(self.index);
        let (state, _) = self.parts(DOING)?;
        let Some(lane) = state.stream.clone().filter(|_| !state.reader.view().active()) else {
            return Err(Error::call(DOING, index, Status::State));
        };
        // SAFETY: this function's own contract.
        let stream = unsafe { Stream::borrow(lane.device(), stream) };
        let bound = stream.and_then(|stream| lane.bind(&Arc::new(stream)));
        bound.map_err(|e| error("bind a lane to a stream", e))
    }

    /// The same with a stream that the lane keeps alive.
    ///
    /// # Errors
    /// As [`Lane::bind`]; `Device` also if the stream is another device's.
    pub fn bind_stream(&mut self, stream: &Arc<Stream>) -> Result<()> {
        const DOING: &str = "bind to a stream lane";
        let index = u64::from(self.index);
        let (state, _) = self.parts(DOING)?;
        let Some(lane) = state.stream.clone().filter(|_| !state.reader.view().active()) else {
            return Err(Error::call(DOING, index, Status::State));
        };
        lane.bind(stream).map_err(|e| error("bind a lane to a stream", e))
    }

    /// Where the lane's words are on the device; `None`: tier 0 is on none.
    #[must_use]
    pub fn device(&self) -> Option<LaneDevice> {
        let stream = self.stream()?;
        Some(LaneDevice { table: stream.table(), entries: stream.entries(), status: stream.status_word() })
    }

    /// A boundary of `plane` that returns at once: the lane's stream waits until every page of the plane is readable, and its
    /// table shows them then. Meanwhile the agent's copy thread has the lane; the next call that needs it (all but this one)
    /// waits for that. It is not to be captured into a CUDA graph: the kernels between two boundaries may be.
    ///
    /// If a page cannot be had (the daemon is gone, a copy failed, the session's timeout has passed), the stream goes on with the
    /// lane's status word set, and [`Lane::check`] says why, until the step ends. That happens too where other sequences' pages leave
    /// the step too few frames to be whole at once: it is for sessions whose pages fit.
    ///
    /// # Errors
    /// `State`: the step reads more than fits into tier 0, the device's streams cannot wait for words, another lane is bound to a
    /// stream too (streams share hardware queues, so two that wait could stand behind each other), or tier 0 is on no device:
    /// then [`Lane::boundary`] does. `Again`: the stream waits for as many boundaries as it can; the same call, or
    /// [`Lane::boundary`], later. Else as [`Lane::boundary`].
    pub fn boundary_async(&mut self, plane: u16) -> Result<()> {
        const DOING: &str = "pass, later, a boundary of plane";
        let failed = |status| Error::call(DOING, u64::from(plane), status);
        let Some(away) = self.away.clone() else { return Err(failed(Status::State)) };
        let inner = Arc::clone(&self.inner);
        inner.session.ours().map_err(failed)?;
        if self.state.is_none() && away.queue(plane).map_err(failed)? {
            inner.session.errands.add(&inner.session, away);
            return Ok(());
        }
        self.check()?;
        let (state, session) = self.parts(DOING)?;
        let before = state.reader.view().moves();
        let found = state.reader.gather(plane).map_err(failed)?;
        state.words.position(state.reader.view().position());
        if before != state.reader.view().moves() {
            session.lane_moved();
        }
        let Found::Nothing { announce, fault } = found else { return state.enqueue(session).map_err(failed) };
        if !away.stream().can_wait() || !state.reader.fits(|class| session.tier0.frames(class)) {
            state.reader.fault_ended();
            return Err(failed(Status::State));
        }
        state.ask(session, announce, fault).map_err(failed)?;
        let Some(wait) = state.wait_in_stream(session).map_err(failed)? else { return Err(failed(Status::Again)) };
        if let Some(state) = self.state.take() {
            away.leave(state, plane, wait);
            inner.session.errands.add(&inner.session, away);
        }
        Ok(())
    }

    /// Why a boundary of the open step failed while the stream waited for it; the results of kernels after it mean nothing. To
    /// be asked once the stream has come to the step's last kernel.
    ///
    /// # Errors
    /// What [`Lane::boundary`] would have ended with.
    pub fn check(&self) -> Result<()> {
        let failed = self.stream().and_then(|stream| stream.failed());
        failed
            .map_or(Ok(()), |status| Err(Error::call("pass, later, a boundary on lane", u64::from(self.index), status)))
    }
}

impl State {
    /// The lane's side on the device of tier 0.
    pub(crate) fn on(&mut self, stream: Arc<LaneStream>, tracks: Box<dyn Tracks>) {
        self.reader.track(tracks);
        self.stream = Some(stream);
    }

    /// Before a step begins on the lane's stream.
    pub(super) fn prepare(&mut self, session: &Session) -> std::result::Result<(), Status> {
        let Some(stream) = self.stream.clone() else { return Ok(()) };
        if stream.stream().is_none() || self.reader.view().active() {
            return Err(Status::State);
        }
        match stream.begin() {
            Ok(true) => self.reader.replay(),
            Ok(false) => {}
            Err(error) => return Err(lost(session, status_of(&error))),
        }
        Ok(())
    }

    /// Enqueues what the table's last changes are on the device.
    pub(super) fn enqueue(&self, session: &Session) -> std::result::Result<(), Status> {
        match &self.stream {
            Some(stream) => stream.flush().map_err(|status| lost(session, status)),
            None => Ok(()),
        }
    }

    /// Whether the lane's side of the device works.
    pub(super) fn healthy(&self, session: &Session) -> std::result::Result<(), Status> {
        match self.stream.as_ref().and_then(|stream| stream.failed()) {
            Some(Status::Device) => Err(lost(session, Status::Device)),
            _ => Ok(()),
        }
    }

    fn wait_in_stream(&self, session: &Session) -> std::result::Result<Option<crate::agent::stream::Wait>, Status> {
        let Some(stream) = &self.stream else { return Err(Status::State) };
        stream.wait().map_err(|error| lost(session, status_of(&error)))
    }
}

/// A device that is gone takes its session along.
fn lost(session: &Session, status: Status) -> Status {
    if status == Status::Device {
        session.fail(status);
    }
    status
}
