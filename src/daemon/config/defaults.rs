//! Defaults and allowed ranges of the configuration.

use super::{Admission, Codec, Reserve};
use kvtide_tiering::api::Retention;
use kvtide_wire::layout;
use std::ops::RangeInclusive;

/// Socket path. Its directory can be mounted into containers.
pub const SOCKET: &str = "/run/kvtide/kvtide.sock";
/// Directory of the status dump.
pub const DIR: &str = "/run/kvtide";
/// Owner and group of the socket may connect; `[[domains]]` decides whether they may attach.
pub const SOCKET_MODE: &str = "0660";
/// Polling time before sleep: twice the target round trip of a fault (25 µs), so a decoding engine finds the core thread awake.
pub const SPIN_US: u64 = 50;
/// Drain timeout after SIGTERM: below the 10 s after which container runtimes kill.
pub const DRAIN_MS: u64 = 5_000;
/// Handshake timeout. A peer on the same machine sends its hello within microseconds.
pub const HANDSHAKE_MS: u64 = 1_000;

/// Flight recorder: disabled, because each costs two copies of a space's tables and pauses to copy them.
pub const RECORDER: u64 = 0;
/// Flight recorder: at most 1 GiB of input.
pub const RECORDER_RANGE: RangeInclusive<u64> = 0..=1 << 30;

/// HTTP address: loopback, because metrics and status contain names of models and tenants.
pub const HTTP_LISTEN: &str = "127.0.0.1:9417";
/// Log filter.
pub const LOG: &str = "info";

/// Maximum of the default host capacity, which is half of the available memory: engines keep the other half. 8 GiB are prefaulted
/// within seconds.
pub const HOST_CAPACITY_MAX: u64 = 8 << 30;
/// Minimum of the default host capacity, for machines with little memory.
pub const HOST_CAPACITY_MIN: u64 = 64 << 20;
/// Host slab: large enough that a busy space rarely requests one, small enough to prefault in tens of milliseconds.
pub const SLAB: u64 = 64 << 20;
/// Allocate the host tier before the daemon is ready: an allocation that fails later would fail an engine's request.
pub const PREFAULT: bool = true;
/// Eviction from host memory starts.
pub const HOST_HIGH_PERCENT: u8 = 95;
/// Eviction from host memory stops.
pub const HOST_LOW_PERCENT: u8 = 90;

/// Eviction policy: the one with the best hit rate in sampled ghost caches, because no policy is best for every workload.
pub const EVICTION: &str = "auto";
/// Maximum age of unused blocks: unlimited.
pub const TTL_S: u64 = 0;
/// Maximum age: up to a year.
pub const TTL_S_RANGE: RangeInclusive<u64> = 0..=366 * 24 * 3600;
/// Blocks of high-priority sequences are protected up to half of the cache. The other half still adapts to other sequences.
pub const HIGH_SHARE_PERCENT: u8 = 50;
/// Prefill rate of a model of 8B parameters on one GPU; derived at `Retention::DEFAULT`.
pub const RECOMPUTE_TOKENS_PER_S: u32 = Retention::DEFAULT.recompute_tokens_per_s;
/// Position at which attention of that model takes as long as its weights.
pub const ATTENTION_DOUBLES_AT: u32 = Retention::DEFAULT.attention_doubles_at;
/// Remaining tokens at which a sequence is nearly finished.
pub const ENDING_TOKENS: u32 = Retention::DEFAULT.ending_tokens;

