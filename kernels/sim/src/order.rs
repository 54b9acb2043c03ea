//! Order of operations, by vector clocks. Two operations on the same bytes, at least one of which writes, are a fault unless one is
//! ordered before the other.
//!
//! These order operations: a stream; an event that one stream records and another waits for; and the host, if it saw the end of one
//! operation before it enqueued the other. Ordered operations are never reported. So the following also count as order:
//!
//! - Host threads synchronise among themselves unseen, so there is one clock for all of them.
//! - A stream's wait for a word ends because a host or a stream wrote it: everything that has ended by then is ordered before it.
//! - A host may read words that a stream or a kernel writes to its memory: all that is ordered before the write counts as seen.
//!
//! Clocks are computed when operations run, because the effect of a wait for a word is known only then.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// For each stream, by its number, the last of its operations that is ordered before something.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock(Vec<u64>);

impl Clock {
    pub fn of(&self, stream: usize) -> u64 {
        self.0.get(stream).copied().unwrap_or(0)
    }

    pub fn set(&mut self, stream: usize, operation: u64) {
        if self.0.len() <= stream {
            self.0.resize(stream + 1, 0);
        }
        self.0[stream] = operation;
    }

    pub fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, &its) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(its);
        }
    }

    fn contains(&self, other: &Self) -> bool {
        other.0.iter().enumerate().all(|(stream, &operation)| operation <= self.of(stream))
    }

    fn covers(&self, access: &Access) -> bool {
        access.operation <= self.of(access.stream)
    }
}

/// What all host threads have seen.
#[derive(Default)]
struct Host {
    now: Arc<Clock>,
    /// Earlier values, oldest first. Enqueued operations keep theirs alive.
    before: VecDeque<Weak<Clock>>,
}

impl Host {
    /// Return the oldest value that an operation keeps alive, or the newest. Drop those before it.
    fn oldest(&mut self) -> Arc<Clock> {
        self.trim();
        self.before.front().and_then(Weak::upgrade).unwrap_or_else(|| Arc::clone(&self.now))
    }

    fn trim(&mut self) {
        while self.before.front().is_some_and(|clock| clock.strong_count() == 0) {
            self.before.pop_front();
        }
    }
}

static HOST: Mutex<Option<Host>> = Mutex::new(None);

/// The last operation of each stream that has ended.
static ENDED: Mutex<Clock> = Mutex::new(Clock(Vec::new()));

static BYTES: Mutex<Bytes> = Mutex::new(Bytes { spans: BTreeMap::new(), tidied: 0 });

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Return what the hosts have seen, for an operation that is enqueued now.
pub(crate) fn seen() -> Arc<Clock> {
    Arc::clone(&lock(&HOST).get_or_insert_default().now)
}

/// Note that a host has seen the end of everything that is ordered before something, or may have.
pub(crate) fn see(clock: &Clock) {
    let mut host = lock(&HOST);
    let host = host.get_or_insert_default();
    if !host.now.contains(clock) {
        let mut now = Clock::clone(&host.now);
        now.join(clock);
        let before = std::mem::replace(&mut host.now, Arc::new(now));
        if Arc::strong_count(&before) > 1 {
            host.before.push_back(Arc::downgrade(&before));
        }
        host.trim();
    }
}

/// Return what the oldest operation that has not begun has seen: later ones have seen as much.
fn seen_by_all() -> Arc<Clock> {
    lock(&HOST).get_or_insert_default().oldest()
}

/// Note the end of an operation.
pub(crate) fn end(stream: usize, operation: u64) {
    lock(&ENDED).set(stream, operation);
}

/// Return the operations that have ended.
pub(crate) fn ended() -> Clock {
    lock(&ENDED).clone()
}

/// An operation that accesses memory.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub stream: usize,
    pub operation: u64,
    /// For messages: the name of a kernel, or of a kind of operation.
    pub name: Arc<str>,
}

/// The last accesses to adjacent bytes.
#[derive(Clone)]
struct Span {
    end: u64,
    write: Option<Access>,
    /// Since that write. Those that are ordered before another one are left out.
    reads: Vec<Access>,
}

