//! Policies and codecs by name.

codes! {
    /// Which published blocks are written to NVMe.
    #[derive(Default)]
    pub enum Admission: u8, name: str {
        /// All published blocks. While the write budget is short, previously used blocks come first.
        #[default]
        All = 0 "all",
        /// Blocks that were looked up again, or for which a request asked for [`Level::Stored`](crate::Level::Stored) or more.
        SecondTouch = 1 "second-touch",
        /// The blocks with the most expected hits, as the write budget allows.
        Budget = 2 "budget",
    }
}

codes! {
    /// Order in which unreferenced published blocks are evicted from host memory and NVMe. In every order, a block is evicted after
    /// its descendants in the prefix tree.
    #[derive(Default)]
    pub enum Eviction: u8, name: str {
        /// Least recently used first; of blocks used at the same time, the deepest first.
        Lru = 0 "lru",
        /// S3-FIFO: a small queue for blocks used once, a main queue for the rest; used blocks get a second chance instead of a move.
        S3Fifo = 1 "s3-fifo",
        /// ARC: balances recency against frequency, and learns the balance from hits on recently evicted blocks.
        Arc = 2 "arc",
        /// Smallest expected gain first: probability of reuse × saving of a hit.
        CostAware = 3 "cost-aware",
        /// The policy, or blend of policies, with the best sampled hit rate.
        #[default]
        Auto = 4 "auto",
    }
}

codes! {
    /// Compression of pages on NVMe. The code is that in a region's header.
    #[derive(Default)]
    pub enum Codec: u8, name: str {
        /// Uncompressed.
        #[default]
        None = 0 "none",
        /// LZ4 blocks: cheap, but no gain for raw floating-point numbers.
        Lz4 = 1 "lz4",
        /// Bytes of each value split into planes, each compressed by zstd at level 1.
        PlanesZstd = 2 "planes-zstd",
    }
}

impl Codec {
    /// Return a short description, for `config check`.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Codec::None => "pages are stored unchanged",
            Codec::Lz4 => "saves nothing on raw bf16",
            Codec::PlanesZstd => "the bytes of each value split into planes, then zstd at level 1",
        }
    }
}

codes! {
    /// I/O engine of the disks.
    #[derive(Default)]
    pub enum IoEngine: u8, name: str {
        /// `io_uring` if the system allows it, else threads. The choice is logged and exported.
        #[default]
        Auto = 0 "auto",
        /// `io_uring`; without it the daemon does not start.
        Uring = 1 "io_uring",
        /// `preadv` and `pwritev` on a few threads.
        Threads = 2 "threads",
    }
}

codes! {
    /// Use of a feature that not every system supports.
    #[derive(Default)]
    pub enum FeatureUse: u8, name: str {
        /// Used if it works. The result is logged and exported.
        #[default]
        Auto = 0 "auto",
        /// Used; without it the daemon does not start.
        Required = 1 "required",
        /// Not used.
        Off = 2 "off",
    }
}
