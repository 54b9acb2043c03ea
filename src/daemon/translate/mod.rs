//! Conversion between the types of the rings (`kvtide_wire`) and of the core (`kvtide_tiering::api`); only this module knows both.
//! Matches are exhaustive, so that a new operation, job or status does not compile until it is converted here.
//!
//! Used by core threads and the simulator. Pure: must not depend on sockets, sessions, memory maps or time. It does not allocate,
//! and trusts no input of an engine.

mod geometry;
mod job;
mod request;
mod scores;
mod status;

pub use geometry::{GeometryError, classes, plane, planes};
pub use job::{Ask, JobDoneError, copied_bytes, host_frame, job, job_done};
pub use request::{Scratch, completion, request};
pub use scores::{SCORES_TURN, ScoreAreas, Told};
pub use status::{from_wire, to_wire};
