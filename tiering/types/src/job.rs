//! Jobs of the agent: what it does with a frame of its tier 0, or with a block of the engine.

use crate::{BlockId, FrameId, LaneId};

/// Location of a host frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct HostFrame {
    /// Grant of host memory (one memfd).
    pub slab: u32,
    /// Frame within the slab; byte offset = slot × stride of the slab's class.
    pub slot: u32,
}

/// Page that a frame shows, which must be invalidated on every lane before the frame is overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Victim {
    /// Block of the page.
    pub block: BlockId,
    /// Plane of the page.
    pub plane: u16,
    /// Lane that must end its use of the page first, and the position (step × planes + plane) of that use. `None`: each lane's next
    /// boundary.
    pub after: Option<(LaneId, u64)>,
}

/// A job's place in its ring entry (`kvtide_wire::entry::Job`). What it does not use is `None`, or zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // described at the ring entry
pub struct JobMessage {
    pub kind: u16,
    pub plane: u16,
    pub block: Option<BlockId>,
    pub frame: Option<FrameId>,
    pub source_frame: Option<u32>,
    pub source_block: Option<u32>,
    pub host: Option<HostFrame>,
    pub victim: Option<Victim>,
}

messages! {
    /// Work for the agent: a copy or a table change.
    ///
    /// If the frame shows a page (the victim), that page is first invalidated on every lane, in lane order. Only then is the frame
    /// overwritten.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    pub enum Job;
    /// Code of a job.
    pub enum JobKind: JobMessage in place;
    /// Assign the frame to page `block`/`plane`, contents undefined, and install it: a new page.
    Install = 0 { block @ block: BlockId, plane @ plane: u16, frame @ frame: FrameId, victim @ victim: Option<Victim> },
    /// Copy the page from host frame `from` into the frame, then install it. For a mapped frame nothing is copied: from then
    /// on it shows the host frame, which keeps the page until a job that reassigns the mapped frame has ended. Of the other kinds
    /// only `Evict` (and `Cancel`) may name a mapped frame.
    CopyIn = 1 { block @ block: BlockId, plane @ plane: u16, frame @ frame: FrameId, from @ host: HostFrame, victim @ victim: Option<Victim> },
    /// Copy the page's frame out to host frame `to`; the page-table entry stays.
    CopyOut = 2 { block @ block: BlockId, plane @ plane: u16, frame @ frame: FrameId, to @ host: HostFrame },
    /// Copy tier-0 frame `from` (another page of this session, which stays) into the frame, then install it.
    Copy = 3 { block @ block: BlockId, plane @ plane: u16, frame @ frame: FrameId, from @ source_frame: FrameId, victim @ victim: Option<Victim> },
    /// Copy host frame `from`, which belongs to page `source`, into the frame and install it as `block`: copy on write.
    CopyInAs = 4 { block @ block: BlockId, plane @ plane: u16, frame @ frame: FrameId, source @ source_block: BlockId, from @ host: HostFrame, victim @ victim: Option<Victim> },
    /// Invalidate all pages of `block` on all lanes; its frames are free afterwards.
    Drop = 5 { block @ block: BlockId },
    /// Invalidate the one page in `frame`; the frame is free afterwards.
    Evict = 6 { block @ block: BlockId, plane @ plane: u16, frame @ frame: FrameId },
    /// Cancel job `job` if its copy has not begun; that job then completes with [`Status::Canceled`](crate::Status::Canceled).
    Cancel = 7 { job @ source_block: u32 },
    /// Copy tier-0 frame `from`, which shows the page, into the frame and install the page there without a moment in which it
    /// is not resident. The copy runs while no lane is in a step; a lane that begins a step waits until the copy has ended. In this
    /// way an unsealed page, which the engine writes, moves to another frame; the old frame is free afterwards. `Io`: the page
    /// stays in the old frame.
    Move = 8 { block @ block: BlockId, plane @ plane: u16, frame @ frame: FrameId, from @ source_frame: FrameId },
    /// Copy block `engine` of the engine's own memory, restricted to the plane, out to host frame `to`.
    Gather = 9 { block @ block: BlockId, plane @ plane: u16, engine @ source_frame: u32, to @ host: HostFrame },
    /// Copy the page from host frame `from` into block `engine` of the engine's own memory.
    Scatter = 10 { block @ block: BlockId, plane @ plane: u16, engine @ source_frame: u32, from @ host: HostFrame },
}

