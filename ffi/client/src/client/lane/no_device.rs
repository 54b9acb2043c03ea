//! A lane of a build without support for devices: it has no device side and no sketches.

use super::{Refusal, ScoreKind, StepSeq, messages::Reported};
use crate::{
    agent::{protocol::step::Reader, session::Session},
    client::options::SeqId,
};
use kvtide_wire::status::Status;

/// Nothing waits for a device.
#[derive(Default)]
pub(super) struct DeviceSide;

impl DeviceSide {
    pub fn begin(&self, _: &Session, _: &mut Reader) -> Result<(), Refusal> {
        Ok(())
    }

    pub fn outside_capture(&self, _: &Session) -> Result<(), Refusal> {
        Ok(())
    }

    pub fn healthy(&self, _: &Session) -> Result<(), Status> {
        Ok(())
    }

    pub fn enqueue(&self, _: &Session) -> Result<(), Status> {
        Ok(())
    }

    pub fn close_gates(&self) {}
}

/// There are no sketches.
#[derive(Default)]
pub(super) struct Sketched;

impl Sketched {
    pub fn begin(&mut self, _: u64) {}

    pub fn build(&mut self, _: &Session, _: &Reader, _: impl Iterator<Item = u32>, _: bool) -> bool {
        true
    }

    pub fn take(&mut self, _: &Session, _: &Reader, _: impl FnMut(Reported, (u64, u32), &[f32])) {}

    pub fn shares(&self, _: &Session, _: SeqId, _: u16, _: u32) -> Option<&[f32]> {
        None
    }

    pub fn ask(&mut self, _: &Session, _: &Reader, _: ScoreKind, _: (StepSeq, u16), _: &[f32]) -> Result<(), Refusal> {
        Err(Status::Device.into())
    }
}
