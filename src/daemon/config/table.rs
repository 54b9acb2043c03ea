//! The table of all keys: type, default, range, documentation, and when a change takes effect. Its order is that of the reference.
//!
//! To add a key, add its row here and write the reference again: `KVTIDE_BLESS=1 cargo test -p kvtide-daemon reference`. A default that
//! depends on other keys, and a rule about two keys, belong in `resolve.rs`.

use super::constants::{self, GIB, KIB, MIB, PIB, TIB};
use super::kinds::{
    Address, Bytes, Collector, Extent, Kind, LogFilter, Micros, Millis, Mode, OptionalPath, OrNone, Seconds,
};
use super::origin::{Given, Origins, allowed};
use super::section::{Effect, Row, Section, Setting, Shown, Table, join, key_name, key_range, key_shown, section};
use super::{Admission, Codec, ConfigError, FeatureUse, IoEngine, KeyKind};
use kvtide_tiering::api::Retention;
use kvtide_types::{ByteSize, Capacity, Reserve};
use kvtide_wire::layout;
use std::path::PathBuf;

section! {
    /// Validated configuration of the daemon.
    Config, RawConfig {}
    tables {
        daemon: Daemon;
        http: Http;
        tracing: Tracing;
        tiers: Tiers;
        /// End-to-end verification of a sample of pages, from the engine that stores a page to the engine that loads it.
        sample ("integrity_sample"): IntegritySample;
        edges: Edges;
        /// Sequences under the contract `approx` read only the pages that attention needs most. These keys set which pages stay in
        /// tier 0 and which are loaded ahead of a step.
        attention: Attention;
        eviction: Eviction;
        /// An engine that exceeds a limit gets an error.
        limits: Limits;
        /// Trust domains: which processes may attach, and their quotas. Spaces, memory and blocks are never shared between domains.
        /// Without any domain, only the user that runs the daemon may attach. A process that presents a token belongs to the domain
        /// of the token; otherwise its uid selects the domain. Processes in user namespaces without a mapping for their uid all appear
        /// as uid 65534: they need tokens. Give each domain uids, tokens, or both. The default of a quota is the limit of the daemon.
        domains: Vec<Domain>;
    }
}

section! {
    /// `[daemon]`: socket, directory, log and timeouts.
    Daemon, RawDaemon {
        /// Unix socket that engines attach to. Mount its directory into engine containers. Default: kvtide.sock in `dir`.
        socket: PathBuf = "/run/kvtide/kvtide.sock".into(), effect Restart;
        /// Permission bits of the socket. A process that can connect also needs a trust domain (`[[domains]]`) to attach.
        socket_mode: Mode = "0660".into(), effect Restart;
        /// Directory of the status dump (status.json, written on SIGUSR1 and at shutdown) and of recordings.
        dir: PathBuf = constants::DIR.into(), effect Restart;
        /// Log filter for stderr: a level (off, error, warn, info, debug, trace), or directives of tracing-subscriber's `EnvFilter`
        /// such as "warn,kvtide_daemon=debug". The environment variable `RUST_LOG` overrides it.
        log: LogFilter = "info".into(), effect Now;
        /// Microseconds that a space's core thread polls after its last work before it sleeps. It polls for less time when other
        /// threads need its CPU core. A higher value lowers latency and uses more CPU time.
        // Twice the target round trip of a fault (25 µs), so a decoding engine finds the core thread awake. More than 100 ms would be
        // a busy loop.
        spin ("spin_us"): Micros = 50, range 0..=100_000, effect NewSpaces;
        /// Milliseconds that requests in flight get to finish after SIGTERM.
        // Below the 10 s after which container runtimes kill.
        drain ("drain_ms"): Millis = 5_000, range 0..=600_000, effect Now;
        /// Handshake timeout in milliseconds: how long a new connection may take to send its hello message.
        // A peer on the same machine sends its hello within microseconds.
        handshake ("handshake_ms"): Millis = 1_000, range 1..=60_000, effect Now;
        /// Bytes of input that each space's flight recorder keeps, for a replay after an incident. SIGUSR2 or an internal error writes
        /// them to space-N.kvtrec in `dir`. A recorder costs two copies of the space's tables and a short pause now and then to copy
        /// them. 0 disables it.
        recorder_bytes ("recorder"): Bytes = ByteSize(0), range 0..=GIB, effect NewSpaces;
    }
}

