//! Small spaces.

use kvtide_tiering::api::{Limits, Plane, PlaneKind, Policy, SpaceConfig};

pub fn config(planes: Vec<Plane>) -> SpaceConfig {
    SpaceConfig {
        page_tokens: 4,
        planes,
        shards: 1,
        limits: Limits {
            sessions_max: 4,
            blocks_max: 256,
            seqs_max: 16,
            seq_blocks_max: 256,
            lanes_max: 4,
            jobs_max: 16,
            requests_max: 32,
            host_bytes_max: 1 << 30,
            nvme_bytes_max: 0,
            ios_max: 64,
            entries_max: 256,
            log_requests_max: 16,
        },
        policy: Policy {
            scan_frames: 4,
            request_timeout_us: 1_000_000,
            lease_us_max: 600_000_000,
            lease_percent: 50,
            ..Policy::plain()
        },
    }
}

pub fn full(page_bytes: u32) -> Plane {
    Plane { page_bytes, kind: PlaneKind::Full }
}

/// Return the hashes of a prefix of blocks.
pub fn hashes(prefix: u128, blocks: u128) -> Vec<u128> {
    (1..=blocks).map(|block| prefix << 64 | block).collect()
}
