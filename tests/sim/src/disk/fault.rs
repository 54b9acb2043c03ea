//! Faults of a disk.

use crate::base::Rng;
use kvtide_tiering::api::{IoKind, Status};

/// Fault rates of an episode, per thousand transfers.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFaults {
    /// EIO, ENOSPC, or fewer bytes than requested.
    pub error: u64,
    /// Bytes read differ from those written.
    pub flip: u64,
    /// The transfer stalls for longer than a request lives.
    pub stuck: u64,
    /// A hundred times as slow.
    pub late: u64,
    /// Given up before it began.
    pub reject: u64,
    /// Time from which every write fails; 0: never.
    pub read_only_us: u64,
    /// Time from which every transfer fails; 0: never.
    pub dead_us: u64,
}

impl DiskFaults {
    /// Draw the faults of an episode that may have faults.
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

    /// Return whether all transfers eventually succeed, if not always at once.
    #[must_use]
    pub fn works(&self) -> bool {
        self.read_only_us + self.dead_us == 0
    }

    /// Return whether a demanded page may come later than a request lives.
    #[must_use]
    pub fn delays(&self) -> bool {
        self.stuck > 0 || !self.works()
    }

    /// Return whether there are no faults.
    #[must_use]
    pub fn none(&self) -> bool {
        self.error + self.flip + self.stuck + self.reject == 0 && self.works()
    }

    /// Return how a log request ends at `now_us`.
    pub fn pick_log_status(&self, rng: &mut Rng, now_us: u64) -> Status {
        let over = |since_us: u64| since_us > 0 && now_us >= since_us;
        if over(self.dead_us) || over(self.read_only_us) || rng.chance(self.error) {
            rng.pick(&[Status::Io, Status::NoSpace])
        } else {
            Status::Ok
        }
    }

    /// Draw the fault of a transfer that begins at `now_us`.
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

/// Fault of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// Moves something, then ends with this error.
    Failed(Status),
    /// Moves a part, and the device reports that.
    Short,
    /// Ends with this status without touching anything.
    Rejected(Status),
    /// A read delivers some page with other content than on the disk; a write leaves such a page on the disk.
    Flipped,
    /// Stalls for long.
    Stuck,
    /// Is slow.
    Late,
}