section! {
    /// `[http]`: address of the web page, metrics and health.
    Http, RawHttp {
        /// Address of the web page (/), metrics (/metrics), health (/healthz, /readyz) and status (/v1/status). The default is loopback,
        /// because the pages contain the names of models and tenants. Port 0 picks a free port. "" disables HTTP.
        listen: Address = constants::HTTP_LISTEN.into(), effect Restart;
        /// File with the operator's token: 32 to 512 bytes, mode 0640 or stricter. Who sends it (Authorization: Bearer
        /// TOKEN) may search hashes, pin and evict blocks over `listen`. With several domains, and from other machines, /v1 answers
        /// only with it. The tool kvtide on this machine needs no token: it uses the daemon's socket. "": no actions over `listen`.
        token_file: OptionalPath = PathBuf::new(), example "\"/etc/kvtide/operator.token\"", effect Now;
    }
}

section! {
    /// `[tracing]`: traces of requests, for an OpenTelemetry collector.
    Tracing, RawTracing {
        /// Base URL of a collector that takes OTLP over HTTP; the daemon posts spans to URL/v1/traces. The daemon has no TLS: run the
        /// collector on this machine and let it forward. A request is traced if its engine passes a sampled trace context (W3C). ""
        /// disables tracing.
        endpoint: Collector = String::new(), example "\"http://127.0.0.1:4318\"", effect Restart;
    }
}

section! {
    /// `[tiers]`.
    Tiers, RawTiers {}
    tables {
        host: HostTier;
        /// The NVMe tier exists if at least one disk is configured (`[[tiers.nvme.disks]]`, below).
        nvme: NvmeTier;
    }
}

section! {
    /// `[tiers.host]`.
    #[derive(Copy)]
    HostTier, RawHost {
        /// Host memory for all spaces together: a size, or a percentage of the machine's memory or of the cgroup's limit. It is charged
        /// to the daemon's cgroup. Default: half of the memory that the machine and the cgroup have available at start, at least 64MiB,
        /// at most 8GiB.
        capacity_bytes ("capacity"): Extent = Capacity::Bytes(constants::HOST_CAPACITY_MAX), range 4 * KIB..=64 * TIB, example "\"8GiB\"",
            effect Restart;
        /// Unit in which spaces get host memory. Default: 64MiB, or the capacity if that is smaller. If too little memory is left for a
        /// whole slab for each page size of a space, the slabs are smaller, in proportion to the bytes of each page size in a block.
        // At most 1 GiB: a slab is one memfd segment.
        slab_bytes ("slab"): Bytes = ByteSize(constants::SLAB), range 4 * KIB..=GIB, effect Restart;
        /// true: begin to allocate the whole tier at start; engines are served meanwhile. false: allocate each slab when a space needs
        /// it; the machine may not have the memory by then.
        prefault: bool = true, effect Restart;
        /// Percent in use above which published blocks that no sequence uses are evicted from host memory, in the order of
        /// eviction.policy. They move to NVMe; without an NVMe tier they are dropped.
        high_percent: u8 = 95, range 0..=100, effect Now;
        /// Percent in use at which this eviction stops.
        low_percent: u8 = 90, range 0..=100, effect Now;
    }
}

