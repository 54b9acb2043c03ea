//! Options of an attach: the space, and the bounds of the session.

use super::entry::{array, check_pointer, string};
use super::error::Fault;
use super::scores::kvt_digests;
use super::sized::{self, Sized32};
use super::version::KVT_ABI_VERSION;
use kvtide_client::{DeviceChoice, Options, SpaceSpec};
use kvtide_wire::geometry::{PLANES_MAX, Plane, PlaneKind, PlaneSpec};
use kvtide_wire::status::Status;
use std::collections::BTreeSet;
use std::ffi::c_char;
use std::path::PathBuf;
use std::time::Duration;

/// Type of a plane: the content of its pages and which of them a step reads.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvt_plane_kind {
    /// Attention over all tokens (MHA, GQA, MQA; MLA latent vectors).
    KVT_PLANE_FULL = 0,
    /// Attention over the last `window_tokens` tokens.
    KVT_PLANE_WINDOW = 1,
    /// Recurrent state: a page is the snapshot after its last token; a step reads only the newest.
    KVT_PLANE_STATE = 2,
}

const _: () = {
    assert!(kvt_plane_kind::KVT_PLANE_FULL as u16 == PlaneKind::FULL);
    assert!(kvt_plane_kind::KVT_PLANE_WINDOW as u16 == PlaneKind::WINDOW);
    assert!(kvt_plane_kind::KVT_PLANE_STATE as u16 == PlaneKind::STATE);
    assert!(size_of::<kvt_plane>() == size_of::<PlaneSpec>());
};

/// One layer, or a group of layers that share physical pages, in one shard.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvt_plane {
    /// Bytes of one page: any number from 1 to 1 GiB.
    pub page_bytes: u32,
    /// A `kvt_plane_kind`.
    pub kind: u16,
    /// Zero.
    pub reserved: u16,
    /// Window of a `KVT_PLANE_WINDOW` plane in tokens, otherwise 0. If a step has several query tokens, add their
    /// number less one, so that the first of them also has its whole window.
    pub window_tokens: u32,
}

