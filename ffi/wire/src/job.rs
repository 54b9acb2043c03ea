//! Jobs in ring entries, and the agent's reports of their results.

use crate::entry::{self, JobDone, NONE_U16, NONE_U32, SAMPLED};
use kvtide_types::{Job, JobMessage, Status};

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
pub fn entry(id: u32, job: Job, ask: Ask) -> entry::Job {
    let (flags, digest) = match ask {
        Ask::Nothing => (0, 0),
        Ask::Digest => (SAMPLED, 0),
        Ask::Compare(digest) => (SAMPLED, digest),
    };
    let JobMessage { kind, plane, block, frame, source_frame, source_block, host, victim } = job.encode().0;
    let (use_lane, use_pos) = victim.and_then(|victim| victim.after).unwrap_or((NONE_U16, 0));
    entry::Job {
        kind,
        plane,
        victim_plane: victim.map_or(0, |victim| victim.plane),
        use_lane,
        id,
        block: block.unwrap_or(NONE_U32),
        frame: frame.unwrap_or(NONE_U32),
        src_frame: source_frame.unwrap_or(NONE_U32),
        src_block: source_block.unwrap_or(NONE_U32),
        victim_block: victim.map_or(NONE_U32, |victim| victim.block),
        slab: host.map_or(NONE_U32, |host| host.slab),
        slot: host.map_or(NONE_U32, |host| host.slot),
        use_pos,
        flags,
        digest,
        pad: 0,
    }
}

/// Return the bytes that the agent must report for this job if it succeeds: the page's size for a copy, 0 for other jobs.
#[must_use]
pub fn copied_bytes(job: Job, page_bytes: impl Fn(u16) -> u32) -> u64 {
    job.copied_plane().map_or(0, |plane| u64::from(page_bytes(plane)))
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
    let status = match Status::from_code(done.status) {
        Some(Status::Ok) if done.bytes == bytes => Status::Ok,
        Some(Status::Ok | Status::Io) => return Ok((Status::Io, None)),
        Some(Status::Busy) => Status::Busy,
        Some(Status::Canceled) => Status::Canceled,
        Some(Status::Invalid) => Status::Invalid,
        Some(Status::Corrupt) if matches!(ask, Ask::Compare(_)) => Status::Corrupt,
        _ => return Err(JobDoneError::Status { id: done.id, code: done.status }),
    };
    let digest = (done.flags == SAMPLED).then_some(done.digest);
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
    use crate::entry::{JobKind, NONE_U16, NONE_U32};
    use kvtide_types::{HostFrame, Victim};

    #[test]
    fn a_load_with_a_victim_in_use_carries_its_last_use() {
        let victim = Some(Victim { block: 7, plane: 3, after: Some((2, 99)) });
        let from = HostFrame { slab: 5, slot: 6 };
        let wire = entry(11, Job::CopyIn { block: 1, plane: 2, frame: 4, from, victim }, Ask::Nothing);
        assert_eq!((wire.kind, wire.id, wire.block, wire.plane, wire.frame), (JobKind::CopyIn as u16, 11, 1, 2, 4));
        assert_eq!((wire.slab, wire.slot), (5, 6));
        assert_eq!((wire.victim_block, wire.victim_plane, wire.use_lane, wire.use_pos), (7, 3, 2, 99));
        let free = entry(11, Job::Install { block: 1, plane: 2, frame: 4, victim: None }, Ask::Nothing);
        assert_eq!((free.victim_block, free.use_lane), (NONE_U32, NONE_U16));
    }

    #[test]
    fn a_cancel_names_the_job_and_a_copy_its_source() {
        assert_eq!(entry(1, Job::Cancel { job: 42 }, Ask::Nothing).src_block, 42);
        let copy = entry(1, Job::Copy { block: 3, plane: 0, frame: 8, from: 9, victim: None }, Ask::Nothing);
        assert_eq!((copy.frame, copy.src_frame), (8, 9));
    }

    #[test]
    fn a_short_copy_is_a_failure_and_never_a_success() {
        let done = |status: Status, bytes| JobDone { status: status.code(), bytes, ..JobDone::default() };
        let ended = |done: &JobDone, bytes| job_done(done, bytes, Ask::Nothing).map(|(status, _)| status);
        assert_eq!(ended(&done(Status::Ok, 4096), 4096), Ok(Status::Ok));
        assert_eq!(ended(&done(Status::Ok, 4095), 4096), Ok(Status::Io));
        assert_eq!(ended(&done(Status::Ok, 1), 0), Ok(Status::Io));
        assert_eq!(ended(&done(Status::Busy, 0), 4096), Ok(Status::Busy));
        assert!(ended(&done(Status::Daemon, 0), 0).is_err());
        assert!(ended(&JobDone { status: -1, ..JobDone::default() }, 0).is_err());
    }

    #[test]
    fn a_digest_answers_what_was_asked() {
        let end = |ask, status: Status, flags, digest| {
            job_done(&JobDone { id: 1, status: status.code(), flags, digest, ..JobDone::default() }, 0, ask).ok()
        };
        let (take, compare) = (Ask::Digest, Ask::Compare(7));
        assert_eq!(end(take, Status::Ok, SAMPLED, 9), Some((Status::Ok, Some(9))));
        assert_eq!(end(take, Status::Ok, SAMPLED, 0), Some((Status::Ok, Some(0))), "0 is a valid digest");
        assert_eq!(end(take, Status::Ok, 0, 0), None, "the requested digest is missing");
        assert_eq!(end(take, Status::Corrupt, SAMPLED, 9), None, "a store compares nothing");
        assert_eq!(end(take, Status::Canceled, 0, 0), Some((Status::Canceled, None)));
        assert_eq!(end(compare, Status::Ok, SAMPLED, 7), Some((Status::Ok, Some(7))));
        assert_eq!(end(compare, Status::Ok, SAMPLED, 8), None, "published although the digest differs");
        assert_eq!(end(compare, Status::Ok, 0, 0), None, "published without a check");
        assert_eq!(end(compare, Status::Corrupt, SAMPLED, 8), Some((Status::Corrupt, Some(8))));
        assert_eq!(end(compare, Status::Corrupt, SAMPLED, 7), None, "reported as corrupt although the digest is equal");
        assert_eq!(end(compare, Status::Busy, 0, 0), Some((Status::Busy, None)));
        assert_eq!(end(compare, Status::Io, 0, 0), Some((Status::Io, None)));
        assert_eq!(end(Ask::Nothing, Status::Ok, SAMPLED, 7), None);
        assert_eq!(end(Ask::Nothing, Status::Ok, SAMPLED << 1, 0), None);
        assert_eq!(end(Ask::Nothing, Status::Corrupt, 0, 0), None);
    }

    #[test]
    fn what_the_sample_asks_stands_in_the_entry() {
        let to = HostFrame { slab: 5, slot: 6 };
        let store = Job::CopyOut { block: 1, plane: 2, frame: 4, to };
        let flags = |ask| {
            let wire = entry(1, store, ask);
            (wire.flags, wire.digest)
        };
        assert_eq!(flags(Ask::Nothing), (0, 0));
        assert_eq!(flags(Ask::Digest), (SAMPLED, 0));
        assert_eq!(flags(Ask::Compare(77)), (SAMPLED, 77));
    }
}
