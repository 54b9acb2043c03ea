//! How many bytes write-back may have at the device at once: as many as leave demand reads their speed.
//!
//! Additive increase, multiplicative decrease over windows of demand reads: if the 99th percentile of a window in which
//! write-back was at the device is more than [`PAIN`] times what demand suffers alone, the cap is halved, else it grows by a step. What
//! demand suffers alone is learnt from windows without write-back, and from those at the least cap. While nobody demands
//! anything the cap doubles with every write that ends.

/// Demand reads that are looked at together.
const WINDOW: usize = 128;
/// How much slower than alone the slowest of a hundred demand reads may be.
const PAIN: u64 = 2;
/// Latencies below this are nobody's pain: what a drive's own variance amounts to.
const PAIN_LEAST_US: u64 = 300;
/// The cap does not fall below this.
const LEAST_BYTES: u64 = 256 << 10;
/// By how much it grows.
const STEP_BYTES: u64 = 256 << 10;
/// Without a demand read for so long, nobody demands anything.
const QUIET_US: u64 = 100_000;

/// Bytes of write-back at the device.
#[derive(Clone, Debug)]
pub(super) struct Cap {
    most: u64,
    now: u64,
    at_device: u64,
    alone: Window,
    beside: Window,
    /// 99th percentile of demand without write-back, in microseconds; 0: not known.
    alone_us: u64,
    demanded_us: Option<u64>,
}

/// Latencies of some demand reads.
#[derive(Clone, Debug)]
struct Window {
    us: Box<[u32; WINDOW]>,
    len: usize,
}

impl Window {
    fn new() -> Window {
        Window { us: Box::new([0; WINDOW]), len: 0 }
    }

    /// Adds one; the 99th percentile of all when the window is full, which empties it.
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
    /// At most `most_bytes`; it begins there.
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

    /// Bytes that may be at the device.
    pub fn bytes(&self) -> u64 {
        self.now
    }

    /// Bytes that are.
    pub fn at_device(&self) -> u64 {
        self.at_device
    }

    /// Whether so many more may be; one alone always.
    pub fn admits(&self, bytes: u64) -> bool {
        self.at_device == 0 || self.at_device.saturating_add(bytes) <= self.now
    }

    /// A write goes to the device.
    pub fn begin(&mut self, bytes: u64) {
        self.at_device += bytes;
    }

    /// A write that has begun does not go to the device yet: [`Cap::begin`] comes again when it does.
    pub fn later(&mut self, bytes: u64) {
        self.at_device = self.at_device.saturating_sub(bytes);
    }

    /// A write has ended.
    pub fn end(&mut self, now_us: u64, bytes: u64) {
        self.at_device = self.at_device.saturating_sub(bytes);
        if self.demanded_us.is_none_or(|us| now_us.saturating_sub(us) >= QUIET_US) {
            self.now = self.now.saturating_mul(2).min(self.most);
        }
    }

    /// A demand read has ended, after `us` at the device.
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

    /// What demand suffers alone: a moving average, since drives and their neighbours change.
    fn learn(&mut self, p99: u64) {
        self.alone_us = if self.alone_us == 0 { p99 } else { (self.alone_us * 3 + p99) / 4 };
    }
}
