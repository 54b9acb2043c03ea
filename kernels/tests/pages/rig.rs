//! A device, a stream, and transfers of bytes.

pub use crate::common::Rng;
use kvtide_kernels::{Buffer, Device, Driver, Event, Pinned, Priority, Stream, Which};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Initial content of outputs.
pub const POISON: u8 = 0xa5;
/// Time limit of every wait; the stand-in is slow.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Rig {
    pub device: Arc<Device>,
    pub stream: Stream,
}

impl Rig {
    pub fn new() -> Self {
        static DEVICE: OnceLock<Arc<Device>> = OnceLock::new();
        let device = DEVICE.get_or_init(|| {
            kvtide_cuda_sim::install();
            let driver = Driver::probe().expect("a driver, real or stand-in");
            Device::open(&driver, Which::Ordinal(0)).expect("its first device")
        });
        let stream = Stream::new(device, Priority::Normal).expect("a stream");
        Self { device: Arc::clone(device), stream }
    }

    /// Wait until all enqueued work is done.
    pub fn finish(&self) {
        let event = Event::new(&self.device).expect("an event");
        self.stream.record(&event).expect("recorded");
        assert!(event.wait_until(Instant::now() + PATIENCE).expect("no kernel failed"), "not done within {PATIENCE:?}");
    }

    /// Return host memory that the device can access.
    pub fn pinned<T: Copy>(&self, data: &[T]) -> Pinned {
        let pinned = Pinned::new(&self.device, size_of_val(data).max(1)).expect("host memory");
        // SAFETY: exactly the bytes of the data; nothing else uses the memory yet.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr().cast(), pinned.as_ptr(), size_of_val(data)) };
        pinned
    }

    /// Return device memory with these contents.
    pub fn upload<T: Copy>(&self, data: &[T]) -> Buffer {
        let (pinned, buffer) = (self.pinned(data), self.poisoned(size_of_val(data)));
        // SAFETY: both live until `finish` has returned.
        unsafe { self.stream.copy(buffer.address(), pinned.address(), size_of_val(data)) }.expect("copied");
        self.finish();
        buffer
    }

    /// Return poisoned device memory.
    pub fn poisoned(&self, bytes: usize) -> Buffer {
        let buffer = Buffer::new(&self.device, bytes.max(1)).expect("device memory");
        // SAFETY: nothing else uses the memory yet.
        unsafe { self.stream.fill(buffer.address(), POISON, bytes.max(1)) }.expect("filled");
        self.finish();
        buffer
    }

    /// Return the first `count` values of device memory.
    pub fn download<T: Copy>(&self, buffer: &Buffer, count: usize) -> Vec<T> {
        let bytes = count * size_of::<T>();
        assert!(bytes <= buffer.bytes());
        let pinned = Pinned::new(&self.device, bytes.max(1)).expect("host memory");
        // SAFETY: both live until `finish` has returned.
        unsafe { self.stream.copy(pinned.address(), buffer.address(), bytes) }.expect("copied");
        self.finish();
        values(&pinned, count)
    }
}

/// Return the first `count` values of host memory that no kernel writes any more.
pub fn values<T: Copy>(pinned: &Pinned, count: usize) -> Vec<T> {
    assert!(count * size_of::<T>() <= pinned.bytes());
    // SAFETY: within the memory, which is aligned to pages; the types used here are plain numbers.
    unsafe { std::slice::from_raw_parts(pinned.as_ptr().cast::<T>(), count) }.to_vec()
}
