//! Status codes, shared by the core, the rings, the C ABI and the logs.

use core::ffi::CStr;

codes! {
    /// Result of a request, a job or a handshake. Zero is success; every other value is an error that names its cause.
    ///
    /// `message` is the result of `kvt_strerror`, NUL-terminated so that C can use it without a copy.
    pub enum Status: i32, message: &'static CStr {
        /// Success.
        Ok = 0 c"ok",
        /// The ring or a bounded table is full right now: try again after a completion.
        Again = 1 c"a ring or a bounded table is full; try again after a completion",
        /// An argument contradicts the geometry, the protocol or another argument.
        Invalid = 2 c"an argument contradicts the geometry, the protocol or another argument",
        /// No such sequence, block, pin or hash in this session.
        NotFound = 3 c"no such sequence, block, pin or hash in this session",
        /// A page, plane, token or lane index is out of range.
        Range = 4 c"a page, plane, token or lane index is out of range",
        /// No tier has room for more pages, and nothing can be evicted.
        NoSpace = 5 c"out of memory: no tier has room for more pages and nothing can be evicted",
        /// More pages than tier 0 has frames: waiting cannot help.
        TooBig = 6 c"more pages than tier 0 has frames",
        /// The page is pinned or in use.
        Busy = 7 c"the page is pinned or in use",
        /// The deadline passed.
        TimedOut = 8 c"the deadline passed",
        /// Cancelled by the engine.
        Canceled = 9 c"cancelled",
        /// The daemon is gone. Tier 0 stays readable; reattach.
        Daemon = 10 c"the daemon is gone; tier 0 stays readable, reattach",
        /// The page existed in no other tier and is lost.
        Lost = 11 c"the page existed in no other tier and is lost",
        /// A transfer failed or fell short.
        Io = 12 c"a transfer failed or fell short",
        /// A handle was used in a process that forked from its owner.
        Fork = 13 c"the handle belongs to another process (used after fork)",
        /// The two sides speak different protocol versions.
        Version = 14 c"program, library and daemon are of different versions",
        /// This peer may not attach.
        Permission = 15 c"this peer may not attach",
        /// Admission rejected the block.
        NotAdmitted = 16 c"admission rejected the block",
        /// A limit of the configuration (sessions, sequences, lanes, channels) is reached.
        Limit = 17 c"a configured limit is reached",
        /// The call does not fit the object's state (double release, begin twice, commit beyond the reservation).
        State = 18 c"the call does not fit the object's state",
        /// The peer broke the protocol; its session ends.
        Protocol = 19 c"the peer broke the protocol; its session ends",
        /// The system refused memory, a descriptor or a thread.
        System = 20 c"the system refused memory, a descriptor or a thread",
        /// A bug in kvtide, caught at the boundary.
        Internal = 21 c"internal error in kvtide",
        /// A page's bytes differ from the stored ones.
        Corrupt = 22 c"a page's bytes differ from the stored ones",
        /// The device that holds tier 0 is lost, or refused memory, a copy or a launch: this session ends.
        Device = 23 c"the device of tier 0 is lost, or refused memory, a copy or a launch",
        /// The block is cached and not on NVMe: the write budget (`bytes_per_day`) is used up. It is written when the budget refills.
        OverBudget = 24 c"not on NVMe yet: the write budget (bytes_per_day) is used up; it is written when the budget refills",
    }
}
