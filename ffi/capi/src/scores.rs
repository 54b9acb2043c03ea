//! Reading contracts and what an engine tells of attention.

use super::channel::{enter, kvt_channel};
use super::entry::{array, check_out, entry, write};
use super::error::Fault;
use super::lane::{kvt_lane, with_lane};
use super::space::timeout;
use super::status::kvt_status;
use kvtide_client::{Contract, DigestOptions, Element, KeyLayout, Omission, ScoreKind};
use kvtide_wire::status::Status;

/// How much of a sequence attention must read.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvt_contract {
    /// Every page; one that is late is waited for. What every sequence begins with.
    KVT_CONTRACT_EXACT = 0,
    /// The best pages: `value` thousandths of a plane's pages, 1 to 1000. The others are omitted, and what that omits is estimated.
    KVT_CONTRACT_APPROX = 1,
    /// Every page but those whose digests prove that together they hold at most `value` millionths of each query head's attention,
    /// 0 to 1,000,000.
    KVT_CONTRACT_BOUNDED = 2,
}

/// What scores are.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvt_score_kind {
    /// Shares of attention that the step's pages had.
    KVT_SCORE_MASS = 0,
    /// Shares that digests give the step's own query.
    KVT_SCORE_QUERY = 1,
    /// Shares that digests give a guess of the query of a plane that is still to come.
    KVT_SCORE_AHEAD = 2,
}

/// A number of a key.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvt_key_element {
    /// IEEE 754 binary32.
    KVT_KEY_F32 = 0,
    /// IEEE 754 binary16.
    KVT_KEY_F16 = 1,
    /// The upper half of a binary32.
    KVT_KEY_BF16 = 2,
}

/// Where a page's keys are, in bytes, and which digests of them the agent keeps. With tier 0 on a device: sketches alone, in a session
/// of one lane; keys are rows of 16-bit numbers, a multiple of 8 of them; `offset` and the strides but `channel_stride` are multiples
/// of 16; a page has at most 128 tokens, and `groups * channels` is at most 8192. Channel c of head h of token t at
/// `offset + h * head_stride + (t / tile_tokens) * tile_stride + (t % tile_tokens) * token_stride + c * channel_stride`. All planes
/// of attention have the same.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_digests {
    /// A `kvt_key_element`.
    pub element: u32,
    /// KV heads.
    pub heads: u16,
    /// Channels of a head.
    pub channels: u16,
    /// Tokens that lie together; the page's, where they all do.
    pub tile_tokens: u16,
    /// Groups of a head's sketch, by which `KVT_CONTRACT_APPROX` picks: 0 to 32; all digests together take at most 5 % of a page.
    pub groups: u16,
    /// The first key.
    pub offset: u32,
    /// From head to head.
    pub head_stride: u32,
    /// From one tile of tokens to the next.
    pub tile_stride: u32,
    /// From token to token within a tile.
    pub token_stride: u32,
    /// From channel to channel.
    pub channel_stride: u32,
    /// Pages of which digests are kept. What they take is taken from tier 0's frames.
    pub pages: u32,
    /// 1: bounds are kept too, by which `KVT_CONTRACT_BOUNDED` proves; 0: they are not.
    pub bounds: u32,
}

const _: () = assert!(size_of::<kvt_digests>() == 40);

impl kvt_digests {
    /// As the client has it.
    pub(crate) fn options(&self) -> Result<DigestOptions, Fault> {
        let element = match self.element {
            0 => Element::F32,
            1 => Element::F16,
            2 => Element::Bf16,
            code => return Err(Fault::new(Status::Invalid, format!("`element` is {code}, no kvt_key_element"))),
        };
        if self.bounds > 1 {
            return Err(Fault::new(Status::Invalid, format!("`bounds` is {}, not 0 or 1", self.bounds)));
        }
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
        Ok(DigestOptions { keys, pages: self.pages, groups: self.groups, bounds: self.bounds == 1 })
    }
}

/// What a step did not read of a sequence in a plane.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvt_omission {
    /// Pages that attention would have read by `KVT_CONTRACT_EXACT`.
    pub needed: u32,
    /// Of them, those that were not read.
    pub omitted: u32,
    /// Of those, the ones that were picked and were not there, or not in time.
    pub waived: u32,
    /// The share of attention that they hold: by `KVT_CONTRACT_APPROX` an estimate, 0 before the step's mass was told; by
    /// `KVT_CONTRACT_BOUNDED` what was proved to be the most that any query head loses.
    pub share: f32,
}

