//! The space of a replay: one session, one lane, one sequence, and nothing done ahead of need.

use kvtide_tiering::api::{Admission, Attention, Eviction, Limits, Plane, PlaneKind, Policy, Retention, SpaceConfig};

/// Frames that a scan streams through, of each tier.
pub const SCAN_FRAMES: u32 = 8;

/// A space of so many blocks, all of which host memory holds; whoever replays changes what it replays with.
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
            contents_max: blocks,
            notes_max: 64,
        },
        policy: Policy {
            // Pages are written down when room is wanted, or when they are published: no threshold hides what a policy does.
            clean_low_percent: 100,
            clean_high_percent: 100,
            host_high_percent: 100,
            host_low_percent: 100,
            host_clean_low_percent: 10,
            host_clean_high_percent: 20,
            host_scan_frames: SCAN_FRAMES,
            nvme_high_percent: 100,
            nvme_low_percent: 100,
            nvme_admission: Admission::All,
            nvme_bytes_per_day: 0,
            eviction: Eviction::Lru,
            attention: Attention::default(),
            retention: Retention::default(),
            scan_frames: SCAN_FRAMES,
            // A request that is not answered is a fault of the core: nothing shall end it.
            request_timeout_us: u64::MAX / 2,
            lease_us_max: u64::MAX,
            lease_percent: 100,
        },
    }
}
