//! Lanes bound to a stream of the device that tier 0 is on.

use super::{
    Lane, OPEN_STEP, Refusal,
    away::{Away, Gated, pass_gates},
};
use crate::{
    Error, Result,
    agent::{
        protocol::step::Reader,
        session::Session,
        stream::{LaneStream, Wait},
    },
    memory::cuda::{error, status_of},
};
use kvtide_kernels::Stream;
use kvtide_wire::status::Status;
use std::sync::Arc;

/// Device addresses of a lane. They are fixed for the lane's life, so CUDA graphs may contain them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneDevice {
    /// The lane's table: `blocks_max × planes` entries of 4 bytes, as described in `kvtide_wire::table`.
    pub table: u64,
    /// Number of entries of the table.
    pub entries: u32,
    /// Status word, 4 bytes: 0, or the status code of the first boundary of the step that failed while the stream waited for it.
    /// Kernels that see it set emit nothing.
    pub status: u64,
}

impl Lane {
    /// Return the lane's index.
    pub(crate) fn index(&self) -> u16 {
        self.index
    }

    /// Return its device side, if it is bound to a stream.
    pub(crate) fn on_stream(&self) -> Option<&Arc<LaneStream>> {
        self.stream().filter(|stream| stream.stream().is_some())
    }

    fn stream(&self) -> Option<&Arc<LaneStream>> {
        self.away.as_deref().map(Away::stream)
    }

    /// Bind the lane to a stream of the device that tier 0 is on: a `CUstream` (`cudaStream_t`, `torch.cuda.Stream.cuda_stream`). 1
    /// is the legacy default stream, 2 the per-thread default stream.
    ///
    /// All work that reads or writes this lane's pages must be enqueued there, between `begin` and `end`; the engine must order
    /// work on other streams with it. Bind before the first `begin`. Another stream may replace it between steps; its work runs
    /// after the work enqueued on the previous stream.
    ///
    /// # Errors
    /// `State`: tier 0 is not on a device, or a step is open. `Invalid`: 0, or a stream of another context. `Device`.
    ///
    /// # Safety
    /// `stream` must be a stream that lives until the lane is dropped, or until the lane is bound to another stream with work that
    /// comes after its own.
    pub unsafe fn bind(&mut self, stream: u64) -> Result<()> {
        let lane = self.call("bind a stream to lane", u64::from(self.index), |state, _| state.to_bind())?;
        // SAFETY: this function's own contract.
        let stream = unsafe { Stream::borrow(lane.device(), stream) };
        let bound = stream.and_then(|stream| lane.bind(&Arc::new(stream)));
        bound.map_err(|e| error("bind a lane to a stream", e))
    }

    /// Bind the lane to a stream and keep that stream alive.
    ///
    /// # Errors
    /// As [`Lane::bind`]; `Device` also if the stream belongs to another device.
    pub fn bind_stream(&mut self, stream: &Arc<Stream>) -> Result<()> {
        let lane = self.call("bind a stream to lane", u64::from(self.index), |state, _| state.to_bind())?;
        lane.bind(stream).map_err(|e| error("bind a lane to a stream", e))
    }

    /// Return the lane's device addresses; `None`: tier 0 is not on a device.
    #[must_use]
    pub fn device(&self) -> Option<LaneDevice> {
        let stream = self.stream()?;
        Some(LaneDevice { table: stream.table(), entries: stream.entries(), status: stream.status_word() })
    }