mod place {
    use super::{HostFrame, JobMessage, Victim};
    use crate::{List, Place, Raw, Status};

    places! { JobMessage:
        plane: u16,
        victim: Option<Victim>,
    }

    impl Raw<Option<Victim>> for Option<Victim> {
        fn put(self) -> Option<Victim> {
            self
        }
        fn get(raw: Option<Victim>) -> Result<Option<Victim>, Status> {
            Ok(raw)
        }
    }

    /// Declares places that a job must fill, if it has them.
    macro_rules! filled {
        ($($place:ident: $type:ty,)*) => {$(
            #[derive(Debug)]
            #[allow(non_camel_case_types)]
            pub struct $place;
            impl $place {
                pub const LIST: u8 = 0;
            }
            impl Place<'_, $type, JobMessage> for $place {
                fn put(message: &mut JobMessage, _: &mut List<'_>, field: $type) {
                    message.$place = Some(field);
                }
                fn get(message: &JobMessage, _: List<'_>) -> Result<$type, Status> {
                    message.$place.ok_or(Status::Invalid)
                }
            }
        )*};
    }
    filled! {
        block: u32,
        frame: u32,
        source_frame: u32,
        source_block: u32,
        host: HostFrame,
    }
}

impl Job {
    /// Return the host frame that it reads or writes.
    #[must_use]
    pub fn host_frame(self) -> Option<HostFrame> {
        self.encode().0.host
    }

    /// Return the plane whose page it copies; `None` if it copies nothing.
    #[must_use]
    pub fn copied_plane(self) -> Option<u16> {
        match self {
            Job::CopyIn { plane, .. }
            | Job::CopyOut { plane, .. }
            | Job::Copy { plane, .. }
            | Job::CopyInAs { plane, .. }
            | Job::Move { plane, .. }
            | Job::Gather { plane, .. }
            | Job::Scatter { plane, .. } => Some(plane),
            Job::Install { .. } | Job::Drop { .. } | Job::Evict { .. } | Job::Cancel { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_comes_back() {
        let (block, plane, frame) = (1, 2, 3);
        let at = HostFrame { slab: 4, slot: 5 };
        let victim = Some(Victim { block: 6, plane: 7, after: Some((8, 9)) });
        let jobs = [
            Job::Install { block, plane, frame, victim },
            Job::CopyIn { block, plane, frame, from: at, victim },
            Job::CopyOut { block, plane, frame, to: at },
            Job::Copy { block, plane, frame, from: 10, victim: None },
            Job::CopyInAs { block, plane, frame, source: 11, from: at, victim },
            Job::Drop { block },
            Job::Evict { block, plane, frame },
            Job::Cancel { job: 12 },
            Job::Move { block, plane, frame, from: 13 },
            Job::Gather { block, plane, engine: 14, to: at },
            Job::Scatter { block, plane, engine: 15, from: at },
        ];
        assert_eq!(jobs.map(|job| job.code()), JobKind::ALL);
        for job in jobs {
            let (message, list) = job.encode();
            assert_eq!(Job::decode(&message, list), Ok(job));
        }
        let copy = Job::Copy { block, plane, frame, from: 10, victim: None }.encode().0;
        assert_eq!((copy.frame, copy.source_frame, copy.source_block), (Some(3), Some(10), None));
    }

    #[test]
    fn a_job_without_what_it_needs_is_an_error() {
        let message = JobMessage { kind: JobKind::Evict.code(), block: Some(1), ..JobMessage::default() };
        assert_eq!(Job::decode(&message, crate::List::default()), Err(crate::Status::Invalid));
    }
}
