//! Jobs to the agent, and the agent's word that one ended.

use kvtide_tiering::api::{HostFrame, Job, NONE, Status, Victim};
use kvtide_wire::entry::{Job as WireJob, JobDone, JobKind, NONE_U16, NONE_U32};
use kvtide_wire::status::Status as WireStatus;

const _: () = assert!(NONE == NONE_U32);

/// The ring entry of a job.
#[must_use]
pub fn job(id: u32, job: &Job) -> WireJob {
    match *job {
        Job::Map { block, plane, frame, victim } => WireJob { frame, ..entry(JobKind::Map, id, block, plane, victim) },
        Job::Load { block, plane, frame, from, victim } => {
            WireJob { frame, ..host(entry(JobKind::Load, id, block, plane, victim), from) }
        }
        Job::Store { block, plane, frame, to } => {
            WireJob { frame, ..host(entry(JobKind::Store, id, block, plane, None), to) }
        }
        Job::Copy { block, plane, frame, from, victim } => {
            WireJob { frame, src_frame: from, ..entry(JobKind::Copy, id, block, plane, victim) }
        }
        Job::LoadCopy { block, plane, frame, source, from, victim } => {
            WireJob { frame, src_block: source, ..host(entry(JobKind::LoadCopy, id, block, plane, victim), from) }
        }
        Job::Drop { block } => entry(JobKind::Drop, id, block, 0, None),
        Job::Evict { block, plane, frame } => WireJob { frame, ..entry(JobKind::Evict, id, block, plane, None) },
        Job::Cancel { job } => WireJob { src_block: job, ..entry(JobKind::Cancel, id, NONE_U32, 0, None) },
    }
}

fn entry(kind: JobKind, id: u32, block: u32, plane: u16, victim: Option<Victim>) -> WireJob {
    let (use_lane, use_pos) = victim.and_then(|v| v.after).unwrap_or((NONE_U16, 0));
    WireJob {
        kind: kind as u16,
        plane,
        victim_plane: victim.map_or(0, |v| v.plane),
        use_lane,
        id,
        block,
        frame: NONE_U32,
        src_frame: NONE_U32,
        src_block: NONE_U32,
        victim_block: victim.map_or(NONE_U32, |v| v.block),
        slab: NONE_U32,
        slot: NONE_U32,
        use_pos,
        pad: [0; 2],
    }
}

fn host(job: WireJob, frame: HostFrame) -> WireJob {
    WireJob { slab: frame.slab, slot: frame.slot, ..job }
}

/// Bytes that the agent must report for this job if it succeeds: the page's for a copy, 0 for a job that moves none.
#[must_use]
pub fn copied_bytes(job: &Job, page_bytes: impl Fn(u16) -> u32) -> u64 {
    match *job {
        Job::Load { plane, .. } | Job::Store { plane, .. } | Job::Copy { plane, .. } | Job::LoadCopy { plane, .. } => {
            u64::from(page_bytes(plane))
        }
        Job::Map { .. } | Job::Drop { .. } | Job::Evict { .. } | Job::Cancel { .. } => 0,
    }
}

/// What an agent may not say of a job: its session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobDoneError {
    /// A status code that no job ends with.
    #[error("job {id} ended with status code {code}, expected Ok, Busy, Canceled, Io or Invalid")]
    Status {
        /// Job.
        id: u32,
        /// What stood in the entry.
        code: i32,
    },
}

/// How a job ended, where success means that exactly `bytes` were copied; fewer or more is [`Status::Io`].
///
/// # Errors
/// A status that no job may end with.
pub fn job_done(done: &JobDone, bytes: u64) -> Result<Status, JobDoneError> {
    match WireStatus::from_code(done.status) {
        Some(WireStatus::Ok) if done.bytes == bytes => Ok(Status::Ok),
        Some(WireStatus::Ok | WireStatus::Io) => Ok(Status::Io),
        Some(WireStatus::Busy) => Ok(Status::Busy),
        Some(WireStatus::Canceled) => Ok(Status::Canceled),
        Some(WireStatus::Invalid) => Ok(Status::Invalid),
        _ => Err(JobDoneError::Status { id: done.id, code: done.status }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_with_a_victim_in_use_carries_its_last_use() {
        let victim = Some(Victim { block: 7, plane: 3, after: Some((2, 99)) });
        let from = HostFrame { slab: 5, slot: 6 };
        let wire = job(11, &Job::Load { block: 1, plane: 2, frame: 4, from, victim });
        assert_eq!((wire.kind, wire.id, wire.block, wire.plane, wire.frame), (JobKind::Load as u16, 11, 1, 2, 4));
        assert_eq!((wire.slab, wire.slot), (5, 6));
        assert_eq!((wire.victim_block, wire.victim_plane, wire.use_lane, wire.use_pos), (7, 3, 2, 99));
        let free = job(11, &Job::Map { block: 1, plane: 2, frame: 4, victim: None });
        assert_eq!((free.victim_block, free.use_lane), (NONE_U32, NONE_U16));
    }

    #[test]
    fn a_cancel_names_the_job_and_a_copy_its_source() {
        assert_eq!(job(1, &Job::Cancel { job: 42 }).src_block, 42);
        let copy = job(1, &Job::Copy { block: 3, plane: 0, frame: 8, from: 9, victim: None });
        assert_eq!((copy.frame, copy.src_frame), (8, 9));
    }

    #[test]
    fn a_short_copy_is_a_failure_and_never_a_success() {
        let done = |status: WireStatus, bytes| JobDone { status: status.code(), bytes, ..JobDone::default() };
        assert_eq!(job_done(&done(WireStatus::Ok, 4096), 4096), Ok(Status::Ok));
        assert_eq!(job_done(&done(WireStatus::Ok, 4095), 4096), Ok(Status::Io));
        assert_eq!(job_done(&done(WireStatus::Ok, 1), 0), Ok(Status::Io));
        assert_eq!(job_done(&done(WireStatus::Busy, 0), 4096), Ok(Status::Busy));
        assert!(job_done(&done(WireStatus::Daemon, 0), 0).is_err());
        assert!(job_done(&JobDone { status: -1, ..JobDone::default() }, 0).is_err());
    }
}
