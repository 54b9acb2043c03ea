//! What one run is made of: geometry, sizes of the tiers, how much is written between two kills.

use super::Args;
use super::random::Random;
use kvtide_client::SpaceSpec;
use kvtide_wire::geometry::{PlaneKind, PlaneSpec};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tokens of a page.
pub const PAGE_TOKENS: u64 = 16;
/// Bytes of the planes' pages: whole sectors, pages that share sectors with their neighbours, two planes of a class.
pub const PAGE_BYTES: [u32; 4] = [4096, 6000, 4096, 1000];
/// Blocks of a chain at most.
pub const DEPTH_MAX: usize = 20;
/// Sessions that load the daemon, and threads of each.
pub const SESSIONS: usize = 2;
pub const THREADS: u16 = 2;
/// Sequences that a thread keeps alive at most, parked ones included.
pub const LIVE_MAX: usize = 6;
/// Blocks that tier 0 holds: a few threads' steps at once, and not all their sequences.
pub const TIER0_BLOCKS: u32 = 64;
/// The longest time from the begin of a load to the kill.
pub const LOAD_MAX: Duration = Duration::from_millis(400);
/// New blocks in so long a time: a few are always on their way, and a run of many rounds is read back in seconds.
const BLOCKS_A_ROUND: u64 = 240;
/// Bytes of a block's slot on NVMe: its pages packed, in whole sectors.
const SLOT_BYTES: u64 = 16 << 10;
/// The host tier: less than live sequences and cached blocks come to, so that blocks leave it for NVMe.
const HOST_BYTES: u64 = 12 << 20;
/// One slab of each tier.
const SLAB_BYTES: u64 = 1 << 20;
/// The NVMe tier of the second phase: about what one round writes.
const EVICTING_BYTES: u64 = 4 << 20;

const _: () = assert!((PAGE_BYTES[0] + PAGE_BYTES[1] + PAGE_BYTES[2] + PAGE_BYTES[3]) as u64 <= SLOT_BYTES);

/// The two halves of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The NVMe tier holds everything: nothing that was reported stored may be missing.
    Keeping,
    /// It evicts: what is missing may have been evicted, what is there must be right.
    Evicting,
}

impl Phase {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Keeping => "keeping",
            Phase::Evicting => "evicting",
        }
    }
}

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Everything random follows from it.
    pub seed: u64,
    /// Where the run's own directory is made.
    pub dir: PathBuf,
    /// Of the NVMe tier.
    pub codec: String,
    /// Whether the NVMe tier is encrypted.
    pub encrypted: bool,
    rounds: u32,
}

impl Plan {
    /// From the flags.
    pub fn new(args: &Args) -> Plan {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let seed = args.seed.unwrap_or_else(|| Random::new(clock() ^ u64::from(std::process::id())).next() >> 32);
        let Args { dir, codec, encrypted, rounds, .. } = args.clone();
        Plan { seed, dir, codec, encrypted, rounds }
    }

    /// Kills of a phase; a quarter of all, rounded down, are the evicting one's.
    pub fn rounds(&self, phase: Phase) -> u32 {
        match phase {
            Phase::Keeping => self.rounds - self.rounds / 4,
            Phase::Evicting => self.rounds / 4,
        }
    }

    /// New blocks that may have been written so long after the begin of a load.
    pub fn blocks_by(elapsed: Duration) -> u64 {
        BLOCKS_A_ROUND * elapsed.as_micros() as u64 / LOAD_MAX.as_micros() as u64
    }

    /// Bytes of the NVMe tier.
    fn nvme_bytes(&self, phase: Phase) -> u64 {
        // Half as much again: it may begin to evict a little before it is full, and slots wait for their erasure's record.
        let all = u64::from(self.rounds(phase)) * BLOCKS_A_ROUND * SLOT_BYTES * 3 / 2;
        let bytes = match phase {
            Phase::Keeping => all.max(EVICTING_BYTES),
            Phase::Evicting => EVICTING_BYTES,
        };
        bytes.next_multiple_of(SLAB_BYTES)
    }

    /// The daemon's configuration.
    pub fn config(&self, phase: Phase, disk: &std::path::Path, key: &std::path::Path) -> String {
        let encryption = match self.encrypted {
            true => format!("[tiers.nvme.encryption]\nkey = \"file\"\npath = {key:?}\n"),
            false => String::new(),
        };
        format!(
            "[tiers.host]\ncapacity = {HOST_BYTES}\nslab = {SLAB_BYTES}\nprefault = false\n\
             [tiers.nvme]\nslab = {SLAB_BYTES}\ncodec = {:?}\n{encryption}\
             [[tiers.nvme.disks]]\ndir = {disk:?}\ncapacity = {}\nreserve_free = 0\n\
             [canary]\none_in = 1\n",
            self.codec,
            self.nvme_bytes(phase),
        )
    }

    /// The space; each run has its own fingerprint.
    pub fn space(&self) -> SpaceSpec {
        let plane = |page_bytes| PlaneSpec { page_bytes, kind: PlaneKind::Full as u16, ..PlaneSpec::default() };
        let mut random = Random::new(self.seed);
        SpaceSpec {
            name: "crash-test".into(),
            fingerprint: std::array::from_fn(|_| random.next() as u8),
            page_tokens: PAGE_TOKENS as u32,
            planes: PAGE_BYTES.map(plane).to_vec(),
            shards: 1,
            shard: 0,
        }
    }

    /// Frames of a tier 0 of [`TIER0_BLOCKS`] blocks: classes in the order of their first plane.
    pub fn tier0_frames() -> Vec<u32> {
        let mut classes: Vec<(u32, u32)> = Vec::new();
        for bytes in PAGE_BYTES {
            match classes.iter_mut().find(|(size, _)| *size == bytes) {
                Some((_, planes)) => *planes += 1,
                None => classes.push((bytes, 1)),
            }
        }
        classes.into_iter().map(|(_, planes)| planes * TIER0_BLOCKS).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phases_share_the_rounds_and_only_one_may_evict() {
        let plan = |rounds| Plan { seed: 1, dir: "/".into(), codec: "none".into(), encrypted: false, rounds };
        for rounds in [1, 2, 3, 4, 20, 200] {
            let plan = plan(rounds);
            assert_eq!(plan.rounds(Phase::Keeping) + plan.rounds(Phase::Evicting), rounds);
            assert!(plan.rounds(Phase::Keeping) > 0);
            let written = u64::from(plan.rounds(Phase::Keeping)) * Plan::blocks_by(LOAD_MAX) * SLOT_BYTES;
            assert!(plan.nvme_bytes(Phase::Keeping) >= written + written / 3);
        }
        assert!(plan(200).nvme_bytes(Phase::Evicting) < 20 * BLOCKS_A_ROUND * SLOT_BYTES);
        assert_eq!(Plan::tier0_frames(), [2 * TIER0_BLOCKS, TIER0_BLOCKS, TIER0_BLOCKS]);
    }
}
