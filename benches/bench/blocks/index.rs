//! Memory of the index: bytes allocated by a core with a number of entries on NVMe, minus those of a core with the same empty
//! slots on the same disk. The figure comes from the allocator, not from type sizes.

use super::BenchError;
use kvtide_tiering::api::{
    Admission, Attention, DiskSlot, Event, Eviction, Limits, Plane, PlaneKind, Policy, Retention, SpaceConfig,
};
use kvtide_tiering::{ActionBuf, Core};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region};

/// Number of entries.
const BLOCKS: u32 = 1_000_000;
/// Slots of a slab.
const SLAB_SLOTS: u32 = 1000;
/// Blocks of one chain.
const CHAIN: u32 = 1000;
const BLOCK_BYTES: u32 = 1 << 20;

fn config(blocks: u32, entries: u32) -> SpaceConfig {
    SpaceConfig {
        page_tokens: 16,
        planes: vec![Plane { page_bytes: BLOCK_BYTES, kind: PlaneKind::Full }],
        shards: 1,
        limits: Limits {
            sessions_max: 4,
            blocks_max: 4096,
            seqs_max: 64,
            seq_blocks_max: 4096,
            lanes_max: 4,
            jobs_max: 256,
            requests_max: 256,
            host_bytes_max: 4096 * u64::from(BLOCK_BYTES),
            nvme_bytes_max: u64::from(blocks) * u64::from(BLOCK_BYTES),
            ios_max: 64,
            entries_max: entries,
            log_requests_max: 16,
        },
        policy: Policy {
            clean_low_percent: 25,
            clean_high_percent: 50,
            host_high_percent: 98,
            host_low_percent: 95,
            host_clean_low_percent: 10,
            host_clean_high_percent: 20,
            host_scan_frames: 8,
            nvme_high_percent: 95,
            nvme_low_percent: 90,
            nvme_admission: Admission::All,
            nvme_bytes_per_day: 0,
            eviction: Eviction::Auto,
            attention: Attention::default(),
            retention: Retention::default(),
            scan_frames: 256,
            request_timeout_us: 10_000_000,
            lease_us_max: u64::MAX,
            lease_percent: 100,
        },
    }
}

/// Return the hash of a chain's block; 0 above its first block.
fn hash(chain: u32, block: u32) -> u128 {
    match block {
        0 => 0,
        _ => (u128::from(chain) << 32 | u128::from(block)).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) | 1,
    }
}

/// Return the bytes allocated by a core with `blocks` slots on disk, all filled or all empty.
fn allocated(blocks: u32, filled: bool) -> Result<u64, BenchError> {
    let region = Region::new(&INSTRUMENTED_SYSTEM);
    let (mut core, mut buf) = (Core::new(config(blocks, if filled { blocks } else { 1 }))?, ActionBuf::new(64, 0));
    for first in (0..blocks).step_by(SLAB_SLOTS as usize) {
        let slab = first / SLAB_SLOTS;
        core.handle(1, Event::DiskAdopted { slab, slots: SLAB_SLOTS, disk: 0, generation: 0 }, &mut buf)?;
        for slot in 0..if filled { SLAB_SLOTS.min(blocks - first) } else { 0 } {
            let (chain, block) = ((first + slot) / CHAIN, (first + slot) % CHAIN + 1);
            let at = DiskSlot { slab, slot, generation: 1 };
            let (hash, parent) = (hash(chain, block), hash(chain, block - 1));
            core.handle(1, Event::Restored { at, shard: 0, hash, parent, planes: &[1] }, &mut buf)?;
        }
    }
    let expected = if filled { blocks } else { 0 };
    if core.occupancy().index_only != expected {
        let found = core.occupancy().index_only;
        return Err(BenchError::Odd(format!("the index has {found} of {expected} entries")));
    }
    let change = region.change();
    // A growing table counts its old memory as deallocated; a reallocated one counts only its growth.
    let bytes = change.bytes_allocated as i64 - change.bytes_deallocated as i64;
    drop(core);
    u64::try_from(bytes).map_err(|_| BenchError::Odd(format!("implausible allocation of {bytes} bytes by a core")))
}

/// Return the bytes of the index per block, with a million blocks.
pub(super) fn measure() -> Result<f64, BenchError> {
    let (with, without) = (allocated(BLOCKS, true)?, allocated(BLOCKS, false)?);
    if with <= without {
        return Err(BenchError::Odd("allocations are not counted: this binary uses another global allocator".into()));
    }
    Ok((with - without) as f64 / f64::from(BLOCKS))
}
