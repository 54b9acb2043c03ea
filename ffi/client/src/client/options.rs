//! What an engine says about itself when it attaches.

use crate::agent::attention::DigestOptions;
use kvtide_wire::geometry::PlaneSpec;
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

/// A sequence's slot in its session.
pub type SeqId = u32;
/// A page-sized slot of tier 0, dense over all size classes.
pub type FrameId = u32;
/// A block of the space: the pages of all planes at one page index.
pub type BlockId = u32;

/// Longest wait: a timeout beyond it is cut, so that no deadline is out of the clock's reach.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// A timeout that a clock can reach.
pub(crate) fn bounded(timeout: Duration) -> Duration {
    timeout.min(TIMEOUT_MAX)
}

/// When a wait that begins now is over.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    Instant::now() + bounded(timeout)
}

/// The space that a session attaches to. Engines with equal specs share blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceSpec {
    /// Name of the space within its domain.
    pub name: String,
    /// Fingerprint of weights and adapters: what makes KV of one engine valid for another.
    pub fingerprint: [u8; 32],
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Planes of one shard in the order in which a step visits them. All shards have the same planes.
    pub planes: Vec<PlaneSpec>,
    /// Tensor-, pipeline-, context-parallel ranks.
    pub shards: u16,
    /// Which of them this session is.
    pub shard: u16,
}

/// A CUDA device by its number or by what names it for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaDevice {
    /// The driver's number of it, as `CUDA_VISIBLE_DEVICES` leaves it.
    Ordinal(u32),
    /// Its UUID.
    Uuid {
        /// The UUID's bytes.
        bytes: [u8; 16],
        /// Whether it is that of a MIG instance.
        mig: bool,
    },
}

/// Which memory tier 0 is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceChoice {
    /// Plain memory of this process.
    #[default]
    Cpu,
    /// A device's memory that the agent allocates, in chunks at one fixed address for each size class.
    Cuda {
        /// The device.
        device: CudaDevice,
        /// Bytes that are allocated at once and given back at once: a multiple of 2 MiB from 64 to 512 MiB; 0: 64 MiB.
        chunk_bytes: u64,
    },
    /// A device's memory that the engine allocated and keeps until the last handle of the session is dropped.
    GivenCuda {
        /// The device.
        device: CudaDevice,
        /// Its first byte, aligned to 256 bytes: a device address.
        pointer: u64,
        /// Its length.
        bytes: u64,
    },
}

/// `cpu`, `cuda`, `cuda:N` or `cuda:GPU-<uuid>` (also `cuda:MIG-<uuid>`), as programs take it from their users.
impl std::str::FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        let bad = || format!("`{text}` is no device: `cpu`, `cuda`, `cuda:N` or `cuda:GPU-<uuid>` is one");
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

/// 32 hexadecimal digits, dashes anywhere.
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

/// How to attach.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the daemon listens.
    pub socket: PathBuf,
    /// File with the token of a tenant of the daemon's; `None`: the daemon goes by this process's uid. It is read at each attach.
    pub token_file: Option<PathBuf>,
    /// The space.
    pub space: SpaceSpec,
    /// Tier-0 frames of each size class, in class order (planes of equal `page_bytes` form a class; classes are numbered in
    /// the order in which their first plane appears).
    pub tier0_frames: Vec<u32>,
    /// Of those, the frames of each class that have memory from the beginning; `Channel::tier0_resize` makes them more. Empty: all.
    /// What has no memory costs addresses alone.
    pub tier0_initial: Vec<u32>,
    /// Window frames of each size class, 0 for none: frames without memory of tier 0, in which pages that only stream through are
    /// read where they are in host memory, at the bus's speed, instead of being copied first. As many as host memory may hold pages of
    /// the class cost 8 bytes each and some in the tables. They count towards the daemon's `limits.tier0_frames_max`.
    pub host_windows: u32,
    /// Ordered streams of engine work. Each takes one of the session's 16 rings for its own messages, so
    /// `lanes + channels` is at most 16.
    pub lanes: u16,
    /// Channels for calls, each owned by one thread.
    pub channels: u16,
    /// Requests in flight on one channel.
    pub depth: u16,
    /// Sequences that live at once.
    pub seqs_max: u32,
    /// Bound of every wait that has no timeout of its own.
    pub timeout: Duration,
    /// Which memory tier 0 is.
    pub device: DeviceChoice,
    /// Digests of keys, for reading contracts other than exact; `None`: none are kept, and pages are picked by what attention
    /// said before. On a device sketches alone, in a session of one lane, of keys that are rows of 16-bit numbers, a multiple of 8 of
    /// them, at an offset and at strides that are multiples of 16; pages have at most 128 tokens, and all groups of a head at most
    /// 8192 numbers. The frames whose place they take are the
    /// first class's that has attention.
    pub digests: Option<DigestOptions>,
    /// How long a step of an `approx` sequence waits for pages that it picked and that are not in tier 0, in each plane.
    pub max_stall: Duration,
}

impl Options {
    /// Options with one lane, one channel and the default bounds.
    #[must_use]
    pub fn new(socket: PathBuf, space: SpaceSpec, tier0_frames: Vec<u32>) -> Options {
        Options {
            socket,
            token_file: None,
            space,
            tier0_frames,
            tier0_initial: Vec::new(),
            host_windows: 0,
            lanes: 1,
            channels: 1,
            depth: 64,
            seqs_max: 1024,
            timeout: Duration::from_secs(10),
            device: DeviceChoice::Cpu,
            digests: None,
            max_stall: Duration::ZERO,
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
