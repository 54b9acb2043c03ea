//! The index of blocks that are only on NVMe: its memory, and the time to restore it into a core.

use super::super::report::{Report, Target};
use super::super::{BenchError, spread};
use kvtide_format::SlotLayout;
use kvtide_tiering::api::{DiskSlot, Event, Eviction, Limits, Plane, PlaneKind, Policy, SpaceConfig};
use kvtide_tiering::{ActionBuf, Core};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region};
use std::time::Instant;

/// Entries of a restored space.
pub(super) const ENTRIES: u32 = 500_000;
/// Entries of which the allocator counts the memory, without planes to speak of.
const ALLOCATED: u32 = 1_000_000;
const BLOCK_BYTES: u32 = 1 << 20;
/// Slots of a slab.
const SLAB_SLOTS: u32 = 1000;
/// Blocks of one chain.
const CHAIN: u32 = 100;

/// Return the hash of a chain's block; 0 above its first block.
fn hash(chain: u32, block: u32) -> u128 {
    if block == 0 { 0 } else { spread(u128::from(chain) << 32 | u128::from(block)) }
}

/// Return a space with `blocks` slots on NVMe, all of them restored or all of them empty.
pub(super) fn core(mut config: SpaceConfig, blocks: u32, filled: bool) -> Result<Core, BenchError> {
    let entries = if filled { blocks } else { 0 };
    config.limits.nvme_bytes_max = u64::from(blocks) * SlotLayout::new(&config.planes).bytes();
    config.limits.entries_max = entries.max(1);
    let mut planes = vec![u32::MAX; config.planes.len() / 32];
    if !config.planes.len().is_multiple_of(32) {
        planes.push((1 << (config.planes.len() % 32)) - 1);
    }
    let (mut core, mut buf) = (Core::new(config)?, ActionBuf::new(64, 0));
    for first in (0..blocks).step_by(SLAB_SLOTS as usize) {
        let slab = first / SLAB_SLOTS;
        core.handle(1, Event::DiskAdopted { slab, slots: SLAB_SLOTS, disk: 0, generation: 0 }, &mut buf)?;
        for slot in 0..if filled { SLAB_SLOTS } else { 0 } {
            let (chain, block) = ((first + slot) / CHAIN, (first + slot) % CHAIN + 1);
            let at = DiskSlot { slab, slot, generation: 1 };
            let (hash, parent) = (hash(chain, block), hash(chain, block - 1));
            core.handle(1, Event::Restored { at, shard: 0, hash, parent, planes: &planes }, &mut buf)?;
        }
    }
    match core.occupancy().index_only {
        found if found == entries => Ok(core),
        found => Err(BenchError::Odd(format!("the index has {found} of {entries} entries"))),
    }
}

/// Return the bytes allocated by a core. The figure comes from the allocator, not from type sizes.
fn allocated(filled: bool) -> Result<i64, BenchError> {
    let common = super::config();
    let host_bytes_max = 4096 * u64::from(BLOCK_BYTES);
    let config = SpaceConfig {
        planes: vec![Plane { page_bytes: BLOCK_BYTES, kind: PlaneKind::Full }],
        limits: Limits { blocks_max: 4096, host_bytes_max, ..common.limits },
        policy: Policy { eviction: Eviction::Auto, ..common.policy },
        ..common
    };
    let region = Region::new(&INSTRUMENTED_SYSTEM);
    let core = core(config, ALLOCATED, filled)?;
    let change = region.change();
    drop(core);
    // A growing table counts its old memory as deallocated; a reallocated one counts only its growth.
    Ok(change.bytes_allocated as i64 - change.bytes_deallocated as i64)
}

/// Return the bytes of the index for a block: minus those of a core with the same empty slots on the same disk.
pub(super) fn bytes_per_block() -> Result<f64, BenchError> {
    Ok((allocated(true)? - allocated(false)?) as f64 / f64::from(ALLOCATED))
}

/// Measure memory and time.
pub(super) fn measure(config: SpaceConfig, report: &mut Report) -> Result<(), BenchError> {
    let began = Instant::now();
    let core = core(config, ENTRIES, true)?;
    let ms = began.elapsed().as_millis() as u64;
    let each = (core.index_bytes() as f64 / f64::from(ENTRIES)).ceil() as u64;
    drop(core);
    let what = "index memory of a block on NVMe";
    report.count("bytes_per_cold_content", what, each, "bytes", Some(Target::AtMost(64.0)));
    report.count("restore_ms", "restore of 500,000 blocks", ms, "ms", Some(Target::AtMost(1000.0)));
    let what = "index memory per block, without the NVMe tier's";
    report.number("index_bytes_per_block", what, bytes_per_block()?, "bytes", Target::AtMost(96.0));
    Ok(())
}
