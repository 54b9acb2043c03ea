//! Requests and completions of a channel, as data.
//!
//! A request is a tagged union: `kind` says which member of `args` applies. The kinds are numbered here, without holes;
//! they are not the codes of the rings, which change with the protocol.

use super::blocks::kvt_lease_info;
use super::channel::kvt_hash;
use super::error::Fault;
use super::sized::Sized32;
use super::status::kvt_status;
use kvtide_client::PageRange;
use kvtide_wire::status::Status;
use std::ffi::c_void;

/// Kind of a request: the member of `kvt_request.args` that applies, and the member of `kvt_completion.result` that is
/// set. 0 is not a kind.
///
/// Each kind has a blocking function of the same name, which describes it.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvt_request_kind {
    /// `args.lookup`, `result.lookup`.
    KVT_REQUEST_LOOKUP = 1,
    /// `args.lease`, `result.lease`.
    KVT_REQUEST_LEASE = 2,
    /// `args.load`, `result.load`.
    KVT_REQUEST_LOAD = 3,
    /// `args.store`, `result.store`.
    KVT_REQUEST_STORE = 4,
    /// `args.acquire`; `result.pin` is the pin.
    KVT_REQUEST_ACQUIRE = 5,
}

impl kvt_request_kind {
    const ALL: [kvt_request_kind; 5] = [
        kvt_request_kind::KVT_REQUEST_LOOKUP,
        kvt_request_kind::KVT_REQUEST_LEASE,
        kvt_request_kind::KVT_REQUEST_LOAD,
        kvt_request_kind::KVT_REQUEST_STORE,
        kvt_request_kind::KVT_REQUEST_ACQUIRE,
    ];

    pub(crate) fn of(code: u32) -> Result<kvt_request_kind, Fault> {
        let found = Self::ALL.iter().copied().find(|kind| *kind as u32 == code);
        found.ok_or_else(|| {
            Fault::new(Status::Invalid, format!("`request->kind` is {code}, not a kvt_request_kind of this library"))
        })
    }
}

const _: () = {
    let mut i = 0;
    while i < kvt_request_kind::ALL.len() {
        assert!(kvt_request_kind::ALL[i] as usize == i + 1); // no holes
        i += 1;
    }
};

/// Arguments of a lookup (`kvt_channel_lookup`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_lookup_request {
    /// `count` hashes of the prefix's blocks, in order.
    pub hashes: *const kvt_hash,
    /// Number of hashes.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
}

/// Arguments of a lease (`kvt_channel_lease`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_lease_request {
    /// Hash of the prefix's last block.
    pub hash: kvt_hash,
    /// Duration in microseconds, at least 1.
    pub lease_us: u64,
    /// Number of blocks of the prefix.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
}

/// Arguments of a load (`kvt_channel_load`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_load_request {
    /// `kvt_lease_info.id`.
    pub lease: u32,
    /// Index of the first block in the prefix.
    pub first: u32,
    /// `count` blocks of the engine's own memory to load into.
    pub blocks: *const u32,
    /// Number of blocks, at most 506.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
}

/// Arguments of a store (`kvt_channel_store`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_store_request {
    /// Hash of the block before the first one; NULL if `first` is 0.
    pub parent: *const kvt_hash,
    /// `count` hashes, one for each block.
    pub hashes: *const kvt_hash,
    /// `count` blocks of the engine's own memory to copy.
    pub blocks: *const u32,
    /// Number of blocks, at most 101.
    pub count: u32,
    /// Index of the first block in its prefix.
    pub first: u32,
    /// A `kvt_level`.
    pub level: u32,
    /// Zero.
    pub reserved: u32,
}

/// Pages pinned in tier 0. The handle is a number of its session, not an address; a pin that was released is
/// recognised.
pub struct kvt_pin {
    _opaque: [u8; 0],
}

/// A range of pages of one sequence: blocks `first` to `first + count - 1` in planes `plane` to `plane + planes - 1`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct kvt_range {
    /// Sequence.
    pub seq: u32,
    /// Index of the first block.
    pub first: u32,
    /// Number of blocks.
    pub count: u32,
    /// First plane.
    pub plane: u16,
    /// Number of planes.
    pub planes: u16,
}

