//! The threads of the CPU's kernels: those of an OpenMP runtime, after `use_openmp`.
//!
//! Threads of our own would compete with it for the processors. OpenMP's threads spin for a while after each parallel region, and an
//! engine's matrix products surround each attention.

use super::Room;
use std::any::Any;
use std::ffi::{c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Multiplications below which the calling thread computes alone: others would take longer to start.
const ALONE_MAX: usize = 1 << 17;

/// `GOMP_parallel`: run a function with an argument on `threads` threads (0: as many as the runtime wants), and wait for all.
// SAFETY: of its calls: the function may run on several threads at once, with this argument, and does not unwind.
pub type Parallel = unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint);
/// `omp_get_max_threads`.
// SAFETY: of its calls: none beyond a loaded library.
pub type MaxThreads = unsafe extern "C" fn() -> c_int;

static OPENMP: OnceLock<(Parallel, MaxThreads)> = OnceLock::new();

/// Compute with the threads of an OpenMP runtime from now on. Without this call the calling thread computes alone. The first call
/// counts.
///
/// # Safety
/// The functions are those of the type's description, of a library that stays loaded.
pub unsafe fn use_openmp(parallel: Parallel, max_threads: MaxThreads) {
    OPENMP.get_or_init(|| (parallel, max_threads));
}

/// Return the number of threads of [`map`].
pub(super) fn threads() -> usize {
    // SAFETY: the contract of `use_openmp`.
    OPENMP.get().map_or(1, |(_, max_threads)| usize::try_from(unsafe { max_threads() }).unwrap_or(1))
}

/// Apply a function to all items, on several threads if that is worth it. `multiplications`: of all items together.
pub(super) fn map<T: Send, R: Send>(
    items: Vec<T>,
    multiplications: usize,
    apply: impl Fn(&mut Room, T) -> R + Sync,
) -> Vec<R> {
    match OPENMP.get() {
        Some((parallel, _)) if items.len() > 1 && multiplications > ALONE_MAX => on_all(*parallel, items, &apply),
        _ => {
            let mut room = Room::default();
            items.into_iter().map(|item| apply(&mut room, item)).collect()
        }
    }
}

/// An item that waits, or its result. Only the thread that drew its number locks it.
enum Slot<T, R> {
    Item(T),
    Taken,
    Result(R),
}

fn on_all<T: Send, R: Send>(parallel: Parallel, items: Vec<T>, apply: &(impl Fn(&mut Room, T) -> R + Sync)) -> Vec<R> {
    let slots: Vec<Mutex<Slot<T, R>>> = items.into_iter().map(|item| Mutex::new(Slot::Item(item))).collect();
    let (next, panicked) = (AtomicUsize::new(0), Mutex::new(None));
    let work = || {
        let mut room = Room::default();
        let one = |slot: &Mutex<Slot<T, R>>, room: &mut Room| {
            let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            if let Slot::Item(item) = std::mem::replace(&mut *slot, Slot::Taken) {
                *slot = Slot::Result(apply(room, item));
            }
        };
        // An unwinding thread must not leave the runtime's frames.
        let done = catch_unwind(AssertUnwindSafe(|| {
            while let Some(slot) = slots.get(next.fetch_add(1, Ordering::Relaxed)) {
                one(slot, &mut room);
            }
        }));
        if let Err(payload) = done {
            next.store(slots.len(), Ordering::Relaxed);
            *panicked.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
        }
    };
    run(parallel, &work);
    if let Some(payload) = panicked.into_inner().unwrap_or_else(PoisonError::into_inner) {
        let payload: Box<dyn Any + Send> = payload;
        resume_unwind(payload);
    }
    let result = |slot: Mutex<Slot<T, R>>| match slot.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Slot::Result(result) => Some(result),
        Slot::Item(_) | Slot::Taken => None, // none is left: the threads drew all numbers
    };
    slots.into_iter().filter_map(result).collect()
}

/// Run `work` on all threads of the runtime.
fn run<F: Fn() + Sync>(parallel: Parallel, work: &F) {
    // SAFETY: of its calls: `work` points to an `F`.
    unsafe extern "C" fn call<F: Fn() + Sync>(work: *mut c_void) {
        // SAFETY: `run` passes a reference that is alive until all threads have returned.
        unsafe { (*work.cast::<F>())() }
    }
    // SAFETY: the contract of `use_openmp`; `work` may be shared by threads, does not unwind, and outlives the call.
    unsafe { parallel(call::<F>, std::ptr::from_ref(work).cast_mut().cast(), 0, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `GOMP_parallel` of a runtime with four threads.
    unsafe extern "C" fn parallel(work: unsafe extern "C" fn(*mut c_void), data: *mut c_void, _: c_uint, _: c_uint) {
        let data = data.expose_provenance();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                // SAFETY: `run` passes both.
                scope.spawn(move || unsafe { work(std::ptr::with_exposed_provenance_mut(data)) });
            }
        });
    }

    #[test]
    fn items_keep_their_order_on_several_threads() {
        let items: Vec<usize> = (0..1000).collect();
        let doubled = on_all(parallel, items.clone(), &|_, item| item * 2);
        assert_eq!(doubled, items.iter().map(|item| item * 2).collect::<Vec<_>>());
        assert_eq!(map(items, usize::MAX, |_, item| item).len(), 1000, "without a runtime");
    }

    #[test]
    fn a_panic_of_one_thread_reaches_the_caller() {
        let caught = catch_unwind(|| on_all(parallel, (0..100).collect(), &|_, item: i32| assert_ne!(item, 50)));
        assert!(caught.is_err());
    }
}
