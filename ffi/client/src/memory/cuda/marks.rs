//! Points that a lane's stream must pass before frames may be overwritten: events that the lane records and copies wait for.
//!
//! 1. A *point* is an event recorded after all work that the lane has enqueued. The *mark* is the point that copies wait for now.
//! 2. A lane on its own thread records a point and sets the mark at once (protocol rule 11). For a boundary that the copy thread
//!    completes later, the point is recorded when the boundary is enqueued, before the stream's wait. A point recorded later would
//!    come after that wait, and the wait ends only after copies that wait for the mark: a deadlock.
//! 3. Points are used in turn. A point is recorded again only after all others, and there are more points than a lane has waits
//!    (bounded in `agent::stream`). The lock makes reading the mark and waiting for it one step.

use kvtide_kernels::{Device, Error, Event, Result, Stream};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// Points of a lane. Twice its waits, so that a point is never recorded again while a wait after it is pending.
pub(crate) const POINTS: usize = 64;

/// A lane's points and its mark.
pub(crate) struct Marks {
    inner: Mutex<Inner>,
    /// A point could not be recorded, so it is unknown which frames are still being read. Nothing may be copied any more.
    broken: AtomicBool,
}

struct Inner {
    stream: Option<Arc<Stream>>,
    points: Vec<Event>,
    next: usize,
    mark: Option<usize>,
    /// Number of times the mark was set.
    set: u64,
}

impl Marks {
    /// Create marks without a point: copies do not wait for a lane without a stream.
    pub fn new(device: &Arc<Device>) -> Result<Marks> {
        let points = (0..POINTS).map(|_| Event::new(device)).collect::<Result<_>>()?;
        let inner = Inner { stream: None, points, next: 0, mark: None, set: 0 };
        Ok(Marks { inner: Mutex::new(inner), broken: AtomicBool::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bind the lane to this stream. Its work comes after the work on the previous stream.
    pub fn bind(&self, stream: &Arc<Stream>) -> Result<()> {
        let mut inner = self.lock();
        if let Some(mark) = inner.mark {
            stream.wait_event(&inner.points[mark])?;
        }
        inner.stream = Some(Arc::clone(stream));
        Ok(())
    }

    /// Unbind the lane from its stream. Copies still wait for its mark.
    pub fn unbind(&self) {
        self.lock().stream = None;
    }

    /// Return whether the lane is bound to a stream.
    pub fn is_bound(&self) -> bool {
        self.lock().stream.is_some()
    }

    /// Record a point after all work enqueued so far.
    pub fn point(&self) -> Result<usize> {
        let mut inner = self.lock();
        let point = inner.next;
        let recorded = match &inner.stream {
            Some(stream) => stream.outside_capture().and_then(|()| stream.record(&inner.points[point])),
            None => Ok(()), // no work was ever enqueued
        };
        if recorded.is_err() {
            self.broken.store(true, Ordering::Release);
        }
        recorded?;
        inner.next = (point + 1) % POINTS;
        Ok(point)
    }

    /// Make this point the mark.
    pub fn set(&self, point: usize) {
        let mut inner = self.lock();
        inner.mark = Some(point);
        inner.set += 1;
    }

    /// Record a point and make it the mark.
    pub fn mark(&self) -> Result<()> {
        self.point().map(|point| self.set(point))
    }

    /// Order `after` behind the mark, unless the mark has not been set since `seen`, which is then updated.
    pub fn follow(&self, seen: &mut u64, after: impl FnOnce(&Event) -> Result<()>) -> Result<()> {
        if self.broken.load(Ordering::Acquire) {
            return Err(Error::Invalid {
                what: "lane",
                why: "its stream's progress could not be recorded, so no copy is safe".into(),
            });
        }
        let inner = self.lock();
        match inner.mark.filter(|_| inner.set != *seen) {
            Some(mark) => {
                after(&inner.points[mark])?;
                *seen = inner.set;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Return whether the stream has passed the mark.
    pub fn reached(&self) -> Result<bool> {
        let mut reached = true;
        self.follow(&mut 0, |mark| mark.query().map(|done| reached = done))?;
        Ok(reached)
    }

    /// Wait until the stream has passed the mark, or until the deadline. Return whether it has passed.
    pub fn reached_by(&self, deadline: Instant) -> Result<bool> {
        let mut reached = true;
        self.follow(&mut 0, |mark| mark.wait_until(deadline).map(|done| reached = done))?;
        Ok(reached)
    }
}
