//! The load: engines that store chains of distinct blocks, with several stores in flight each, and then look up all of them.

use super::super::block_engine::{BlockEngine, block_space, spread};
use super::super::engine::trying;
use super::super::folder::noise;
use super::super::nvme::{LOOK, Stop, failed};
use super::BenchError;
use super::probes::Running;
use kvtide_client::client::{Completed, Outcome, Request};
use kvtide_wire::entry::Level;
use kvtide_wire::status::Status;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// Deadline of every store, load and lookup.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
/// Without a completion for this long the daemon is considered hung, because every request has a deadline.
const SILENCE: Duration = Duration::from_secs(60);
/// Stores in flight per engine.
const IN_FLIGHT: u32 = 8;
/// Maximum bytes of one store.
const STORE_BYTES: u64 = 8 << 20;
/// Maximum blocks of one store; a request holds 102.
const STORE_BLOCKS: u64 = 96;
/// Blocks of a chain of small blocks, and of a chain of blocks larger than 64 KiB.
const CHAIN: u32 = 256;
const CHAIN_OF_LARGE: u32 = 64;
/// Chains that each engine loads and compares at the end.
const SAMPLED: usize = 16;
/// Bytes of the stamp at each end of a block.
const STAMP: usize = 16;

/// Shape of a row's load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) block: u32,
    pub(super) engines: u16,
    /// Host memory of the daemon.
    pub(super) host: u64,
    /// Bytes stored by all engines.
    pub(super) bytes: u64,
}

impl Shape {
    /// Return the blocks of one store. All stores in flight together take at most a quarter of host memory.
    fn store(self) -> u32 {
        let share = self.host / (4 * u64::from(IN_FLIGHT) * u64::from(self.engines));
        (STORE_BYTES.min(share) / u64::from(self.block)).clamp(1, STORE_BLOCKS) as u32
    }

    fn chain(self) -> u32 {
        if self.block <= 64 << 10 { CHAIN } else { CHAIN_OF_LARGE }
    }

    /// Return the chains of one engine.
    fn chains(self) -> u32 {
        let of_chain = u64::from(self.chain()) * u64::from(self.block) * u64::from(self.engines);
        u32::try_from((self.bytes / of_chain).max(1)).unwrap_or(u32::MAX)
    }

    /// Return the bytes stored by all engines, in whole chains.
    pub(super) fn stored(self) -> u64 {
        u64::from(self.chains()) * u64::from(self.chain()) * u64::from(self.block) * u64::from(self.engines)
    }
}

/// Attach with `own` blocks of one size.
pub(super) fn attach(socket: &Path, block: u32, own: u32) -> Result<BlockEngine, BenchError> {
    BlockEngine::attach(socket, block_space("bench-pressure", 24, block, 1), own, TIMEOUT)
}

/// Return the hash of a block. `owner` distinguishes engines and probes.
pub(super) fn hash(owner: u16, chain: u32, block: u32) -> u128 {
    spread(u128::from(owner + 1) << 96 | u128::from(chain + 1) << 32 | u128::from(block + 1))
}

/// Results of storing.
#[derive(Debug, Default)]
pub(super) struct Stored {
    pub(super) blocks: u64,
    pub(super) refused: u64,
    /// Reasons of rejected stores, with their number.
    pub(super) why: BTreeMap<String, u64>,
    pub(super) seconds: f64,
}

impl Stored {
    /// Add the results of another engine at the same time.
    pub(super) fn beside(&mut self, other: Stored) {
        self.blocks += other.blocks;
        self.refused += other.refused;
        self.seconds = self.seconds.max(other.seconds);
        for (why, times) in other.why {
            *self.why.entry(why).or_default() += times;
        }
    }
}

/// Stored blocks that were found afterwards, and blocks loaded and compared.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    pub(super) blocks: u64,
    pub(super) compared: u64,
    /// Blocks that were found but could not be loaded.
    pub(super) unreadable: u64,
}

/// A store in flight, with its chain.
#[derive(Clone, Copy, Debug)]
struct Slot {
    chain: u32,
    /// Blocks of the chain stored so far.
    done: u32,
    /// Blocks of the store in flight.
    count: u32,
}

/// An engine that stores chains.
pub(super) struct Engine {
    session: BlockEngine,
    number: u16,
    shape: Shape,
    /// Content of every block between its stamps.
    template: Vec<u8>,
    /// Stored blocks of each chain.
    accepted: Vec<u32>,
}

