//! The engine of several benchmarks: a session of this process with pages of one size in any number of planes.

use super::BenchError;
use kvtide_client::client::{Channel, Client, Error, Lane, Options, SeqId, SpaceSpec};
use kvtide_wire::geometry::Plane;
use std::path::Path;
use std::time::Duration;

/// Bytes of every page: the size of the targets.
pub(super) const PAGE_BYTES: u32 = 64 << 10;
/// Tokens of every page.
pub(super) const PAGE_TOKENS: u64 = 16;
/// Tokens of a prefill chunk.
const CHUNK_TOKENS: u64 = 512;
/// Deadline of every request.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// A session with pages of [`PAGE_BYTES`].
pub(super) struct Engine {
    pub(super) client: Client,
    pub(super) channel: Channel,
    pub(super) lane: Lane,
}

/// Add the failed action to a client error.
///
/// # Errors
/// That of the call.
pub fn trying<T>(tried: &'static str, result: Result<T, Error>) -> Result<T, BenchError> {
    result.map_err(|source| BenchError::Client { tried, source })
}

impl Engine {
    pub(super) fn attach(
        socket: &Path,
        name: &str,
        planes: usize,
        frames: u32,
        seqs_max: u32,
    ) -> Result<Engine, BenchError> {
        let planes = vec![Plane::full(PAGE_BYTES); planes];
        let space = SpaceSpec::new(
            format!("bench-{name}"),
            std::array::from_fn(|i| name.as_bytes().get(i).copied().unwrap_or(0)),
            PAGE_TOKENS as u32,
            planes,
        );
        let options = Options { seqs_max, timeout: TIMEOUT, ..Options::new(socket.into(), space, vec![frames]) };
        let client = trying("attach", Client::attach(options))?;
        let channel = trying("get the channel", client.channel(0))?;
        let lane = trying("get the lane", client.lane(0))?;
        Ok(Engine { client, channel, lane })
    }

    /// Create a sequence of `blocks` sealed blocks with arbitrary content, prefilled in chunks as by an engine.
    pub(super) fn sealed(&mut self, blocks: u64) -> Result<SeqId, BenchError> {
        let seq = trying("create a sequence", self.channel.create_seq())?;
        let mut tokens = 0;
        while tokens < blocks * PAGE_TOKENS {
            tokens = (tokens + CHUNK_TOKENS).min(blocks * PAGE_TOKENS);
            trying("reserve", self.channel.reserve(seq, tokens, TIMEOUT))?;
            trying("commit", self.channel.commit(seq, tokens))?;
        }
        Ok(seq)
    }
}
