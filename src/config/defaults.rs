//! Every default and every permitted range of the configuration.

use super::{Admission, Codec, Reserve};
use kvtide_tiering::api::Retention;
use kvtide_wire::layout;
use std::ops::RangeInclusive;

/// Socket: in the directory that is mounted into containers.
pub const SOCKET: &str = "/run/kvtide/kvtide.sock";
/// Directory of the status dump.
pub const DIR: &str = "/run/kvtide";
/// Owner and group may attach, as far as `[[domains]]` lets them.
pub const SOCKET_MODE: &str = "0660";
/// Spin before sleeping: twice a fault's target round trip of 25 µs, so that a decoding engine finds the core awake.
pub const SPIN_US: u64 = 50;
/// Grace of a SIGTERM; below the 10 s after which container runtimes kill.
pub const DRAIN_MS: u64 = 5_000;
/// A peer on the same machine says hello in microseconds; one that takes a second never will.
pub const HANDSHAKE_MS: u64 = 1_000;

/// Flight recorder: off, because each space's costs two copies of its core's tables and a pause to copy them now and then.
pub const RECORDER: u64 = 0;
/// Flight recorder: up to 1 GiB of input.
pub const RECORDER_RANGE: RangeInclusive<u64> = 0..=1 << 30;

/// Metrics and health: on loopback, because they name models and tenants.
pub const HTTP_LISTEN: &str = "127.0.0.1:9417";
/// What is logged.
pub const LOG: &str = "info";

/// Host tier: half of what the machine can give now, so that engines keep the other half, and no more than this, which is
/// prefaulted in seconds.
pub const HOST_CAPACITY_MAX: u64 = 8 << 30;
/// Host tier of a machine that can give next to nothing.
pub const HOST_CAPACITY_MIN: u64 = 64 << 20;
/// Slab: large enough that a busy space asks rarely, small enough to prefault in tens of milliseconds.
pub const SLAB: u64 = 64 << 20;
/// The host tier is taken before the daemon is ready: an allocation that fails later fails an engine.
pub const PREFAULT: bool = true;
/// Blocks start to leave host memory.
pub const HOST_HIGH_PERCENT: u8 = 95;
/// They stop.
pub const HOST_LOW_PERCENT: u8 = 90;

/// Eviction: what sampled ghost caches say hits most, since no one policy does everywhere.
pub const EVICTION: &str = "auto";
/// Published content stays as long as there is room.
pub const TTL_S: u64 = 0;
/// At most a year.
pub const TTL_S_RANGE: RangeInclusive<u64> = 0..=366 * 24 * 3600;
/// What sequences of high priority keep before others is half of the cache: the rest still learns what others want.
pub const HIGH_SHARE_PERCENT: u8 = 50;
/// Prefill of a model of 8B parameters on one GPU: the arithmetic is at `Retention::DEFAULT`.
pub const RECOMPUTE_TOKENS_PER_S: u32 = Retention::DEFAULT.recompute_tokens_per_s;
/// Where such a model's attention takes as long as its weights.
pub const ATTENTION_DOUBLES_AT: u32 = Retention::DEFAULT.attention_doubles_at;
/// Nearly finished.
pub const ENDING_TOKENS: u32 = Retention::DEFAULT.ending_tokens;

/// NVMe slab: blocks of one space lie together, and a disk of a terabyte has few thousand regions.
pub const NVME_SLAB: u64 = 256 << 20;
/// A default slab leaves a small disk room for several spaces.
pub const NVME_SLABS_MIN: u64 = 16;
/// Dropping starts.
pub const NVME_HIGH_PERCENT: u8 = 95;
/// Dropping stops.
pub const NVME_LOW_PERCENT: u8 = 90;
/// Requests at one disk: where NVMe devices reach their bandwidth with 64 KiB requests.
pub const NVME_DEPTH: u16 = 32;
/// Transfers of one space in flight, over all disks: the core keeps a table of them.
pub const SPACE_IOS_MAX: u32 = 1 << 13;
/// Share of the machine's memory that the index of one space may take, one part in so many, when NVMe is full of small blocks.
pub const INDEX_PART: u64 = 32;
/// Bytes that the index takes for a block, at most (`kvtide bench blocks` prints them).
pub const INDEX_BYTES: u64 = 64;
/// Contents that one space can find, on any machine: what ids count.
pub const CONTENTS_MAX: u32 = (1 << 29) - 1;
/// Contents that one space can find, on the smallest machine.
pub const CONTENTS_MIN: u32 = 1 << 20;
/// The block tables of a space take at most 1/`TABLES_PART` of the machine's memory, whatever its engines request.
pub const TABLES_PART: u64 = 8;
/// Bytes of these tables for a block, and for each of its pages, rounded up.
pub const TABLE_BYTES: (u64, u64) = (128, 16);
/// Block ids of a space beyond those that its tiers can hold: for blocks that are being stored or looked up.
pub const SPARE_BLOCKS: u64 = 8192;
/// Bytes that a fast disk takes in the 50 ms for which its log holds back records that nobody waits for.
pub const NOTES_BYTES: u64 = 256 << 20;
/// Notes of one space in flight, over all disks: each keeps some hundred bytes of memory.
pub const SPACE_NOTES_MAX: u32 = 1 << 14;
/// Cleaning in flight to one disk: a queue of full requests of 1 MiB.
pub const NVME_WRITEBACK: u64 = 32 << 20;
/// Healthy devices answer in milliseconds, ones that recover from an error in seconds.
pub const NVME_TIMEOUT_MS: u64 = 5_000;
/// What stays free of a disk's file system: what ext4 keeps for root.
pub const NVME_RESERVE_FREE: Reserve = Reserve::Percent(5);

