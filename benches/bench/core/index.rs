//! Memory of the index: bytes allocated by a core with a number of entries on NVMe, minus those of a core with the same empty
//! slots on the same disk. The figure comes from the allocator, not from type sizes.

use super::BenchError;
use kvtide_tiering::api::{DiskSlot, Event, Eviction, Limits, Plane, PlaneKind, Policy, SpaceConfig};
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
    let common = super::config();
    let block_bytes = u64::from(BLOCK_BYTES);
    SpaceConfig {
        planes: vec![Plane { page_bytes: BLOCK_BYTES, kind: PlaneKind::Full }],
        limits: Limits {
            blocks_max: 4096,
            host_bytes_max: 4096 * block_bytes,
            nvme_bytes_max: u64::from(blocks) * block_bytes,
            entries_max: entries,
            ..common.limits
        },
        policy: Policy { eviction: Eviction::Auto, ..common.policy },
        ..common
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