/// How a sequence is read from its next step on, once this has returned: `contract` is a `kvt_contract`, `value` what it takes. Its
/// forks read as it does.
///
/// `KVT_ERANGE`: a value out of the contract's range.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_seq_contract(
    channel: *mut kvt_channel,
    seq: u32,
    contract: u32,
    value: u32,
    timeout_us: u64,
) -> kvt_status {
    entry("kvt_seq_contract", || {
        let contract = match contract {
            0 => Contract::Exact,
            // What does not fit is out of range too.
            1 => Contract::Approx { permille: u16::try_from(value).unwrap_or(u16::MAX) },
            2 => Contract::Bounded { ppm: value },
            code => return Err(Fault::new(Status::Invalid, format!("`contract` is {code}, no kvt_contract"))),
        };
        let mut c = enter(channel)?;
        let timeout = timeout(timeout_us, c.timeout);
        Ok(c.channel.contract(seq, contract, timeout)?)
    })
}

/// Tells the queries with which attention is about to read a sequence of the open step in `plane`, before that plane's first
/// boundary: `count` numbers, `[query heads][channels]`, after position encoding, scaled as the softmax is. Digests make scores of
/// them, which the daemon is told; `KVT_CONTRACT_APPROX` picks and `KVT_CONTRACT_BOUNDED` proves by them. With tier 0 on a device the
/// session's first query says how many heads all have, at most 256.
///
/// `KVT_ESTATE`: no step is open, or the sequence is not in it. `KVT_ERANGE`: no such plane, or not a number of queries that the
/// layout of keys allows.
///
/// # Safety
/// `queries` is valid for `count` reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_query(
    lane: *mut kvt_lane,
    seq: u32,
    plane: u16,
    queries: *const f32,
    count: u32,
) -> kvt_status {
    entry("kvt_lane_query", || {
        // SAFETY: the caller's contract.
        let queries = unsafe { array("queries", queries, count as usize) }?;
        with_lane(lane, |lane| Ok(lane.query(seq, plane, queries)?))
    })
}

/// Tells a guess of the queries of a plane that is still to come, of the same form: what its projections make of an earlier
/// plane's input. The daemon prefetches by it. Fails as `kvt_lane_query`.
///
/// # Safety
/// `queries` is valid for `count` reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_ahead(
    lane: *mut kvt_lane,
    seq: u32,
    plane: u16,
    queries: *const f32,
    count: u32,
) -> kvt_status {
    entry("kvt_lane_ahead", || {
        // SAFETY: the caller's contract.
        let queries = unsafe { array("queries", queries, count as usize) }?;
        with_lane(lane, |lane| Ok(lane.ahead(seq, plane, queries)?))
    })
}

/// Whether `kvt_lane_ahead` can be of use for a sequence of the open step, so that a look-ahead query is worth computing: `wants` gets 1 if
/// the sequence is read by `KVT_CONTRACT_APPROX` and not all that it needs is there, else 0.
///
/// `KVT_ESTATE`: no step is open, or the sequence is not in it.
///
/// # Safety
/// `wants` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_wants_ahead(lane: *mut kvt_lane, seq: u32, wants: *mut u8) -> kvt_status {
    entry("kvt_lane_wants_ahead", || {
        check_out("wants", wants)?;
        let found = with_lane(lane, |lane| Ok(lane.wants_ahead(seq)?))?;
        // SAFETY: the caller's contract.
        unsafe { write("wants", wants, u8::from(found)) }
    })
}

/// Whether `kvt_lane_sums` and `kvt_lane_mass` can be of use for a sequence of the open step, so that shares by page are worth making:
/// `wants` gets 0 if it is read by `KVT_CONTRACT_EXACT`, and for another all of which is there but at every eighth step of the lane; else 1.
///
/// `KVT_ESTATE`: no step is open, or the sequence is not in it.
///
/// # Safety
/// `wants` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_wants_mass(lane: *mut kvt_lane, seq: u32, wants: *mut u8) -> kvt_status {
    entry("kvt_lane_wants_mass", || {
        check_out("wants", wants)?;
        let found = with_lane(lane, |lane| Ok(lane.wants_mass(seq)?))?;
        // SAFETY: the caller's contract.
        unsafe { write("wants", wants, u8::from(found)) }
    })
}

/// Tells, in the plane of the last boundary, what each of `count` query heads of `kvt_lane_query` has read of a sequence: the logarithm
/// of the sum of exponentials of all its scores, as attention kernels return it. To be called before `kvt_lane_mass`, whose estimate
/// for `KVT_CONTRACT_APPROX` is closer with it; with tier 0 on a device it changes nothing.
///
/// `KVT_ESTATE`: that is not the plane of the last boundary, or its query was not told; `KVT_ERANGE`: not a sum for each query head.
///
/// # Safety
/// `sums` is valid for `count` reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_sums(
    lane: *mut kvt_lane,
    seq: u32,
    plane: u16,
    sums: *const f32,
    count: u32,
) -> kvt_status {
    entry("kvt_lane_sums", || {
        // SAFETY: the caller's contract.
        let sums = unsafe { array("sums", sums, count as usize) }?;
        with_lane(lane, |lane| Ok(lane.sums(seq, plane, sums)?))
    })
}

