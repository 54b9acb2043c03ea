//! How far a lane's stream must have come before frames may be overwritten: events, recorded by the lane, waited for by copies.
//!
//! 1. A *point* is an event recorded behind all that the lane has enqueued. The *mark* is the point behind which copies go now.
//! 2. A lane on its own thread records and sets at once (protocol rule 11). A boundary that the copy thread completes later has
//!    its point recorded when it is enqueued, before the stream's wait: a later one would be behind that wait, which ends only
//!    after the copies that go behind the mark.
//! 3. Points are used in turn. One is recorded anew only after as many others, which is more than a lane has waits
//!    (`agent::stream` bounds them); the lock keeps "which is the mark" and "wait for it" together.

use kvtide_kernels::{Device, Error, Event, Result, Stream};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// Points of a lane. Twice its waits, so that a point is never recorded anew while a wait behind it is not over.
pub(crate) const POINTS: usize = 64;

/// A lane's points and its mark.
pub(crate) struct Marks {
    inner: Mutex<Inner>,
    /// A point could not be recorded: nothing may be copied any more, since nobody knows what is still being read.
    broken: AtomicBool,
}

struct Inner {
    stream: Option<Arc<Stream>>,
    points: Vec<Event>,
    next: usize,
    mark: Option<usize>,
    /// Counts the marks that were set.
    set: u64,
}

impl Marks {
    /// No point yet: a lane without a stream holds up nobody.
    pub fn new(device: &Arc<Device>) -> Result<Marks> {
        let points = (0..POINTS).map(|_| Event::new(device)).collect::<Result<_>>()?;
        let inner = Inner { stream: None, points, next: 0, mark: None, set: 0 };
        Ok(Marks { inner: Mutex::new(inner), broken: AtomicBool::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lane's work goes to this stream from now on, behind what it has on the one before.
    pub fn bind(&self, stream: &Arc<Stream>) -> Result<()> {
        let mut inner = self.lock();
        if let Some(mark) = inner.mark {
            stream.wait_event(&inner.points[mark])?;
        }
        inner.stream = Some(Arc::clone(stream));
        Ok(())
    }

    /// The lane has no stream any more. Copies stay behind its mark.
    pub fn unbind(&self) {
        self.lock().stream = None;
    }

    /// Whether the lane is on a stream.
    pub fn is_bound(&self) -> bool {
        self.lock().stream.is_some()
    }

    /// Records a point behind all that is enqueued now.
    pub fn point(&self) -> Result<usize> {
        let mut inner = self.lock();
        let point = inner.next;
        let recorded = match &inner.stream {
            Some(stream) => stream.record(&inner.points[point]),
            None => Ok(()), // nothing was ever enqueued
        };
        if recorded.is_err() {
            self.broken.store(true, Ordering::Release);
        }
        recorded?;
        inner.next = (point + 1) % POINTS;
        Ok(point)
    }

    /// Copies go behind this point from now on.
    pub fn set(&self, point: usize) {
        let mut inner = self.lock();
        inner.mark = Some(point);
        inner.set += 1;
    }

    /// Records a point and makes it the mark.
    pub fn mark(&self) -> Result<()> {
        self.point().map(|point| self.set(point))
    }

    /// Has `after` go behind the mark, unless it was set no more often than `seen` says, which is brought up to date.
    pub fn follow(&self, seen: &mut u64, after: impl FnOnce(&Event) -> Result<()>) -> Result<()> {
        if self.broken.load(Ordering::Acquire) {
            return Err(Error::Invalid {
                what: "lane",
                why: "how far its stream has come could not be recorded".into(),
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

    /// Whether the stream has come to the mark.
    pub fn reached(&self) -> Result<bool> {
        let mut reached = true;
        self.follow(&mut 0, |mark| mark.query().map(|done| reached = done))?;
        Ok(reached)
    }

    /// Waits until the stream has come to the mark, or the deadline has passed, and says which.
    pub fn reached_by(&self, deadline: Instant) -> Result<bool> {
        let mut reached = true;
        self.follow(&mut 0, |mark| mark.wait_until(deadline).map(|done| reached = done))?;
        Ok(reached)
    }
}
