//! Reading contracts, and what an engine reports about attention.

use super::channel::{enter, kvt_channel};
use super::entry::{array, check_out, entry, write};
use super::error::Fault;
use super::lane::{kvt_lane, with_lane};
use super::space::timeout;
use super::status::kvt_status;
use kvtide_client::{Contract, DigestOptions, Element, KeyLayout, Omission};
use kvtide_wire::status::Status;

/// Reading contract: how much of a sequence attention must read.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvt_contract {
    /// Every page; a late page is awaited. The contract of new sequences.
    KVT_CONTRACT_EXACT = 0,
    /// The best pages: `value` thousandths of a plane's pages, 1 to 1000. The attention of the omitted pages is
    /// estimated.
    KVT_CONTRACT_APPROX = 1,
}

/// Type of the numbers of queries, keys, values and outputs.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvt_element {
    /// IEEE 754 binary32.
    KVT_ELEMENT_F32 = 0,
    /// IEEE 754 binary16.
    KVT_ELEMENT_F16 = 1,
    /// bfloat16, the upper half of a binary32.
    KVT_ELEMENT_BF16 = 2,
}

/// Location of the keys in a page, and the digests of them that the library keeps.
///
/// Channel c of head h of token t is at
/// `offset + h * head_stride + (t / tile_tokens) * tile_stride + (t % tile_tokens) * token_stride + c * channel_stride`,
/// in bytes. All planes of attention have the same layout.
///
/// With tier 0 on a device: only in a session with one lane. Keys are rows of 16-bit numbers, their number a
/// multiple of 8; `offset` and all strides except `channel_stride` are multiples of 16; a page has at most 128 tokens;
/// `groups * channels` is at most 8192.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_digests {
    /// A `kvt_element`.
    pub element: u32,
    /// Number of KV heads.
    pub heads: u16,
    /// Channels of a head.
    pub channels: u16,
    /// Tokens that are stored together; the page's tokens if all are.
    pub tile_tokens: u16,
    /// Groups of keys in the digest of a head, with which `KVT_CONTRACT_APPROX` picks pages: 1 to 32. The digests of a page
    /// take at most 5 % of its bytes.
    pub groups: u16,
    /// Offset of the first key in the page, in bytes, as all strides.
    pub offset: u32,
    /// From a head to the next.
    pub head_stride: u32,
    /// From a tile of tokens to the next.
    pub tile_stride: u32,
    /// From a token to the next within a tile.
    pub token_stride: u32,
    /// From a channel to the next.
    pub channel_stride: u32,
    /// Number of pages with digests. Their memory is taken from tier 0's frames.
    pub pages: u32,
}

const _: () = assert!(size_of::<kvt_digests>() == 36);

impl kvt_digests {
    /// Return the client's options.
    pub(crate) fn options(&self) -> Result<DigestOptions, Fault> {
        let element = match self.element {
            0 => Element::F32,
            1 => Element::F16,
            2 => Element::Bf16,
            code => return Err(Fault::new(Status::Invalid, format!("`element` is {code}, not a kvt_element"))),
        };
        let keys = KeyLayout {
            element,
            heads: self.heads,
            channels: self.channels,
            tile_tokens: self.tile_tokens,
            offset: self.offset,
            head_stride: self.head_stride,
            tile_stride: self.tile_stride,
            token_stride: self.token_stride,
            channel_stride: self.channel_stride,
        };
        Ok(DigestOptions { keys, pages: self.pages, groups: self.groups })
    }
}

/// Reports that can have an effect for a sequence of the open step.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvt_wants {
    /// `kvt_lane_report_ahead`: true if the sequence is read under `KVT_CONTRACT_APPROX` and not all of its pages are in
    /// tier 0.
    pub ahead: bool,
    /// `kvt_lane_report_mass`: false under `KVT_CONTRACT_EXACT`. Under `KVT_CONTRACT_APPROX` true, or, if all pages of the
    /// sequence are in tier 0, true in every eighth step of the lane and false in the others.
    pub mass: bool,
}

/// Pages and attention that a step omitted, for one sequence and plane.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvt_omission {
    /// Pages that attention would have read under `KVT_CONTRACT_EXACT`.
    pub needed: u32,
    /// Of these, pages that were not read.
    pub omitted: u32,
    /// Of the omitted pages: those that were picked, but not resident or not in time.
    pub waived: u32,
    /// Share of attention that the omitted pages hold, 0 to 1: an estimate of the mean over heads, 0 before the step's
    /// `kvt_lane_report_mass`.
    pub share: f32,
    /// The same for the query head with the largest loss. With tier 0 on a device, equal to `share`.
    pub share_worst: f32,
}

