//! State of an agent: the pages in tier 0, the position of the engine's lane, and the waiting jobs.

use kvtide_fake::{PageTable, installed};
use kvtide_tiering::api::{Job, Victim};
use std::collections::VecDeque;

/// Direction of a job's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// No copy over a link.
    None,
    /// From host memory to tier 0.
    Load,
    /// From tier 0 to host memory.
    Store,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Number of earlier jobs.
    order: u64,
    id: u32,
    job: Job,
    /// Boundaries passed when it arrived, and the time of its arrival.
    since: u64,
    ordered_ns: u64,
}

/// A completed load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Block of the page.
    pub block: u32,
    /// Plane of the page.
    pub plane: u16,
    /// Time of the core's request.
    pub ordered_ns: u64,
    /// Time of completion.
    pub ended_ns: u64,
}

/// The engine side.
#[derive(Clone, Debug)]
pub struct Agent {
    table: PageTable,
    /// By page: the boundary at which the lane first finds it.
    found: Vec<u64>,
    /// Position of the lane, step × planes + plane, while it is in a step.
    position: Option<u64>,
    boundaries: u64,
    /// First boundary at this position.
    first_at: u64,
    /// By direction, in order of arrival; a direction with a busy link is skipped.
    waiting: [VecDeque<Waiting>; 3],
    jobs: u64,
    /// Started jobs that have not been reported to the core as complete.
    begun: Vec<Waiting>,
    /// Cancel jobs: their id and the job to cancel.
    pub cancels: VecDeque<(u32, u32)>,
    /// Loads completed since the last check.
    pub arrived: Vec<Arrived>,
    /// Number of loads so far.
    pub loads: u64,
}

impl Agent {
    /// Create the agent of an engine without pages.
    #[must_use]
    pub fn new(blocks_max: u32, planes: u16) -> Agent {
        Agent {
            table: PageTable::new(blocks_max, planes),
            found: vec![0; blocks_max as usize * usize::from(planes)],
            position: None,
            boundaries: 0,
            first_at: 0,
            waiting: [const { VecDeque::new() }; 3],
            jobs: 0,
            begun: Vec::new(),
            cancels: VecDeque::new(),
            arrived: Vec::new(),
            loads: 0,
        }
    }

    /// Return true if a page is in tier 0.
    #[must_use]
    pub fn shows(&self, block: u32, plane: u16) -> bool {
        self.table.frame(block, plane).is_some()
    }

    /// Move the lane to a boundary. It has read all pages found at the previous one.
    pub fn at(&mut self, position: Option<u64>) {
        self.applied();
        if self.position != position {
            (self.position, self.first_at) = (position, self.boundaries);
        }
    }

    /// Count a point at which the lane has applied all changes of the page table.
    pub fn applied(&mut self) {
        self.boundaries += 1;
    }

    /// Add a job.
    pub fn take(&mut self, id: u32, job: Job, now_ns: u64) {
        match job {
            Job::Cancel { job } => self.cancels.push_back((id, job)),
            _ => {
                let (order, since) = (self.jobs, self.boundaries);
                self.jobs += 1;
                self.waiting[direction(&job) as usize].push_back(Waiting { order, id, job, since, ordered_ns: now_ns });
            }
        }
    }

    /// Remove a job that has not started.
    pub fn withdraw(&mut self, id: u32) -> bool {
        self.waiting.iter_mut().any(|waiting| {
            let at = waiting.iter().position(|waiting| waiting.id == id);
            at.is_some_and(|at| waiting.remove(at).is_some())
        })
    }

    /// Start the first job that may begin and has a free link.
    pub fn start(&mut self, loads: bool, stores: bool) -> Option<(u32, Direction)> {
        let first = |direction: usize| {
            let waiting = &self.waiting[direction];
            let at = waiting.iter().position(|waiting| self.may_begin(waiting))?;
            Some((waiting[at].order, direction, at))
        };
        let free = [true, loads, stores];
        let (_, line, at) = (0..3).filter(|&direction| free[direction]).filter_map(first).min()?;
        let waiting = self.waiting[line].remove(at)?;
        let Waiting { id, job, .. } = waiting;
        if let Some(Victim { block, plane, .. }) = victim(job) {
            self.table.hide(block, plane);
        }
        self.begun.push(waiting);
        Some((id, direction(&job)))
    }

