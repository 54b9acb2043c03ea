//! Causes of misses, and the tiers.

codes! {
    /// A tier.
    pub enum Tier: u8, name: str {
        /// Memory of an engine's process.
        Tier0 = 0 "tier0",
        /// Host memory.
        Host = 1 "host",
        /// NVMe.
        Nvme = 2 "nvme",
    }
}

codes! {
    /// Why lookups do not find a block.
    pub enum Cause: u8, name: str {
        /// No store of it is known.
        NeverStored = 0 "never_stored",
        /// Not all shards have stored their part.
        Incomplete = 1 "incomplete",
        /// Evicted: host memory or block ids were needed for other blocks of the space.
        MemoryFull = 2 "memory_full",
        /// Evicted: another space needed the host memory.
        OtherSpace = 3 "other_space",
        /// Evicted: the space has its maximum number of cached blocks.
        IndexFull = 4 "index_full",
        /// Evicted: NVMe space was needed for other blocks.
        NvmeFull = 5 "nvme_full",
        /// Evicted from memory; the admission rule had kept it from NVMe.
        NotAdmitted = 6 "not_admitted",
        /// Evicted from memory; the write budget had kept it from NVMe.
        OverBudget = 7 "over_budget",
        /// Evicted from memory before its write to NVMe was complete.
        Unwritten = 8 "unwritten",
        /// Not used for the configured time.
        Expired = 9 "expired",
        /// Evicted by an operator.
        Operator = 10 "operator",
        /// Its bytes differed from the stored ones.
        Corrupt = 11 "corrupt",
        /// The disk reported errors when it was read.
        Unreadable = 12 "unreadable",
        /// Its disk went out of service.
        DiskLost = 13 "disk_lost",
        /// It was only in the memory of an engine that ended.
        EngineLost = 14 "engine_lost",
        /// A store found no room for it in time.
        StoreNoRoom = 15 "store_no_room",
        /// A store found the block before it not cached.
        StoreNoParent = 16 "store_no_parent",
        /// A store was canceled or failed, or its engine ended.
        StoreFailed = 17 "store_failed",
        /// NVMe has it from an earlier run, but not the block before it.
        RestoreNoParent = 18 "restore_no_parent",
        /// NVMe has it from an earlier run; the index was full, or its record does not fit the space.
        RestoreRefused = 19 "restore_refused",
    }
}

impl Cause {
    /// Return whether the block was cached and left by a decision: then the tier that it was in is known.
    #[must_use]
    pub const fn is_eviction(self) -> bool {
        self.code() >= Cause::MemoryFull.code() && self.code() <= Cause::Operator.code()
    }
}
