//! Status codes: the one list that the rings, the C ABI and the logs share.

/// What became of a request, a job or a handshake. Zero is success; every other value is an error that names its cause.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// The ring or a bounded table is full right now: try again after a completion.
    Again = 1,
    /// An argument contradicts the geometry, the protocol or another argument.
    Invalid = 2,
    /// No such sequence, block, pin or hash in this session.
    NotFound = 3,
    /// A page, plane, token or lane index is out of range.
    Range = 4,
    /// No tier has room for more pages, and nothing may be evicted.
    NoSpace = 5,
    /// More pages than tier 0 has frames: no wait could ever satisfy it.
    TooBig = 6,
    /// The page is pinned or in use.
    Busy = 7,
    /// The deadline passed first.
    TimedOut = 8,
    /// Cancelled by the engine.
    Canceled = 9,
    /// The daemon is gone. What is in tier 0 stays readable; reattach.
    Daemon = 10,
    /// The page existed nowhere else and is lost.
    Lost = 11,
    /// A transfer failed or fell short.
    Io = 12,
    /// A handle was used in a process that forked from its owner.
    Fork = 13,
    /// The two sides speak different protocol versions.
    Version = 14,
    /// This peer may not attach.
    Permission = 15,
    /// Admission refused to keep the block.
    NotAdmitted = 16,
    /// A limit of the configuration (sessions, sequences, lanes, channels) is reached.
    Limit = 17,
    /// The call does not fit the object's state (double release, begin twice, commit beyond the reservation).
    State = 18,
    /// The peer broke the protocol; its session ends.
    Protocol = 19,
    /// The system refused memory, a descriptor or a thread.
    System = 20,
    /// A bug on our side, caught at the edge.
    Internal = 21,
    /// A page's bytes are not those that were stored.
    Corrupt = 22,
    /// The device that holds tier 0 is lost, or refused what was asked of it (memory, a copy, a launch): this session ends.
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

    /// Decodes a code that came from the other process; `None` for a code that no version of ours sends.
    #[must_use]
    pub fn from_code(code: i32) -> Option<Status> {
        usize::try_from(code).ok().and_then(|i| Self::ALL.get(i).copied())
    }

    /// The code as it stands in a ring entry and in the C ABI.
    #[must_use]
    pub const fn code(self) -> i32 {
        self as i32
    }

    /// One line for a human, as `kvt_strerror` returns it, NUL-terminated so that C can have it without a copy.
    #[must_use]
    pub const fn message(self) -> &'static core::ffi::CStr {
        match self {
            Status::Ok => c"ok",
            Status::Again => c"a ring or a bounded table is full; try again after a completion",
            Status::Invalid => c"an argument contradicts the geometry, the protocol or another argument",
            Status::NotFound => c"no such sequence, block, pin or hash in this session",
            Status::Range => c"a page, plane, token or lane index is out of range",
            Status::NoSpace => c"no tier has room for more pages and nothing may be evicted",
            Status::TooBig => c"more pages than tier 0 has frames",
            Status::Busy => c"the page is pinned or in use",
            Status::TimedOut => c"the deadline passed first",
            Status::Canceled => c"cancelled",
            Status::Daemon => c"the daemon is gone; what is in tier 0 stays readable, reattach",
            Status::Lost => c"the page existed nowhere else and is lost",
            Status::Io => c"a transfer failed or fell short",
            Status::Fork => c"the handle belongs to another process (used after fork)",
            Status::Version => c"client and daemon speak different protocol versions",
            Status::Permission => c"this peer may not attach",
            Status::NotAdmitted => c"admission refused to keep the block",
            Status::Limit => c"a configured limit is reached",
            Status::State => c"the call does not fit the object's state",
            Status::Protocol => c"the peer broke the protocol; its session ends",
            Status::System => c"the system refused memory, a descriptor or a thread",
            Status::Internal => c"internal error in kvtide",
            Status::Corrupt => c"a page's bytes are not those that were stored",
            Status::Device => c"the device of tier 0 is lost, or refused memory, a copy or a launch",
        }
    }
}
