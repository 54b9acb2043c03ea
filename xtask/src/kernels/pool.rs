//! Run a list of tasks on as many threads as there are cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Return the results of `work` for every item, in the order of the items. Items also start in that order, so put the longest
/// first.
pub fn each<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(vec![]);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(|| {
                // Relaxed: the counter only assigns indices; the mutex orders the results.
                while let Some((i, item)) = at(items, next.fetch_add(1, Ordering::Relaxed)) {
                    let result = work(item);
                    done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((i, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

fn at<T>(items: &[T], i: usize) -> Option<(usize, &T)> {
    items.get(i).map(|item| (i, item))
}
