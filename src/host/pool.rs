//! Host memory before anybody has it: taken whole before the daemon is ready, so that a machine that lacks it says so at start
//! and no engine waits for pages to be zeroed.

use crate::config::Machine;
use crate::error::Error;
use crossbeam::channel::{Receiver, Sender, bounded};
use kvtide_wire::error::Error as WireError;
use kvtide_wire::os::memfd::{Memfd, Reserved};
use rustix::io::Errno;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Threads that take memory at start, at most: one zeroes some gigabytes a second, and four reach what a socket can do.
const THREADS_MAX: usize = 4;
/// How often progress is told.
const PROGRESS: Duration = Duration::from_millis(500);
/// Name of the memory, in the daemon's maps.
const NAME: &str = "kvtide-host";

/// Memory in segments, each to become a slab.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// All of one size but perhaps the first.
    segments: Vec<Reserved>,
    segment_bytes: u64,
    capacity_bytes: u64,
}

impl Pool {
    /// A pool without memory: slabs are made when they are asked for.
    pub fn empty() -> Pool {
        Pool::default()
    }

    /// Takes `capacity_bytes` in segments of `segment_bytes`, telling `progress` the bytes taken so far now and then.
    pub fn fill(capacity_bytes: u64, segment_bytes: u64, progress: &mut dyn FnMut(u64)) -> Result<Pool, Error> {
        check_available(capacity_bytes)?;
        let (whole, rest) = (capacity_bytes / segment_bytes, capacity_bytes % segment_bytes);
        let sizes: Vec<u64> = (rest > 0).then_some(rest).into_iter().chain((0..whole).map(|_| segment_bytes)).collect();
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        let (next, (made, segments)) = (AtomicUsize::new(0), bounded(sizes.len()));
        let work = |made: Sender<Result<Reserved, WireError>>| {
            while let Some(&bytes) = sizes.get(next.fetch_add(1, Ordering::Relaxed)) {
                let segment = Reserved::take(NAME, bytes);
                if segment.is_err() {
                    // The daemon will not start: nobody takes more.
                    next.store(sizes.len(), Ordering::Relaxed);
                }
                // There is room for all of them.
                let _ = made.send(segment);
            }
        };
        let mut segments = std::thread::scope(|scope| {
            for _ in 0..threads {
                let made = made.clone();
                scope.spawn(|| work(made));
            }
            drop(made);
            collect(&segments, progress)
        })?;
        let small = || segments.iter().filter_map(|segment| Some((segment.bytes(), segment.why_small()?)));
        warn_if_small(small().map(|(bytes, _)| bytes).sum(), small().next().map(|(_, errno)| errno));
        // The odd one last, so that it is granted last.
        segments.sort_by_key(Reserved::bytes);
        Ok(Pool { segments, segment_bytes, capacity_bytes })
    }

    /// Memory of `bytes` for a space, from the pool while it has any. A segment that is too short goes back to the system.
    pub fn take(&mut self, name: &str, bytes: u64) -> Result<Memfd, WireError> {
        match self.segments.pop().filter(|segment| segment.bytes() >= bytes) {
            Some(segment) => segment.shared(bytes),
            None => {
                let memfd = Memfd::shared(name, bytes)?;
                warn_if_small(memfd.bytes(), memfd.why_small());
                Ok(memfd)
            }
        }
    }

    /// Takes memory for what came back, which engines may still map: the pool and what is granted hold the whole capacity
    /// again, up to less than a segment.
    pub fn refill(&mut self, granted_bytes: u64) {
        while self.segment_bytes > 0 && self.bytes() + granted_bytes + self.segment_bytes <= self.capacity_bytes {
            match Reserved::take(NAME, self.segment_bytes) {
                Ok(segment) => self.segments.push(segment),
                Err(error) => return tracing::error!("memory that a space gave back cannot be had again: {error}"),
            }
        }
    }

    /// Of the bytes that wait for spaces, those on huge pages.
    pub fn huge_bytes(&self) -> u64 {
        self.segments.iter().map(Reserved::huge_bytes).sum()
    }

    /// Bytes that wait for spaces.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(Reserved::bytes).sum()
    }
}

/// Takes in what the threads take, until all have ended.
fn collect(
    made: &Receiver<Result<Reserved, WireError>>,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<Reserved>, Error> {
    let (mut segments, mut bytes, mut told) = (Vec::new(), 0, Instant::now());
    while let Ok(segment) = made.recv() {
        let segment = segment.map_err(|source| Error::Wire { action: "take the host tier's memory", source })?;
        bytes += segment.bytes();
        segments.push(segment);
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            progress(bytes);
        }
    }
    Ok(segments)
}

/// Small pages cost more CPU a byte, and cut large pages of KV into several requests: no fallback in silence.
fn warn_if_small(bytes: u64, why: Option<Errno>) {
    if let Some(errno) = why {
        tracing::warn!(
            "host tier: {bytes} bytes are on small pages: the system gives no huge ones (MADV_COLLAPSE): {errno}"
        );
    }
}

/// Whether the machine has that much: who takes more is not refused but killed.
fn check_available(bytes: u64) -> Result<(), Error> {
    let available = Machine::look()?.available_bytes;
    if available < bytes { Err(Error::Memory { wanted: bytes, available }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn a_pool_holds_the_capacity_and_gives_what_is_asked_for() {
        let mut pool = Pool::fill(200 * KIB, 64 * KIB, &mut |_| ()).unwrap();
        assert_eq!((pool.bytes(), pool.segments.len()), (200 * KIB, 4));
        let a = pool.take("a", 60 * KIB).unwrap();
        assert_eq!((a.bytes(), pool.bytes()), (60 * KIB, 136 * KIB), "the rest went back to the system");
        pool.refill(60 * KIB);
        assert_eq!(pool.bytes(), 136 * KIB, "nothing came back");
        drop(a);
        pool.refill(0);
        assert_eq!(pool.bytes(), 200 * KIB);
        let all: Vec<_> = (0..4).map(|_| pool.take("b", 8 * KIB).unwrap()).collect();
        assert_eq!((all.len(), pool.bytes()), (4, 0));
        assert_eq!(pool.take("made when asked for", 64 * KIB).unwrap().bytes(), 64 * KIB);
    }

    #[test]
    fn more_than_the_machine_has_is_refused_before_it_is_touched() {
        let error = Pool::fill(1 << 50, 1 << 30, &mut |_| ()).unwrap_err();
        assert!(matches!(error, Error::Memory { wanted, .. } if wanted == 1 << 50), "{error}");
    }
}
