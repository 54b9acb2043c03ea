//! Entries that are only on NVMe: memory of half a million entries, and time to restore them into a core.

use super::super::BenchError;
use super::super::report::{Report, Target};
use kvtide_format::SlotLayout;
use kvtide_tiering::api::{DiskSlot, Event, SpaceConfig};
use kvtide_tiering::{ActionBuf, Core};
use std::time::Instant;

/// Number of entries, and slots of a slab.
pub(super) const ENTRIES: u32 = 500_000;
const SLAB_SLOTS: u32 = 1000;
/// Blocks of one chain.
const CHAIN: u32 = 100;

/// Return the hash of a chain's block; 0 above its first block.
fn hash(chain: u32, block: u32) -> u128 {
    match block {
        0 => 0,
        _ => (u128::from(chain) << 32 | u128::from(block)).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) | 1,
    }
}

/// Return a space with the entries restored.
pub(super) fn core(mut config: SpaceConfig) -> Result<Core, BenchError> {
    config.limits.nvme_bytes_max = u64::from(ENTRIES) * SlotLayout::new(&config.planes).bytes();
    config.limits.entries_max = ENTRIES;
    let words = vec![u32::MAX; config.planes.len() / 32];
    let mut planes = words;
    if !config.planes.len().is_multiple_of(32) {
        planes.push((1 << (config.planes.len() % 32)) - 1);
    }
    let (mut core, mut buf) = (Core::new(config)?, ActionBuf::new(64, 0));
    for first in (0..ENTRIES).step_by(SLAB_SLOTS as usize) {
        let slab = first / SLAB_SLOTS;
        core.handle(1, Event::DiskAdopted { slab, slots: SLAB_SLOTS, disk: 0, generation: 0 }, &mut buf)?;
        for slot in 0..SLAB_SLOTS {
            let (chain, block) = ((first + slot) / CHAIN, (first + slot) % CHAIN + 1);
            let at = DiskSlot { slab, slot, generation: 1 };
            let (hash, parent) = (hash(chain, block), hash(chain, block - 1));
            core.handle(1, Event::Restored { at, shard: 0, hash, parent, planes: &planes }, &mut buf)?;
        }
    }
    if core.occupancy().index_only != ENTRIES {
        return Err(BenchError::Odd(format!("restored {} of {ENTRIES} entries", core.occupancy().index_only)));
    }
    Ok(core)
}

/// Measure memory and time.
pub(super) fn measure(config: SpaceConfig, report: &mut Report) -> Result<(), BenchError> {
    let began = Instant::now();
    let core = core(config)?;
    let elapsed = began.elapsed();
    let each = (core.index_bytes() as f64 / f64::from(ENTRIES)).ceil() as u64;
    report.count(
        "bytes_per_cold_content",
        "index memory of a block on NVMe",
        each,
        "bytes",
        Some(Target::AtMost(64.0)),
    );
    let ms = elapsed.as_millis() as u64;
    report.count("restore_ms", "restore of 500,000 blocks", ms, "ms", Some(Target::AtMost(1000.0)));
    Ok(())
}