/// Options of `kvt_attach`. Set `struct_size` to `sizeof(kvt_options)`, `abi_version` to `KVT_ABI_VERSION`, and unused
/// members to zero.
///
/// Memory that it points to is not used after the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_options {
    /// `sizeof(kvt_options)`: later versions are longer.
    pub struct_size: u32,
    /// `KVT_ABI_VERSION`: the library refuses programs that were compiled for another version.
    pub abi_version: u32,
    /// Path of the daemon's socket.
    pub socket: *const c_char,
    /// Name of the space, UTF-8, 1 to 64 bytes. A label only: it does not identify the space.
    pub space: *const c_char,
    /// Fingerprint of everything that makes the KV of one engine valid for another, such as weights and adapters.
    pub fingerprint: [u8; 32],
    /// `planes_count` planes of one shard, in the order in which a step visits them.
    pub planes: *const kvt_plane,
    /// Number of planes, at most 512.
    pub planes_count: u32,
    /// Tokens of a page, 1 to 65,536.
    pub page_tokens: u32,
    /// `classes_count` numbers: tier-0 frames of each size class. NULL: no tier 0, for an engine with KV memory of its
    /// own. Planes with equal `page_bytes` form a class; classes are numbered in the order of their first plane.
    pub tier0_frames: *const u32,
    /// `classes_count` numbers: how many of `tier0_frames` have memory from the start. `kvt_channel_resize_tier0`
    /// changes them. NULL: all.
    pub tier0_initial: *const u32,
    /// Number of size classes, at most 8; 0 if `tier0_frames` is NULL.
    pub classes_count: u32,
    /// Mapped frames of each size class; 0: none. A mapped frame has no memory in tier 0: it makes a page that is read
    /// once readable in host memory, without a copy. Each costs 8 bytes and table entries, and counts towards the
    /// daemon's `limits.tier0_frames_max`. On a CUDA device, kernels need `kvt_plane_layout.mapped_pages` to read these
    /// pages.
    pub mapped_frames: u32,
    /// Location of the keys in a page, and the digests to keep of them, for contracts other than `KVT_CONTRACT_EXACT`
    /// (`kvtide_paged.h`). NULL: none. With tier 0 on a device: sketches only, of 16-bit keys, in a session with one
    /// lane.
    pub digests: *const kvt_digests,
    /// Maximum number of sequences and leases at a time; 0: 1,024.
    pub seqs_max: u32,
    /// Tensor-, pipeline- and context-parallel ranks; 0: 1.
    pub shards: u16,
    /// Rank of this session.
    pub shard: u16,
    /// Number of lanes, ordered streams of engine work; 0: 1. Lanes and channels together: at most 16.
    pub lanes: u16,
    /// Number of channels, each for the calls of one thread; 0: 1.
    pub channels: u16,
    /// Entries of a channel's ring, rounded up to a power of two, at least 4; 0: 64. One entry is kept for
    /// `kvt_channel_cancel`, so a channel holds one request fewer.
    pub depth: u16,
    /// Zero.
    pub reserved: u16,
    /// Limit of every wait without a timeout of its own, in microseconds; 0: ten seconds.
    pub timeout_us: u64,
    /// How long a step of a `KVT_CONTRACT_APPROX` sequence waits, in each plane, for picked pages that are not in tier
    /// 0, in microseconds.
    pub max_stall_us: u64,
    /// Path of a file with the token of a tenant, to which the process then belongs; NULL: the path in the environment
    /// variable `KVTIDE_TOKEN_FILE`, which must not be empty. Without a token the daemon uses the process's uid. The
    /// file is read at each attach.
    pub token_file: *const c_char,
    /// Memory of tier 0: `cpu`, `cuda`, `cuda:N`, `cuda:GPU-<uuid>` or `cuda:MIG-<uuid>`; NULL: `cpu`.
    pub device: *const c_char,
    /// CUDA device only: address of device memory, aligned to 256 bytes, that the program has allocated for tier 0 and
    /// keeps until the last handle of the session is closed; 0: the library allocates.
    pub device_memory: u64,
    /// Bytes at `device_memory`.
    pub device_bytes: u64,
    /// Bytes that the library allocates at a time on a CUDA device: a multiple of 2 MiB from 64 to 512 MiB; 0: 64 MiB.
    pub device_chunk_bytes: u64,
    /// Blocks that the session may have at the same time, whatever other sessions do; 0: no guarantee. Blocks that
    /// other sessions refer to as well do not count. If the daemon cannot guarantee them, the attach fails with
    /// `KVT_ENOSPC`. Cached blocks use the memory meanwhile.
    pub guaranteed_blocks: u32,
    /// Zero.
    pub reserved_word: u32,
    /// Zero. Makes the structure longer than that of ABI 2, by which `kvt_attach` recognises older programs.
    pub reserved_long: u64,
}

// SAFETY: repr(C), `struct_size` first, integers and raw pointers only.
unsafe impl Sized32 for kvt_options {
    const BYTES_MIN: usize = 192;
}
const _: () = assert!(size_of::<kvt_options>() == 192 && OPTIONS_BYTES_ABI_2 < kvt_options::BYTES_MIN);

/// Largest `kvt_options` of ABI 1 and 2, which had no `abi_version`.
const OPTIONS_BYTES_ABI_2: usize = 176;

