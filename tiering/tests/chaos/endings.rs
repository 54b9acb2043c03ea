//! Endings of jobs, transfers and sessions, and invalid requests of engines.

use super::Chaos;
use kvtide_tiering::api::*;

impl Chaos {
    pub fn run_job(&mut self, s: SessionId) {
        let agent = &self.w.agents[&s];
        if agent.jobs.is_empty() {
            return;
        }
        let at = self.rng.below(agent.jobs.len() as u64) as usize;
        let (id, job) = self.w.agents[&s].jobs[at];
        let fail = self.failures && self.rng.one_in(7);
        let reads_or_writes = |f: FrameId| {
            self.w.agents[&s].jobs.iter().take(at).any(|(_, j)| matches!(j, Job::Copy { from, .. } if *from == f))
        };
        let status = match job {
            // The copies of one frame are executed in order, as in the agent.
            Job::CopyOut { .. } | Job::Gather { .. } | Job::Scatter { .. } => {
                if fail {
                    Status::Io
                } else {
                    Status::Ok
                }
            }
            Job::Install { frame, .. } | Job::Evict { frame, .. } if reads_or_writes(frame) => return,
            Job::Install { victim, .. } => {
                if fail && victim.is_some() {
                    Status::Busy
                } else {
                    Status::Ok
                }
            }
            Job::CopyIn { victim, .. } | Job::Copy { victim, .. } | Job::CopyInAs { victim, .. } => {
                match self.rng.below(3) {
                    0 if fail && victim.is_some() => Status::Busy,
                    1 if fail => Status::Io,
                    2 if fail && self.rng.one_in(3) => Status::Invalid,
                    _ => Status::Ok,
                }
            }
            Job::Drop { .. } | Job::Evict { .. } => {
                if fail {
                    Status::Busy
                } else {
                    Status::Ok
                }
            }
            // A `Move` waits until no lane is in a step.
            Job::Move { .. } if self.steps.iter().any(|(k, l)| k.0 == s && !l.1.is_empty()) => return,
            Job::Move { .. } => match self.rng.below(3) {
                0 if fail => Status::Busy,
                1 if fail => Status::Io,
                2 if fail => Status::Invalid,
                _ => Status::Ok,
            },
            Job::Cancel { .. } => Status::Busy,
        };
        self.w.agents.get_mut(&s).unwrap().jobs.remove(at);
        if let Job::Cancel { job: target } = job {
            let agent = self.w.agents.get_mut(&s).unwrap();
            if let Some(t) = agent.jobs.iter().position(|j| j.0 == target) {
                agent.jobs.remove(t);
                self.w.end_job(s, target, Status::Canceled);
            }
        }
        match status {
            Status::Ok => self.w.carry_out(s, job),
            Status::Io => self.w.fail(s, job),
            _ => {}
        }
        self.w.end_job(s, id, status);
        self.w.settle();
        self.collect();
    }

    /// End a transfer, as the disk does or with an error.
    pub fn run_io(&mut self) {
        let n = self.w.disk.flight.len() as u64;
        if n == 0 {
            return;
        }
        let t = self.w.disk.take(self.rng.below(n) as usize).unwrap();
        let fail = self.failures && self.rng.one_in(7);
        let write = t.kind == IoKind::Write;
        let mut status = match self.rng.below(4) {
            0 if fail => Status::TimedOut,
            1 if fail => Status::Canceled,
            2 if fail && write => Status::NoSpace,
            _ if fail && (write || self.rot) => Status::Io,
            _ => Status::Ok,
        };
        let mut bad = Vec::new();
        if status != Status::Ok {
            self.w.disk.fail(&t, status, &mut self.w.host);
        } else {
            if self.rot && !write && self.rng.one_in(9) {
                let &(plane, _) = &t.pages[self.rng.below(t.pages.len() as u64) as usize];
                self.w.disk.rotten.insert((t.at.slab, t.at.slot, plane));
            }
            (status, bad) = self.w.disk.carry_out(&t, &mut self.w.host);
            if self.rng.one_in(2) {
                // A misread page may be correct in the next read.
                bad.iter().for_each(|&p| _ = self.w.disk.rotten.remove(&(t.at.slab, t.at.slot, p as u16)));
            }
        }
        self.w.end_io(t.id, status, &bad);
        self.w.settle();
        self.collect();
    }

    /// Print the state when an operation did not end.
    pub fn dump(&self) {
        let all = format!("{:?}", self.w.core);
        for part in ["host: Host", "disk: Disk"] {
            let from = all.find(part).unwrap_or(0);
            let end = all[from..].find("recs: [").unwrap_or(0);
            eprintln!("{}", &all[from..from + end]);
        }
        for (s, agent) in &self.w.agents {
            eprintln!("session {s}: jobs {:?}", agent.jobs);
        }
        eprintln!("{:?} {:?} {:?}", self.w.disk.flight, self.w.core.occupancy(), self.w.core.counters());
        eprintln!("{:?}", self.w.core.config());
    }

