//! Options of an attach.

use crate::agent::attention::DigestOptions;
pub use kvtide_types::{BlockId, FrameId, SeqId};
use kvtide_wire::geometry::Plane;
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

/// Maximum timeout. Longer timeouts are cut to it, so that every deadline fits into the clock's range.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Limit a timeout to the clock's range.
pub(crate) fn bounded(timeout: Duration) -> Duration {
    timeout.min(TIMEOUT_MAX)
}

/// Return the deadline of a wait that begins now.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    Instant::now() + bounded(timeout)
}

/// The space that a session attaches to. Engines with equal specs share blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceSpec {
    /// Name of the space within its domain.
    pub name: String,
    /// Fingerprint of weights and adapters: engines with the same fingerprint can use each other's KV.
    pub fingerprint: [u8; 32],
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Planes of one shard in the order in which a step visits them. All shards have the same planes.
    pub planes: Vec<Plane>,
    /// Number of tensor-, pipeline- and context-parallel ranks.
    pub shards: u16,
    /// Rank of this session.
    pub shard: u16,
}

impl SpaceSpec {
    /// Return the spec of a space with one rank.
    #[must_use]
    pub fn new(name: impl Into<String>, fingerprint: [u8; 32], page_tokens: u32, planes: Vec<Plane>) -> SpaceSpec {
        SpaceSpec { name: name.into(), fingerprint, page_tokens, planes, shards: 1, shard: 0 }
    }
}

/// A CUDA device, by number or by UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaDevice {
    /// The driver's device number, after `CUDA_VISIBLE_DEVICES`.
    Ordinal(u32),
    /// Its UUID.
    Uuid {
        /// The UUID's bytes.
        bytes: [u8; 16],
        /// True if it is the UUID of a MIG instance.
        mig: bool,
    },
}

/// The memory of tier 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceChoice {
    /// Plain memory of this process.
    #[default]
    Cpu,
    /// Device memory allocated by the agent, in chunks, at one fixed address for each size class.
    Cuda {
        /// The device.
        device: CudaDevice,
        /// Bytes allocated or freed at once: a multiple of 2 MiB from 64 to 512 MiB; 0: 64 MiB.
        chunk_bytes: u64,
    },
    /// Device memory allocated by the engine, which keeps it until the last handle of the session is dropped.
    GivenCuda {
        /// The device.
        device: CudaDevice,
        /// Device address of its first byte, aligned to 256 bytes.
        pointer: u64,
        /// Its length in bytes.
        bytes: u64,
    },
}

/// Parse `cpu`, `cuda`, `cuda:N` or `cuda:GPU-<uuid>` (also `cuda:MIG-<uuid>`), the form of programs' arguments.
impl std::str::FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        let bad = || format!("invalid device `{text}`: use `cpu`, `cuda`, `cuda:N` or `cuda:GPU-<uuid>`");
        let device = match text {
            "cpu" => return Ok(DeviceChoice::Cpu),
            "cuda" => CudaDevice::Ordinal(0),
            _ => {
                let name = text.strip_prefix("cuda:").ok_or_else(bad)?;
                let mig = name.starts_with("MIG-");
                match name.strip_prefix("GPU-").or_else(|| name.strip_prefix("MIG-")) {
                    Some(uuid) => CudaDevice::Uuid { bytes: uuid_of(uuid).ok_or_else(bad)?, mig },
                    None => CudaDevice::Ordinal(name.parse().map_err(|_| bad())?),
                }
            }
        };
        Ok(DeviceChoice::Cuda { device, chunk_bytes: 0 })
    }
}

/// Parse 32 hexadecimal digits, with dashes anywhere.
fn uuid_of(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.bytes().filter(|b| *b != b'-').collect();
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let mut uuid = [0; 16];
    if digits.len() != 2 * uuid.len() {
        return None;
    }
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(uuid)
}