/// Refuse a program that was compiled for another version of the ABI.
///
/// # Safety
/// `options` is NULL or valid for reads of as many bytes as its `struct_size` says (at least 4).
unsafe fn check_version(options: *const kvt_options) -> Result<(), Fault> {
    check_pointer("options", options)?;
    // SAFETY: not NULL and aligned; at least 4 bytes by this function's own contract.
    let size = unsafe { options.cast::<u32>().read() } as usize;
    let compiled = if (104..=OPTIONS_BYTES_ABI_2).contains(&size) {
        2
    } else if size < kvt_options::BYTES_MIN {
        return Ok(()); // no structure of any version: `sized::read` reports it
    } else {
        // SAFETY: within `size` bytes by this function's own contract.
        unsafe { (&raw const (*options).abi_version).read() }
    };
    if compiled == KVT_ABI_VERSION {
        return Ok(());
    }
    let text = format!(
        "the program uses C ABI {compiled}, this library (kvtide {}) has C ABI {KVT_ABI_VERSION}; compile the program \
         with the kvtide.h of this library, and set `options->abi_version` to KVT_ABI_VERSION",
        env!("CARGO_PKG_VERSION")
    );
    Err(Fault::new(Status::Version, text))
}

/// Environment variable with the token file's path, for programs that set none.
const TOKEN_FILE: &str = "KVTIDE_TOKEN_FILE";

/// Longer timeouts are cut to this: every wait is bounded, and sums of durations do not overflow.
const TIMEOUT_MAX: Duration = Duration::from_secs(86_400);

/// Return the duration of a timeout argument; 0 means the session's timeout.
pub(crate) fn timeout(timeout_us: u64, of_session: Duration) -> Duration {
    if timeout_us == 0 { of_session } else { Duration::from_micros(timeout_us).min(TIMEOUT_MAX) }
}

/// Return a path argument; it may contain any bytes.
///
/// # Safety
/// As [`string`].
pub(crate) unsafe fn path(name: &'static str, pointer: *const c_char) -> Result<PathBuf, Fault> {
    use std::os::unix::ffi::OsStrExt;
    check_pointer(name, pointer)?;
    // SAFETY: not NULL; NUL-terminated by this function's own contract.
    let bytes = unsafe { std::ffi::CStr::from_ptr(pointer) }.to_bytes();
    Ok(PathBuf::from(std::ffi::OsStr::from_bytes(bytes)))
}

/// Return the device that the options select.
fn choice(name: &str, options: &kvt_options) -> Result<DeviceChoice, Fault> {
    let invalid = |why: String| Fault::new(Status::Invalid, why);
    let (pointer, bytes) = (options.device_memory, options.device_bytes);
    match name.parse().map_err(|why| invalid(format!("`options->device`: {why}")))? {
        DeviceChoice::Cuda { device, .. } if pointer != 0 => Ok(DeviceChoice::GivenCuda { device, pointer, bytes }),
        DeviceChoice::Cuda { device, .. } => Ok(DeviceChoice::Cuda { device, chunk_bytes: options.device_chunk_bytes }),
        _ if pointer != 0 => Err(invalid("`options->device_memory` is set, but the device is \"cpu\"".to_owned())),
        choice => Ok(choice),
    }
}

/// Return the frames of each size class; `None` without tier 0.
///
/// # Safety
/// `options.tier0_frames` is NULL or valid for `classes_count` reads.
unsafe fn tier0_frames(options: &kvt_options) -> Result<Option<&[u32]>, Fault> {
    let count = options.classes_count as usize;
    if options.tier0_frames.is_null() && count == 0 {
        return Ok(None);
    }
    // SAFETY: this function's own contract.
    unsafe { array("options->tier0_frames", options.tier0_frames, count.min(PLANES_MAX + 1)) }.map(Some)
}

/// Return a plane; the client checks page size and window.
fn plane(index: usize, p: &kvt_plane) -> Result<Plane, Fault> {
    let kvt_plane { page_bytes, kind, reserved, window_tokens } = *p;
    let invalid = |why: String| Fault::new(Status::Invalid, format!("`options->planes[{index}].{why}"));
    if reserved != 0 {
        return Err(invalid(format!("reserved` is {reserved}, expected 0")));
    }
    let plane = PlaneSpec { page_bytes, kind, reserved, window_tokens }.plane();
    let plane = plane.ok_or_else(|| invalid(format!("kind` is {kind}, not a kvt_plane_kind")))?;
    match plane.kind {
        PlaneKind::Full | PlaneKind::State if window_tokens != 0 => {
            Err(invalid(format!("window_tokens` is {window_tokens}, but only a window plane has one")))
        }
        _ => Ok(plane),
    }
}

