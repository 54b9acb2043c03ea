//! Endurance of a disk: a pure function of the bytes written and the configured limits.

use kvtide_nvme::DiskStatus;
use serde::{Deserialize, Serialize};

/// Minimum time for a rate: a cache writes more while it fills.
const RATE_AFTER_S: f64 = 3600.0;
const DAY_S: f64 = 86_400.0;

/// Configured endurance limits of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Bytes that may be written a day.
    pub bytes_per_day: Option<u64>,
    /// Bytes that may be written over the disk's life.
    pub endurance_bytes: Option<u64>,
}

/// Endurance of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DriveEndurance {
    /// Number of the disk.
    pub disk: u16,
    /// Bytes that may be written a day, if limited.
    pub bytes_per_day: Option<u64>,
    /// Rated endurance in bytes, if configured.
    pub endurance_bytes: Option<u64>,
    /// Bytes written a day since the daemon started; `None` in its first hour. First writes of regions do not count, because they
    /// do not recur.
    pub rate_bytes_per_day: Option<f64>,
    /// Seconds until the endurance is used up at this rate, or at `bytes_per_day` without a rate; `None` if neither is known.
    pub life_s: Option<f64>,
}

/// Return the endurance of a disk after `uptime_s` of the daemon.
pub(super) fn endurance(disk: &DiskStatus, bounds: Bounds, uptime_s: f64) -> DriveEndurance {
    let Bounds { bytes_per_day, endurance_bytes } = bounds;
    let rate = (uptime_s >= RATE_AFTER_S).then(|| disk.written_bytes() as f64 * DAY_S / uptime_s);
    let per_day = rate.or(bytes_per_day.map(|bytes| bytes as f64)).filter(|bytes| *bytes > 0.0);
    let left = endurance_bytes.map(|bytes| bytes.saturating_sub(disk.written_ever_bytes) as f64);
    let life_s = left.zip(per_day).map(|(left, per_day)| left / per_day * DAY_S);
    DriveEndurance { disk: disk.number, bytes_per_day, endurance_bytes, rate_bytes_per_day: rate, life_s }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_nvme::WrittenStatus;

    fn disk(request_bytes: u64, written_ever_bytes: u64) -> DiskStatus {
        let written = WrittenStatus { request_bytes, ..WrittenStatus::default() };
        DiskStatus { written, written_ever_bytes, ..DiskStatus::default() }
    }

    #[test]
    fn a_life_is_what_is_left_at_the_rate_of_today() {
        let bounds = Bounds { bytes_per_day: None, endurance_bytes: Some(1000) };
        let found = endurance(&disk(10, 400), bounds, DAY_S);
        assert_eq!((found.rate_bytes_per_day, found.life_s), (Some(10.0), Some(60.0 * DAY_S)));
        assert_eq!(endurance(&disk(10, 4000), bounds, DAY_S).life_s, Some(0.0), "endurance used up");
        assert_eq!(endurance(&disk(0, 400), bounds, DAY_S).life_s, None, "no writes: unlimited life");
    }

    #[test]
    fn the_first_hour_is_judged_by_what_may_be_written() {
        let bounds = Bounds { bytes_per_day: Some(100), endurance_bytes: Some(1000) };
        let found = endurance(&disk(10, 400), bounds, 60.0);
        assert_eq!((found.rate_bytes_per_day, found.life_s), (None, Some(6.0 * DAY_S)));
        let unbounded = Bounds { bytes_per_day: None, ..bounds };
        assert_eq!(endurance(&disk(10, 400), unbounded, 60.0).life_s, None);
        assert_eq!(endurance(&disk(10, 400), Bounds::default(), DAY_S).life_s, None, "endurance not configured");
    }
}
