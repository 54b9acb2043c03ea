//! Health of a disk: shared by its two threads. Counts errors by kind, and takes the disk out of service when there are too many.
//!
//! * A permanent error (device gone or read-only) takes the disk out of service at once.
//! * Other errors do when [`Settings::errors_max`] of them occur within [`ERRORS_WINDOW`]. A full file system or a kernel out of
//!   memory is not a device error; nor is a page with a wrong checksum, which a power cut may leave behind.
//! * If the store is no longer at its path, the disk is taken out at once: a restart would not find its data.
//! * This happens once and is reported once. The disk returns to service only after a restart.

use super::settings::Settings;
use super::thread::{DiskEvent, Tell};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Time for which a device error counts.
const ERRORS_WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of error numbers counted separately; Linux has fewer.
const ERRNOS_MAX: usize = 256;
/// In service.
const SERVING: i32 = -1;

/// Return true if an error is permanent: the device is gone or can no longer be written. (A block device that turned read-only
/// while open returns EPERM.)
pub(super) fn is_final(errno: i32) -> bool {
    [libc::EROFS, libc::EPERM, libc::ENODEV, libc::ENXIO, libc::ESHUTDOWN].contains(&errno)
}

/// Return true if an error indicates a device fault; 0 stands for a short request.
fn is_real(errno: i32) -> bool {
    ![libc::ENOSPC, libc::EDQUOT, libc::ENOMEM, libc::ENOBUFS, libc::EAGAIN, libc::EINTR].contains(&errno)
}

/// Return the error number of a system call's error; 0 if it has none (a short request).
pub(super) fn errno(error: &io::Error) -> i32 {
    Errno::from_io_error(error).map_or(0, Errno::raw_os_error)
}

/// Health of one disk.
pub(super) struct Health {
    number: u16,
    name: String,
    errors_max: usize,
    /// Error number that took it out of service; `SERVING` while in service.
    out: AtomicI32,
    /// The reason as text; set before `out`.
    why: OnceLock<String>,
    clock: Instant,
    /// Transfers and requests in flight; a hint for work to do when idle.
    busy: AtomicU32,
    /// Time when there were last some, in microseconds of the clock.
    busy_us: AtomicU64,
    errors: Mutex<Errors>,
    tell: Mutex<Tell>,
}

#[derive(Debug, Default)]
struct Errors {
    by_errno: BTreeMap<i32, u64>,
    /// Times of the last device errors, at most `errors_max`.
    recent: VecDeque<Instant>,
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health").field("name", &self.name).field("out", &self.out()).finish_non_exhaustive()
    }
}

impl Health {
    /// Create the health state of a disk; its events go to `tell`.
    pub fn new(settings: &Settings, tell: Tell) -> Health {
        Health {
            number: settings.number,
            name: format!("disk {} ({})", settings.number, settings.place.path().display()),
            errors_max: settings.errors_max.max(1) as usize,
            out: AtomicI32::new(SERVING),
            why: OnceLock::new(),
            clock: Instant::now(),
            busy: AtomicU32::new(0),
            busy_us: AtomicU64::new(0),
            errors: Mutex::default(),
            tell: Mutex::new(tell),
        }
    }

    /// Return number and path, for logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Return the error number that took it out of service, if it is out; 0 after short requests.
    pub fn out(&self) -> Option<i32> {
        Some(self.out.load(Ordering::Acquire)).filter(|&errno| errno != SERVING)
    }

    /// Set the number of transfers and requests in the I/O thread.
    pub fn has(&self, busy: u32) {
        if busy > 0 || self.busy.load(Ordering::Relaxed) > 0 {
            self.busy_us.store(self.clock.elapsed().as_micros() as u64, Ordering::Relaxed);
            self.busy.store(busy, Ordering::Relaxed);
        }
    }

    /// Return how long it has been idle.
    pub fn idle(&self) -> Duration {
        if self.busy.load(Ordering::Relaxed) > 0 {
            return Duration::ZERO;
        }
        self.clock.elapsed().saturating_sub(Duration::from_micros(self.busy_us.load(Ordering::Relaxed)))
    }

