//! The engine of benchmarks of the block API: a session of this process without tier 0, with blocks of its own in one tensor a plane.

use super::BenchError;
use super::engine::trying;
use kvtide_client::client::{Channel, Client, Leased, Options, SeqId, SpaceSpec};
use kvtide_wire::entry::Level;
use kvtide_wire::geometry::Plane;
use kvtide_wire::status::Status;
use std::path::Path;
use std::time::Duration;

/// A session with its first channel.
pub struct BlockEngine {
    /// The channel.
    pub channel: Channel,
    /// The session.
    pub client: Client,
    timeout: Duration,
}

/// Return a space with `planes` planes of pages of one size, and a fingerprint of equal bytes.
#[must_use]
pub fn block_space(name: impl Into<String>, fingerprint: u8, page_bytes: u32, planes: u16) -> SpaceSpec {
    SpaceSpec::new(name, [fingerprint; 32], 16, vec![Plane::full(page_bytes); planes.into()])
}

/// Return a number as a hash. Any 128 bits work; these are spread like hashes.
#[must_use]
pub fn spread(number: u128) -> u128 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) | 1
}

impl BlockEngine {
    /// Attach with `own` blocks. Requests and leases have the deadline `timeout`.
    ///
    /// # Errors
    /// The daemon refuses.
    pub fn attach(socket: &Path, space: SpaceSpec, own: u32, timeout: Duration) -> Result<BlockEngine, BenchError> {
        let options = Options { timeout, ..Options::new(socket.into(), space, vec![0]) };
        let client = trying("attach", Client::attach(options))?;
        let channel = trying("get the channel", client.channel(0))?;
        trying("allocate blocks", client.allocate_blocks(own))?;
        Ok(BlockEngine { channel, client, timeout })
    }

    /// Store a run of a chain from own blocks. All must become findable.
    ///
    /// # Errors
    /// A block was not stored.
    pub fn store(&mut self, at: (u32, u128), hashes: &[u128], own: &[u32], level: Level) -> Result<(), BenchError> {
        let copied = trying("store blocks", self.channel.store(at, hashes, own, level, self.timeout))?;
        all("stored", copied.status, copied.failed.len())
    }

    /// Store a chain in runs of the own blocks; `fill` sets them to the content from a place of the chain on.
    ///
    /// # Errors
    /// A block was not stored, or `fill` failed.
    pub fn store_chain(
        &mut self,
        hashes: &[u128],
        own: &[u32],
        level: Level,
        mut fill: impl FnMut(&Client, usize) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        for (i, part) in hashes.chunks(own.len()).enumerate() {
            let first = i * own.len();
            fill(&self.client, first)?;
            let parent = if first == 0 { 0 } else { hashes[first - 1] };
            self.store((first as u32, parent), part, &own[..part.len()], level)?;
        }
        Ok(())
    }

    /// Lease the prefix that ends with the last of these blocks.
    ///
    /// # Errors
    /// It is not cached.
    pub fn lease(&mut self, hashes: &[u128]) -> Result<Leased, BenchError> {
        let last = hashes.last().copied().unwrap_or_default();
        trying("lease a prefix", self.channel.lease(last, hashes.len() as u32, self.timeout, self.timeout))
    }

    /// Load blocks of a lease into own blocks. All must arrive.
    ///
    /// # Errors
    /// A block was not loaded.
    pub fn load(&mut self, lease: SeqId, first: u32, own: &[u32]) -> Result<(), BenchError> {
        let copied = trying("load blocks", self.channel.load(lease, first, own, self.timeout))?;
        all("loaded", copied.status, copied.failed.len())
    }

    /// Release a lease.
    ///
    /// # Errors
    /// The daemon has ended.
    pub fn release(&mut self, lease: SeqId) -> Result<(), BenchError> {
        trying("release a lease", self.channel.drop_seq(lease))
    }
}

fn all(done: &str, status: Status, failed: usize) -> Result<(), BenchError> {
    match status {
        Status::Ok => Ok(()),
        status => Err(BenchError::Odd(format!("{failed} blocks not {done}: {status:?}"))),
    }
}