/// Set the reading contract of a sequence, from its next step on. Forks inherit it.
///
/// @param channel  Channel.
/// @param seq  Sequence of the channel.
/// @param contract  A `kvt_contract`.
/// @param value  `KVT_CONTRACT_APPROX`: budget in 1/1000 of the pages, a mean over planes, 1 to 1000. `KVT_CONTRACT_EXACT`: ignored.
/// @param timeout_us  Microseconds; 0: `kvt_options.timeout_us`.
/// @return `KVT_OK`; `KVT_EINVAL` if `contract` is not a `kvt_contract`; `KVT_ERANGE` if `value` is out of range;
///     `KVT_ETIMEDOUT`.
/// Thread safety: one thread per channel at a time.
/// Example: `kvt_channel_set_contract(channel, seq, KVT_CONTRACT_APPROX, 250, 0);` reads a quarter of the pages.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_channel_set_contract(
    channel: *mut kvt_channel,
    seq: u32,
    contract: u32,
    value: u32,
    timeout_us: u64,
) -> kvt_status {
    entry("kvt_channel_set_contract", || {
        let contract = match Contract::from_code(u16::try_from(contract).unwrap_or(u16::MAX), value.into()) {
            Ok(contract) => contract,
            Err(Status::Range) => return Err(Fault::new(Status::Range, format!("`value` is {value}, at most 1000"))),
            Err(_) => {
                return Err(Fault::new(Status::Invalid, format!("`contract` is {contract}, not a kvt_contract")));
            }
        };
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        Ok(c.channel.contract(seq, contract, timeout)?)
    })
}

/// Report the queries with which attention is about to read a sequence of the open step in `plane`. Call it before the
/// plane's first boundary.
///
/// Digests turn the queries into scores, which are published to the daemon. `KVT_CONTRACT_APPROX` picks pages with
/// them. With tier 0 on a device, all queries of a session have as many heads as the first, at most 256.
///
/// @param lane  Lane.
/// @param seq  Sequence of the lane's step.
/// @param plane  Plane, below `kvt_options.planes_count`.
/// @param queries  `count` numbers, laid out `[query heads][channels]`, with position encoding and the softmax's scale
///     applied.
/// @param count  Number of numbers: query heads times channels.
/// @return `KVT_OK`; `KVT_ESTATE` if no step is open or the sequence is not in it; `KVT_ERANGE` if there is no such
///     plane, or `count` does not fit the layout of the keys.
/// Thread safety: one thread per lane at a time.
/// Example: `kvt_lane_report_query(lane, seq, plane, queries, heads * head_dim);`
///
/// # Safety
/// `queries` must be valid for `count` reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_report_query(
    lane: *mut kvt_lane,
    seq: u32,
    plane: u16,
    queries: *const f32,
    count: u32,
) -> kvt_status {
    entry("kvt_lane_report_query", || {
        // SAFETY: the caller's contract.
        let queries = unsafe { array("queries", queries, count as usize) }?;
        with_lane(lane, |lane| Ok(lane.query(seq, plane, queries)?))
    })
}

/// Report a guess of the queries of a later plane, from which the daemon prefetches: for example that plane's query
/// projection, applied to the input of an earlier plane.
///
/// @param lane  Lane.
/// @param seq  Sequence of the lane's step.
/// @param plane  The later plane, below `kvt_options.planes_count`.
/// @param queries  As `kvt_lane_report_query`.
/// @param count  As `kvt_lane_report_query`.
/// @return As `kvt_lane_report_query`.
/// Thread safety: one thread per lane at a time.
/// Example: `if (wants.ahead) kvt_lane_report_ahead(lane, seq, plane + 1, queries, heads * head_dim);`
///
/// # Safety
/// `queries` must be valid for `count` reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_report_ahead(
    lane: *mut kvt_lane,
    seq: u32,
    plane: u16,
    queries: *const f32,
    count: u32,
) -> kvt_status {
    entry("kvt_lane_report_ahead", || {
        // SAFETY: the caller's contract.
        let queries = unsafe { array("queries", queries, count as usize) }?;
        with_lane(lane, |lane| Ok(lane.ahead(seq, plane, queries)?))
    })
}

