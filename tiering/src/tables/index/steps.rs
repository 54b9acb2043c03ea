//! Steps of the index, counted in its unit tests: relatives read, table words probed, queued items passed.

#[cfg(test)]
thread_local! {
    static LEFT: std::cell::Cell<u64> = const { std::cell::Cell::new(u64::MAX) };
}

#[inline]
pub(crate) fn count() {
    #[cfg(test)]
    LEFT.set(LEFT.get().checked_sub(1).expect("no more steps than expected"));
}

/// Run, and panic after more than `steps` steps.
#[cfg(test)]
pub(crate) fn at_most<T>(steps: u64, run: impl FnOnce() -> T) -> T {
    LEFT.set(steps);
    let result = run();
    LEFT.set(u64::MAX);
    result
}