/// NVMe slab: large enough to keep blocks of a space together, and to give a disk of a terabyte only a few thousand regions.
pub const NVME_SLAB: u64 = 256 << 20;
/// Minimum number of slabs of a disk with the default slab size, so that a small disk has room for several spaces.
pub const NVME_SLABS_MIN: u64 = 16;
/// Dropping blocks from NVMe starts.
pub const NVME_HIGH_PERCENT: u8 = 95;
/// Dropping blocks from NVMe stops.
pub const NVME_LOW_PERCENT: u8 = 90;
/// Requests in flight at each disk: NVMe devices reach their bandwidth with 64 KiB requests at this depth.
pub const NVME_DEPTH: u16 = 32;
/// Transfers of one space in flight over all disks. The core keeps a table of them.
pub const SPACE_IOS_MAX: u32 = 1 << 13;
/// The index of one space takes at most 1/`INDEX_PART` of the machine's memory, even if NVMe is full of small blocks.
pub const INDEX_PART: u64 = 32;
/// Maximum bytes of the index for each block (`kvtide bench blocks` prints them).
pub const INDEX_BYTES: u64 = 64;
/// Maximum blocks in the index of one space, on any machine: the range of ids.
pub const CONTENTS_MAX: u32 = (1 << 29) - 1;
/// Minimum limit of blocks in the index of one space, for machines with little memory.
pub const CONTENTS_MIN: u32 = 1 << 20;
/// The block tables of a space take at most 1/`TABLES_PART` of the machine's memory, whatever its engines request.
pub const TABLES_PART: u64 = 8;
/// Bytes of these tables for each block, and for each of its pages, rounded up.
pub const TABLE_BYTES: (u64, u64) = (128, 16);
/// Additional block ids of a space beyond the capacity of its tiers, for blocks that are being stored or looked up.
pub const SPARE_BLOCKS: u64 = 8192;
/// Bytes that a fast disk writes within 50 ms, the time for which its log delays records that no request waits for.
pub const NOTES_BYTES: u64 = 256 << 20;
/// Log requests of one space in flight over all disks. Each takes some hundred bytes of memory.
pub const SPACE_NOTES_MAX: u32 = 1 << 14;
/// Write-back in flight to each disk: a full queue of 1 MiB requests.
pub const NVME_WRITEBACK: u64 = 32 << 20;
/// Stall timeout of a disk. Healthy devices answer within milliseconds, devices that recover from an error within seconds.
pub const NVME_TIMEOUT_MS: u64 = 5_000;
/// Reserve of a disk's file system: as much as ext4 reserves for root.
pub const NVME_RESERVE_FREE: Reserve = Reserve::Percent(5);

/// Write every published block: only blocks on NVMe survive a restart.
pub const NVME_ADMISSION: Admission = Admission::All;
/// No compression: it costs no CPU time, and devices are a bottleneck less often than CPU cores.
pub const NVME_CODEC: Codec = Codec::None;
/// Codec and encryption threads of each disk: derived from the number of CPU cores.
pub const CODEC_THREADS: u16 = 0;
/// Errors within `ERRORS_WINDOW_S` that mean a broken device. Single errors are bad sectors.
pub const ERRORS_MAX: u32 = 16;
/// Errors count for one minute.
pub const ERRORS_WINDOW_S: u64 = 60;
/// Discard unused regions of raw devices: it lowers the write amplification in the device.
pub const DISCARD: bool = true;
/// Discard rate: a terabyte takes a quarter of an hour, and requests do not wait long behind a discard.
pub const DISCARD_PER_S: u64 = 1 << 30;
/// Time without requests after which a disk is idle: longer than the pauses between steps of an engine.
pub const DISCARD_IDLE_MS: u64 = 1_000;
/// Credential name of the master key.
pub const CREDENTIAL: &str = "kvtide-key";
/// Weight of a disk. Other disks can have a lower or a higher one.
pub const WEIGHT: u32 = 100;
/// Integrity sample: one page in this many. The checksums cost too little to be measured.
pub const SAMPLE_ONE_IN: u32 = 256;