section! {
    /// `[tiers.nvme]`.
    NvmeTier, RawNvme {
        /// Unit in which spaces get disk space: a multiple of 4096, at least as large as a block of the space. Default: 256MiB, or a
        /// sixteenth of the smallest disk if that is smaller.
        // Below 2 GiB, the maximum of one request.
        slab_bytes ("slab"): Bytes = ByteSize(constants::NVME_SLAB), range 4 * KIB..=GIB, effect Restart;
        /// Percent in use above which published blocks that no sequence uses are dropped from NVMe, in the order of eviction.policy.
        high_percent: u8 = 95, range 0..=100, effect Now;
        /// Percent in use at which this stops.
        low_percent: u8 = 90, range 0..=100, effect Now;
        /// Which published blocks are written to NVMe:
        ///   "all"           every block, soon after it is published, so that it survives a restart
        ///   "second-touch"  blocks that were requested again, and blocks that an engine publishes as "stored" or "durable"
        ///   "budget"        as many as bytes_per_day of the disks allows, those with the most expected hits first
        /// If bytes_per_day is too small for "all", previously used blocks are written first, and /healthz reports "degraded".
        // "all": only blocks on NVMe survive a restart.
        admission: Admission = Admission::All, effect Now;
        /// Compression of pages in new slabs: "none"; "lz4" (saves nothing on raw bf16); "planes-zstd" (the bytes of each value split
        /// into planes, then zstd at level 1). Compression saves bytes written and read, not capacity. It saves whole sectors of 4096
        /// bytes, so pages smaller than two sectors gain nothing.
        // "none": it costs no CPU time, and devices are a bottleneck less often than CPU cores.
        codec: Codec = Codec::None, effect Restart;
        /// Discard unused regions of raw devices. Disks in files never discard, because holes in a file slow down its reads.
        // It lowers the write amplification in the device.
        discards ("discard"): bool = true, effect Restart;
        /// I/O engine. "auto": io_uring if the system allows it, else threads. "io_uring" and "threads" are strict: the daemon does not
        /// start without io_uring if it is required. The engine in use is logged and exported.
        io: IoEngine = IoEngine::Auto, effect Restart;
        /// Bypass the page cache (O_DIRECT). "auto": where it works. "required": the daemon does not start without it. "off": never.
        /// The mode in use is logged and exported.
        direct: FeatureUse = FeatureUse::Auto, effect Restart;
        /// Register host memory with io_uring (needs LimitMEMLOCK). The values are those of `direct`.
        registered: FeatureUse = FeatureUse::Auto, effect Restart;
        /// Maximum number of requests in flight at each disk.
        // Devices reach their bandwidth with 64 KiB requests at this depth.
        depth: u16 = constants::NVME_DEPTH, range 1..=1024, effect Restart;
        /// Maximum bytes of write-back in flight to each disk. The daemon lowers the limit while reads suffer from it.
        // A full queue of 1 MiB requests.
        writeback_bytes ("writeback"): Bytes = ByteSize(32 * MIB), range 64 * KIB..=GIB, effect Restart;
        /// A disk is stalled when a request has been at the device for this many milliseconds. A request that has waited as long in the
        /// daemon's queue fails.
        // Healthy devices answer within milliseconds, devices that recover from an error within seconds.
        timeout ("timeout_ms"): Millis = 5_000, range 1..=600_000, effect Restart;
    }
    tables {
        /// AES-256-GCM for pages and index records of new slabs. The daemon does not start without the key of the encrypted slabs on a
        /// disk.
        encryption: Encryption;
        /// One table for each disk.
        disks: Vec<Disk>;
    }
}

section! {
    /// `[tiers.nvme.encryption]`.
    Encryption, RawEncryption {
        /// Where the master key comes from:
        ///   "off"         no key, no encryption
        ///   "file"        the file `path`, which other users must not be able to read
        ///   "credential"  systemd's credential `name` (LoadCredential=)
        ///   "ephemeral"   a random key made at start and kept in memory only: after a restart nothing on the disks can be read
        key: KeyKind = KeyKind::Off, effect Restart;
        /// File of the master key, with key = "file".
        path: OptionalPath = PathBuf::new(), alternative "\"/etc/kvtide/key\"", effect Restart;
        /// Name of the credential, with key = "credential".
        name: String = "kvtide-key".into(), alternative "\"kvtide-key\"", effect Restart;
        /// false: do not encrypt new slabs. Slabs that are already encrypted can still be read.
        new_slabs: bool = true, effect Restart;
    }
}

