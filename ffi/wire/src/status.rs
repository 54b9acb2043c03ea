//! Status codes, shared by the rings, the C ABI and the logs.

/// Result of a request, a job or a handshake. Zero is success; every other value is an error that names its cause.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Success.
    Ok = 0,
    /// The ring or a bounded table is full right now: try again after a completion.
    Again = 1,
    /// An argument contradicts the geometry, the protocol or another argument.
    Invalid = 2,
    /// No such sequence, block, pin or hash in this session.
    NotFound = 3,
    /// A page, plane, token or lane index is out of range.
    Range = 4,
    /// No tier has room for more pages, and nothing can be evicted.
    NoSpace = 5,
    /// More pages than tier 0 has frames: waiting cannot help.
    TooBig = 6,
    /// The page is pinned or in use.
    Busy = 7,
    /// The deadline passed.
    TimedOut = 8,
    /// Cancelled by the engine.
    Canceled = 9,
    /// The daemon is gone. Tier 0 stays readable; reattach.
    Daemon = 10,
    /// The page existed in no other tier and is lost.
    Lost = 11,
    /// A transfer failed or fell short.
    Io = 12,
    /// A handle was used in a process that forked from its owner.
    Fork = 13,
    /// The two sides speak different protocol versions.
    Version = 14,
    /// This peer may not attach.
    Permission = 15,
    /// Admission rejected the block.
    NotAdmitted = 16,
    /// A limit of the configuration (sessions, sequences, lanes, channels) is reached.
    Limit = 17,
    /// The call does not fit the object's state (double release, begin twice, commit beyond the reservation).
    State = 18,
    /// The peer broke the protocol; its session ends.
    Protocol = 19,
    /// The system refused memory, a descriptor or a thread.
    System = 20,
    /// A bug in kvtide, caught at the boundary.
    Internal = 21,
    /// A page's bytes differ from the stored ones.
    Corrupt = 22,
    /// The device that holds tier 0 is lost, or refused memory, a copy or a launch: this session ends.
    Device = 23,
}

impl Status {
    /// Every status, in code order; `ALL[i] as i32 == i`.
    pub const ALL: [Status; 24] = [
        Status::Ok,
        Status::Again,
        Status::Invalid,
        Status::NotFound,
        Status::Range,
        Status::NoSpace,
        Status::TooBig,
        Status::Busy,
        Status::TimedOut,
        Status::Canceled,
        Status::Daemon,
        Status::Lost,
        Status::Io,
        Status::Fork,
        Status::Version,
        Status::Permission,
        Status::NotAdmitted,
        Status::Limit,
        Status::State,
        Status::Protocol,
        Status::System,
        Status::Internal,
        Status::Corrupt,
        Status::Device,
    ];

    /// Decode a code from the other process; `None` for an unknown code.
    #[must_use]
    pub fn from_code(code: i32) -> Option<Status> {
        usize::try_from(code).ok().and_then(|i| Self::ALL.get(i).copied())
    }

    /// Return the code used in ring entries and in the C ABI.
    #[must_use]
    pub const fn code(self) -> i32 {
        self as i32
    }

    /// Return one line of text, the result of `kvt_strerror`, NUL-terminated so that C can use it without a copy.
    #[must_use]
    pub const fn message(self) -> &'static core::ffi::CStr {
        match self {
            Status::Ok => c"ok",
            Status::Again => c"a ring or a bounded table is full; try again after a completion",
            Status::Invalid => c"an argument contradicts the geometry, the protocol or another argument",
            Status::NotFound => c"no such sequence, block, pin or hash in this session",
            Status::Range => c"a page, plane, token or lane index is out of range",
            Status::NoSpace => c"out of memory: no tier has room for more pages and nothing can be evicted",
            Status::TooBig => c"more pages than tier 0 has frames",
            Status::Busy => c"the page is pinned or in use",
            Status::TimedOut => c"the deadline passed",
            Status::Canceled => c"cancelled",
            Status::Daemon => c"the daemon is gone; tier 0 stays readable, reattach",
            Status::Lost => c"the page existed in no other tier and is lost",
            Status::Io => c"a transfer failed or fell short",
            Status::Fork => c"the handle belongs to another process (used after fork)",
            Status::Version => c"client and daemon speak different protocol versions",
            Status::Permission => c"this peer may not attach",
            Status::NotAdmitted => c"admission rejected the block",
            Status::Limit => c"a configured limit is reached",
            Status::State => c"the call does not fit the object's state",
            Status::Protocol => c"the peer broke the protocol; its session ends",
            Status::System => c"the system refused memory, a descriptor or a thread",
            Status::Internal => c"internal error in kvtide",
            Status::Corrupt => c"a page's bytes differ from the stored ones",
            Status::Device => c"the device of tier 0 is lost, or refused memory, a copy or a launch",
        }
    }
}