/// First pages of a sequence, which attract attention from every query (StreamingLLM, arXiv 2309.17453). Agents wait for one.
pub const SINKS: u16 = 1;
/// Range of first pages. A sequence may be shorter.
pub const SINKS_RANGE: RangeInclusive<u16> = 1..=1024;
/// Last full pages, which every query attends to. Agents wait for two.
pub const RECENT: u16 = 2;
/// Range of last pages. A sequence may be shorter.
pub const RECENT_RANGE: RangeInclusive<u16> = 2..=1024;
/// Bandwidth for predicted loads. Faults and scans have priority anyway; a tenth stays free for unforeseen requests.
pub const ATTENTION_BANDWIDTH_PERCENT: u8 = 90;

/// Write-back starts.
pub const CLEAN_LOW_PERCENT: u8 = 10;
/// Write-back stops.
pub const CLEAN_HIGH_PERCENT: u8 = 20;
/// Tier-0 frames for streaming: enough copies in flight to hide their latency, few enough to leave tier 0 resident.
pub const SCAN_FRAMES: u32 = 8;
/// Host frames for streaming from NVMe: as many reads in flight as the queue of a disk takes.
pub const HOST_SCAN_FRAMES: u32 = NVME_DEPTH as u32;

/// Spaces.
pub const SPACES_MAX: u32 = 16;
/// Sessions of the daemon.
pub const SESSIONS_MAX: u32 = 256;
/// Sessions of a space.
pub const SPACE_SESSIONS_MAX: u16 = 64;
/// Connections in the handshake.
pub const HANDSHAKES_MAX: u32 = 64;
/// Blocks of a space in memory: as many as fit.
pub const BLOCKS_MAX: u32 = 0;
/// Sequences of a session.
pub const SEQS_MAX: u32 = 1024;
/// Blocks of a sequence.
pub const SEQ_BLOCKS_MAX: u32 = 1 << 14;
/// Lanes of a session.
pub const LANES_MAX: u16 = 16;
/// Channels of a session.
pub const CHANNELS_MAX: u16 = 16;
/// Tier-0 frames of a session: 64 GiB of 64 KiB pages. The daemon uses some tens of bytes for each.
pub const TIER0_FRAMES_MAX: u32 = 1 << 20;
/// Requests in flight of a channel.
pub const DEPTH_MAX: u16 = 256;
/// Jobs in flight to a session.
pub const JOBS_MAX: u32 = 1024;
/// Deadline of requests.
pub const REQUEST_TIMEOUT_MS: u64 = 30_000;
/// Longest lease. An engine loads leased blocks within seconds, or within minutes if it queues requests.
pub const LEASE_MAX_MS: u64 = 600_000;
/// Percent of the cache for the leases of one session, so that it cannot block the stores of others.
pub const LEASE_PERCENT: u8 = 50;