section! {
    /// `[[tiers.nvme.disks]]`.
    Disk, RawDisk {
        /// A directory that only the daemon uses (mode 0700; created if missing, made private if empty). Its file grows on demand,
        /// one region at a time, to `capacity` and a little more. Give either `dir` or `device`.
        dir: OptionalPath = PathBuf::new(), example "\"/var/lib/kvtide/nvme0\"", effect Restart;
        /// A raw block device or partition, used whole; name it by an id that survives a reboot.
        device: OptionalPath = PathBuf::new(), alternative "\"/dev/disk/by-id/nvme-eui.0025385b11b2c3d4\"", effect Restart;
        /// Bytes for blocks: a size, a percentage of the file system or device, or "max": all that is free less `reserve_free`, or as
        /// much as the store that is there has. Another capacity makes a new store, without the blocks of the old one. Default: "max".
        capacity_bytes ("capacity"): Extent = Capacity::Max, range 4 * KIB..=constants::DISK_BYTES_MAX, example "\"512GiB\"", effect Restart;
        /// Part of the file system that must stay free beside `capacity` at start: percent or size. Only with `dir`.
        // As much as ext4 reserves for root.
        reserve_free: Reserve = constants::RESERVE_FREE, effect Restart;
        /// Write budget: maximum bytes of blocks written to the disk in 24 hours; its index log comes on top. 0: unlimited.
        bytes_per_day: OrNone<Bytes> = ByteSize(0), range 0..=1024 * PIB, example "\"1TiB\"", effect Now;
        /// Rated endurance of the drive (TBW), to estimate its remaining life. 0: unknown.
        endurance_bytes ("endurance"): OrNone<Bytes> = ByteSize(0), range 0..=1024 * PIB, example "\"1PiB\"", effect Now;
        /// Share of new prefix chains that the disk gets, relative to its size and to the weights of the other disks. Give a disk that
        /// is twice as fast twice the weight.
        weight: u32 = 100, range 1..=10_000, effect Restart;
    }
}

section! {
    /// `[integrity_sample]`.
    #[derive(Copy)]
    IntegritySample, RawSample {
        /// Verify one page in this many end to end: compare the bytes that an engine loads with the bytes that an engine stored, across
        /// all tiers. A page that differs is counted, logged and never served. 1: every page. 0: disabled.
        // The checksums cost too little to be measured.
        one_in: u32 = 256, effect NewSpaces;
    }
}

section! {
    /// `[edges]`: streaming between tiers.
    #[derive(Copy)]
    Edges, RawEdges {}
    tables {
        /// A step may read more pages than tier 0 and host memory hold. Then part of the pages stays there, and the rest streams through
        /// frames of host memory.
        nvme_to_host: HostScan;
        /// A step may read more pages than tier 0 holds. Then part of the pages stays there, and the rest streams through frames of tier 0.
        host_to_tier0: Tier0Scan;
    }
}

section! {
    /// Streaming from NVMe of a working set that does not fit into tier 0 and host memory.
    #[derive(Copy)]
    HostScan, RawHostScan {
        /// Host frames of each page size for streaming.
        // As many reads in flight as the queue of a disk takes. At least one frame to copy into and one to read.
        frames ("scan_frames"): u32 = constants::NVME_DEPTH.into(), range 2..=1 << 16, effect Now;
    }
}

section! {
    /// Streaming from host memory of a working set that does not fit into tier 0.
    #[derive(Copy)]
    Tier0Scan, RawTier0Scan {
        /// Tier-0 frames of each page size for streaming.
        // Enough copies in flight to hide their latency, few enough to leave tier 0 resident.
        frames ("scan_frames"): u32 = 8, range 2..=1 << 16, effect NewSessions;
    }
}