/// Tells what the step's attention read of a sequence in the plane of the last boundary: by page index, for `count` pages, the
/// share of attention, mean over query heads, of all that was read; NaN for pages that were not.
///
/// `KVT_ESTATE` as `kvt_lane_query`; `KVT_ERANGE`: fewer shares than pages.
///
/// # Safety
/// `shares` is valid for `count` reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_mass(
    lane: *mut kvt_lane,
    seq: u32,
    plane: u16,
    shares: *const f32,
    count: u32,
) -> kvt_status {
    entry("kvt_lane_mass", || {
        // SAFETY: the caller's contract.
        let shares = unsafe { array("shares", shares, count as usize) }?;
        with_lane(lane, |lane| Ok(lane.mass(seq, plane, shares)?))
    })
}

/// Tells shares that the engine has made itself, by page index, for `count` pages; NaN says nothing of a page. `kind` is a
/// `kvt_score_kind`. The calls above tell by themselves.
///
/// # Safety
/// `shares` is valid for `count` reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_scores(
    lane: *mut kvt_lane,
    kind: u32,
    seq: u32,
    plane: u16,
    shares: *const f32,
    count: u32,
) -> kvt_status {
    entry("kvt_lane_scores", || {
        let kind = ScoreKind::ALL.get(kind as usize).copied();
        let kind = kind.ok_or_else(|| Fault::new(Status::Invalid, "`kind` is no kvt_score_kind"))?;
        // SAFETY: the caller's contract.
        let shares = unsafe { array("shares", shares, count as usize) }?;
        with_lane(lane, |lane| Ok(lane.scores(kind, seq, plane, shares)?))
    })
}

/// By `KVT_CONTRACT_BOUNDED`, in the plane of the last boundary: what it still misses is skipped as far as digests prove that it
/// holds too little beside `sums`, for each of `count` query heads the logarithm of the sum of exponentials of all scores that were
/// read. `complete` gets 1 if the plane is complete with that, else 0, and the next boundary goes on.
///
/// `KVT_ESTATE`: the sequence is read by another contract, or the plane's query was not told.
///
/// # Safety
/// `sums` is valid for `count` reads, `complete` for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_prove(
    lane: *mut kvt_lane,
    seq: u32,
    plane: u16,
    sums: *const f32,
    count: u32,
    complete: *mut u8,
) -> kvt_status {
    entry("kvt_lane_prove", || {
        check_out("complete", complete)?;
        // SAFETY: the caller's contract.
        let sums = unsafe { array("sums", sums, count as usize) }?;
        let proved = with_lane(lane, |lane| Ok(lane.prove(seq, plane, sums)?))?;
        // SAFETY: the caller's contract.
        unsafe { write("complete", complete, u8::from(proved)) }
    })
}

/// What the step does not read of a sequence in `plane`. `KVT_ESTATE`: that is not the plane of the last boundary, or the sequence
/// is not in the step.
///
/// # Safety
/// `omission` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_omission(
    lane: *mut kvt_lane,
    seq: u32,
    plane: u16,
    omission: *mut kvt_omission,
) -> kvt_status {
    entry("kvt_lane_omission", || {
        check_out("omission", omission)?;
        let Omission { needed, omitted, waived, share, .. } = omission_of(lane, seq, plane)?;
        let found = kvt_omission { needed, omitted, waived, share };
        // SAFETY: the caller's contract.
        unsafe { write("omission", omission, found) }
    })
}

/// Beside `kvt_omission.share`, what the query head that loses most does: by `KVT_CONTRACT_APPROX` an estimate, 0 before the step's
/// mass was told, and with tier 0 on a device as `share`; so it is by `KVT_CONTRACT_BOUNDED`. Fails as `kvt_lane_omission`.
///
/// # Safety
/// `worst` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_lane_omission_worst(
    lane: *mut kvt_lane,
    seq: u32,
    plane: u16,
    worst: *mut f32,
) -> kvt_status {
    entry("kvt_lane_omission_worst", || {
        check_out("worst", worst)?;
        let found = omission_of(lane, seq, plane)?;
        // SAFETY: the caller's contract.
        unsafe { write("worst", worst, found.worst) }
    })
}

fn omission_of(lane: *mut kvt_lane, seq: u32, plane: u16) -> Result<Omission, Fault> {
    let found = with_lane(lane, |lane| Ok(lane.omission(seq, plane)))?;
    found.ok_or_else(|| Fault::new(Status::State, format!("plane {plane} is not the last boundary's")))
}
