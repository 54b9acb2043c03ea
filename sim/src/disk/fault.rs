//! What goes wrong with a disk.

use crate::base::Rng;
use kvtide_tiering::api::{IoKind, Status};

/// How likely what goes wrong, per thousand transfers, in an episode.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFaults {
    /// EIO, ENOSPC, or fewer bytes than asked for.
    pub error: u64,
    /// Bytes that come back are not those that were written.
    pub flip: u64,
    /// Nothing moves for longer than a request lives.
    pub stuck: u64,
    /// A hundred times as slow.
    pub late: u64,
    /// Given up before it was begun.
    pub reject: u64,
    /// From then on every write fails; 0: never.
    pub read_only_us: u64,
    /// From then on everything fails; 0: never.
    pub dead_us: u64,
}

impl DiskFaults {
    /// Draw the faults of an episode in which something may go wrong.
    pub fn draw(rng: &mut Rng) -> DiskFaults {
        let mut some =
            |likely: u64, least: u64, most: u64| if rng.chance(likely) { rng.between(least, most) } else { 0 };
        DiskFaults {
            error: some(450, 1, 80),
            flip: some(350, 1, 60),
            stuck: some(200, 1, 6),
            late: some(450, 1, 60),
            reject: some(300, 1, 80),
            read_only_us: some(60, 1000, 100_000),
            dead_us: some(50, 1000, 100_000),
        }
    }

    /// Return whether it answers everything rightly in the end, if not always at once.
    #[must_use]
    pub fn works(&self) -> bool {
        self.read_only_us + self.dead_us == 0
    }

    /// Return whether a page that is wanted may come later than a request lives.
    #[must_use]
    pub fn delays(&self) -> bool {
        self.stuck > 0 || !self.works()
    }

    /// Return whether nothing goes wrong.
    #[must_use]
    pub fn none(&self) -> bool {
        self.error + self.flip + self.stuck + self.reject == 0 && self.works()
    }

    /// Return how a note to an index log ends at `now_us`.
    pub fn pick_note(&self, rng: &mut Rng, now_us: u64) -> Status {
        let over = |since_us: u64| since_us > 0 && now_us >= since_us;
        if over(self.dead_us) || over(self.read_only_us) || rng.chance(self.error) {
            rng.pick(&[Status::Io, Status::NoSpace])
        } else {
            Status::Ok
        }
    }

    /// What goes wrong with a transfer that begins at `now_us`.
    pub fn pick(&self, rng: &mut Rng, kind: IoKind, now_us: u64) -> Option<DiskFault> {
        let over = |since_us: u64| since_us > 0 && now_us >= since_us;
        if over(self.dead_us) {
            Some(DiskFault::Failed(Status::Io))
        } else if over(self.read_only_us) && kind == IoKind::Write {
            Some(DiskFault::Failed(rng.pick(&[Status::Io, Status::NoSpace])))
        } else if rng.chance(self.reject) {
            Some(DiskFault::Rejected(rng.pick(&[Status::TimedOut, Status::Canceled])))
        } else if rng.chance(self.error) {
            Some(match (rng.below(3), kind) {
                (0, _) => DiskFault::Short,
                (1, IoKind::Write) => DiskFault::Failed(Status::NoSpace),
                _ => DiskFault::Failed(Status::Io),
            })
        } else if rng.chance(self.flip) {
            Some(DiskFault::Flipped)
        } else if rng.chance(self.stuck) {
            Some(DiskFault::Stuck)
        } else if rng.chance(self.late) {
            Some(DiskFault::Late)
        } else {
            None
        }
    }
}

/// What goes wrong with a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// Moves something, then ends with this error.
    Failed(Status),
    /// Moves a part, and the device says so.
    Short,
    /// Ends with this status and has touched nothing.
    Rejected(Status),
    /// A read delivers some page with another content than the disk has; a write leaves some page so.
    Flipped,
    /// Does not move for long.
    Stuck,
    /// Is slow.
    Late,
}