impl Engine {
    pub(super) fn attach(socket: &Path, number: u16, shape: Shape) -> Result<Engine, BenchError> {
        let own = IN_FLIGHT * shape.store();
        let session = attach(socket, shape.block, own)?;
        let template = noise(shape.block as usize);
        for block in 0..own {
            session.client.with_block(block, 0, |bytes| bytes.copy_from_slice(&template));
        }
        Ok(Engine { session, number, shape, template, accepted: vec![0; shape.chains() as usize] })
    }

    /// Store all chains.
    pub(super) fn store(&mut self, running: &Running, stop: &Stop) -> Result<Stored, BenchError> {
        let (began, mut stored) = (Instant::now(), Stored::default());
        let mut slots: [Option<Slot>; IN_FLIGHT as usize] = [None; IN_FLIGHT as usize];
        let mut next = 0;
        let mut heard = Instant::now();
        loop {
            for (at, slot) in slots.iter_mut().enumerate() {
                if slot.is_none() && next < self.shape.chains() {
                    *slot = Some(self.submit(at, next, 0)?);
                    next += 1;
                }
            }
            if slots.iter().all(Option::is_none) {
                break;
            }
            let Some(completed) = self.session.channel.poll_any() else {
                stop.check()?;
                if heard.elapsed() > SILENCE {
                    return Err(BenchError::Odd(format!("no store completed for {SILENCE:?}")));
                }
                self.sleep()?;
                continue;
            };
            heard = Instant::now();
            let at = completed.user as usize;
            let Some(slot) = slots.get_mut(at).and_then(Option::take) else {
                return Err(BenchError::Odd("unexpected completion of a store".into()));
            };
            let (before, ended) = (stored.blocks, self.ended(slot, completed, &mut stored)?);
            running.add((stored.blocks - before) * u64::from(self.shape.block));
            if let Some(done) = ended {
                slots[at] = Some(self.submit(at, slot.chain, done)?);
            }
        }
        stored.seconds = began.elapsed().as_secs_f64();
        Ok(stored)
    }

    /// Process the end of a store. Return the next position of its chain unless it ends there.
    fn ended(&mut self, slot: Slot, completed: Completed, stored: &mut Stored) -> Result<Option<u32>, BenchError> {
        let (good, why) = match completed.result {
            Ok(Outcome::Copied { status: Status::Ok, .. }) => (slot.count, Status::Ok),
            Ok(Outcome::Copied { status, failed, .. }) => (failed.iter().copied().min().unwrap_or(slot.count), status),
            Ok(other) => return Err(BenchError::Odd(format!("a store ended with {other:?}"))),
            Err(error) => match error.status() {
                Status::Daemon | Status::Fork | Status::Protocol | Status::Invalid | Status::Internal => {
                    return Err(BenchError::Client { tried: "store blocks", source: error });
                }
                status => (0, status),
            },
        };
        let done = slot.done + good;
        stored.blocks += u64::from(good);
        self.accepted[slot.chain as usize] = done;
        if why == Status::Ok && done < self.shape.chain() {
            return Ok(Some(done));
        }
        if why != Status::Ok {
            // Later blocks of a chain are unreachable behind a missing one, so the engine skips the rest.
            stored.refused += u64::from(self.shape.chain() - done);
            *stored.why.entry(format!("{why:?}")).or_default() += 1;
        }
        Ok(None)
    }

    fn submit(&mut self, at: usize, chain: u32, done: u32) -> Result<Slot, BenchError> {
        let count = self.shape.store().min(self.shape.chain() - done);
        let hashes: Vec<u128> = (done..done + count).map(|block| hash(self.number, chain, block)).collect();
        let base = at as u32 * self.shape.store();
        let own: Vec<u32> = (base..base + count).collect();
        for (hash, block) in hashes.iter().zip(&own) {
            self.session.client.with_block(*block, 0, |bytes| stamp(bytes, *hash));
        }
        let parent = if done == 0 { 0 } else { hash(self.number, chain, done - 1) };
        let request = Request::Store { first: done, parent, hashes: &hashes, blocks: &own, level: Level::Published };
        trying("submit a store", self.session.channel.submit(request, TIMEOUT, at as u64))?;
        Ok(Slot { chain, done, count })
    }