    /// Pass a boundary of `plane` asynchronously: return at once, while the lane's stream waits until every page of the plane is
    /// readable and in the lane's table. Meanwhile the copy thread owns the lane; the next call that needs the lane (every call but
    /// this one) waits for it. Do not capture this call into a CUDA graph; the kernels between two boundaries may be captured.
    ///
    /// If a page is not available (the daemon is gone, a copy failed, the session's timeout has passed), the stream continues with
    /// the lane's status word set, and [`Lane::check`] returns the reason until the step ends. This also happens if pages of other
    /// sequences leave too few frames to hold the whole step at once: use it in sessions with steps that fit into tier 0.
    ///
    /// # Errors
    /// `State`: use [`Lane::boundary`] instead, because the step reads more than fits into tier 0; the device's streams cannot wait
    /// for memory words; another lane is bound to a stream too (streams share hardware queues, so one waiting stream could block
    /// the other); or tier 0 is not on a device. `Again`: the stream waits for the maximum number of boundaries; repeat the call
    /// later, or call [`Lane::boundary`]. Otherwise as [`Lane::boundary`].
    pub fn boundary_async(&mut self, plane: u16) -> Result<()> {
        const DOING: &str = "pass an asynchronous boundary of plane";
        let failed = |status| Error::call(DOING, u64::from(plane), status);
        let refused = |refusal: Refusal| Error::refused(DOING, u64::from(plane), refusal);
        let Some(away) = self.away.clone() else { return Err(refused(not_on_device())) };
        let inner = Arc::clone(&self.inner);
        inner.session.ours().map_err(failed)?;
        away.stream().outside_capture().map_err(|error| refused(of(&inner.session, &error)))?;
        if self.state.is_none() && away.queue(plane).map_err(failed)? {
            inner.session.background_tasks.add(&inner.session, away);
            return Ok(());
        }
        self.check()?;
        let passed = self.call(DOING, u64::from(plane), |state, session| state.boundary_async(session, plane))?;
        let Some(wait) = passed else { return Ok(()) };
        if let Some(state) = self.state.take() {
            away.leave(state, plane, wait);
            inner.session.background_tasks.add(&inner.session, away);
        }
        Ok(())
    }

    /// Open the gates of the step that [`Lane::begin`] began, in place of boundaries: from now on each gate in the lane's stream (see
    /// [`Lane::gate`]) waits until every page of its plane is readable and in the lane's table. Returns at once; the copy thread
    /// completes the planes, all of them in order. Then launch the graph and call [`Lane::end`]. Until `end`, no page that the step
    /// reads is evicted, so all of them must fit into tier 0 together. Failures are reported as by [`Lane::boundary_async`].
    ///
    /// Waits only if the stream is eight gated steps behind.
    ///
    /// # Errors
    /// `State`: no step has begun, or it had a boundary already; or, as by [`Lane::boundary_async`], the step reads more than fits into
    /// tier 0, the device's streams cannot wait, another lane is bound to a stream too, or tier 0 is not on a device. Then nothing has
    /// changed: use [`Lane::boundary`]. `Invalid`: the lane's stream is being captured. After any other error, end the step.
    pub fn open_gates(&mut self) -> Result<()> {
        const DOING: &str = "open the gates of lane";
        let index = u64::from(self.index);
        let refused = |refusal: Refusal| Error::refused(DOING, index, refusal);
        let Some(away) = self.away.clone() else { return Err(refused(not_on_device())) };
        let inner = Arc::clone(&self.inner);
        let mut gated = Gated::default();
        let passed = self.call(DOING, index, |state, session| {
            state.open_gates(session)?;
            let passed = pass_gates(away.stream(), state, &mut gated, session);
            Ok(passed.inspect_err(|status| gated.fail(away.stream(), *status))?)
        })?;
        if passed {
            return self.check();
        }
        if let Some(state) = self.state.take() {
            away.leave_gated(state, gated);
            inner.session.background_tasks.add(&inner.session, away);
        }
        Ok(())
    }

    /// Enqueue the gate of `plane` on the lane's stream, before the kernels that read the plane's pages: in a gated step they wait here
    /// (see [`Lane::open_gates`]). It may be captured into a CUDA graph, with or without an open step; the graph can be launched in any
    /// gated step of this lane on the same stream. Enqueue the gates in ascending order of planes. A plane without a gate is read
    /// without waiting for it. Outside of a gated step, and after the lane's end, gates return at once.
    ///
    /// # Errors
    /// `Range`: no such plane. `State`: tier 0 is not on a device. `Invalid`: the lane is not bound to a stream, or the device's streams
    /// cannot wait. `Device`.
    pub fn gate(&mut self, plane: u16) -> Result<()> {
        let refused = |refusal: Refusal| Error::refused("enqueue the gate of plane", u64::from(plane), refusal);
        let session = &self.inner.session;
        session.ours().map_err(|status| refused(status.into()))?;
        let stream = self.stream().ok_or_else(|| refused(not_on_device()))?;
        let planes = session.shared.geometry().plane_count();
        if u32::from(plane) >= planes {
            return Err(refused(Refusal::because(Status::Range, format!("the space has {planes} planes"))));
        }
        stream.gate(plane).map_err(|error| refused(of(session, &error)))
    }

