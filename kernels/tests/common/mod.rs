//! A test device, random bytes, and child processes for actions that a process can do only once.
#![allow(dead_code)] // each test file uses a part

pub mod sim;

use kvtide_kernels::{Buffer, Copier, Device, Driver, Error, Event, Pinned, Priority, Stream, Which, copy::Ticket};
use std::{
    ops::Range,
    process::{Command, Output},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

/// Time limit of every wait in a test.
pub const BOUND: Duration = Duration::from_secs(60);

/// Environment variable with the test that a child process of [`child`] runs.
const CHILD: &str = "KVTIDE_TEST_CHILD";

/// Return the stand-in's first device, or the real one if requested.
pub fn device() -> Arc<Device> {
    kvtide_cuda_sim::install();
    Device::open(&Driver::probe().expect("a driver"), Which::Ordinal(0)).expect("a device")
}

/// Run one test of this executable again in a child process with these variables. In the child, return `None`.
pub fn child(test: &str, variables: &[(&str, &str)]) -> Option<Output> {
    if std::env::var(CHILD).is_ok_and(|name| name == test) {
        return None;
    }
    let mut command = Command::new(std::env::current_exe().expect("an executable"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, test);
    command.envs(variables.iter().copied());
    Some(command.output().expect("the child runs"))
}

/// Check that the child's test passed.
pub fn passed(output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
}

/// Wait for all work of a stream.
pub fn done(stream: &Stream) {
    let event = Event::new(stream.device()).expect("an event");
    stream.record(&event).expect("recorded");
    assert!(event.wait_until(Instant::now() + BOUND).expect("no work failed"), "the stream is not done");
}

/// Poll until a batch has ended.
pub fn end(copier: &mut Copier, ticket: Ticket) -> Result<(), Error> {
    let deadline = Instant::now() + BOUND;
    while !copier.poll(ticket)? {
        assert!(Instant::now() < deadline, "the batch does not end");
        std::thread::yield_now();
    }
    Ok(())
}

/// Random numbers from a seed.
pub struct Rng(pub u64);

impl Rng {
    /// Return the next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Begin with the seed `KVTIDE_SEED`, or a new one, which is printed.
    pub fn seeded() -> Rng {
        let seed = std::env::var("KVTIDE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
            now.as_nanos() as u64
        });
        println!("KVTIDE_SEED={seed}");
        Rng(seed)
    }

    /// Return a number below a bound.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Return a number of a range.
    pub fn within(&mut self, range: Range<usize>) -> usize {
        range.start + self.below(range.end - range.start)
    }

    /// Return random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    /// Return a roughly normal number with variance 1.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.next() >> 40) as f32 / (1 << 24) as f32).sum::<f32>() - 6.0
    }

    /// Return 0..count in random order.
    pub fn shuffled(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        (1..count).rev().for_each(|i| order.swap(i, self.below(i + 1)));
        order
    }
}

/// Write bytes to a device address.
pub fn put(device: &Arc<Device>, at: u64, bytes: &[u8]) {
    let staging = Pinned::new(device, bytes.len()).expect("pinned memory");
    // SAFETY: the length of the bytes; nothing else uses it.
    unsafe { staging.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    let stream = Stream::new(device, Priority::Normal).expect("a stream");
    // SAFETY: both stay until the stream is done.
    unsafe { stream.copy(at, staging.address(), bytes.len()) }.expect("copied");
    done(&stream);
}

/// Read bytes from a device address.
pub fn get(device: &Arc<Device>, at: u64, bytes: usize) -> Vec<u8> {
    let staging = Pinned::new(device, bytes).expect("pinned memory");
    let stream = Stream::new(device, Priority::Normal).expect("a stream");
    // SAFETY: both stay until the stream is done.
    unsafe { stream.copy(staging.address(), at, bytes) }.expect("copied");
    done(&stream);
    // SAFETY: the requested length; the copy has ended.
    unsafe { std::slice::from_raw_parts(staging.as_ptr(), bytes) }.to_vec()
}

/// Return the content of pinned memory.
pub fn pinned_bytes(of: &Pinned) -> Vec<u8> {
    // SAFETY: its own length; all writers have ended.
    unsafe { std::slice::from_raw_parts(of.as_ptr(), of.bytes()) }.to_vec()
}

/// Return pinned memory with these bytes.
pub fn pinned(device: &Arc<Device>, bytes: &[u8]) -> Pinned {
    let made = Pinned::new(device, bytes.len()).expect("pinned memory");
    // SAFETY: the length of the bytes; nothing else uses it.
    unsafe { made.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    made
}

/// Return device memory with these bytes.
pub fn buffer(device: &Arc<Device>, bytes: &[u8]) -> Buffer {
    let made = Buffer::new(device, bytes.len()).expect("device memory");
    put(device, made.address(), bytes);
    made
}