    /// Sleep until a completion, or for a short time.
    fn sleep(&mut self) -> Result<(), BenchError> {
        if trying("wait for stores", self.session.channel.arm())? {
            return Ok(());
        }
        let Some(fd) = self.session.channel.fd() else { return Ok(()) };
        let look = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&look)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(failed("wait for stores", errno)),
        }
    }

    /// Look up every chain, then load some chains and compare all their bytes.
    pub(super) fn find(&mut self, stop: &Stop) -> Result<Found, BenchError> {
        let mut found = Found::default();
        let mut whole = Vec::new();
        for chain in 0..self.shape.chains() {
            stop.check()?;
            let hashes: Vec<u128> =
                (0..self.accepted[chain as usize]).map(|block| hash(self.number, chain, block)).collect();
            if hashes.is_empty() {
                continue;
            }
            let blocks = trying("look up a chain", self.session.channel.lookup(&hashes, TIMEOUT))?.blocks;
            found.blocks += u64::from(blocks);
            if blocks > 0 {
                whole.push((chain, blocks));
            }
        }
        for (chain, blocks) in whole.iter().step_by((whole.len() / SAMPLED).max(1)) {
            stop.check()?;
            self.compare(*chain, *blocks, &mut found)?;
        }
        Ok(found)
    }

    /// Load a chain and compare it.
    fn compare(&mut self, chain: u32, blocks: u32, found: &mut Found) -> Result<(), BenchError> {
        let last = hash(self.number, chain, blocks - 1);
        let Ok(lease) = self.session.channel.lease(last, blocks, TIMEOUT, TIMEOUT) else {
            found.unreadable += u64::from(blocks);
            return Ok(());
        };
        let part = IN_FLIGHT * self.shape.store();
        for first in (0..blocks).step_by(part as usize) {
            let own: Vec<u32> = (0..part.min(blocks - first)).collect();
            for &block in &own {
                self.session.client.with_block(block, 0, |bytes| stamp(bytes, 0));
            }
            let loaded = self.session.channel.load(lease.seq, first, &own, TIMEOUT);
            let bad = match &loaded {
                Ok(copied) => &copied.failed[..],
                Err(_) => &own[..],
            };
            found.unreadable += bad.len() as u64;
            for block in own.iter().filter(|block| !bad.contains(block)) {
                let expected = hash(self.number, chain, first + block);
                let right = |bytes: &mut [u8]| is_right(bytes, &self.template, expected);
                if self.session.client.with_block(*block, 0, right) != Some(true) {
                    return Err(BenchError::Odd(format!("block {first} + {block} of chain {chain} has wrong bytes")));
                }
                found.compared += 1;
            }
        }
        self.session.release(lease.seq)
    }
}

/// Write a block's hash into its first and last bytes.
fn stamp(bytes: &mut [u8], hash: u128) {
    let end = bytes.len() - STAMP;
    bytes[..STAMP].copy_from_slice(&hash.to_le_bytes());
    bytes[end..].copy_from_slice(&hash.to_le_bytes());
}

/// Return true if a block has its hash at both ends and the template between them.
fn is_right(bytes: &[u8], template: &[u8], hash: u128) -> bool {
    let (end, stamp) = (bytes.len() - STAMP, hash.to_le_bytes());
    bytes[..STAMP] == stamp && bytes[end..] == stamp && bytes[STAMP..end] == template[STAMP..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(block: u32, engines: u16, host: u64) -> Shape {
        Shape { block, engines, host, bytes: 12 * host }
    }

    #[test]
    fn stores_in_flight_hold_a_quarter_of_host_memory_at_most() {
        for (block, engines, host) in
            [(4096, 1, 1 << 30), (65536, 4, 64 << 20), (2 << 20, 1, 1 << 30), (2 << 20, 4, 1 << 30)]
        {
            let shape = shape(block, engines, host);
            let flight = u64::from(shape.store()) * u64::from(IN_FLIGHT) * u64::from(engines) * u64::from(block);
            assert!(flight <= host / 4 && shape.store() <= 102, "{shape:?}: {flight}");
            assert!(shape.stored() <= shape.bytes && shape.stored() > shape.bytes / 10 * 9, "{shape:?}");
        }
    }

    #[test]
    fn a_block_with_another_byte_is_wrong() {
        let template = noise(4096);
        let mut block = template.clone();
        stamp(&mut block, 7);
        assert!(is_right(&block, &template, 7) && !is_right(&block, &template, 8));
        block[2000] ^= 1;
        assert!(!is_right(&block, &template, 7));
    }
}
