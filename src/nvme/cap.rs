//! Limit on write-back bytes in flight at the device, so that write-back does not slow down demand reads.
//!
//! Additive increase, multiplicative decrease over windows of demand reads. If the 99th percentile of a window with write-back in
//! flight exceeds [`PAIN`] times the baseline, the cap is halved; else it grows by one step. The baseline is learnt from windows
//! without write-back and from windows at the smallest cap. Without demand reads the cap doubles with every write that ends.

/// Demand reads per window.
const WINDOW: usize = 128;
/// Tolerated ratio of the 99th percentile of demand reads to the baseline.
const PAIN: u64 = 2;
/// Latencies below this are always tolerated: they are within the drive's own variance.
const PAIN_LEAST_US: u64 = 300;
/// Smallest cap.
const LEAST_BYTES: u64 = 256 << 10;
/// Growth step.
const STEP_BYTES: u64 = 256 << 10;
/// Time without a demand read after which demand counts as absent.
const QUIET_US: u64 = 100_000;

/// The cap, and the write-back bytes in flight.
#[derive(Clone, Debug)]
pub(super) struct Cap {
    most: u64,
    now: u64,
    at_device: u64,
    alone: Window,
    beside: Window,
    /// Baseline: 99th percentile of demand without write-back, in microseconds; 0 if unknown.
    alone_us: u64,
    demanded_us: Option<u64>,
}

/// Latencies of demand reads.
#[derive(Clone, Debug)]
struct Window {
    us: Box<[u32; WINDOW]>,
    len: usize,
}

impl Window {
    fn new() -> Window {
        Window { us: Box::new([0; WINDOW]), len: 0 }
    }

    /// Add a latency. When the window is full, empty it and return its 99th percentile.
    fn add(&mut self, us: u64) -> Option<u64> {
        self.us[self.len] = u32::try_from(us).unwrap_or(u32::MAX);
        self.len = (self.len + 1) % WINDOW;
        (self.len == 0).then(|| {
            self.us.sort_unstable();
            u64::from(self.us[WINDOW * 99 / 100])
        })
    }
}

impl Cap {
    /// Create a cap with the maximum `most_bytes`; it starts there.
    pub fn new(most_bytes: u64) -> Cap {
        let most = most_bytes.max(LEAST_BYTES);
        Cap {
            most,
            now: most,
            at_device: 0,
            alone: Window::new(),
            beside: Window::new(),
            alone_us: 0,
            demanded_us: None,
        }
    }

    /// Return the current cap in bytes.
    pub fn bytes(&self) -> u64 {
        self.now
    }

    /// Return the write-back bytes in flight.
    pub fn at_device(&self) -> u64 {
        self.at_device
    }

    /// Return true if `bytes` more fit. A write is always admitted if none is in flight.
    pub fn admits(&self, bytes: u64) -> bool {
        self.at_device == 0 || self.at_device.saturating_add(bytes) <= self.now
    }

    /// Record that a write is sent to the device.
    pub fn begin(&mut self, bytes: u64) {
        self.at_device += bytes;
    }

    /// Record that a begun write is postponed; [`Cap::begin`] is called again when it is sent.
    pub fn later(&mut self, bytes: u64) {
        self.at_device = self.at_device.saturating_sub(bytes);
    }

    /// Record that a write has ended.
    pub fn end(&mut self, now_us: u64, bytes: u64) {
        self.at_device = self.at_device.saturating_sub(bytes);
        if self.demanded_us.is_none_or(|us| now_us.saturating_sub(us) >= QUIET_US) {
            self.now = self.now.saturating_mul(2).min(self.most);
        }
    }

    /// Record that a demand read has ended, after `us` at the device.
    pub fn demand(&mut self, now_us: u64, us: u64) {
        self.demanded_us = Some(now_us);
        if self.at_device == 0 {
            if let Some(p99) = self.alone.add(us) {
                self.learn(p99);
            }
        } else if let Some(p99) = self.beside.add(us) {
            if self.now == LEAST_BYTES {
                self.learn(p99);
            }
            let limit = (self.alone_us * PAIN).max(PAIN_LEAST_US);
            self.now = if p99 > limit {
                (self.now / 2).max(LEAST_BYTES)
            } else {
                self.now.saturating_add(STEP_BYTES).min(self.most)
            };
        }
    }

    /// Update the baseline: a moving average, since drives and their load change.
    fn learn(&mut self, p99: u64) {
        self.alone_us = if self.alone_us == 0 { p99 } else { (self.alone_us * 3 + p99) / 4 };
    }
}
