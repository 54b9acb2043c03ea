//! Statistics of a session: totals since the attach. They only grow; take differences.

/// How a session with tier 0 on a device makes its copies, and how much it has copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCopies {
    /// Fragments smaller than this many bytes are copied from host to device by a kernel, larger ones by copy engines. Measured
    /// when the session begins.
    pub up_below: usize,
    /// The same limit for copies from device to host.
    pub down_below: usize,
    /// The same limit for copies within the device.
    pub within_below: usize,
    /// True if one driver call submits many copies to the copy engines.
    pub batched: bool,
    /// Bytes copied by copy engines.
    pub engine_bytes: u64,
    /// Bytes copied by the kernel.
    pub kernel_bytes: u64,
    /// Launches of the copy kernel.
    pub launches: u64,
    /// Copy batches that failed.
    pub failed: u64,
}

/// Totals of one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Steps begun.
    pub steps: u64,
    /// Steps that found all their pages resident when they began.
    pub steps_resident: u64,
    /// Messages sent before a step could begin.
    pub messages_before_steps: u64,
    /// Pages needed by a (step, plane) that were readable at its first boundary.
    pub pages_resident: u64,
    /// Pages needed by a (step, plane) that were not readable at its first boundary.
    pub pages_missed: u64,
    /// Pages not read by steps of `approx` sequences, because other pages scored higher.
    pub pages_unpicked: u64,
    /// Pages that such steps selected but did not read: not resident, or not in time.
    pub pages_waived: u64,
    /// Estimates made of the attention that a step of an `approx` sequence omitted in a plane.
    pub omissions: u64,
    /// Sum of those estimates, in millionths of the attention of one sequence in one plane.
    pub omitted_ppm: u64,
    /// Score entries sent to the daemon.
    pub scores: u64,
    /// Sketches not built and queries not evaluated on a device, because too much work was in flight or the lane's step had failed.
    pub sketches_left_out: u64,
    /// Faults sent to the daemon.
    pub faults: u64,
    /// Boundaries that waited for a page.
    pub stalls: u64,
    /// Nanoseconds spent in those waits.
    pub stall_ns: u64,
    /// Completed jobs that loaded a page from a host frame.
    pub jobs_host_to_tier0: u64,
    /// Bytes copied by those jobs.
    pub bytes_host_to_tier0: u64,
    /// Completed jobs that mapped a page at its place in host memory, without a copy.
    pub jobs_in_place: u64,
    /// Completed jobs that stored a page to a host frame.
    pub jobs_tier0_to_host: u64,
    /// Bytes copied by those jobs.
    pub bytes_tier0_to_host: u64,
    /// Completed jobs that copied a page within tier 0.
    pub jobs_within_tier0: u64,
    /// Bytes copied by those jobs.
    pub bytes_within_tier0: u64,
    /// Jobs that copy nothing: new pages, drops, evictions, cancels.
    pub jobs_table: u64,
    /// Jobs rejected because their victim page was pinned.
    pub jobs_busy: u64,
    /// Jobs cancelled before their copy began.
    pub jobs_canceled: u64,
    /// Jobs that violated the protocol or the geometry.
    pub jobs_invalid: u64,
    /// Copies that failed or were incomplete.
    pub jobs_failed: u64,
    /// Requests sent on all channels.
    pub requests: u64,
    /// Completions that match no request. They are dropped.
    pub completions_stray: u64,
    /// Pages in the integrity sample: hashed after a load and compared with the stored page.
    pub sample_checked: u64,
    /// Sampled pages that differed from the stored page. They were not made readable.
    pub sample_failed: u64,
    /// Bytes of shared host memory that were registered with the device of tier 0.
    pub registered_bytes: u64,
    /// Nanoseconds spent registering that memory. Copies wait meanwhile.
    pub registered_ns: u64,
}