/// Options of [`Client::attach`](crate::Client::attach).
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of the daemon's socket.
    pub socket: PathBuf,
    /// File with the token of a tenant; `None`: the daemon identifies this process by its uid. Read at each attach.
    pub token_file: Option<PathBuf>,
    /// The space.
    pub space: SpaceSpec,
    /// Text that describes everything that the fingerprint covers, at most 4096 bytes; empty for none. The daemon keeps it, per domain
    /// and name of the space, and returns it to a later engine of that name with another fingerprint
    /// ([`Client::other_identity`](crate::Client::other_identity)).
    pub identity: String,
    /// Tier-0 frames of each size class, in class order (planes of equal `page_bytes` form a class; classes are numbered in
    /// the order in which their first plane appears).
    pub tier0_frames: Vec<u32>,
    /// Frames of each class that have memory at first; `Channel::resize_tier0` adds more. Empty: all. Frames without memory cost
    /// only address space.
    pub tier0_initial: Vec<u32>,
    /// Mapped frames of each size class; 0 for none. They have no tier-0 memory: they show pages in host memory, which are then
    /// read over the bus without a copy first. For pages that only stream through a step. Each costs 8 bytes and a little in the
    /// tables, so there can be as many as host memory can hold pages of the class. They count towards the daemon's
    /// `limits.tier0_frames_max`.
    pub mapped_frames: u32,
    /// Blocks that the session may have at the same time, whatever other sessions do; 0: no guarantee. Blocks that other sessions
    /// refer to as well do not count. If the daemon cannot guarantee them, the attach fails with `NoSpace`. Cached blocks use the
    /// memory meanwhile.
    pub guaranteed_blocks: u32,
    /// Ordered streams of engine work. Each lane uses one of the session's 16 rings, so `lanes + channels` is at most 16.
    pub lanes: u16,
    /// Channels for calls, each used by one thread.
    pub channels: u16,
    /// Maximum requests in flight on one channel.
    pub depth: u16,
    /// Maximum live sequences.
    pub seqs_max: u32,
    /// Timeout of every wait that has none of its own.
    pub timeout: Duration,
    /// The memory of tier 0.
    pub device: DeviceChoice,
    /// Digests of keys, for the contract `approx`; `None`: no digests, pages are selected by their past attention.
    ///
    /// On a device: only in a session with one lane. Keys must be rows of 16-bit numbers, a multiple of 8 in
    /// each row, at an offset and strides that are multiples of 16. A page has at most 128 tokens, and all groups of a head at most
    /// 8192 numbers. The digests take frames from the first class that has attention.
    pub digests: Option<DigestOptions>,
    /// How long a step of an `approx` sequence waits, in each plane, for selected pages that are not in tier 0.
    pub max_stall: Duration,
    /// Attach as a relay: to a space that engines have opened, without frames, to follow its feed and to read blocks by their
    /// hashes. The daemon must allow it (`relay_uids` or `relay_tokens` of the domain), for two sessions of each shard.
    pub relay: bool,
    /// Keep the space on this machine: relays do not hear of it. For a fingerprint that means nothing elsewhere.
    pub local: bool,
    /// NUMA node on which this session asks for host memory. `None`: the node of `device`, else that of the CPUs to which this process
    /// is bound, else any. For engines that keep KV in device memory of their own. Not used with `relay`.
    pub numa_node: Option<u16>,
}

impl Options {
    /// Create options with one lane, one channel and the default limits.
    #[must_use]
    pub fn new(socket: PathBuf, space: SpaceSpec, tier0_frames: Vec<u32>) -> Options {
        Options {
            socket,
            token_file: None,
            space,
            identity: String::new(),
            tier0_frames,
            tier0_initial: Vec::new(),
            mapped_frames: 0,
            guaranteed_blocks: 0,
            lanes: 1,
            channels: 1,
            depth: 64,
            seqs_max: 1024,
            timeout: Duration::from_secs(10),
            device: DeviceChoice::Cpu,
            digests: None,
            max_stall: Duration::ZERO,
            relay: false,
            local: false,
            numa_node: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names() {
        let cuda = |device| Ok(DeviceChoice::Cuda { device, chunk_bytes: 0 });
        assert_eq!("cpu".parse(), Ok(DeviceChoice::Cpu));
        assert_eq!("cuda".parse(), cuda(CudaDevice::Ordinal(0)));
        assert_eq!("cuda:3".parse(), cuda(CudaDevice::Ordinal(3)));
        let bytes = *b"\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff";
        assert_eq!(
            "cuda:GPU-00112233-4455-6677-8899-aabbccddeeff".parse(),
            cuda(CudaDevice::Uuid { bytes, mig: false })
        );
        assert_eq!("cuda:MIG-00112233445566778899AABBCCDDEEFF".parse(), cuda(CudaDevice::Uuid { bytes, mig: true }));
        for bad in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:GPU-0011", "cuda:GPU-0011223344556677889x"] {
            assert!(bad.parse::<DeviceChoice>().is_err(), "{bad}");
        }
    }
}
