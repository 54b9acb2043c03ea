//! Between the words of the rings (`kvtide_wire`) and the words of the core (`kvtide_tiering::api`): the only place that knows
//! both. Matches are exhaustive, so that a new operation, job or status does not compile until it is translated.
//!
//! Core threads and the simulator call it. It is pure: it must not know sockets, sessions, memory maps or time, it does not
//! allocate, and it trusts nothing that an engine wrote.

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
