//! Bounds on the connections of a socket, so that neither strangers nor one user keep others out.
//!
//! A socket's directory belongs to root or to the relay ([`check_directory`]). A connection waits ([`Waiting`]) until it has shown that it may ask. Then it takes a place ([`Places`]).

use kvtide_wire::os::socket::why_not_ours;
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::hash::Hash;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Connections at a time that have not shown that they may ask, in all and from one source. A client shows it at once, so one is usual; the
/// workers of a machine's engines may start together.
pub const WAITING_MAX: usize = 4 * SOURCE_WAITING_MAX;
const SOURCE_WAITING_MAX: usize = 32;
/// Time between two lines in the log about connections.
pub const QUIET: Duration = Duration::from_secs(1);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fail if other users could replace a socket: clients would believe what theirs says, or send it their tokens.
pub fn check_directory(socket: &Path) -> io::Result<()> {
    let Some(dir) = socket.parent() else { return Ok(()) };
    let why = why_not_ours(dir, &std::fs::metadata(dir)?);
    let failed = |why| io::Error::new(io::ErrorKind::PermissionDenied, format!("directory {}: {why}", dir.display()));
    why.map_or(Ok(()), |why| Err(failed(why)))
}

/// Connections that have not shown that they may ask, by source: a user or an address. They take no place, and their number is bounded: the
/// oldest gives way.
pub struct Waiting<S>(Mutex<Queue<S>>);

struct Queue<S> {
    next: u64,
    /// By age, with the source. Dropping the sender closes the connection.
    all: BTreeMap<u64, (S, oneshot::Sender<Infallible>)>,
}

impl<S> Default for Waiting<S> {
    fn default() -> Waiting<S> {
        Waiting(Mutex::new(Queue { next: 0, all: BTreeMap::new() }))
    }
}

impl<S: Copy + Eq + Hash> Queue<S> {
    /// Return which connection gives way to a new one of `source`, if one must: the oldest of the source that has too many, or has most.
    fn gives_way(&self, source: S) -> Option<u64> {
        let mut of_source: HashMap<S, usize> = HashMap::new();
        self.all.values().for_each(|(source, _)| *of_source.entry(*source).or_default() += 1);
        let from = match of_source.get(&source) {
            Some(&own) if own >= SOURCE_WAITING_MAX => source,
            _ if self.all.len() >= WAITING_MAX => of_source.into_iter().max_by_key(|(_, count)| *count)?.0,
            _ => return None,
        };
        self.all.iter().find(|(_, (source, _))| *source == from).map(|(number, _)| *number)
    }
}

impl<S: Copy + Eq + Hash> Waiting<S> {
    /// Wait with a connection of a source. The receiver ends when the connection must give way.
    pub fn enter(&self, source: S) -> (Waits<'_, S>, oneshot::Receiver<Infallible>) {
        let mut queue = lock(&self.0);
        if let Some(number) = queue.gives_way(source) {
            queue.all.remove(&number);
        }
        let (open, closed) = oneshot::channel();
        let number = queue.next;
        queue.next += 1;
        queue.all.insert(number, (source, open));
        (Waits { waiting: self, number }, closed)
    }
}

/// A connection that waits, until this is dropped.
pub struct Waits<'a, S> {
    waiting: &'a Waiting<S>,
    number: u64,
}

impl<S> Drop for Waits<'_, S> {
    fn drop(&mut self) {
        lock(&self.waiting.0).all.remove(&self.number);
    }
}

/// Connections that may ask, by the right by which they do.
pub struct Places<R>(Mutex<HashMap<R, usize>>);

impl<R> Default for Places<R> {
    fn default() -> Places<R> {
        Places(Mutex::default())
    }
}

impl<R: Copy + Eq + Hash> Places<R> {
    /// Take a place, if fewer than `own_max` are taken by this right and fewer than `max` in all.
    pub fn take(&self, right: R, own_max: usize, max: usize) -> Option<Place<'_, R>> {
        let mut all = lock(&self.0);
        let total: usize = all.values().sum();
        let own = all.get(&right).copied().unwrap_or(0);
        (total < max && own < own_max).then(|| {
            all.insert(right, own + 1);
            Place { places: self, right }
        })
    }
}

/// A place, until it is dropped.
pub struct Place<'a, R: Copy + Eq + Hash> {
    places: &'a Places<R>,
    right: R,
}

impl<R: Copy + Eq + Hash> Drop for Place<'_, R> {
    fn drop(&mut self) {
        let mut all = lock(&self.places.0);
        match all.get_mut(&self.right) {
            Some(own) if *own > 1 => *own -= 1,
            _ => _ = all.remove(&self.right),
        }
    }
}

/// Limits the lines in the log about connections: strangers must not fill it.
#[derive(Default)]
pub struct Quiet(Mutex<Option<Instant>>);

impl Quiet {
    /// Return whether a line may be logged.
    pub fn may_log(&self) -> bool {
        let mut logged = lock(&self.0);
        let may = logged.is_none_or(|at| at.elapsed() >= QUIET);
        if may {
            *logged = Some(Instant::now());
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(waiting: &Waiting<u32>) -> Vec<u32> {
        lock(&waiting.0).all.values().map(|(uid, _)| *uid).collect()
    }

    /// Four users, each with as many silent connections as it can have, leave places to others and to a fifth user's first message.
    #[test]
    fn silent_strangers_keep_nobody_out() {
        let queue = Waiting::default();
        let mut silent: Vec<_> = (1..=4).flat_map(|uid| [uid; 100]).map(|uid| queue.enter(uid)).collect();
        let open = |silent: &mut Vec<(Waits<'_, u32>, oneshot::Receiver<Infallible>)>| {
            silent
                .iter_mut()
                .filter_map(|(_, closed)| closed.try_recv().err())
                .filter(|e| *e == oneshot::error::TryRecvError::Empty)
                .count()
        };
        assert_eq!((waiting(&queue).len(), open(&mut silent)), (WAITING_MAX, WAITING_MAX));
        let (engine, mut gives_way) = queue.enter(1000);
        assert!(gives_way.try_recv() == Err(oneshot::error::TryRecvError::Empty), "it waits");
        assert_eq!(open(&mut silent), WAITING_MAX - 1, "a stranger's connection gave way");
        // The strangers come again: one of theirs gives way, not the engine.
        silent.extend((0..1000).map(|i| queue.enter(i % 4 + 1)));
        assert!(gives_way.try_recv() == Err(oneshot::error::TryRecvError::Empty));
        drop(engine);
        assert!(!waiting(&queue).contains(&1000));
        drop(silent);
        assert_eq!(waiting(&queue), [0; 0]);
    }

    #[test]
    fn one_right_leaves_places_to_others() {
        let places = Places::default();
        let take = |right: u32, count| (0..count).map_while(|_| places.take(right, 4, 10)).collect::<Vec<_>>();
        let (first, second) = (take(1, 100), take(2, 100));
        assert_eq!([first.len(), second.len(), take(3, 100).len()], [4, 4, 2]);
        drop(first);
        assert_eq!(take(1, 100).len(), 4);
        drop(second);
        assert!(lock(&places.0).is_empty());
    }
}