impl kvt_range {
    pub(crate) fn pages(self) -> PageRange {
        PageRange { seq: self.seq, first: self.first, count: self.count, plane: self.plane, planes: self.planes }
    }
}

/// Arguments of a request: the member that `kvt_request.kind` names.
#[repr(C)]
#[derive(Clone, Copy)]
pub union kvt_request_args {
    /// `KVT_REQUEST_LOOKUP`.
    pub lookup: kvt_lookup_request,
    /// `KVT_REQUEST_LEASE`.
    pub lease: kvt_lease_request,
    /// `KVT_REQUEST_LOAD`.
    pub load: kvt_load_request,
    /// `KVT_REQUEST_STORE`.
    pub store: kvt_store_request,
    /// `KVT_REQUEST_ACQUIRE`.
    pub acquire: kvt_range,
    /// The size of the union in every version, so that a new kind changes no layout. Not used.
    pub reserved: [u64; 10],
}

/// A request. Set `struct_size` to `sizeof(kvt_request)`, `kind`, and the member of `args` that belongs to the kind.
///
/// Memory that it points to is not used after `kvt_channel_submit`; `user` is not dereferenced at all. The engine's own
/// blocks of a load or store are used until the request has ended (see `kvt_client_set_blocks`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvt_request {
    /// `sizeof(kvt_request)`: later versions are longer.
    pub struct_size: u32,
    /// A `kvt_request_kind`.
    pub kind: u32,
    /// Returned in the completion.
    pub user: *mut c_void,
    /// Deadline from now in microseconds; 0: `kvt_options.timeout_us`.
    pub timeout_us: u64,
    /// Arguments of the kind.
    pub args: kvt_request_args,
}

// SAFETY: repr(C), `struct_size` first, integers and raw pointers only, each valid with any bytes.
unsafe impl Sized32 for kvt_request {
    const BYTES_MIN: usize = 104;
}
const _: () = assert!(size_of::<kvt_request_args>() == 80 && size_of::<kvt_request>() == 104);

/// Result of a lookup.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_lookup_result {
    /// Number of cached blocks.
    pub blocks: u32,
    /// Approximate share of them that is in host memory, in 1/1000.
    pub in_host_permille: u32,
}

/// Result of a load.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_copy_result {
    /// Number of blocks that did not arrive; `kvt_channel_get_failed` returns their indices, and
    /// `kvt_completion.status` is the reason of the first. If it is 0 and `status` is an error, nothing was copied; but
    /// after `KVT_EDAEMON` any of the blocks may have been copied (`kvt_channel_settle`).
    pub failed_count: u32,
    /// Zero.
    pub reserved: u32,
}

/// Result of a store.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_store_result {
    /// Number of blocks that are not cached, as in `kvt_copy_result`.
    pub failed_count: u32,
    /// The `kvt_level` that all blocks reached, if `failed_count` is 0.
    pub level: u32,
}

/// Result of a request: the member that `kvt_completion.kind` names. All bytes are zero if the request failed, except
/// `failed_count` of loads and stores.
#[repr(C)]
#[derive(Clone, Copy)]
pub union kvt_result {
    /// `KVT_REQUEST_LOOKUP`.
    pub lookup: kvt_lookup_result,
    /// `KVT_REQUEST_LEASE`.
    pub lease: kvt_lease_info,
    /// `KVT_REQUEST_LOAD`.
    pub load: kvt_copy_result,
    /// `KVT_REQUEST_STORE`.
    pub store: kvt_store_result,
    /// `KVT_REQUEST_ACQUIRE`.
    pub pin: *mut kvt_pin,
    /// The size of the union in every version, so that the result of a new kind changes no layout.
    pub reserved: [u64; 4],
}

/// Completion of a request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvt_completion {
    /// Ticket of the request.
    pub ticket: u64,
    /// `kvt_request.user`.
    pub user: *mut c_void,
    /// Result code of the request.
    pub status: kvt_status,
    /// `kvt_request.kind`.
    pub kind: u32,
    /// Result of the kind.
    pub result: kvt_result,
}
const _: () = assert!(size_of::<kvt_result>() == 32 && size_of::<kvt_completion>() == 56);
