//! The two sides of a session: typed rings, lists, lane words and bells over the two regions.
//!
//! The daemon creates a [`DaemonSide`] and sends its descriptors with the Welcome; the engine creates an [`EngineSide`] from them.
//! Descriptors are sent in this order: region E, region D, ringer towards the daemon, the copy loop's bell, one bell for each channel.

mod daemon;
mod engine;

pub use daemon::{DaemonChannel, DaemonSide, Lanes, PeerFds};
pub use engine::{EngineChannel, EngineSide, JobRings, LaneWriter, attach};

use super::bell::Ringer;
use super::map::{Map, Part, part, parts};
use crate::entry::NONE_U16;
use crate::error::Error;
use crate::lists::{List, ListArea};
use crate::ring::{Consumer, Memory, Producer, Slot};
use crate::score::ScoreSlot;
use crate::sync::AtomicU32;
use crate::trace::TraceContext;
use crate::wake;
use std::sync::Arc;

/// A ring over mapped memory.
#[derive(Debug)]
pub struct MappedRing {
    slots: Part<[Slot]>,
    tail: Part<AtomicU32>,
    head: Part<AtomicU32>,
}

impl Memory for MappedRing {
    fn slots(&self) -> &[Slot] {
        &self.slots
    }
    fn tail(&self) -> &AtomicU32 {
        &self.tail
    }
    fn head(&self) -> &AtomicU32 {
        &self.head
    }
}

/// A lane's score slots in mapped memory.
pub type MappedScores = Part<[ScoreSlot]>;
/// The writing end of a shared ring.
pub type Sender<T> = Producer<T, MappedRing>;
/// The reading end of a shared ring.
pub type Receiver<T> = Consumer<T, MappedRing>;
/// Wakes the other side after entries were handed over.
pub type Waker = wake::Waker<Part<AtomicU32>, Ringer>;
/// Announces that this side is about to sleep.
pub type Sleeper = wake::Sleeper<Part<AtomicU32>>;

/// Offsets of a ring: slots and tail in the producer's region, head in the consumer's.
struct RingAt {
    slots: u64,
    tail: u64,
    head: u64,
    entries: usize,
}

fn ring(producer: &Arc<Map>, consumer: &Arc<Map>, at: RingAt) -> Result<MappedRing, Error> {
    Ok(MappedRing {
        slots: parts(producer, at.slots, at.entries)?,
        tail: part(producer, at.tail)?,
        head: part(consumer, at.head)?,
    })
}

/// The list areas of a channel that the other side writes.
#[derive(Debug)]
pub struct ListsIn(Part<[ListArea]>);

/// The list areas of a channel that this side writes.
#[derive(Debug)]
pub struct ListsOut(Part<[ListArea]>);

fn area(areas: &[ListArea], tag: u16) -> Result<&ListArea, Error> {
    let max = areas.len() as u64 - 1;
    areas.get(usize::from(tag)).ok_or(Error::Bound { what: "tag", value: u64::from(tag), min: 0, max })
}

impl ListsIn {
    /// Copy a tag's list out, once, before it is examined.
    pub fn copy_out(&self, tag: u16, len: u32, list: &mut List) -> Result<(), Error> {
        area(&self.0, tag)?.copy_out(len, list)
    }
}

impl ListsOut {
    /// Write a tag's list; return its length for the entry.
    pub fn write(&self, tag: u16, words: &[u32]) -> Result<u32, Error> {
        area(&self.0, tag)?.write(words)
    }

    /// Write hashes, then words; return the length in words for the entry.
    pub fn write_hashes(&self, tag: u16, hashes: &[u128], words: &[u32]) -> Result<u32, Error> {
        area(&self.0, tag)?.write_hashes(hashes, words)
    }

    /// Write a trace context behind a list of `len` words.
    pub fn write_trace(&self, tag: u16, len: u32, context: &TraceContext) -> Result<(), Error> {
        area(&self.0, tag)?.write_trace(len, context)
    }
}

/// Check that a region's header is the one that `Layout` would write.
fn check_header(map: &Arc<Map>, expected: [u64; 8], what: &'static str) -> Result<(), Error> {
    let found = part::<Slot>(map, 0)?.load();
    if found == expected {
        return Ok(());
    }
    let hex = |words: [u64; 8]| std::format!("{words:x?}");
    Err(Error::Message { message: what, field: "header", found: hex(found), expected: hex(expected) })
}

/// Descriptors before the channels' bells.
const FIXED_FDS: usize = 4;
const _: () = assert!(FIXED_FDS + crate::layout::CHANNELS_MAX as usize <= super::socket::FDS_MAX);
const _: () = assert!(crate::layout::CHANNELS_MAX < NONE_U16);