/// Every published block is written down: what is not on NVMe does not survive a restart.
pub const NVME_ADMISSION: Admission = Admission::All;
/// Pages as they are: it costs nothing, and devices are rarely the bottleneck that a core is.
pub const NVME_CODEC: Codec = Codec::None;
/// Threads for codecs and encryption of a disk: as many as suit the machine.
pub const CODEC_THREADS: u16 = 0;
/// A device that fails so often within a minute is broken; single errors are sectors.
pub const ERRORS_MAX: u32 = 16;
/// Errors count for a minute.
pub const ERRORS_WINDOW_S: u64 = 60;
/// Unused regions of raw devices are discarded: the device writes less by itself then.
pub const DISCARD: bool = true;
/// A device of a terabyte is discarded in a quarter of an hour, and no request waits long behind one.
pub const DISCARD_PER_S: u64 = 1 << 30;
/// A disk without requests for so long is idle: longer than the pauses between an engine's steps.
pub const DISCARD_IDLE_MS: u64 = 1_000;
/// The master key's credential.
pub const CREDENTIAL: &str = "kvtide-key";
/// Weight of a disk, so that others can be slower or faster than one that says nothing.
pub const WEIGHT: u32 = 100;
/// The canary: its cost is a checksum of one page in so many, far below what can be measured.
pub const CANARY_ONE_IN: u32 = 256;

/// First pages of a sequence that attention returns to whatever it asks (StreamingLLM, arXiv 2309.17453); agents wait for one.
pub const SINKS: u16 = 1;
/// Bounds: a sequence may be shorter.
pub const SINKS_RANGE: RangeInclusive<u16> = 1..=1024;
/// Last full pages that every query attends to; agents wait for two.
pub const RECENT: u16 = 2;
/// Bounds: a sequence may be shorter.
pub const RECENT_RANGE: RangeInclusive<u16> = 2..=1024;
/// What faults and scans need comes first anyway; a tenth is left for what is not foreseen.
pub const ATTENTION_BANDWIDTH_PERCENT: u8 = 90;

/// Cleaning starts.
pub const CLEAN_LOW_PERCENT: u8 = 10;
/// Cleaning stops.
pub const CLEAN_HIGH_PERCENT: u8 = 20;
/// Frames that a scan streams through: enough copies in flight to hide a copy's latency, few enough to leave tier 0 resident.
pub const SCAN_FRAMES: u32 = 8;
/// Host frames that a scan streams through from NVMe: as many reads in flight as the disk's queue takes.
pub const HOST_SCAN_FRAMES: u32 = NVME_DEPTH as u32;

/// Spaces.
pub const SPACES_MAX: u32 = 16;
/// Sessions of the daemon.
pub const SESSIONS_MAX: u32 = 256;
/// Sessions of a space.
pub const SPACE_SESSIONS_MAX: u16 = 64;
/// Peers in handshake.
pub const HANDSHAKES_MAX: u32 = 64;
/// Blocks of a space in memory: as many as its tiers hold.
pub const BLOCKS_MAX: u32 = 0;
/// Sequences of a session.
pub const SEQS_MAX: u32 = 1024;
/// Blocks of a sequence.
pub const SEQ_BLOCKS_MAX: u32 = 1 << 14;
/// Lanes of a session.
pub const LANES_MAX: u16 = 16;
/// Channels of a session.
pub const CHANNELS_MAX: u16 = 16;
/// Tier-0 frames of a session: 64 GiB of 64 KiB pages; the daemon keeps some tens of bytes for each.
pub const TIER0_FRAMES_MAX: u32 = 1 << 20;
/// Requests in flight of a channel.
pub const DEPTH_MAX: u16 = 256;
/// Jobs in flight to a session.
pub const JOBS_MAX: u32 = 1024;
/// Deadline of requests.
pub const REQUEST_TIMEOUT_MS: u64 = 30_000;
/// Longest lease: an engine loads leased blocks within seconds, or within minutes if it queues requests.
pub const LEASE_MAX_MS: u64 = 600_000;
/// Share of the cache for one session's leases, in percent: one session cannot keep the others' stores without room.
pub const LEASE_PERCENT: u8 = 50;