    /// Return true if the victim's page is out of use: after the lane's use of it and a boundary after that, or at once outside of
    /// a step.
    fn may_begin(&self, waiting: &Waiting) -> bool {
        let Some(position) = self.position else { return true };
        let passed = self.boundaries > waiting.since;
        match (waiting.job, victim(waiting.job)) {
            (_, Some(Victim { block, plane, after: Some((_, after)) })) => {
                // Found at this position and read since.
                let found = self.found[self.table.page(block, plane)].max(self.first_at);
                passed && (position > after || position == after && self.boundaries > found)
            }
            (_, Some(_)) | (Job::Evict { .. } | Job::Drop { .. }, None) => passed,
            (Job::Move { .. }, None) => false,
            _ => true,
        }
    }

    /// Complete a job: install its page.
    pub fn ended(&mut self, id: u32, now_ns: u64) {
        let Some(at) = self.begun.iter().position(|begun| begun.id == id) else { return };
        let Waiting { job, ordered_ns, .. } = self.begun.swap_remove(at);
        self.table.apply(job);
        if let Some((block, plane, _)) = installed(job) {
            self.found[self.table.page(block, plane)] = self.boundaries + 1;
        }
        if let Job::CopyIn { block, plane, .. } = job {
            self.arrived.push(Arrived { block, plane, ordered_ns, ended_ns: now_ns });
            self.loads += 1;
        }
    }
}

fn direction(job: &Job) -> Direction {
    match job {
        Job::CopyIn { .. } | Job::CopyInAs { .. } | Job::Scatter { .. } => Direction::Load,
        Job::CopyOut { .. } | Job::Gather { .. } => Direction::Store,
        _ => Direction::None,
    }
}

fn victim(job: Job) -> Option<Victim> {
    job.encode().0.victim
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_tiering::api::HostFrame;

    fn load(block: u32, plane: u16, victim: Option<Victim>) -> Job {
        Job::CopyIn { block, plane, frame: 0, from: HostFrame { slab: 0, slot: 0 }, victim }
    }

    fn shown(agent: &Agent) -> Vec<(u32, u16)> {
        (0..2).flat_map(|block| (0..2).map(move |plane| (block, plane))).filter(|&(b, p)| agent.shows(b, p)).collect()
    }

    #[test]
    fn a_frame_is_taken_over_after_its_last_use_and_a_boundary() {
        let mut agent = Agent::new(2, 2);
        agent.take(1, Job::Install { block: 0, plane: 0, frame: 0, victim: None }, 0);
        assert_eq!(agent.start(true, true), Some((1, Direction::None)));
        agent.ended(1, 0);
        assert_eq!(shown(&agent), [(0, 0)]);
        // In plane 1 of step 1, position 3: a page that may still be read is released at the next boundary, even of the same plane.
        agent.at(Some(3));
        agent.take(2, load(1, 0, Some(Victim { block: 0, plane: 0, after: None })), 10);
        assert_eq!(agent.start(true, true), None);
        agent.at(Some(3));
        assert_eq!(agent.start(false, true), None, "the link is busy");
        assert_eq!(agent.start(true, true), Some((2, Direction::Load)));
        assert_eq!(shown(&agent), [], "the victim is gone, the page has not come");
        agent.ended(2, 20);
        assert_eq!((shown(&agent), agent.loads), (vec![(1, 0)], 1));
        assert_eq!(agent.arrived, [Arrived { block: 1, plane: 0, ordered_ns: 10, ended_ns: 20 }]);
        // A page that the lane uses at position 4 is released after it was found there and a boundary has followed.
        agent.take(3, load(0, 0, Some(Victim { block: 1, plane: 0, after: Some((0, 4)) })), 30);
        for (position, begins) in [(Some(3), false), (Some(4), false), (Some(4), true)] {
            agent.at(position);
            assert_eq!(agent.start(true, true).is_some(), begins, "{position:?}");
        }
        // A page that arrives while the lane is at 5 is found at the next boundary, and released at the one after it.
        agent.at(Some(5));
        agent.ended(3, 40);
        agent.take(4, load(1, 0, Some(Victim { block: 0, plane: 0, after: Some((0, 5)) })), 50);
        for begins in [false, true] {
            agent.at(Some(5));
            assert_eq!(agent.start(true, true).is_some(), begins);
        }
    }

    #[test]
    fn outside_of_a_step_nothing_is_held_and_a_job_that_waits_can_be_withdrawn() {
        let mut agent = Agent::new(2, 2);
        agent.at(Some(0));
        agent.take(1, Job::Evict { block: 0, plane: 0, frame: 0 }, 0);
        assert!(agent.start(true, true).is_none() && agent.withdraw(1) && !agent.withdraw(1));
        agent.take(2, Job::Drop { block: 0 }, 0);
        agent.at(None);
        assert_eq!(agent.start(true, true), Some((2, Direction::None)));
    }
}
