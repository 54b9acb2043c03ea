//! The engine of several benchmarks: a session of this process with pages of one size in any number of planes.

use super::BenchError;
use crate::private_daemon::PrivateDaemon;
use kvtide_client::client::{Channel, Client, Error, Lane, Options, Pass, SeqId, SpaceSpec, StepSeq};
use kvtide_wire::geometry::Plane;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Bytes of every page: the size of the targets.
pub(super) const PAGE_BYTES: u32 = 64 << 10;
/// Tokens of every page.
pub(super) const PAGE_TOKENS: u64 = 16;
/// Deadline of every request.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Shape of a model's KV.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model {
    pub(super) planes: u16,
    pub(super) page_tokens: u32,
    pub(super) page_bytes: u32,
    /// Blocks of a prefill chunk: a small part of tier 0.
    pub(super) chunk_blocks: u64,
}

/// A session with one channel and one lane.
pub(super) struct Engine {
    pub(super) client: Client,
    pub(super) channel: Channel,
    pub(super) lane: Lane,
    model: Model,
}

/// Add the failed action to a client error.
///
/// # Errors
/// That of the call.
pub fn trying<T>(tried: &'static str, result: Result<T, Error>) -> Result<T, BenchError> {
    result.map_err(|source| BenchError::Client { tried, source })
}

/// Return a counter of the core over all spaces, or in the one with a name: the sum over the list at `path`.
pub(super) fn counted(daemon: &mut PrivateDaemon, space: Option<&str>, path: &str) -> Result<u64, BenchError> {
    let status = daemon.status()?;
    let spaces = status["spaces"].as_array().into_iter().flatten();
    let named = spaces.filter(|found| space.is_none_or(|name| found["name"] == name));
    let mut lists = named.filter_map(|space| space["core"].pointer(path)?.as_array()).peekable();
    if lists.peek().is_none() {
        return Err(BenchError::Odd(format!("the daemon's status has no {path} of a space")));
    }
    Ok(lists.flatten().filter_map(Value::as_u64).sum())
}

impl Engine {
    /// Attach with pages of [`PAGE_BYTES`].
    pub(super) fn attach(
        socket: &Path,
        name: &str,
        planes: u16,
        frames: u32,
        seqs_max: u32,
    ) -> Result<Engine, BenchError> {
        let model = Model { planes, page_tokens: PAGE_TOKENS as u32, page_bytes: PAGE_BYTES, chunk_blocks: 32 };
        Engine::with(name, model, |space| Options { seqs_max, ..Options::new(socket.into(), space, vec![frames]) })
    }

    /// Attach with pages of a model.
    pub(super) fn with(
        name: &str,
        model: Model,
        options: impl FnOnce(SpaceSpec) -> Options,
    ) -> Result<Engine, BenchError> {
        let space = SpaceSpec::new(
            format!("bench-{name}"),
            std::array::from_fn(|i| name.as_bytes().get(i).copied().unwrap_or(0)),
            model.page_tokens,
            vec![Plane::full(model.page_bytes); model.planes.into()],
        );
        let client = trying("attach", Client::attach(Options { timeout: TIMEOUT, ..options(space) }))?;
        let channel = trying("get the channel", client.channel(0))?;
        let lane = trying("get the lane", client.lane(0))?;
        Ok(Engine { client, channel, lane, model })
    }

    /// Create a sequence of `blocks` sealed blocks with arbitrary content.
    pub(super) fn sealed(&mut self, blocks: u64) -> Result<SeqId, BenchError> {
        self.prefilled(blocks * u64::from(self.model.page_tokens))
    }

    /// Create a sequence of `tokens` tokens with arbitrary content, prefilled in chunks as by an engine.
    pub(super) fn prefilled(&mut self, tokens: u64) -> Result<SeqId, BenchError> {
        let seq = trying("create a sequence", self.channel.create_seq())?;
        let mut done = 0;
        while done < tokens {
            done = (done + self.model.chunk_blocks * u64::from(self.model.page_tokens)).min(tokens);
            trying("reserve", self.channel.reserve(seq, done, TIMEOUT))?;
            trying("commit", self.channel.commit(seq, done))?;
        }
        Ok(seq)
    }

    /// Run one step over all pages of a sequence. All pages have been readable when it returns.
    pub(super) fn step(&mut self, seq: SeqId, tokens: u64) -> Result<(), BenchError> {
        trying("begin a step", self.lane.begin(&[StepSeq { seq, tokens }]))?;
        for plane in 0..self.model.planes {
            while let Pass::Part { last: false, .. } = trying("cross a boundary", self.lane.boundary(plane))? {}
        }
        trying("end a step", self.lane.end())
    }
}