/// Longest path of a Unix socket: `sun_path` has 108 bytes including the final NUL.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Host slab: at least a memory page, at most 1 GiB (one memfd segment).
pub const SLAB_RANGE: RangeInclusive<u64> = 4 << 10..=1 << 30;
/// Host capacity: up to 64 TiB.
pub const HOST_RANGE: RangeInclusive<u64> = 4 << 10..=64 << 40;
/// NVMe slab: at least one sector, and below 2 GiB, the maximum of one request.
pub const NVME_SLAB_RANGE: RangeInclusive<u64> = 4 << 10..=1 << 30;
/// Alignment of regions and slots: the largest sector size.
pub const NVME_ALIGN: u64 = 4 << 10;
/// One disk: up to 64 TiB.
pub const DISK_RANGE: RangeInclusive<u64> = 4 << 10..=64 << 40;
/// Maximum number of disks. Each has its own threads.
pub const DISKS_MAX: usize = 64;
/// Requests in flight at each disk.
pub const NVME_DEPTH_RANGE: RangeInclusive<u16> = 1..=1024;
/// Write-back in flight to each disk: at least one page.
pub const NVME_WRITEBACK_RANGE: RangeInclusive<u64> = 64 << 10..=1 << 30;
/// Stall timeout of a disk: up to ten minutes.
pub const NVME_TIMEOUT_MS_RANGE: RangeInclusive<u64> = 1..=600_000;
/// Threads for codecs and encryption.
pub const CODEC_THREADS_RANGE: RangeInclusive<u16> = 0..=256;
/// Errors that take a disk out of service.
pub const ERRORS_MAX_RANGE: RangeInclusive<u32> = 1..=1 << 16;
/// How long an error counts: up to a day.
pub const ERRORS_WINDOW_S_RANGE: RangeInclusive<u64> = 1..=86_400;
/// Discard rate: from one region of the smallest size a second to more than any device reaches.
pub const DISCARD_PER_S_RANGE: RangeInclusive<u64> = 1 << 20..=1 << 40;
/// Idle time before a discard: up to an hour.
pub const DISCARD_IDLE_MS_RANGE: RangeInclusive<u64> = 10..=3_600_000;
/// Write budget and endurance in bytes; 0: not set.
pub const WEAR_RANGE: RangeInclusive<u64> = 0..=1 << 60;
/// Weights.
pub const WEIGHT_RANGE: RangeInclusive<u32> = 1..=10_000;
/// Longest name of a credential: the longest file name.
pub const CREDENTIAL_BYTES_MAX: usize = 255;
/// Token files of one domain: an old and a new one during a rotation, for each machine of the tenant.
pub const TOKENS_MAX: usize = 64;
/// Percentages.
pub const PERCENT_RANGE: RangeInclusive<u8> = 0..=100;
/// Polling time: up to 100 ms; more would be a busy loop.
pub const SPIN_US_RANGE: RangeInclusive<u64> = 0..=100_000;
/// Drain timeout: up to ten minutes.
pub const DRAIN_MS_RANGE: RangeInclusive<u64> = 0..=600_000;
/// Handshake timeout.
pub const HANDSHAKE_MS_RANGE: RangeInclusive<u64> = 1..=60_000;
/// Frames for streaming: at least one to copy into and one to read.
pub const SCAN_FRAMES_RANGE: RangeInclusive<u32> = 2..=1 << 16;
/// Spaces.
pub const SPACES_RANGE: RangeInclusive<u32> = 1..=1024;
/// Sessions of the daemon.
pub const SESSIONS_RANGE: RangeInclusive<u32> = 1..=1 << 16;
/// Sessions of a space.
pub const SPACE_SESSIONS_RANGE: RangeInclusive<u16> = 1..=4096;
/// Connections in the handshake.
pub const HANDSHAKES_RANGE: RangeInclusive<u32> = 1..=1024;
/// Blocks of a space in memory; 0: as many as fit.
pub const BLOCKS_RANGE: RangeInclusive<u32> = 0..=1 << 28;
/// Sequences of a session.
pub const SEQS_RANGE: RangeInclusive<u32> = 1..=1 << 20;
/// Blocks of a sequence.
pub const SEQ_BLOCKS_RANGE: RangeInclusive<u32> = 1..=1 << 24;
/// Lanes.
pub const LANES_RANGE: RangeInclusive<u16> = 1..=layout::LANES_MAX;
/// Channels.
pub const CHANNELS_RANGE: RangeInclusive<u16> = 1..=layout::CHANNELS_MAX;
/// Tier-0 frames.
pub const TIER0_FRAMES_RANGE: RangeInclusive<u32> = 1..=1 << 28;
/// Depth of a channel.
pub const DEPTH_RANGE: RangeInclusive<u16> = 2..=layout::DEPTH_MAX;
/// Jobs in flight.
pub const JOBS_RANGE: RangeInclusive<u32> = 8..=layout::JOBS_MAX;
/// Request deadline: up to an hour.
pub const REQUEST_TIMEOUT_MS_RANGE: RangeInclusive<u64> = 1..=3_600_000;
/// Longest lease: from a second to a day.
pub const LEASE_MAX_MS_RANGE: RangeInclusive<u64> = 1_000..=86_400_000;
/// Lease share: at least 1 percent.
pub const LEASE_PERCENT_RANGE: RangeInclusive<u8> = 1..=100;
