//! The threads of the CPU's kernels.

use super::Room;
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::sync::OnceLock;

/// Multiplications below which the calling thread computes alone: others would take longer to wake up.
const ALONE_MAX: usize = 1 << 17;

/// Return the number of threads of [`map`].
pub(super) fn threads() -> usize {
    pool().map_or(1, ThreadPool::current_num_threads)
}

/// Apply a function to all items, on several threads if that is worth it. `multiplications`: of all items together.
pub(super) fn map<T: Send, R: Send>(
    items: Vec<T>,
    multiplications: usize,
    apply: impl Fn(&mut Room, T) -> R + Sync,
) -> Vec<R> {
    match pool() {
        Some(pool) if items.len() > 1 && multiplications > ALONE_MAX => {
            pool.install(|| items.into_par_iter().with_max_len(1).map_init(Room::default, &apply).collect())
        }
        _ => {
            let mut room = Room::default();
            items.into_iter().map(|item| apply(&mut room, item)).collect()
        }
    }
}

/// Return the pool, which lives as long as the process: as many threads as `KVTIDE_CPU_THREADS` says, else one for each processor of
/// this process. `None`: threads cannot be started.
fn pool() -> Option<&'static ThreadPool> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let start = || {
        let cpus = cpus();
        let count = std::env::var("KVTIDE_CPU_THREADS").ok().and_then(|count| count.parse().ok());
        let count = count.unwrap_or_else(|| cpus.as_ref().map_or(1, |cpus| cpus.count() as usize));
        let pool = ThreadPoolBuilder::new().num_threads(count.max(1)).thread_name(|i| format!("kvtide-cpu-{i}"));
        // A failure leaves the thread where it is: slower, and no less correct.
        let pool = pool.start_handler(move |_| {
            let _ = cpus.as_ref().map(|cpus| sched_setaffinity(None, cpus));
        });
        pool.build().ok()
    };
    POOL.get_or_init(start).as_ref()
}

/// Return the processors that some thread of this process may use. Engines bind their threads to single processors, among them the
/// one that calls, and new threads inherit that.
fn cpus() -> Option<CpuSet> {
    let mut cpus = CpuSet::new();
    for task in std::fs::read_dir("/proc/self/task").ok()? {
        // A thread may end meanwhile.
        let Ok(status) = std::fs::read_to_string(task.ok()?.path().join("status")) else { continue };
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        for range in list.trim().split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            for cpu in first.parse::<usize>().ok()?..=last.parse().ok()? {
                if cpu < CpuSet::MAX_CPU {
                    cpus.set(cpu);
                }
            }
        }
    }
    (cpus.count() > 0).then_some(cpus)
}
