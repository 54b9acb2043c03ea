//! The engine of the GPU benchmarks: a session of this process with tier 0 in the device's memory.

use super::super::BenchError;
use super::super::engine::{TIMEOUT, trying};
use kvtide_client::client::{Channel, Client, DeviceChoice, Lane, Options, Pass, SeqId, SpaceSpec, StepSeq};
use kvtide_client::cuda::Stream;
use kvtide_wire::geometry::Plane;
use std::path::Path;
use std::sync::Arc;

/// Blocks of a prefill chunk: a small part of any measured tier 0.
const CHUNK_BLOCKS: u64 = 4;

/// Shape of a model's KV.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model {
    pub(super) planes: u16,
    pub(super) page_tokens: u32,
    pub(super) page_bytes: u32,
}

impl Model {
    /// Llama 3.1 8B: 32 layers of 8 KV heads × 128, bf16, keys and values, in pages of 64 tokens.
    pub(super) const LLAMA_8B: Model = Model { planes: 32, page_tokens: 64, page_bytes: 64 * 8 * 128 * 2 * 2 };
    /// A small shape for the stand-in.
    pub(super) const TINY: Model = Model { planes: 4, page_tokens: 16, page_bytes: 16 << 10 };

    pub(super) fn of(tiny: bool) -> Model {
        if tiny { Model::TINY } else { Model::LLAMA_8B }
    }

    /// Return the number of blocks for `tokens` tokens.
    pub(super) fn blocks(&self, tokens: u64) -> u64 {
        tokens.div_ceil(u64::from(self.page_tokens))
    }

    /// Return the bytes of `blocks` blocks.
    pub(super) fn bytes(&self, blocks: u64) -> u64 {
        blocks * u64::from(self.planes) * u64::from(self.page_bytes)
    }
}

/// A session on a device, with one lane bound to a stream.
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) channel: Channel,
    pub(super) lane: Lane,
    pub(super) stream: Arc<Stream>,
    model: Model,
}

impl Session {
    /// Attach with room for `blocks` blocks in tier 0.
    pub(super) fn attach(
        socket: &Path,
        name: &str,
        model: Model,
        blocks: u64,
        (choice, stream): (DeviceChoice, Arc<Stream>),
    ) -> Result<Session, BenchError> {
        let plane = Plane::full(model.page_bytes);
        let space = SpaceSpec::new(
            format!("bench-gpu-{name}"),
            std::array::from_fn(|i| name.as_bytes().get(i).copied().unwrap_or(0)),
            model.page_tokens,
            vec![plane; usize::from(model.planes)],
        );
        let frames = blocks as u32 * u32::from(model.planes);
        let options = Options { timeout: TIMEOUT, device: choice, ..Options::new(socket.into(), space, vec![frames]) };
        let client = trying("attach with tier 0 on a device", Client::attach(options))?;
        let channel = trying("get the channel", client.channel(0))?;
        let mut lane = trying("get the lane", client.lane(0))?;
        trying("bind the lane to a stream", lane.bind_stream(&stream))?;
        Ok(Session { client, channel, lane, stream, model })
    }

    /// Create a sequence of `tokens` tokens with arbitrary content, prefilled in chunks as by an engine.
    pub(super) fn prefilled(&mut self, tokens: u64) -> Result<SeqId, BenchError> {
        let seq = trying("create a sequence", self.channel.create_seq())?;
        let mut done = 0;
        while done < tokens {
            done = (done + CHUNK_BLOCKS * u64::from(self.model.page_tokens)).min(tokens);
            trying("reserve", self.channel.reserve(seq, done, TIMEOUT))?;
            trying("commit", self.channel.commit(seq, done))?;
        }
        Ok(seq)
    }

    /// Run one step over all pages of a sequence. All pages are readable when it returns.
    pub(super) fn step(&mut self, seq: SeqId, tokens: u64) -> Result<(), BenchError> {
        trying("begin a step", self.lane.begin(&[StepSeq { seq, tokens }]))?;
        for plane in 0..self.model.planes {
            while let Pass::Part { last: false, .. } = trying("cross a boundary", self.lane.boundary(plane))? {}
        }
        trying("end a step", self.lane.end())
    }
}
