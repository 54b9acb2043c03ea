//! Whether a disk is in service: what its two threads know of each other, its errors by kind, and the rate of them that ends it.
//!
//! * An error that will not go away (a device that is gone or turned read-only) ends it at once.
//! * Others do when [`Settings::errors_max`] of them came within [`Settings::errors_window`]. What a full file system or a kernel
//!   without memory says is no error of the device; nor are pages with a wrong checksum, which a power cut may leave behind.
//! * A store that is not at its path any more ends it at once: nothing of it would be found after a restart.
//! * It ends once, and is told once. A disk that has ended is in service again only after a restart.

use super::settings::Settings;
use super::thread::{DiskEvent, Tell};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Error numbers that are counted apart; Linux has fewer.
const ERRNOS_MAX: usize = 256;
/// In service.
const SERVING: i32 = -1;

/// Whether an error says that a device is gone, or cannot be written any more (EPERM: what a block device says that turned
/// read-only while it was open).
pub(super) fn is_final(errno: i32) -> bool {
    [libc::EROFS, libc::EPERM, libc::ENODEV, libc::ENXIO, libc::ESHUTDOWN].contains(&errno)
}

/// Whether an error says something about a device at all; 0 is a request that fell short.
fn is_real(errno: i32) -> bool {
    ![libc::ENOSPC, libc::EDQUOT, libc::ENOMEM, libc::ENOBUFS, libc::EAGAIN, libc::EINTR].contains(&errno)
}

/// The error number of an error of a system call; 0: it fell short.
pub(super) fn errno(error: &io::Error) -> i32 {
    Errno::from_io_error(error).map_or(0, Errno::raw_os_error)
}

/// One disk's.
pub(super) struct Health {
    number: u16,
    name: String,
    errors_max: usize,
    window: Duration,
    /// The error number with which it went out of service; `SERVING`: it did not.
    out: AtomicI32,
    /// Why it did, in words; there before the number is.
    why: OnceLock<String>,
    clock: Instant,
    /// Transfers and requests that it has: a hint for what is done when it has none.
    busy: AtomicU32,
    /// When it last had some, in microseconds of the clock.
    busy_us: AtomicU64,
    errors: Mutex<Errors>,
    tell: Mutex<Tell>,
}

#[derive(Debug, Default)]
struct Errors {
    by_errno: BTreeMap<i32, u64>,
    /// When the last real ones came, at most `errors_max`.
    recent: VecDeque<Instant>,
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health").field("name", &self.name).field("out", &self.out()).finish_non_exhaustive()
    }
}

impl Health {
    /// Of a disk whose events go to `tell`.
    pub fn new(settings: &Settings, tell: Tell) -> Health {
        Health {
            number: settings.number,
            name: format!("disk {} ({})", settings.number, settings.place.path().display()),
            errors_max: settings.errors_max.max(1) as usize,
            window: settings.errors_window,
            out: AtomicI32::new(SERVING),
            why: OnceLock::new(),
            clock: Instant::now(),
            busy: AtomicU32::new(0),
            busy_us: AtomicU64::new(0),
            errors: Mutex::default(),
            tell: Mutex::new(tell),
        }
    }

    /// Number and place, for logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Why it is out of service, if it is: an error number, 0 if requests fell short.
    pub fn out(&self) -> Option<i32> {
        Some(self.out.load(Ordering::Acquire)).filter(|&errno| errno != SERVING)
    }

    /// The I/O thread has so many transfers and requests now.
    pub fn has(&self, busy: u32) {
        if busy > 0 || self.busy.load(Ordering::Relaxed) > 0 {
            self.busy_us.store(self.clock.elapsed().as_micros() as u64, Ordering::Relaxed);
            self.busy.store(busy, Ordering::Relaxed);
        }
    }

    /// For how long it has had nothing to do.
    pub fn idle(&self) -> Duration {
        if self.busy.load(Ordering::Relaxed) > 0 {
            return Duration::ZERO;
        }
        self.clock.elapsed().saturating_sub(Duration::from_micros(self.busy_us.load(Ordering::Relaxed)))
    }

