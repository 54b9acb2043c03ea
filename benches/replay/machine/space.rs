//! The space of a replay: one session, one lane, one sequence, no proactive work.

use kvtide_tiering::api::{Limits, Plane, PlaneKind, Policy, SpaceConfig};

/// Frames for a scan, of each tier.
pub const SCAN_FRAMES: u32 = 8;

/// Return a space of `blocks` blocks that all fit in host memory; replays change the settings that they vary.
#[must_use]
pub fn space(page_tokens: u32, page_bytes: u32, planes: usize, blocks: u32) -> SpaceConfig {
    SpaceConfig {
        page_tokens,
        planes: vec![Plane { page_bytes, kind: PlaneKind::Full }; planes],
        shards: 1,
        limits: Limits {
            sessions_max: 1,
            blocks_max: blocks,
            seqs_max: 1,
            seq_blocks_max: blocks,
            lanes_max: 1,
            jobs_max: 256,
            requests_max: 4,
            host_bytes_max: u64::from(blocks) * u64::from(page_bytes) * planes as u64,
            nvme_bytes_max: 0,
            ios_max: 64,
            entries_max: blocks,
            log_requests_max: 64,
        },
        policy: Policy {
            // Pages are written back only when room is needed or when they are published, so that no threshold hides the effect of
            // a policy.
            clean_low_percent: 100,
            clean_high_percent: 100,
            host_high_percent: 100,
            host_low_percent: 100,
            host_scan_frames: SCAN_FRAMES,
            nvme_high_percent: 100,
            nvme_low_percent: 100,
            scan_frames: SCAN_FRAMES,
            // An unanswered request is a bug of the core and must not be ended by a timeout.
            request_timeout_us: u64::MAX / 2,
            ..Policy::plain()
        },
    }
}