section! {
    /// `[attention]`: which pages of `approx` sequences stay in tier 0.
    #[derive(Copy)]
    Attention, RawAttention {
        /// First pages of a sequence that always stay in tier 0.
        // They attract attention from every query (StreamingLLM, arXiv 2309.17453). Agents wait for one.
        sinks: u16 = 1, range 1..=1024, effect Now;
        /// Last full pages of a sequence that always stay in tier 0.
        // Every query attends to them. Agents wait for two.
        recent: u16 = 2, range 2..=1024, effect Now;
        /// Percent of the measured bandwidth from host memory that predicted loads may use.
        // Faults and scans have priority anyway; a tenth stays free for unforeseen requests.
        bandwidth_percent: u8 = 90, range 1..=100, effect Now;
    }
}

section! {
    /// `[eviction]`: eviction of published blocks that no sequence uses.
    Eviction, RawEviction {
        /// Order in which published blocks that no sequence uses are evicted:
        ///   "lru"         least recently used first
        ///   "s3-fifo"     S3-FIFO
        ///   "arc"         ARC
        ///   "cost-aware"  lowest expected saving per byte first: the probability of reuse, learned from the workload, times the time
        ///                 that loading saves over computing
        ///   "auto"        whichever of these has the best hit rate in sampled ghost caches; `kvtide advise` prints those rates
        // No policy is best for every workload.
        policy: kvtide_types::Eviction = kvtide_types::Eviction::Auto, effect Now;
        /// Maximum age in seconds: a block is removed this long after its last use, even if there is room and the space is idle. Removal
        /// is usually late by up to a tenth of this time, and by a half at most. 0 disables it.
        /// A reload applies a new value to existing blocks too. The daemon does not record ages while the value is 0. A block that was
        /// last used in that time counts as used when recording begins. A block that is restored after a restart counts as used then.
        /// Blocks of spaces without an attach since the start do not expire.
        ttl ("ttl_s"): Seconds = 0, range 0..=366 * 24 * 3600, effect Now;
        /// Blocks last used by low-priority sequences are evicted first. Blocks last used by high-priority sequences are evicted last,
        /// as long as they are at most this percentage of all blocks.
        // The other half still adapts to other sequences.
        high_share_percent: u8 = 50, range 0..=100, effect Now;
        /// Tokens a second that an engine computes at the beginning of a sequence; at position 30000 a token takes twice as long,
        /// because of attention over all tokens before it. This gives the cost of recomputing a block, for "cost-aware" (the cost of
        /// loading is measured). The default is that of a model of 8B parameters on one H100 (bf16, half of peak throughput). For twice
        /// the parameters at half of that throughput, use a quarter of the rate. 0 means unknown: every hit has the same value.
        // Derived at `Retention::DEFAULT`.
        recompute_tokens_per_s: u32 = Retention::DEFAULT.recompute_tokens_per_s, effect Now;
    }
}