    /// Return why a boundary of the open step failed while the stream waited for it. The results of kernels after that boundary are
    /// invalid. Call it when the stream has executed the step's last kernel.
    ///
    /// # Errors
    /// The error that [`Lane::boundary`] would have returned.
    pub fn check(&self) -> Result<()> {
        let failed = self.stream().and_then(|stream| stream.failed());
        failed
            .map_or(Ok(()), |status| Err(Error::call("complete the boundaries of lane", u64::from(self.index), status)))
    }
}

/// A lane's stream, if tier 0 is on a device; without one nothing is to be done. A lost device ends the session.
#[derive(Default)]
pub(super) struct DeviceSide(Option<Arc<LaneStream>>);

impl DeviceSide {
    pub fn new(stream: Arc<LaneStream>) -> DeviceSide {
        DeviceSide(Some(stream))
    }

    pub fn stream(&self) -> Option<&Arc<LaneStream>> {
        self.0.as_ref()
    }

    /// Prepare the lane's stream for a step.
    pub fn begin(&self, session: &Session, reader: &mut Reader) -> std::result::Result<(), Refusal> {
        let Some(stream) = &self.0 else { return Ok(()) };
        if reader.view().active() {
            return Err(Refusal::because(Status::State, OPEN_STEP));
        }
        if stream.stream().is_none() {
            return Err(Refusal::because(Status::State, "tier 0 is on a device: bind the lane to a stream first"));
        }
        if stream.begin().map_err(|error| of(session, &error))? {
            reader.replay();
        }
        Ok(())
    }

    /// Refuse calls that enqueue on a stream that is being captured into a graph, before they change anything.
    pub fn outside_capture(&self, session: &Session) -> std::result::Result<(), Refusal> {
        let outside = self.0.as_ref().map_or(Ok(()), |stream| stream.outside_capture());
        outside.map_err(|error| of(session, &error))
    }

    /// Enqueue the table's last changes to the device's copy.
    pub fn enqueue(&self, session: &Session) -> std::result::Result<(), Status> {
        self.0.as_ref().map_or(Ok(()), |stream| stream.flush().map_err(|status| lost(session, status)))
    }

    /// Check that the lane's device side works.
    pub fn healthy(&self, session: &Session) -> std::result::Result<(), Status> {
        match self.0.as_ref().and_then(|stream| stream.failed()) {
            Some(Status::Device) => Err(lost(session, Status::Device)),
            _ => Ok(()),
        }
    }

    /// Open the gates of a step on the device.
    pub fn open_gates(&self, session: &Session) -> std::result::Result<(), Refusal> {
        let opened = self.0.as_ref().map_or(Ok(()), |stream| stream.open_gates());
        opened.map_err(|error| of(session, &error))
    }

    /// End the gated step on the device.
    pub fn close_gates(&self) {
        self.0.iter().for_each(|stream| stream.close_gates());
    }

    /// Let the stream wait for a boundary. `None`: it waits for too many already.
    pub fn wait(&self, session: &Session) -> std::result::Result<Option<Wait>, Status> {
        let Some(stream) = &self.0 else { return Err(Status::State) };
        stream.wait().map_err(|error| lost(session, status_of(&error)))
    }

    /// Check that the stream can wait for a step's pages.
    pub fn check_wait(&self, session: &Session, reader: &Reader) -> std::result::Result<(), Refusal> {
        const NO_WAIT: &str = "the stream cannot wait for the step's pages: they do not fit into tier 0, the device has no \
                               such waits, or another lane has a stream too; use boundary";
        let waits = self.0.as_ref().is_some_and(|stream| stream.can_wait());
        let waits = waits && reader.fits(|class| session.tier0.frames(class));
        if waits { Ok(()) } else { Err(Refusal::because(Status::State, NO_WAIT)) }
    }
}

/// Convert a device error. A lost device ends the session.
fn of(session: &Session, error: &kvtide_kernels::Error) -> Refusal {
    Refusal::because(lost(session, status_of(error)), error.to_string())
}

/// A lost device ends the session.
fn lost(session: &Session, status: Status) -> Status {
    if status == Status::Device {
        session.fail(status);
    }
    status
}

/// Build the refusal of a call that needs a device.
pub(super) fn not_on_device() -> Refusal {
    Refusal::because(Status::State, "tier 0 is not on a device")
}
