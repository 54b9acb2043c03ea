//! Status codes of the C ABI: [`kvtide_wire::status::Status`], name for name and code for code.

use crate::entry::guard_or;
use kvtide_wire::status::Status;
use std::ffi::c_char;

/// What became of a call. Zero is success; every other value is an error that names its cause. `kvt_strerror` tells it in a
/// line, `kvt_last_error` with what was tried, on what, and why it failed.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvt_status {
    /// Done.
    KVT_OK = 0,
    /// The ring or a bounded table is full right now: try again after a completion.
    KVT_EAGAIN = 1,
    /// An argument contradicts the geometry, the protocol or another argument.
    KVT_EINVAL = 2,
    /// No such sequence, block, pin or hash in this session.
    KVT_ENOTFOUND = 3,
    /// A page, plane, token or lane index is out of range.
    KVT_ERANGE = 4,
    /// No tier has room for more pages, and nothing may be evicted.
    KVT_ENOSPC = 5,
    /// More pages than tier 0 has frames: no wait could ever satisfy it.
    KVT_ETOOBIG = 6,
    /// The page is pinned or in use.
    KVT_EBUSY = 7,
    /// The deadline passed first.
    KVT_ETIMEDOUT = 8,
    /// Cancelled by the engine.
    KVT_ECANCELED = 9,
    /// The daemon is gone. What is in tier 0 stays readable; reattach.
    KVT_EDAEMON = 10,
    /// The page existed nowhere else and is lost.
    KVT_ELOST = 11,
    /// A transfer failed or fell short.
    KVT_EIO = 12,
    /// A handle was used in a process that forked from its owner.
    KVT_EFORK = 13,
    /// The two sides speak different protocol versions.
    KVT_EVERSION = 14,
    /// This peer may not attach.
    KVT_EPERM = 15,
    /// Admission refused to keep the block.
    KVT_NOT_ADMITTED = 16,
    /// A limit of the configuration (sessions, sequences, lanes, channels) is reached.
    KVT_ELIMIT = 17,
    /// The call does not fit the object's state (double release, begin twice, commit beyond the reservation).
    KVT_ESTATE = 18,
    /// The peer broke the protocol; its session ends.
    KVT_EPROTO = 19,
    /// The system refused memory, a descriptor or a thread.
    KVT_ESYSTEM = 20,
    /// A bug on our side, caught at the edge.
    KVT_EINTERNAL = 21,
    /// A page's bytes are not those that were stored.
    KVT_ECORRUPT = 22,
    /// The device that holds tier 0 is lost, or refused what was asked of it (memory, a copy, a launch).
    KVT_EDEVICE = 23,
}

impl kvt_status {
    /// The C name of a status. The match is exhaustive: a status that is added there does not compile here without a name.
    pub(crate) const fn of(status: Status) -> kvt_status {
        match status {
            Status::Ok => kvt_status::KVT_OK,
            Status::Again => kvt_status::KVT_EAGAIN,
            Status::Invalid => kvt_status::KVT_EINVAL,
            Status::NotFound => kvt_status::KVT_ENOTFOUND,
            Status::Range => kvt_status::KVT_ERANGE,
            Status::NoSpace => kvt_status::KVT_ENOSPC,
            Status::TooBig => kvt_status::KVT_ETOOBIG,
            Status::Busy => kvt_status::KVT_EBUSY,
            Status::TimedOut => kvt_status::KVT_ETIMEDOUT,
            Status::Canceled => kvt_status::KVT_ECANCELED,
            Status::Daemon => kvt_status::KVT_EDAEMON,
            Status::Lost => kvt_status::KVT_ELOST,
            Status::Io => kvt_status::KVT_EIO,
            Status::Fork => kvt_status::KVT_EFORK,
            Status::Version => kvt_status::KVT_EVERSION,
            Status::Permission => kvt_status::KVT_EPERM,
            Status::NotAdmitted => kvt_status::KVT_NOT_ADMITTED,
            Status::Limit => kvt_status::KVT_ELIMIT,
            Status::State => kvt_status::KVT_ESTATE,
            Status::Protocol => kvt_status::KVT_EPROTO,
            Status::System => kvt_status::KVT_ESYSTEM,
            Status::Internal => kvt_status::KVT_EINTERNAL,
            Status::Corrupt => kvt_status::KVT_ECORRUPT,
            Status::Device => kvt_status::KVT_EDEVICE,
        }
    }
}

// Both sides' codes agree: a C program that compares with a code from a ring entry or a log sees the same number.
const _: () = {
    let mut i = 0;
    while i < Status::ALL.len() {
        assert!(kvt_status::of(Status::ALL[i]) as i32 == Status::ALL[i].code());
        i += 1;
    }
};

/// One line for a human about a status code. Never NULL: a code that this version does not know gets a line that says so.
///
/// The text is static. Any thread, at any time, in a forked child as well.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_strerror(status: i32) -> *const c_char {
    guard_or(c"unknown status code".as_ptr(), || {
        Status::from_code(status).map_or(c"unknown status code", Status::message).as_ptr()
    })
}