section! {
    /// `[limits]`: counts, sizes and times.
    #[derive(Copy)]
    Limits, RawLimits {
        /// Spaces (models). At this number a new space replaces the one that has had no engines for the longest time; the blocks of the
        /// replaced space on NVMe stay. Each domain has an equal share, at least one space, which other domains neither fill nor
        /// replace. Attaching fails only if the domain's spaces have engines.
        spaces_max: u32 = 16, range 1..=1024, effect Now;
        /// Sessions (attached engine shards) of the daemon.
        sessions_max: u32 = 256, range 1..=1 << 16, effect Now;
        /// Sessions of one space. Default: 64, or sessions_max if that is smaller.
        space_sessions_max: u16 = constants::SPACE_SESSIONS_MAX, range 1..=4096, effect NewSpaces;
        /// Connections in the handshake. One user may hold a quarter of them; an eighth if no domain names the user's uid and its
        /// processes can attach by token only. At the limit a new connection replaces the oldest one of that user, and the client
        /// reconnects.
        handshakes_max: u32 = 64, range 1..=1024, effect Now;
        /// Blocks of one space in tier 0 and host memory. 0: as many as fit.
        blocks_max: OrNone<u32> = 0, range 0..=1 << 28, effect NewSpaces;
        /// Sequences of a session.
        seqs_max: u32 = 1024, range 1..=1 << 20, effect NewSpaces;
        /// Blocks of a sequence. Default: 16384, or blocks_max if that is smaller.
        seq_blocks_max: u32 = constants::SEQ_BLOCKS_MAX, range 1..=1 << 24, effect NewSpaces;
        /// Lanes of a session. Each lane has a channel of its own, so lanes and channels of a session are at most 16 together.
        lanes_max: u16 = 16, range 1..=layout::LANES_MAX.into(), effect NewSpaces;
        /// Tier-0 frames of a session, over all page sizes. The daemon uses some tens of bytes of memory for each.
        // 64 GiB of 64 KiB pages.
        tier0_frames_max: u32 = 1 << 20, range 1..=1 << 28, effect NewSessions;
        /// Deadline in milliseconds of requests that set none.
        request_timeout ("request_timeout_ms"): Millis = 30_000, range 1..=3_600_000, effect Now;
        /// Longest lease on cached blocks, in milliseconds. A request for a longer one fails.
        // An engine loads leased blocks within seconds, or within minutes if it queues requests.
        lease_max ("lease_max_ms"): Millis = 600_000, range 1_000..=86_400_000, effect Now;
        /// Percent of host memory and NVMe together that the leases of all sessions of a space may pin. A session that is alone on its
        /// shard of a space has no limit.
        // So that they cannot block the stores of others.
        lease_percent: u8 = 50, range 1..=100, effect Now;
    }
    derived {
        /// Cache entries in the index of one space, including index-only ones. The index is in memory.
        entries_max: u32;
        /// Bytes of the block tables of one space.
        tables_bytes_max: u64;
    }
}

section! {
    /// `[[domains]]`: a trust domain.
    Domain, RawDomain {
        /// Name of the domain. Stored blocks belong to it: under another name they are not found. It must be given.
        name: String = String::new(), example "\"tenant-a\"", effect Now;
        /// User ids of processes that belong to it.
        uids: Vec<u32> = Vec::new(), example "[1000]", effect Now;
        /// Token files. A process with such a token belongs to the domain, whatever its uid. A token file holds 32 to 512 bytes and
        /// belongs to root or to the daemon's user. Its group must not write it, and others must not access it (mode 0640 at most).
        tokens: Vec<PathBuf> = Vec::new(), example "[\"/etc/kvtide/tenant-a.token\"]", effect Now;
        /// User ids of its relays: processes that may see which blocks the domain's spaces have, and copy them. None by default.
        relay_uids: Vec<u32> = Vec::new(), example "[990]", effect Now;
        /// Token files of its relays, as `tokens`. A relay's token serves no engine, and an engine's no relay.
        relay_tokens: Vec<PathBuf> = Vec::new(), example "[\"/etc/kvtide/tenant-a-relay.token\"]", effect Now;
        /// Socket where its relay answers engines, as they see it ([domains.adapters] in the file of the relay). Engines learn it when they attach.
        relay_socket: PathBuf = PathBuf::new(), example "\"/run/kvtide-relay/relay.sock\"", effect NewSessions;
        /// Host memory for all its spaces together.
        host_bytes ("host"): Bytes = ByteSize(0), example "\"2GiB\"", effect Now;
        /// NVMe for all its spaces together.
        nvme_bytes ("nvme"): Bytes = ByteSize(0), example "\"64GiB\"", effect Now;
        /// Maximum number of its sessions.
        sessions_max: u32 = 0, example "64", effect Now;
    }
    derived {
        /// The file gives no quota of host memory: it is the whole tier.
        has_whole_host: bool;
        /// The file gives no quota of NVMe: it is the whole tier.
        has_whole_nvme: bool;
    }
}
