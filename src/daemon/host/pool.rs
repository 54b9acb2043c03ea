//! Host memory that no space owns yet. With prefaulting, all of it is allocated before the daemon is ready: a machine with too
//! little memory fails at start, and no engine waits for pages to be zeroed.

use crate::config::Machine;
use crate::error::Error;
use crossbeam::channel::{Receiver, Sender, bounded};
use kvtide_wire::error::Error as WireError;
use kvtide_wire::os::memfd::{Memfd, Reserved};
use rustix::io::Errno;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Maximum threads that allocate memory at start. One thread zeroes a few GB/s; four reach the bandwidth of a socket.
const THREADS_MAX: usize = 4;
/// Interval between progress reports.
const PROGRESS: Duration = Duration::from_millis(500);
/// Name of the memory in /proc/PID/maps.
const NAME: &str = "kvtide-host";

/// Memory in segments; each becomes one slab.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// All of one size, except perhaps one smaller segment.
    segments: Vec<Reserved>,
    segment_bytes: u64,
    capacity_bytes: u64,
}

impl Pool {
    /// Create a pool without memory: slabs are allocated on request.
    pub fn empty() -> Pool {
        Pool::default()
    }

    /// Allocate `capacity_bytes` in segments of `segment_bytes`. `progress` gets the bytes allocated so far, from time to time.
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
                    // The daemon will not start, so the other threads stop allocating.
                    next.store(sizes.len(), Ordering::Relaxed);
                }
                // The channel has room for all segments.
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
        // The smaller segment last, so that it is granted last.
        segments.sort_by_key(Reserved::bytes);
        Ok(Pool { segments, segment_bytes, capacity_bytes })
    }

    /// Return memory of `bytes` for a space, from the pool if it has any. A segment that is too short is freed.
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

    /// Replace memory that a space returned: engines may still map the old memory. Afterwards pool and granted memory add up to the
    /// capacity again, up to less than one segment.
    pub fn refill(&mut self, granted_bytes: u64) {
        while self.segment_bytes > 0 && self.bytes() + granted_bytes + self.segment_bytes <= self.capacity_bytes {
            match Reserved::take(NAME, self.segment_bytes) {
                Ok(segment) => self.segments.push(segment),
                Err(error) => {
                    return tracing::error!("host tier: cannot allocate a replacement for returned memory: {error}");
                }
            }
        }
    }

    /// Return the bytes of the pool that are on huge pages.
    pub fn huge_bytes(&self) -> u64 {
        self.segments.iter().map(Reserved::huge_bytes).sum()
    }

    /// Return the bytes in the pool.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(Reserved::bytes).sum()
    }
}

/// Collect the segments that the threads allocate, until all threads have ended.
fn collect(
    made: &Receiver<Result<Reserved, WireError>>,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<Reserved>, Error> {
    let (mut segments, mut bytes, mut told) = (Vec::new(), 0, Instant::now());
    while let Ok(segment) = made.recv() {
        let segment = segment.map_err(|source| Error::Wire { action: "allocate the host tier's memory", source })?;
        bytes += segment.bytes();
        segments.push(segment);
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            progress(bytes);
        }
    }
    Ok(segments)
}

/// Small pages cost more CPU per byte, and split large KV pages into several I/O requests. The fallback is therefore logged.
fn warn_if_small(bytes: u64, why: Option<Errno>) {
    if let Some(errno) = why {
        tracing::warn!("host tier: {bytes} bytes are on small pages: cannot get huge pages (MADV_COLLAPSE): {errno}");
    }
}

/// Fail if the machine has less memory available: a process that allocates more is killed by the kernel.
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
        assert_eq!((a.bytes(), pool.bytes()), (60 * KIB, 136 * KIB), "the rest was freed");
        pool.refill(60 * KIB);
        assert_eq!(pool.bytes(), 136 * KIB, "no memory was returned");
        drop(a);
        pool.refill(0);
        assert_eq!(pool.bytes(), 200 * KIB);
        let all: Vec<_> = (0..4).map(|_| pool.take("b", 8 * KIB).unwrap()).collect();
        assert_eq!((all.len(), pool.bytes()), (4, 0));
        assert_eq!(pool.take("allocated on request", 64 * KIB).unwrap().bytes(), 64 * KIB);
    }

    #[test]
    fn more_than_the_machine_has_is_refused_before_it_is_touched() {
        let error = Pool::fill(1 << 50, 1 << 30, &mut |_| ()).unwrap_err();
        assert!(matches!(error, Error::Memory { wanted, .. } if wanted == 1 << 50), "{error}");
    }
}
