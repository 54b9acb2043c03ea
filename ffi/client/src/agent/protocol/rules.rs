//! Conditions that a job must meet before any of it is done. A job is only the daemon's claim, so it is checked against the
//! geometry and against the contents of the frames.

use super::Shared;
use kvtide_wire::{
    entry::{Job, JobKind, NONE_U16, NONE_U32, SAMPLED},
    status::Status,
};

/// Value in `uses` of a frame that a job writes; smaller values count the jobs that read it.
pub(super) const WRITING: u16 = u16::MAX;

/// Effects of a checked job.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plan {
    /// Page that it installs.
    pub page: Option<u32>,
    /// Page that it removes from `frame`.
    pub victim: Option<u32>,
    /// Frame that no other job may use until the job ends.
    pub writes: Option<u32>,
    /// Frame that no other job may write until the job ends.
    pub reads: Option<u32>,
    /// Log entries that it may need until it ends.
    pub updates: u32,
}

/// Check a job of any kind except `Cancel`.
pub(super) fn check(shared: &Shared, uses: &[u16], job: &Job, kind: JobKind) -> Result<Plan, Status> {
    let geometry = shared.geometry();
    let lanes = geometry.bounds().lanes;
    if job.use_lane != NONE_U16 && job.use_lane >= lanes {
        return Err(Status::Invalid);
    }
    let engine = matches!(kind, JobKind::Gather | JobKind::Scatter);
    let hashed = engine || matches!(kind, JobKind::CopyIn | JobKind::CopyInAs | JobKind::CopyOut);
    if job.flags & !SAMPLED != 0 || (job.flags != 0 && !hashed) {
        return Err(Status::Invalid);
    }
    if kind == JobKind::Drop {
        return check_drop(shared, uses, job);
    }
    if engine {
        // No table shows the engine's own blocks: the memory checks whether the engine has this one.
        let none = job.frame == NONE_U32 && job.victim_block == NONE_U32;
        return if none && geometry.has(job.block, job.plane) { Ok(Plan::default()) } else { Err(Status::Invalid) };
    }
    let page = geometry.page_in(job.block, job.plane, job.frame).ok_or(Status::Invalid)?;
    // A mapped frame is never written, and only an eviction removes a page from it.
    let allowed = [JobKind::CopyIn, JobKind::Evict];
    if geometry.is_mapped_frame(job.frame) && !allowed.contains(&kind) {
        return Err(Status::Invalid);
    }
    let shown = shared.shown(job.frame);
    let idle = uses[job.frame as usize] == 0;
    match kind {
        JobKind::CopyOut => {
            let ours = shown == Some(page) && uses[job.frame as usize] < WRITING - 1;
            let plan = Plan { reads: Some(job.frame), ..Plan::default() };
            if ours { Ok(plan) } else { Err(Status::Invalid) }
        }
        JobKind::Evict => {
            // A frame that shows nothing any more (because a job on it failed) has no victim.
            let victim = shown.map(|_| page);
            let plan = Plan { victim, writes: Some(job.frame), updates: 1, ..Plan::default() };
            if shown == victim && idle { Ok(plan) } else { Err(Status::Invalid) }
        }
        JobKind::Move => {
            let from = job.src_frame;
            let ours = shared.geometry().locate(from).is_some() && !shared.geometry().is_mapped_frame(from);
            let shows = ours && shared.shown(from) == Some(page);
            let ours = shows && uses[from as usize] == 0 && shared.master_frame(page) == Some(from);
            let empty = shown.is_none() && idle && job.victim_block == NONE_U32;
            let plan = Plan { page: Some(page), victim: None, writes: Some(job.frame), reads: Some(from), updates: 1 };
            if ours && empty { Ok(plan) } else { Err(Status::Invalid) }
        }
        _ => {
            let victim = match job.victim_block {
                NONE_U32 => None,
                block => Some(geometry.page_in(block, job.victim_plane, job.frame).ok_or(Status::Invalid)?),
            };
            // A job that failed is sent again with the victim that the first attempt already removed.
            let victim = victim.filter(|_| shown.is_some());
            let absent = shared.master_frame(page).is_none() && !shared.master_pending(page);
            let reads = source(shared, uses, job, kind)?;
            if !idle || !absent || shown != victim {
                return Err(Status::Invalid);
            }
            Ok(Plan { page: Some(page), victim, writes: Some(job.frame), reads, updates: 2 })
        }
    }
}

/// Return the tier-0 frame that a job copies from, if it is a `Copy`.
fn source(shared: &Shared, uses: &[u16], job: &Job, kind: JobKind) -> Result<Option<u32>, Status> {
    if kind != JobKind::Copy {
        return Ok(None);
    }
    let class = |frame| shared.geometry().locate(frame).map(|(class, _)| class);
    let same = class(job.src_frame).is_some_and(|c| Some(c) == class(job.frame)) && job.src_frame != job.frame;
    let readable = same
        && !shared.geometry().is_mapped_frame(job.src_frame)
        && shared.shown(job.src_frame).is_some()
        && uses[job.src_frame as usize] < WRITING - 1;
    if readable { Ok(Some(job.src_frame)) } else { Err(Status::Invalid) }
}

/// Check a `Drop`. It removes the whole block, so no job may be using any of its pages.
fn check_drop(shared: &Shared, uses: &[u16], job: &Job) -> Result<Plan, Status> {
    if !shared.geometry().has(job.block, 0) {
        return Err(Status::Invalid);
    }
    let mut updates = 0;
    for page in shared.geometry().pages_of(job.block) {
        let frame = shared.master_frame(page);
        if frame.is_some_and(|f| shared.geometry().is_mapped_frame(f)) {
            return Err(Status::Invalid); // must be evicted first, so that its host frame is kept until then
        }
        if shared.master_pending(page) || frame.is_some_and(|f| uses[f as usize] != 0) {
            return Err(Status::Invalid);
        }
        updates += u32::from(frame.is_some());
    }
    Ok(Plan { updates, ..Plan::default() })
}