    /// Count a device error; take the disk out of service if it is one too many.
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
        let many = errors.recent.len() >= self.errors_max && now.saturating_duration_since(first) <= ERRORS_WINDOW;
        drop(errors);
        if is_final(errno) {
            self.fail(errno, "permanent error");
        } else if many {
            let (most, window) = (self.errors_max, ERRORS_WINDOW.as_secs());
            self.fail(errno, &format!("too many errors ({most} within {window} s)"));
        }
    }

    /// Take it out of service because of an error.
    pub fn fail(&self, errno: i32, why: &str) {
        self.give_up(errno, format!("{why}; last error: {}", errno_text(errno)));
    }

    /// Take it out of service. The first reason is kept.
    pub fn give_up(&self, errno: i32, why: String) {
        if self.why.set(why).is_ok() {
            self.out.store(errno, Ordering::Release);
            tracing::error!("{}: out of service: {}", self.name, self.why());
            self.tell(DiskEvent::Failed { disk: self.number, errno });
        }
    }

    /// Return the reason as text; "" while in service.
    pub fn why(&self) -> &str {
        self.why.get().map_or("", String::as_str)
    }

    /// Return the error counts by number.
    pub fn errors(&self) -> BTreeMap<i32, u64> {
        lock(&self.errors).by_errno.clone()
    }

    /// Send an event to the owner of the disk.
    pub fn tell(&self, event: DiskEvent) {
        lock(&self.tell)(event);
    }
}

/// Describe an error number. 0 is not a kernel error: the device completed only a part of a request.
pub fn errno_text(errno: i32) -> String {
    match errno {
        0 => "short read or write".to_owned(),
        errno => io::Error::from_raw_os_error(errno).to_string(),
    }
}

/// A poisoned lock is safe to use: the guarded counts and queues stay valid.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam::channel::{Receiver, unbounded};

    fn health(errors_max: u32) -> (Health, Receiver<DiskEvent>) {
        let (told, events) = unbounded();
        let settings = Settings { errors_max, ..Settings::default() };
        let tell = move |event| {
            let _ = told.send(event);
        };
        (Health::new(&settings, Box::new(tell)), events)
    }

    #[test]
    fn as_many_errors_as_allowed_within_the_window_end_it_once() {
        let (health, events) = health(3);
        let begin = Instant::now();
        for second in [0, 36, 72, 138] {
            health.error(libc::EIO, begin + Duration::from_secs(second));
            assert_eq!(health.out(), None, "after {second} s");
        }
        for _ in 0..100 {
            health.error(libc::ENOSPC, begin + Duration::from_secs(144));
            health.error(libc::ENOMEM, begin + Duration::from_secs(144));
        }
        assert_eq!(health.out(), None, "these errors do not count against the device");
        health.error(0, begin + Duration::from_secs(144));
        assert_eq!(health.out(), None);
        health.error(libc::EIO, begin + Duration::from_secs(198));
        assert_eq!(health.out(), Some(libc::EIO), "third error within a minute");
        health.error(libc::EROFS, begin + Duration::from_secs(204));
        assert_eq!(health.out(), Some(libc::EIO));
        assert_eq!(events.try_iter().collect::<Vec<_>>(), [DiskEvent::Failed { disk: 0, errno: libc::EIO }]);
        let errors = health.errors();
        assert_eq!((errors[&0], errors[&libc::EIO], errors[&libc::ENOSPC], errors[&libc::EROFS]), (1, 5, 100, 1));
    }

    #[test]
    fn a_device_that_is_gone_or_read_only_ends_it_at_once() {
        for errno in [libc::EROFS, libc::EPERM, libc::ENODEV, libc::ENXIO] {
            let (health, events) = health(16);
            health.error(errno, Instant::now());
            assert_eq!(health.out(), Some(errno));
            assert_eq!(events.try_iter().count(), 1);
        }
    }
}
