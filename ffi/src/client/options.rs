//! What an engine says about itself when it attaches.

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
            lanes: 1,
            channels: 1,
            depth: 64,
            seqs_max: 1024,
            timeout: Duration::from_secs(10),
        }
    }
}