/// Return which reports can have an effect for a sequence of the open step, so that the others are not computed.
///
/// @param lane  Lane.
/// @param seq  Sequence of the lane's step.
/// @param wants  Receives the reports.
/// @return `KVT_OK`; `KVT_ESTATE` if no step is open or the sequence is not in it.
/// Thread safety: one thread per lane at a time.
/// Example: `kvt_lane_get_wants(lane, seq, &wants);`
///
/// # Safety
/// `wants` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_get_wants(lane: *mut kvt_lane, seq: u32, wants: *mut kvt_wants) -> kvt_status {
    entry("kvt_lane_get_wants", || {
        check_out("wants", wants)?;
        let found =
            with_lane(lane, |lane| Ok(kvt_wants { ahead: lane.wants_ahead(seq)?, mass: lane.wants_mass(seq)? }))?;
        // SAFETY: the caller's contract.
        unsafe { write("wants", wants, found) }
    })
}

/// Report the attention that each page of a sequence received in the plane of the last boundary.
///
/// With `sums` the estimate of the omitted attention under `KVT_CONTRACT_APPROX` is more precise. With tier 0 on a
/// device they have no effect.
///
/// @param lane  Lane.
/// @param seq  Sequence of the lane's step.
/// @param plane  Plane, below `kvt_options.planes_count`.
/// @param shares  By page index, for `count` pages: the page's share of the attention over all pages that were read, as
///     mean over query heads; NaN for pages that were not read.
/// @param count  Number of pages, at least those of the sequence.
/// @param sums  NULL, or for each of `sums_count` query heads of `kvt_lane_report_query` the natural logarithm of the
///     sum of exponentials of all its scores, as attention kernels return it.
/// @param sums_count  Number of query heads; 0 without sums.
/// @return `KVT_OK`; `KVT_ERANGE` if there are fewer shares than pages, not one sum for each query head, or no such
///     plane; `KVT_ESTATE` as `kvt_lane_report_query`, and, with sums, if `plane` is not that of the last boundary or its
///     query was not reported.
/// Thread safety: one thread per lane at a time.
/// Example: `if (wants.mass) kvt_lane_report_mass(lane, seq, plane, shares, pages, sums, heads);`
///
/// # Safety
/// `shares` must be valid for `count` reads, `sums` for `sums_count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_report_mass(
    lane: *mut kvt_lane,
    seq: u32,
    plane: u16,
    shares: *const f32,
    count: u32,
    sums: *const f32,
    sums_count: u32,
) -> kvt_status {
    entry("kvt_lane_report_mass", || {
        // SAFETY: the caller's contract.
        let (shares, sums) =
            unsafe { (array("shares", shares, count as usize)?, array("sums", sums, sums_count as usize)?) };
        with_lane(lane, |lane| {
            if !sums.is_empty() {
                lane.sums(seq, plane, sums)?;
            }
            Ok(lane.mass(seq, plane, shares)?)
        })
    })
}

/// Return the pages and attention that the step omits of a sequence in the plane of the last boundary.
///
/// @param lane  Lane.
/// @param seq  Sequence of the lane's step.
/// @param plane  Plane, below `kvt_options.planes_count`.
/// @param omission  Receives the result.
/// @return `KVT_OK`; `KVT_ESTATE` if `plane` is not that of the last boundary, or the sequence is not in the step.
/// Thread safety: one thread per lane at a time.
/// Example: `kvt_lane_get_omission(lane, seq, plane, &omission);`
///
/// # Safety
/// `omission` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_get_omission(
    lane: *mut kvt_lane,
    seq: u32,
    plane: u16,
    omission: *mut kvt_omission,
) -> kvt_status {
    entry("kvt_lane_get_omission", || {
        check_out("omission", omission)?;
        let found = with_lane(lane, |lane| Ok(lane.omission(seq, plane)))?;
        let Omission { needed, omitted, waived, share, worst } = found
            .ok_or_else(|| Fault::new(Status::State, format!("plane {plane} is not that of the last boundary")))?;
        let found = kvt_omission { needed, omitted, waived, share, share_worst: worst };
        // SAFETY: the caller's contract.
        unsafe { write("omission", omission, found) }
    })
}