    /// Counts an error of the device at a moment, which may be one too many.
    pub fn error(&self, errno: i32, now: Instant) {
        let mut errors = lock(&self.errors);
        if errors.by_errno.len() < ERRNOS_MAX || errors.by_errno.contains_key(&errno) {
            *errors.by_errno.entry(errno).or_default() += 1;
        }
        if !is_real(errno) {
            return;
        }
        while errors.recent.len() >= self.errors_max {
            errors.recent.pop_front();
        }
        errors.recent.push_back(now);
        let first = errors.recent.front().copied().unwrap_or(now);
        let many = errors.recent.len() >= self.errors_max && now.saturating_duration_since(first) <= self.window;
        drop(errors);
        if is_final(errno) {
            self.fail(errno, "an error that will not go away");
        } else if many {
            self.fail(errno, "too many errors (errors_max within errors_window_s)");
        }
    }

    /// Takes it out of service, for an error that it said last.
    pub fn fail(&self, errno: i32, why: &str) {
        self.give_up(errno, format!("{why}; the last: {}", errno_text(errno)));
    }

    /// Takes it out of service. The first reason stays.
    pub fn give_up(&self, errno: i32, why: String) {
        if self.why.set(why).is_ok() {
            self.out.store(errno, Ordering::Release);
            tracing::error!("{}: out of service: {}", self.name, self.why());
            self.tell(DiskEvent::Failed { disk: self.number, errno });
        }
    }

    /// Why it is out of service, in words; "" while it serves.
    pub fn why(&self) -> &str {
        self.why.get().map_or("", String::as_str)
    }

    /// Errors by number.
    pub fn errors(&self) -> BTreeMap<i32, u64> {
        lock(&self.errors).by_errno.clone()
    }

    /// Tells whoever started the disk.
    pub fn tell(&self, event: DiskEvent) {
        lock(&self.tell)(event);
    }
}

/// Describe an error number. 0 is not a kernel error: the device completed only a part of a request.
pub(crate) fn errno_text(errno: i32) -> String {
    match errno {
        0 => "a request fell short".to_owned(),
        errno => io::Error::from_raw_os_error(errno).to_string(),
    }
}

/// A panic under one of these locks leaves what they guard whole: a count, or a queue of letters.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam::channel::{Receiver, unbounded};

    fn health(errors_max: u32, window: Duration) -> (Health, Receiver<DiskEvent>) {
        let (told, events) = unbounded();
        let settings = Settings { errors_max, errors_window: window, ..Settings::default() };
        let tell = move |event| {
            let _ = told.send(event);
        };
        (Health::new(&settings, Box::new(tell)), events)
    }

    #[test]
    fn as_many_errors_as_allowed_within_the_window_end_it_once() {
        let (health, events) = health(3, Duration::from_secs(10));
        let begin = Instant::now();
        for second in [0, 6, 12, 23] {
            health.error(libc::EIO, begin + Duration::from_secs(second));
            assert_eq!(health.out(), None, "after {second} s");
        }
        for _ in 0..100 {
            health.error(libc::ENOSPC, begin + Duration::from_secs(24));
            health.error(libc::ENOMEM, begin + Duration::from_secs(24));
        }
        assert_eq!(health.out(), None, "what says nothing about the device");
        health.error(0, begin + Duration::from_secs(24));
        assert_eq!(health.out(), None);
        health.error(libc::EIO, begin + Duration::from_secs(33));
        assert_eq!(health.out(), Some(libc::EIO), "the third within ten seconds");
        health.error(libc::EROFS, begin + Duration::from_secs(34));
        assert_eq!(health.out(), Some(libc::EIO));
        assert_eq!(events.try_iter().collect::<Vec<_>>(), [DiskEvent::Failed { disk: 0, errno: libc::EIO }]);
        let errors = health.errors();
        assert_eq!((errors[&0], errors[&libc::EIO], errors[&libc::ENOSPC], errors[&libc::EROFS]), (1, 5, 100, 1));
    }

    #[test]
    fn a_device_that_is_gone_or_read_only_ends_it_at_once() {
        for errno in [libc::EROFS, libc::EPERM, libc::ENODEV, libc::ENXIO] {
            let (health, events) = health(16, Duration::from_secs(60));
            health.error(errno, Instant::now());
            assert_eq!(health.out(), Some(errno));
            assert_eq!(events.try_iter().count(), 1);
        }
    }
}
