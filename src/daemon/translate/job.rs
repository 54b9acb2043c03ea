//! Jobs to the agent, and the agent's reports of their results.

use kvtide_tiering::api::{HostFrame, Job, NONE, Status, Victim};
use kvtide_wire::entry::{CANARY, Job as WireJob, JobDone, JobKind, NONE_U16, NONE_U32};
use kvtide_wire::status::Status as WireStatus;

const _: () = assert!(NONE == NONE_U32);

/// Check of the integrity sample that the agent does for a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ask {
    /// None: the page is not in the sample, or the job copies no page between host memory and tier 0.
    #[default]
    Nothing,
    /// For a store: report the digest of the page in tier 0.
    Digest,
    /// For a load: compare the digest of the loaded bytes with this one, and publish the page only if equal.
    Compare(u32),
}

/// Return the ring entry of a job.
#[must_use]
pub fn job(id: u32, job: &Job, ask: Ask) -> WireJob {
    let (flags, digest) = match ask {
        Ask::Nothing => (0, 0),
        Ask::Digest => (CANARY, 0),
        Ask::Compare(digest) => (CANARY, digest),
    };
    WireJob { flags, digest, ..plain(id, job) }
}

fn plain(id: u32, job: &Job) -> WireJob {
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
        Job::Move { block, plane, frame, from } => {
            WireJob { frame, src_frame: from, ..entry(JobKind::Move, id, block, plane, None) }
        }
        Job::Gather { block, plane, engine, to: at } => {
            WireJob { src_frame: engine, ..host(entry(JobKind::Gather, id, block, plane, None), at) }
        }
        Job::Scatter { block, plane, engine, from: at } => {
            WireJob { src_frame: engine, ..host(entry(JobKind::Scatter, id, block, plane, None), at) }
        }
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
        flags: 0,
        digest: 0,
        pad: 0,
    }
}

fn host(job: WireJob, frame: HostFrame) -> WireJob {
    WireJob { slab: frame.slab, slot: frame.slot, ..job }
}

/// Return the host frame that a job reads or writes.
#[must_use]
pub fn host_frame(job: &Job) -> Option<HostFrame> {
    match *job {
        Job::Load { from, .. } | Job::LoadCopy { from, .. } | Job::Scatter { from, .. } => Some(from),
        Job::Store { to, .. } | Job::Gather { to, .. } => Some(to),
        Job::Map { .. }
        | Job::Copy { .. }
        | Job::Drop { .. }
        | Job::Evict { .. }
        | Job::Cancel { .. }
        | Job::Move { .. } => None,
    }
}

/// Return the bytes that the agent must report for this job if it succeeds: the page's size for a copy, 0 for other jobs.
#[must_use]
pub fn copied_bytes(job: &Job, page_bytes: impl Fn(u16) -> u32) -> u64 {
    match *job {
        Job::Load { plane, .. }
        | Job::Store { plane, .. }
        | Job::Copy { plane, .. }
        | Job::LoadCopy { plane, .. }
        | Job::Move { plane, .. }
        | Job::Gather { plane, .. }
        | Job::Scatter { plane, .. } => u64::from(page_bytes(plane)),
        Job::Map { .. } | Job::Drop { .. } | Job::Evict { .. } | Job::Cancel { .. } => 0,
    }
}

/// Invalid report of an agent; its session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobDoneError {
    /// An invalid status code.
    #[error(
        "job {id} ended with status code {code}, expected Ok, Busy, Canceled, Io, Invalid, or Corrupt of a load in the sample"
    )]
    Status {
        /// Job.
        id: u32,
        /// The reported value.
        code: i32,
    },
    /// A digest that was not requested, is missing, or contradicts the status.
    #[error("job {id} ended with flags {flags:#x} and digest {digest:#010x}, which does not answer {ask:?}")]
    Digest {
        /// Job.
        id: u32,
        /// The reported value.
        flags: u32,
        /// The reported value.
        digest: u32,
        /// The requested check.
        ask: Ask,
    },
}

