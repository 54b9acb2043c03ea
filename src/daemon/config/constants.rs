//! Constants that are not keys, and those that several rows of the table use.

use kvtide_types::Reserve;

/// One kibibyte.
pub const KIB: u64 = 1 << 10;
/// One mebibyte.
pub const MIB: u64 = 1 << 20;
/// One gibibyte.
pub const GIB: u64 = 1 << 30;
/// One tebibyte.
pub const TIB: u64 = 1 << 40;
/// One pebibyte.
pub const PIB: u64 = 1 << 50;

/// Directory of the daemon.
pub const DIR: &str = "/run/kvtide";
/// Name of the socket in that directory.
pub const SOCKET_NAME: &str = "kvtide.sock";
/// HTTP address: loopback, because metrics and status contain names of models and tenants.
pub const HTTP_LISTEN: &str = "127.0.0.1:9417";
/// Maximum of the default host capacity, which is half of the available memory: engines keep the other half. 8 GiB are prefaulted
/// within seconds.
pub const HOST_CAPACITY_MAX: u64 = 8 << 30;
/// Minimum of the default host capacity, for machines with little memory.
pub const HOST_CAPACITY_MIN: u64 = 64 << 20;
/// Host slab: large enough that a busy space rarely requests one, small enough to prefault in tens of milliseconds.
pub const SLAB: u64 = 64 << 20;
/// NVMe slab: large enough to keep blocks of a space together, and to give a disk of a terabyte only a few thousand regions.
pub const NVME_SLAB: u64 = 256 << 20;
/// Minimum number of slabs of a disk with the default slab size, so that a small disk has room for several spaces.
pub const NVME_SLABS_MIN: u64 = 16;
/// Alignment of regions and slots: the largest sector size.
pub const NVME_ALIGN: u64 = 4 << 10;
/// Requests in flight at each disk: NVMe devices reach their bandwidth with 64 KiB requests at this depth.
pub const NVME_DEPTH: u16 = 32;
/// Maximum capacity of a disk.
pub const DISK_BYTES_MAX: u64 = 64 * TIB;
/// Space that stays free beside a store.
pub const RESERVE_FREE: Reserve = Reserve::Percent(5);
/// Blocks of a sequence.
pub const SEQ_BLOCKS_MAX: u32 = 1 << 14;
/// Sessions of a space.
pub const SPACE_SESSIONS_MAX: u16 = 64;
/// Maximum number of disks. Each has its own threads.
pub const DISKS_MAX: usize = 64;
/// Longest path of the attach socket: `sun_path` has 108 bytes including the final NUL, and the HTTP socket's path is five longer
/// (`http::socket_beside`).
pub const SOCKET_PATH_BYTES_MAX: usize = 102;
/// Longest name of a credential: the longest file name.
pub const CREDENTIAL_BYTES_MAX: usize = 255;
/// Token files of one domain: an old and a new one during a rotation, for each machine of the tenant.
pub const TOKENS_MAX: usize = 64;

/// Transfers of one space in flight over all disks. The core keeps a table of them.
pub const SPACE_IOS_MAX: u32 = 1 << 13;
/// The index of one space takes at most 1/`INDEX_PART` of the machine's memory, even if NVMe is full of small blocks.
pub const INDEX_PART: u64 = 32;
/// Maximum bytes of the index for each block (`kvtide bench blocks` prints them).
pub const INDEX_BYTES: u64 = 64;
/// Maximum blocks in the index of one space, on any machine: the range of ids.
pub const ENTRIES_MAX: u32 = (1 << 29) - 1;
/// Minimum limit of blocks in the index of one space, for machines with little memory.
pub const ENTRIES_MIN: u32 = 1 << 20;
/// The block tables of a space take at most 1/`TABLES_PART` of the machine's memory, whatever its engines request.
pub const TABLES_PART: u64 = 8;
/// Bytes of these tables for each block, and for each of its pages, rounded up.
pub const TABLE_BYTES: (u64, u64) = (128, 16);
/// Additional block ids of a space beyond the capacity of its tiers, for blocks that are being stored or looked up.
pub const SPARE_BLOCKS: u64 = 8192;
/// Bytes that a fast disk writes within 50 ms, the time for which its log delays records that no request waits for.
pub const LOG_REQUESTS_BYTES: u64 = 256 << 20;
/// Log requests of one space in flight over all disks. Each takes some hundred bytes of memory.
pub const SPACE_LOG_REQUESTS_MAX: u32 = 1 << 14;
/// Relays of one shard at the same time: one that copies, and its successor or `kvtide events`.
pub const RELAYS_A_SHARD: u16 = 2;
/// Maximum session entries of a space, the core's limit: those of engines, and those of each shard's relays.
pub const SESSION_ENTRIES_MAX: u16 = 4096;

/// Return the default slab of the NVMe tier for the capacity of the smallest disk.
#[must_use]
pub fn default_nvme_slab(smallest: u64) -> u64 {
    let slab = (smallest / NVME_SLABS_MIN).clamp(NVME_ALIGN, NVME_SLAB);
    slab - slab % NVME_ALIGN
}
