//! Polling for an answer without occupying a core that other threads need; and short time slices for a thread that others wait for.

use super::failed;
use crate::error::Error;
use rustix::io::Errno;
use std::format;
use std::time::{Duration, Instant};

/// Time to poll without yielding: an answer from a core that is awake takes some microseconds.
const ALONE: Duration = Duration::from_micros(20);
/// If `sched_yield` returns later than this, another thread used the core. Yielding to no thread takes a microsecond.
const TAKEN: Duration = Duration::from_micros(20);
/// How long cores count as scarce after that.
const CROWDED: Duration = Duration::from_millis(4);

/// Polling state of one thread.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    limit: Duration,
    crowded_until: Option<Instant>,
}

impl Spin {
    /// Create a spinner that polls for `limit` at a time.
    #[must_use]
    pub const fn new(limit: Duration) -> Spin {
        Spin { limit, crowded_until: None }
    }

    /// Pause between two polls, `waited` after the last successful one. Return false if it is time to sleep, because the limit has
    /// passed or because other threads need the core.
    pub fn pause(&mut self, waited: Duration) -> bool {
        if waited >= self.limit {
            return false;
        }
        if waited < ALONE {
            std::hint::spin_loop();
            return true;
        }
        let now = Instant::now();
        if self.crowded_until.is_some_and(|until| now < until) {
            return false;
        }
        std::thread::yield_now();
        let away = now.elapsed();
        if away >= TAKEN {
            self.crowded_until = Some(now + away + CROWDED);
        }
        // The answer may have arrived during the yield.
        true
    }
}

/// Time that a busy thread keeps its core before it yields.
const TURN: Duration = Duration::from_micros(100);

/// Time slices of a busy thread, which yields its core at the end of each. The kernel preempts a running thread only at a timer
/// tick (every 4 ms at 250 Hz), even if [`short_turns`] has requested shorter slices.
#[derive(Clone, Copy, Debug)]
pub struct Turns {
    began: Instant,
}

impl Turns {
    /// Start a slice: the thread has slept or yielded.
    #[must_use]
    pub fn begin() -> Turns {
        Turns { began: Instant::now() }
    }

    /// Yield if the slice is over. Call it between two pieces of work.
    pub fn pass(&mut self) {
        if self.began.elapsed() >= TURN {
            std::thread::yield_now();
            *self = Turns::begin();
        }
    }
}

/// Limit the calling thread's time slice on a contended core to `turn` (0.1 to 100 ms; Linux 6.12 and later; older kernels ignore
/// it). When the thread wakes, it runs before threads with longer slices: it gets no more of the core than before, but gets it
/// sooner.
///
/// # Errors
/// The system's.
pub fn short_turns(turn: Duration) -> Result<(), Error> {
    let on = || format!("this thread, turns of {turn:?}");
    // SAFETY: the structure holds numbers only, so all bits zero are a valid value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the kernel writes at most `size` bytes, the size of the structure.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if got != 0 {
        return Err(failed("sched_getattr", on(), last_error()));
    }
    attributes.size = size;
    attributes.sched_runtime = u64::try_from(turn.as_nanos()).unwrap_or(u64::MAX);
    // SAFETY: the kernel reads `size` bytes and keeps no reference.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if set != 0 {
        return Err(failed("sched_setattr", on(), last_error()));
    }
    Ok(())
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_sleeps_after_its_time_and_where_cores_are_short() {
        let mut spin = Spin::new(Duration::from_millis(1));
        assert!(spin.pause(Duration::ZERO) && spin.pause(ALONE), "there is time");
        assert!(!spin.pause(Duration::from_millis(1)), "its time is over");
        spin.crowded_until = Some(Instant::now() + Duration::from_secs(60));
        assert!(spin.pause(Duration::ZERO), "an answer may be a moment away");
        assert!(!spin.pause(ALONE), "others need the core");
        spin.crowded_until = Some(Instant::now());
        assert!(spin.pause(ALONE), "that is over");
    }

    #[test]
    fn a_turn_ends_after_its_time_and_not_before() {
        let mut turns = Turns { began: Instant::now() + Duration::from_secs(60) };
        let began = turns.began;
        turns.pass();
        assert_eq!(turns.began, began, "it goes on");
        let over = Instant::now() - TURN;
        turns.began = over;
        turns.pass();
        assert!(turns.began > over, "a new one has begun");
    }

    #[test]
    fn a_thread_gets_short_turns() {
        let turn = std::thread::spawn(|| short_turns(Duration::from_micros(100)));
        turn.join().expect("it does not panic").expect("any thread may");
    }
}