/// Return the status of an ended job. Success requires that exactly `bytes` were copied; otherwise it is [`Status::Io`]. Also
/// return the page's digest, if it was requested and the bytes were copied.
///
/// # Errors
/// The report is invalid.
pub fn job_done(done: &JobDone, bytes: u64, ask: Ask) -> Result<(Status, Option<u32>), JobDoneError> {
    let status = match WireStatus::from_code(done.status) {
        Some(WireStatus::Ok) if done.bytes == bytes => Status::Ok,
        Some(WireStatus::Ok | WireStatus::Io) => return Ok((Status::Io, None)),
        Some(WireStatus::Busy) => Status::Busy,
        Some(WireStatus::Canceled) => Status::Canceled,
        Some(WireStatus::Invalid) => Status::Invalid,
        Some(WireStatus::Corrupt) if matches!(ask, Ask::Compare(_)) => Status::Corrupt,
        _ => return Err(JobDoneError::Status { id: done.id, code: done.status }),
    };
    let digest = (done.flags == CANARY).then_some(done.digest);
    let fits = match (ask, status) {
        (Ask::Digest, Status::Ok) => digest.is_some(),
        (Ask::Compare(expected), Status::Ok) => digest == Some(expected),
        (Ask::Compare(expected), Status::Corrupt) => digest.is_some_and(|digest| digest != expected),
        _ => done.flags == 0 && done.digest == 0,
    };
    if fits {
        return Ok((status, digest));
    }
    Err(JobDoneError::Digest { id: done.id, flags: done.flags, digest: done.digest, ask })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_with_a_victim_in_use_carries_its_last_use() {
        let victim = Some(Victim { block: 7, plane: 3, after: Some((2, 99)) });
        let from = HostFrame { slab: 5, slot: 6 };
        let wire = job(11, &Job::Load { block: 1, plane: 2, frame: 4, from, victim }, Ask::Nothing);
        assert_eq!((wire.kind, wire.id, wire.block, wire.plane, wire.frame), (JobKind::Load as u16, 11, 1, 2, 4));
        assert_eq!((wire.slab, wire.slot), (5, 6));
        assert_eq!((wire.victim_block, wire.victim_plane, wire.use_lane, wire.use_pos), (7, 3, 2, 99));
        let free = job(11, &Job::Map { block: 1, plane: 2, frame: 4, victim: None }, Ask::Nothing);
        assert_eq!((free.victim_block, free.use_lane), (NONE_U32, NONE_U16));
    }

    #[test]
    fn a_cancel_names_the_job_and_a_copy_its_source() {
        assert_eq!(job(1, &Job::Cancel { job: 42 }, Ask::Nothing).src_block, 42);
        let copy = job(1, &Job::Copy { block: 3, plane: 0, frame: 8, from: 9, victim: None }, Ask::Nothing);
        assert_eq!((copy.frame, copy.src_frame), (8, 9));
    }

    #[test]
    fn a_short_copy_is_a_failure_and_never_a_success() {
        let done = |status: WireStatus, bytes| JobDone { status: status.code(), bytes, ..JobDone::default() };
        let ended = |done: &JobDone, bytes| job_done(done, bytes, Ask::Nothing).map(|(status, _)| status);
        assert_eq!(ended(&done(WireStatus::Ok, 4096), 4096), Ok(Status::Ok));
        assert_eq!(ended(&done(WireStatus::Ok, 4095), 4096), Ok(Status::Io));
        assert_eq!(ended(&done(WireStatus::Ok, 1), 0), Ok(Status::Io));
        assert_eq!(ended(&done(WireStatus::Busy, 0), 4096), Ok(Status::Busy));
        assert!(ended(&done(WireStatus::Daemon, 0), 0).is_err());
        assert!(ended(&JobDone { status: -1, ..JobDone::default() }, 0).is_err());
    }

    #[test]
    fn a_digest_answers_what_was_asked() {
        let end = |ask, status: WireStatus, flags, digest| {
            job_done(&JobDone { id: 1, status: status.code(), flags, digest, ..JobDone::default() }, 0, ask).ok()
        };
        let (take, compare) = (Ask::Digest, Ask::Compare(7));
        assert_eq!(end(take, WireStatus::Ok, CANARY, 9), Some((Status::Ok, Some(9))));
        assert_eq!(end(take, WireStatus::Ok, CANARY, 0), Some((Status::Ok, Some(0))), "0 is a valid digest");
        assert_eq!(end(take, WireStatus::Ok, 0, 0), None, "the requested digest is missing");
        assert_eq!(end(take, WireStatus::Corrupt, CANARY, 9), None, "a store compares nothing");
        assert_eq!(end(take, WireStatus::Canceled, 0, 0), Some((Status::Canceled, None)));
        assert_eq!(end(compare, WireStatus::Ok, CANARY, 7), Some((Status::Ok, Some(7))));
        assert_eq!(end(compare, WireStatus::Ok, CANARY, 8), None, "published although the digest differs");
        assert_eq!(end(compare, WireStatus::Ok, 0, 0), None, "published without a check");
        assert_eq!(end(compare, WireStatus::Corrupt, CANARY, 8), Some((Status::Corrupt, Some(8))));
        assert_eq!(
            end(compare, WireStatus::Corrupt, CANARY, 7),
            None,
            "reported as corrupt although the digest is equal"
        );
        assert_eq!(end(compare, WireStatus::Busy, 0, 0), Some((Status::Busy, None)));
        assert_eq!(end(compare, WireStatus::Io, 0, 0), Some((Status::Io, None)));
        assert_eq!(end(Ask::Nothing, WireStatus::Ok, CANARY, 7), None);
        assert_eq!(end(Ask::Nothing, WireStatus::Ok, CANARY << 1, 0), None);
        assert_eq!(end(Ask::Nothing, WireStatus::Corrupt, 0, 0), None);
    }

    #[test]
    fn what_the_canary_asks_stands_in_the_entry() {
        let to = HostFrame { slab: 5, slot: 6 };
        let store = Job::Store { block: 1, plane: 2, frame: 4, to };
        let flags = |ask| {
            let wire = job(1, &store, ask);
            (wire.flags, wire.digest)
        };
        assert_eq!(flags(Ask::Nothing), (0, 0));
        assert_eq!(flags(Ask::Digest), (CANARY, 0));
        assert_eq!(flags(Ask::Compare(77)), (CANARY, 77));
    }
}
