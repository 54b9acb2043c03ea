//! Status codes of the C ABI: [`kvtide_wire::status::Status`], with the same names and codes.

use crate::entry::guard_or;
use kvtide_wire::status::Status;
use std::ffi::c_char;

/// Result of a call. Zero is success; every other value is an error.
///
/// `kvt_strerror` returns one line about a code, `kvt_last_error` the details of a failed call.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvt_status {
    /// Success.
    KVT_OK = 0,
    /// A ring or a bounded table is full; try again after a completion.
    KVT_EAGAIN = 1,
    /// An argument contradicts the geometry, the protocol or another argument; or a handle or pointer is not valid.
    KVT_EINVAL = 2,
    /// No such sequence, block, pin or hash in this session.
    KVT_ENOTFOUND = 3,
    /// A page, plane, token or lane index is out of range.
    KVT_ERANGE = 4,
    /// No tier has room for more pages, and nothing can be evicted.
    KVT_ENOSPC = 5,
    /// More pages than tier 0 has frames: waiting cannot help.
    KVT_ETOOBIG = 6,
    /// The page is pinned or in use, or another thread is in a call on the handle.
    KVT_EBUSY = 7,
    /// The deadline passed.
    KVT_ETIMEDOUT = 8,
    /// Cancelled by the engine.
    KVT_ECANCELED = 9,
    /// The daemon is gone. Tier 0 stays readable; reattach.
    KVT_EDAEMON = 10,
    /// The page existed in no other tier and is lost.
    KVT_ELOST = 11,
    /// A transfer failed or fell short.
    KVT_EIO = 12,
    /// A handle was used in a process that forked from its owner.
    KVT_EFORK = 13,
    /// The two sides speak different protocol versions, or a structure uses a member that this library does not know.
    KVT_EVERSION = 14,
    /// This peer may not attach.
    KVT_EPERM = 15,
    /// Admission rejected the block.
    KVT_ENOTADMITTED = 16,
    /// A limit of the configuration (sessions, sequences, lanes, channels) or of the library is reached.
    KVT_ELIMIT = 17,
    /// The call does not fit the object's state (double release, begin twice, commit beyond the reservation).
    KVT_ESTATE = 18,
    /// The peer broke the protocol; its session ends.
    KVT_EPROTO = 19,
    /// The system refused memory, a descriptor or a thread.
    KVT_ESYSTEM = 20,
    /// A bug in kvtide, caught at the boundary.
    KVT_EINTERNAL = 21,
    /// A page's bytes differ from the stored ones.
    KVT_ECORRUPT = 22,
    /// The device that holds tier 0 is lost, or refused memory, a copy or a launch.
    KVT_EDEVICE = 23,
    /// The block is cached and not on NVMe: the write budget (`bytes_per_day`) is used up. It is written when the budget refills.
    KVT_EOVERBUDGET = 24,
}

impl kvt_status {
    /// Return the C code of a status. The match is exhaustive: a new status does not compile without a C name.
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
            Status::NotAdmitted => kvt_status::KVT_ENOTADMITTED,
            Status::Limit => kvt_status::KVT_ELIMIT,
            Status::State => kvt_status::KVT_ESTATE,
            Status::Protocol => kvt_status::KVT_EPROTO,
            Status::System => kvt_status::KVT_ESYSTEM,
            Status::Internal => kvt_status::KVT_EINTERNAL,
            Status::Corrupt => kvt_status::KVT_ECORRUPT,
            Status::Device => kvt_status::KVT_EDEVICE,
            Status::OverBudget => kvt_status::KVT_EOVERBUDGET,
        }
    }
}

// The codes are equal, so a C program can compare them with codes from ring entries and logs.
const _: () = {
    let mut i = 0;
    while i < Status::ALL.len() {
        assert!(kvt_status::of(Status::ALL[i]) as i32 == Status::ALL[i].code());
        i += 1;
    }
};

/// Return one line of text about a status code.
///
/// @param status  A `kvt_status`, or a status code from a log.
/// @return A static string, never NULL. An unknown code gets "unknown status code".
/// Thread safety: any thread, also in a forked child.
/// Example: `puts(kvt_strerror(status));`
#[unsafe(no_mangle)]
pub extern "C" fn kvt_strerror(status: i32) -> *const c_char {
    guard_or(c"unknown status code".as_ptr(), || {
        Status::from_code(status).map_or(c"unknown status code", Status::message).as_ptr()
    })
}
