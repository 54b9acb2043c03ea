//! Log storage with injected faults.

use super::fixture::LONG;
use crate::log::BoxedStorage;
use kvtide_format::log::Storage;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex};

/// Planned faults; shared with the storage.
#[derive(Clone, Debug, Default)]
pub struct Weather(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug, Default)]
struct State {
    writes: VecDeque<Option<i32>>,
    flushes: VecDeque<Option<i32>>,
    panics: bool,
    holds: bool,
    held: bool,
}

impl Weather {
    /// Set the results of the next writes.
    pub fn writes(&self, errnos: &[Option<i32>]) {
        self.0.0.lock().unwrap().writes.extend(errnos);
    }

    /// Set the results of the next flushes.
    pub fn flushes(&self, errnos: &[Option<i32>]) {
        self.0.0.lock().unwrap().flushes.extend(errnos);
    }

    /// Panic in the next write.
    pub fn panic(&self) {
        self.0.0.lock().unwrap().panics = true;
    }

    /// Block writes.
    pub fn hold(&self) {
        self.0.0.lock().unwrap().holds = true;
    }

    /// Wait until a write is blocked.
    pub fn until_held(&self) {
        let (state, changed) = &*self.0;
        let (_state, late) = changed.wait_timeout_while(state.lock().unwrap(), LONG, |state| !state.held).unwrap();
        assert!(!late.timed_out());
    }

    /// Unblock writes.
    pub fn release(&self) {
        self.0.0.lock().unwrap().holds = false;
        self.0.1.notify_all();
    }

    fn write(&self) -> io::Result<()> {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        if std::mem::take(&mut state.panics) {
            drop(state);
            panic!("injected by the test");
        }
        state.held = state.holds;
        changed.notify_all();
        let (mut state, late) = changed.wait_timeout_while(state, LONG, |state| state.holds).unwrap();
        assert!(!late.timed_out());
        state.writes.pop_front().flatten().map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }

    fn flush(&self) -> io::Result<()> {
        let errno = self.0.0.lock().unwrap().flushes.pop_front().flatten();
        errno.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }
}

/// A storage with these faults.
pub struct Storm {
    inner: BoxedStorage,
    weather: Weather,
}

impl Storm {
    pub fn new(inner: BoxedStorage, weather: &Weather) -> Storm {
        Storm { inner, weather: weather.clone() }
    }
}

impl Storage for Storm {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, into)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.weather.write()?;
        self.inner.write(offset, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.weather.flush()?;
        self.inner.flush()
    }
}