    pub fn lose(&mut self, s: SessionId) {
        self.w.event(Event::SessionLost { session: s }).unwrap();
        let dead = self.w.agents.remove(&s).unwrap();
        self.zombies.extend(dead.jobs.iter().filter_map(|(_, j)| match j {
            Job::CopyOut { to, .. } | Job::Gather { to, .. } => Some((s, (to.slab, to.slot))),
            _ => None,
        }));
        self.ghosts.extend(dead.in_place().map(|at| (s, at, self.w.host[&at])));
        self.pins.retain(|p| p.0 != s);
        self.seqs.retain(|k, _| k.0 != s);
        self.pending.retain(|k, _| k.0 != s);
        self.busy.retain(|k| k.0 != s);
        self.steps.retain(|k, _| k.0 != s);
        self.leases.retain(|k, _| k.0 != s);
    }

    pub fn attach_again(&mut self, s: SessionId) {
        if self.rng.one_in(10) {
            self.zombies.retain(|z| z.0 != s);
            self.ghosts.retain(|g| g.0 != s);
            if !self.w.gone.contains(&s) {
                self.w.event(Event::SessionExited { session: s }).unwrap();
            }
            assert!(self.w.gone.contains(&s));
            self.w.gone.retain(|&g| g != s);
            self.attach(s);
        }
    }

    pub fn nonsense(&mut self, s: SessionId) {
        let big = [u32::MAX, u32::MAX - 1, 1 << 31, 777];
        let x = big[self.rng.below(4) as usize];
        let y = self.rng.next();
        let requests = [
            Request::SeqCreate { seq: x },
            Request::SeqDrop { seq: x },
            Request::Reserve { seq: x, count: x },
            Request::Reserve { seq: 0, count: x },
            Request::Park { seq: x, due_us: y },
            Request::Commit { seq: x, tokens: y },
            Request::Commit { seq: 0, tokens: u64::MAX },
            Request::Fork { parent: x, child: 0 },
            Request::Fork { parent: 0, child: x },
            Request::Truncate { seq: 0, tokens: u64::MAX },
            Request::Publish { seq: 0, first: x, parent: 3, hashes: &[1, 2], level: Level::Durable },
            Request::AttachPrefix { seq: x, hashes: &[1], asked: Some(0) },
            Request::Resume { seq: x },
            Request::Advise { seq: 0, first: x, count: x, advice: Advice::Cold },
            Request::Acquire { seq: 0, plane: x as u16, planes: x as u16, first: x, count: x },
            Request::Release { seq: 0, plane: 0, planes: x as u16, first: 0, count: x },
            Request::Step { lane: x as u16, step: y | 1 << 60, seqs: &[] },
            Request::Step { lane: 0, step: u64::MAX, seqs: &[0] },
            Request::Step { lane: 0, step: 0, seqs: &[x] },
            Request::StepEnd { lane: 0, step: u64::MAX },
            Request::Fault { lane: x as u16 | 64, use_pos: y, seq: 0, index: 0, plane: 0, whole: false },
            Request::Fault { lane: 0, use_pos: u64::MAX, seq: 0, index: x, plane: x as u16, whole: false },
            Request::Cancel { tag: u16::MAX },
            Request::Declare { seq: 0, index: x, tokens: y, frames: &[x] },
            Request::Lease { seq: x, hash: 1, count: 1, lease_us: 1 },
            Request::Lease { seq: 0, hash: u128::MAX, count: x, lease_us: y },
            Request::LoadBlocks { seq: x, first: 0, engine: &[1] },
            Request::LoadBlocks { seq: 0, first: x, engine: &[1, 2] },
            Request::LoadBlocks { seq: 0, first: 0, engine: &[u32::MAX] },
            Request::LoadHashed { hashes: &[1, 2], engine: &[1] },
            Request::StoreBlocks { first: 0, parent: 0, hashes: &[1, 2], engine: &[1], level: Level::Stored },
            Request::StoreBlocks { first: 0, parent: 7, hashes: &[1], engine: &[1], level: Level::Stored },
            Request::StoreBlocks { first: 1, parent: 0, hashes: &[1], engine: &[1], level: Level::Stored },
            Request::StoreBlocks { first: 0, parent: 0, hashes: &[], engine: &[], level: Level::Stored },
            Request::StoreBlocks { first: 0, parent: 0, hashes: &[0], engine: &[1], level: Level::Stored },
        ];
        let r = requests[self.rng.below(requests.len() as u64) as usize];
        assert_ne!(self.w.call(s, r).status, Status::Ok, "{r:?}");
    }
}