impl Span {
    /// Return an access that conflicts with one of this clock.
    fn conflict(&self, write: bool, clock: &Clock) -> Option<(&'static str, &Access)> {
        let unordered = |access: &&Access| !clock.covers(access);
        let wrote = self.write.as_ref().filter(unordered).map(|access| ("wrote", access));
        wrote.or_else(|| self.reads.iter().filter(|_| write).find(unordered).map(|access| ("read", access)))
    }
}

/// Accesses by the first byte of each span; spans do not overlap.
struct Bytes {
    spans: BTreeMap<u64, Span>,
    /// Number of spans after they were last tidied.
    tidied: usize,
}

/// Number of spans that are not worth tidying.
const SPANS_FEW: usize = 4096;

impl Bytes {
    /// Make a span begin at an address that is within one.
    fn cut(&mut self, at: u64) {
        if let Some((_, span)) = self.spans.range_mut(..at).next_back()
            && span.end > at
        {
            let rest = span.clone();
            span.end = at;
            self.spans.insert(at, rest);
        }
    }

    fn write(&mut self, low: u64, high: u64, access: &Access) {
        self.forget(low, high);
        self.spans.insert(low, Span { end: high, write: Some(access.clone()), reads: vec![] });
    }

    fn read(&mut self, low: u64, high: u64, access: &Access, clock: &Clock) {
        self.cut(low);
        self.cut(high);
        let (mut at, mut gaps) = (low, vec![]);
        for (&base, span) in self.spans.range_mut(low..high) {
            if at < base {
                gaps.push((at, base));
            }
            span.reads.retain(|read| !clock.covers(read));
            span.reads.push(access.clone());
            at = span.end;
        }
        if at < high {
            gaps.push((at, high));
        }
        for (low, end) in gaps {
            self.spans.insert(low, Span { end, write: None, reads: vec![access.clone()] });
        }
    }

    fn forget(&mut self, low: u64, high: u64) {
        self.cut(low);
        self.cut(high);
        while let Some((&base, _)) = self.spans.range(low..high).next() {
            self.spans.remove(&base);
        }
    }

    /// Drop accesses that are ordered before every later operation.
    fn tidy(&mut self) {
        if self.spans.len() <= 2 * self.tidied + SPANS_FEW {
            return;
        }
        let clock = seen_by_all();
        self.spans.retain(|_, span| {
            span.write.take_if(|write| clock.covers(write));
            span.reads.retain(|read| !clock.covers(read));
            span.write.is_some() || !span.reads.is_empty()
        });
        self.tidied = self.spans.len();
    }

    fn conflict(&self, low: u64, high: u64, write: bool, access: &Access, clock: &Clock) -> Result<(), String> {
        let first = self.spans.range(..low).next_back().filter(|(_, span)| span.end > low);
        for (&base, span) in first.into_iter().chain(self.spans.range(low..high)) {
            if let Some((did, other)) = span.conflict(write, clock) {
                let (from, to, does) = (base.max(low), span.end.min(high), if write { "writes" } else { "reads" });
                return Err(format!(
                    "{} on stream {} {does} bytes {from:#x} to {to:#x}, which {} on stream {} {did}; no event or wait of the host orders them",
                    access.name, access.stream, other.name, other.stream
                ));
            }
        }
        Ok(())
    }
}

/// Memory that an operation accesses: first and last address, and whether it writes.
pub(crate) type Touched = (u64, u64, bool);

/// Check the accesses of an operation against earlier ones and note them. The order of its own accesses does not matter.
pub(crate) fn access(access: &Access, clock: &Clock, touched: &[Touched]) -> Result<(), String> {
    let mut bytes = lock(&BYTES);
    for &(low, high, write) in touched.iter().filter(|(low, high, _)| low < high) {
        bytes.conflict(low, high, write, access, clock)?;
        if write {
            bytes.write(low, high, access);
        } else {
            bytes.read(low, high, access, clock);
        }
    }
    bytes.tidy();
    Ok(())
}

/// Forget accesses to memory that is taken away.
pub(crate) fn forget(base: u64, bytes: usize) {
    lock(&BYTES).forget(base, base.saturating_add(bytes as u64));
}
