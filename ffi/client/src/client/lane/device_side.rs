//! The device side of a lane: the stream of the device that tier 0 is on.

use super::{OPEN_STEP, Refusal};
use crate::{
    agent::{
        protocol::step::Reader,
        session::Session,
        stream::{LaneStream, Wait},
    },
    memory::cuda::status_of,
};
use kvtide_wire::status::Status;
use std::sync::Arc;

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
    pub fn begin(&self, session: &Session, reader: &mut Reader) -> Result<(), Refusal> {
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
    pub fn outside_capture(&self, session: &Session) -> Result<(), Refusal> {
        let outside = self.0.as_ref().map_or(Ok(()), |stream| stream.outside_capture());
        outside.map_err(|error| of(session, &error))
    }

    /// Enqueue the table's last changes to the device's copy.
    pub fn enqueue(&self, session: &Session) -> Result<(), Status> {
        self.0.as_ref().map_or(Ok(()), |stream| stream.flush().map_err(|status| lost(session, status)))
    }

    /// Check that the lane's device side works.
    pub fn healthy(&self, session: &Session) -> Result<(), Status> {
        match self.0.as_ref().and_then(|stream| stream.failed()) {
            Some(Status::Device) => Err(lost(session, Status::Device)),
            _ => Ok(()),
        }
    }

    /// Open the gates of a step on the device.
    pub fn open_gates(&self, session: &Session) -> Result<(), Refusal> {
        let opened = self.0.as_ref().map_or(Ok(()), |stream| stream.open_gates());
        opened.map_err(|error| of(session, &error))
    }

    /// End the gated step on the device.
    pub fn close_gates(&self) {
        self.0.iter().for_each(|stream| stream.close_gates());
    }

    /// Let the stream wait for a boundary. `None`: it waits for too many already.
    pub fn wait(&self, session: &Session) -> Result<Option<Wait>, Status> {
        let Some(stream) = &self.0 else { return Err(Status::State) };
        stream.wait().map_err(|error| lost(session, status_of(&error)))
    }

    /// Check that the stream can wait for a step's pages.
    pub fn check_wait(&self, session: &Session, reader: &Reader) -> Result<(), Refusal> {
        const NO_WAIT: &str = "the stream cannot wait for the step's pages: they do not fit into tier 0, the device has no \
                               such waits, or another lane has a stream too; use boundary";
        let waits = self.0.as_ref().is_some_and(|stream| stream.can_wait());
        let waits = waits && reader.fits(|class| session.tier0.frames(class));
        if waits { Ok(()) } else { Err(Refusal::because(Status::State, NO_WAIT)) }
    }
}

/// Convert a device error. A lost device ends the session.
pub(super) fn of(session: &Session, error: &kvtide_kernels::Error) -> Refusal {
    Refusal::because(lost(session, status_of(error)), error.to_string())
}

/// A lost device ends the session.
fn lost(session: &Session, status: Status) -> Status {
    if status == Status::Device {
        session.fail(status);
    }
    status
}
