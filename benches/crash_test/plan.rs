//! Parameters of a run: geometry, tier sizes, and bytes written between two kills.

use super::Args;
use kvtide_client::SpaceSpec;
use kvtide_types::random::Random;
use kvtide_wire::geometry::Plane;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tokens of a page.
pub const PAGE_TOKENS: u64 = 16;
/// Bytes of the planes' pages: whole sectors, pages that share sectors with their neighbours, and two planes of the same class.
pub const PAGE_BYTES: [u32; 4] = [4096, 6000, 4096, 1000];
/// Maximum blocks of a chain.
pub const DEPTH_MAX: usize = 20;
/// Sessions that load the daemon, and threads of each.
pub const SESSIONS: usize = 2;
pub const THREADS: u16 = 2;
/// Maximum number of live sequences of a thread, including parked ones.
pub const LIVE_MAX: usize = 6;
/// Blocks in tier 0: enough for the steps of a few threads at the same time, but not for all their sequences.
pub const TIER0_BLOCKS: u32 = 64;
/// Maximum time from the begin of a load to the kill.
pub const LOAD_MAX: Duration = Duration::from_millis(400);
/// New blocks in that time: low enough that a run of many rounds is read back in seconds, but a few are always in flight.
const BLOCKS_A_ROUND: u64 = 240;
/// Bytes of a block's slot on NVMe: its packed pages, in whole sectors.
const SLOT_BYTES: u64 = 16 << 10;
/// Host memory: less than live sequences and cached blocks need, so that blocks move to NVMe.
const HOST_BYTES: u64 = 12 << 20;
/// Bytes of a slab of each tier.
const SLAB_BYTES: u64 = 1 << 20;
/// NVMe capacity of the second phase: about the bytes written in one round.
const EVICTING_BYTES: u64 = 4 << 20;

const _: () = assert!((PAGE_BYTES[0] + PAGE_BYTES[1] + PAGE_BYTES[2] + PAGE_BYTES[3]) as u64 <= SLOT_BYTES);

/// Phases of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The NVMe tier has room for everything: no stored block may be missing.
    Keeping,
    /// The NVMe tier evicts: blocks may be missing, but found ones must be correct.
    Evicting,
}

impl Phase {
    /// Return its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Keeping => "keeping",
            Phase::Evicting => "evicting",
        }
    }
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of all random choices.
    pub seed: u64,
    /// Parent of the run's directory.
    pub dir: PathBuf,
    /// Codec of the NVMe tier.
    pub codec: String,
    /// The NVMe tier is encrypted.
    pub encrypted: bool,
    rounds: u32,
}

impl Plan {
    /// Create from the flags.
    pub fn new(args: &Args) -> Plan {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let seed = args.seed.unwrap_or_else(|| Random::new(clock() ^ u64::from(std::process::id())).next() >> 32);
        let Args { dir, codec, encrypted, rounds, .. } = args.clone();
        Plan { seed, dir, codec, encrypted, rounds }
    }

    /// Return the number of kills of a phase; a quarter of all, rounded down, belong to the evicting phase.
    pub fn rounds(&self, phase: Phase) -> u32 {
        match phase {
            Phase::Keeping => self.rounds - self.rounds / 4,
            Phase::Evicting => self.rounds / 4,
        }
    }

    /// Return the maximum number of new blocks at a time after the begin of a load.
    pub fn blocks_by(elapsed: Duration) -> u64 {
        BLOCKS_A_ROUND * elapsed.as_micros() as u64 / LOAD_MAX.as_micros() as u64
    }

    /// Return the bytes of the NVMe tier.
    fn nvme_bytes(&self, phase: Phase) -> u64 {
        // 50 % more than needed: eviction may begin before the tier is full, and slots wait for the record of their erasure.
        let all = u64::from(self.rounds(phase)) * BLOCKS_A_ROUND * SLOT_BYTES * 3 / 2;
        let bytes = match phase {
            Phase::Keeping => all.max(EVICTING_BYTES),
            Phase::Evicting => EVICTING_BYTES,
        };
        bytes.next_multiple_of(SLAB_BYTES)
    }

    /// Return the daemon's configuration.
    pub fn config(&self, phase: Phase, disk: &std::path::Path, key: &std::path::Path) -> String {
        let encryption = match self.encrypted {
            true => format!("[tiers.nvme.encryption]\nkey = \"file\"\npath = {key:?}\n"),
            false => String::new(),
        };
        format!(
            "[tiers.host]\ncapacity = {HOST_BYTES}\nslab = {SLAB_BYTES}\nprefault = false\n\
             [tiers.nvme]\nslab = {SLAB_BYTES}\ncodec = {:?}\n{encryption}\
             [[tiers.nvme.disks]]\ndir = {disk:?}\ncapacity = {}\nreserve_free = 0\n\
             [integrity_sample]\none_in = 1\n",
            self.codec,
            self.nvme_bytes(phase),
        )
    }

    /// Return the space; each run has a unique fingerprint.
    pub fn space(&self) -> SpaceSpec {
        let mut random = Random::new(self.seed);
        SpaceSpec::new(
            "crash-test",
            std::array::from_fn(|_| random.next() as u8),
            PAGE_TOKENS as u32,
            PAGE_BYTES.map(Plane::full).to_vec(),
        )
    }

    /// Return the frames of a tier 0 of [`TIER0_BLOCKS`] blocks, for the classes in the order of their first plane.
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