/// Return the number of size classes: different sizes of pages.
fn classes(planes: &[kvt_plane]) -> usize {
    let sizes: BTreeSet<u32> = planes.iter().map(|plane| plane.page_bytes).collect();
    sizes.len()
}

/// Read the options of an attach.
///
/// # Safety
/// `options` is NULL or points to a structure as its description says.
pub(crate) unsafe fn read_options(options: *const kvt_options) -> Result<Options, Fault> {
    // SAFETY: this function's own contract.
    let options = unsafe {
        check_version(options)?;
        sized::read("options", options)?
    };
    if options.reserved != 0 || options.reserved_word != 0 || options.reserved_long != 0 {
        return Err(Fault::new(Status::Invalid, "`options->reserved`, `reserved_word` or `reserved_long` is not zero"));
    }
    // SAFETY: as above, for each pointer in the structure.
    let (socket, name, planes, given) = unsafe {
        (
            path("options->socket", options.socket)?,
            string("options->space", options.space)?,
            array("options->planes", options.planes, (options.planes_count as usize).min(PLANES_MAX + 1))?,
            tier0_frames(&options)?,
        )
    };
    let frames = match given {
        Some(frames) => frames.to_vec(),
        None => vec![0; classes(planes)],
    };
    let classes = frames.len();
    let token_file = match options.token_file.is_null() {
        true => match std::env::var_os(TOKEN_FILE) {
            // Without a token the daemon would choose the domain by uid.
            Some(path) if path.is_empty() => {
                let why = format!("the environment variable {TOKEN_FILE} is empty; name a file, or unset it");
                return Err(Fault::new(Status::Invalid, why));
            }
            path => path.map(PathBuf::from),
        },
        // SAFETY: as above.
        false => Some(unsafe { path("options->token_file", options.token_file) }?),
    };
    let device = match options.device.is_null() {
        true => "cpu",
        // SAFETY: as above.
        false => unsafe { string("options->device", options.device) }?,
    };
    let planes = planes.iter().enumerate().map(|(index, p)| plane(index, p)).collect::<Result<_, _>>()?;
    let space = SpaceSpec {
        name: name.to_owned(),
        fingerprint: options.fingerprint,
        page_tokens: options.page_tokens,
        planes,
        shards: options.shards.max(1),
        shard: options.shard,
    };
    let mut built = Options::new(socket, space, frames);
    built.token_file = token_file;
    if !options.tier0_initial.is_null() {
        if given.is_none() {
            let why = "`options->tier0_initial` is set, but `options->tier0_frames` is not: there is no tier 0";
            return Err(Fault::new(Status::Invalid, why.to_owned()));
        }
        // SAFETY: as above.
        built.tier0_initial = unsafe { array("options->tier0_initial", options.tier0_initial, classes) }?.to_vec();
    }
    if !options.digests.is_null() {
        // SAFETY: as above.
        let digests = unsafe { array("options->digests", options.digests, 1) }?;
        built.digests = digests.first().map(kvt_digests::options).transpose()?;
    }
    built.mapped_frames = options.mapped_frames;
    built.guaranteed_blocks = options.guaranteed_blocks;
    built.max_stall = Duration::from_micros(options.max_stall_us).min(TIMEOUT_MAX);
    built.device = choice(device, &options)?;
    for (given, field) in
        [(options.lanes, &mut built.lanes), (options.channels, &mut built.channels), (options.depth, &mut built.depth)]
    {
        if given != 0 {
            *field = given;
        }
    }
    if options.seqs_max != 0 {
        built.seqs_max = options.seqs_max;
    }
    built.timeout = timeout(options.timeout_us, built.timeout);
    Ok(built)
}
