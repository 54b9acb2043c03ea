//! What a session counted since it attached: totals that only grow; take differences.

/// How the copies of a session whose tier 0 is on a device are made, and what was made so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCopies {
    /// Fragments of fewer bytes go from host to device by a kernel, the others by copy engines: measured when the session began.
    pub up_below: usize,
    /// The same from device to host.
    pub down_below: usize,
    /// The same within the device.
    pub within_below: usize,
    /// Whether the copy engines are told of many copies in one call of the driver.
    pub batched: bool,
    /// Bytes that copy engines took.
    pub engine_bytes: u64,
    /// Bytes that the kernel took.
    pub kernel_bytes: u64,
    /// Launches of it.
    pub launches: u64,
    /// Batches that failed.
    pub failed: u64,
}

/// Totals of one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Steps begun.
    pub steps: u64,
    /// Steps in which everything was resident when they began.
    pub steps_resident: u64,
    /// Messages that had to be sent before a step could begin.
    pub messages_before_steps: u64,
    /// Pages needed by a (step, plane) that were readable at its first boundary.
    pub pages_resident: u64,
    /// Pages needed by a (step, plane) that were not readable at its first boundary.
    pub pages_missed: u64,
    /// Pages that steps of `approx` sequences did not read because others were better.
    pub pages_unpicked: u64,
    /// Pages that they picked and did without: not resident, or not in time.
    pub pages_waived: u64,
    /// Pages that steps of `bounded` sequences skipped, proved to hold little.
    pub pages_skipped: u64,
    /// Estimates that were made of what a step of an `approx` sequence omitted in a plane.
    pub omissions: u64,
    /// What they estimate, added up: millionths of the attention of a sequence in a plane.
    pub omitted_ppm: u64,
    /// Score entries told to the daemon.
    pub scores: u64,
    /// Sketches that a device was not told to build, and questions that it was not asked, since too much was under way or the lane's step
    /// had failed.
    pub sketches_left_out: u64,
    /// Faults sent to the daemon.
    pub faults: u64,
    /// Boundaries that had to wait for a page.
    pub stalls: u64,
    /// Nanoseconds spent in those waits.
    pub stall_ns: u64,
    /// Jobs carried out that loaded a page from a host frame.
    pub jobs_host_to_tier0: u64,
    /// Bytes that they copied.
    pub bytes_host_to_tier0: u64,
    /// Jobs carried out after which a page shows where it is in host memory: nothing was copied.
    pub jobs_in_place: u64,
    /// Jobs carried out that stored a page to a host frame.
    pub jobs_tier0_to_host: u64,
    /// Bytes that they copied.
    pub bytes_tier0_to_host: u64,
    /// Jobs carried out that copied a page within tier 0.
    pub jobs_within_tier0: u64,
    /// Bytes that they copied.
    pub bytes_within_tier0: u64,
    /// Jobs without bytes: new pages, drops, evictions, cancels.
    pub jobs_table: u64,
    /// Jobs refused because their victim was pinned.
    pub jobs_busy: u64,
    /// Jobs that were cancelled before their copy began.
    pub jobs_canceled: u64,
    /// Jobs that contradicted the protocol or the geometry.
    pub jobs_invalid: u64,
    /// Copies that failed or fell short.
    pub jobs_failed: u64,
    /// Requests sent on all channels.
    pub requests: u64,
    /// Completions that no request explains; they are dropped and counted.
    pub completions_stray: u64,
    /// Pages whose bytes were hashed after they had been loaded, and compared with what was stored: the canary's sample.
    pub canary_checked: u64,
    /// Of those, the ones that were not what was stored. Nobody was shown them.
    pub canary_failed: u64,
    /// Bytes of shared host memory that were registered with the device of tier 0.
    pub registered_bytes: u64,
    /// Nanoseconds that it took; copies waited meanwhile.
    pub registered_ns: u64,
}