/// Longest path of a Unix socket: `sun_path` has 108 bytes, one of them the end.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
/// A slab holds at least a memory page and is a memfd segment of at most 1 GiB.
pub const SLAB_RANGE: RangeInclusive<u64> = 4 << 10..=1 << 30;
/// Host capacity: up to 64 TiB.
pub const HOST_RANGE: RangeInclusive<u64> = 4 << 10..=64 << 40;
/// A slab on NVMe holds at least one sector and stays below 2 GiB, the most that one request moves.
pub const NVME_SLAB_RANGE: RangeInclusive<u64> = 4 << 10..=1 << 30;
/// Bytes of a region and of a slot are multiples of the largest sector.
pub const NVME_ALIGN: u64 = 4 << 10;
/// One disk: up to 64 TiB.
pub const DISK_RANGE: RangeInclusive<u64> = 4 << 10..=64 << 40;
/// Disks: each has a thread.
pub const DISKS_MAX: usize = 64;
/// Requests at one disk.
pub const NVME_DEPTH_RANGE: RangeInclusive<u16> = 1..=1024;
/// Cleaning in flight to one disk: one page at least.
pub const NVME_WRITEBACK_RANGE: RangeInclusive<u64> = 64 << 10..=1 << 30;
/// Deadline of a request to a disk: up to ten minutes.
pub const NVME_TIMEOUT_MS_RANGE: RangeInclusive<u64> = 1..=600_000;
/// Threads for codecs and encryption.
pub const CODEC_THREADS_RANGE: RangeInclusive<u16> = 0..=256;
/// Errors that take a disk out of service.
pub const ERRORS_MAX_RANGE: RangeInclusive<u32> = 1..=1 << 16;
/// How long an error counts: up to a day.
pub const ERRORS_WINDOW_S_RANGE: RangeInclusive<u64> = 1..=86_400;
/// Discarding: one region of the smallest size a second, up to what no device reaches.
pub const DISCARD_PER_S_RANGE: RangeInclusive<u64> = 1 << 20..=1 << 40;
/// Idleness before discarding: up to an hour.
pub const DISCARD_IDLE_MS_RANGE: RangeInclusive<u64> = 10..=3_600_000;
/// Bytes a day and bytes in a life; 0 is none.
pub const WEAR_RANGE: RangeInclusive<u64> = 0..=1 << 60;
/// Weights.
pub const WEIGHT_RANGE: RangeInclusive<u32> = 1..=10_000;
/// Longest name of a credential: a file's name.
pub const CREDENTIAL_BYTES_MAX: usize = 255;
/// Token files of one domain: an old one and a new one while they change, for each of its tenants' machines.
pub const TOKENS_MAX: usize = 64;
/// Percentages.
pub const PERCENT_RANGE: RangeInclusive<u8> = 0..=100;
/// Spinning longer than 100 ms is a busy loop by another name.
pub const SPIN_US_RANGE: RangeInclusive<u64> = 0..=100_000;
/// Grace of a drain: up to ten minutes.
pub const DRAIN_MS_RANGE: RangeInclusive<u64> = 0..=600_000;
/// Handshake deadline.
pub const HANDSHAKE_MS_RANGE: RangeInclusive<u64> = 1..=60_000;
/// Frames of a scan: one is copied while one is read.
pub const SCAN_FRAMES_RANGE: RangeInclusive<u32> = 2..=1 << 16;
/// Spaces.
pub const SPACES_RANGE: RangeInclusive<u32> = 1..=1024;
/// Sessions of the daemon.
pub const SESSIONS_RANGE: RangeInclusive<u32> = 1..=1 << 16;
/// Sessions of a space.
pub const SPACE_SESSIONS_RANGE: RangeInclusive<u16> = 1..=4096;
/// Peers in handshake.
pub const HANDSHAKES_RANGE: RangeInclusive<u32> = 1..=1024;
/// Blocks of a space in memory; 0 is as many as its tiers hold.
pub const BLOCKS_RANGE: RangeInclusive<u32> = 0..=1 << 28;
/// Sequences of a session.
pub const SEQS_RANGE: RangeInclusive<u32> = 1..=1 << 20;
/// Blocks of a sequence.
pub const SEQ_BLOCKS_RANGE: RangeInclusive<u32> = 1..=1 << 24;
/// Lanes.
pub const LANES_RANGE: RangeInclusive<u16> = 1..=layout::LANES_MAX;
/// Channels: design, 1 to 16.
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
/// A share that holds something.
pub const LEASE_PERCENT_RANGE: RangeInclusive<u8> = 1..=100;
