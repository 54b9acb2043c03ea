//! What is wrong, as a pure function of what the watch knows: the reasons of `/healthz`, of the log, and of a watchdog that is
//! not fed.

use super::snapshot::Thread;
use serde::Serialize;
use std::fmt;

/// A thread that has not answered for so long hangs. Rounds of a core thread take microseconds, and what the host thread does
/// between two letters tens of milliseconds: a machine so busy that this is exceeded serves nobody either.
pub(super) const SILENT_MAX_S: f64 = 5.0;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub(crate) enum Reason {
    /// A thread of the daemon does not answer.
    ThreadSilent {
        /// Which one.
        thread: String,
        /// For how long.
        silent_s: f64,
        /// What is allowed.
        limit_s: f64,
    },
}

impl Reason {
    /// Whether two reasons are about the same thing, however long it has lasted.
    pub fn is_same(&self, other: &Reason) -> bool {
        let (Reason::ThreadSilent { thread: a, .. }, Reason::ThreadSilent { thread: b, .. }) = (self, other);
        a == b
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::ThreadSilent { thread, silent_s, limit_s } => {
                write!(f, "thread {thread} has not answered for {silent_s:.1} s (at most {limit_s} s are allowed)")
            }
        }
    }
}

/// Everything that is wrong.
pub(super) fn reasons(threads: &[Thread]) -> Vec<Reason> {
    let hung = threads.iter().filter(|thread| thread.silent_s > SILENT_MAX_S);
    let silent = hung.map(|thread| Reason::ThreadSilent {
        thread: thread.name.clone(),
        silent_s: thread.silent_s,
        limit_s: SILENT_MAX_S,
    });
    silent.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_late_only_beyond_the_limit() {
        let thread = |name: &str, silent_s| Thread { name: name.into(), silent_s };
        assert_eq!(reasons(&[thread("host", 0.0), thread("space-1", SILENT_MAX_S)]), []);
        let found = reasons(&[thread("control", 0.1), thread("space-1", 7.25)]);
        assert_eq!(found, [Reason::ThreadSilent { thread: "space-1".into(), silent_s: 7.25, limit_s: SILENT_MAX_S }]);
        assert_eq!(found[0].to_string(), "thread space-1 has not answered for 7.2 s (at most 5 s are allowed)");
        let json = serde_json::to_value(&found[0]).unwrap();
        assert_eq!(json["reason"], "thread_silent");
    }
}
