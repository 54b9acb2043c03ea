//! Coding state of a disk's I/O thread for coded and encrypted slabs: the pool, the memory between it and the device, and the jobs
//! that wait for memory. Created with the first such transfer: a disk without such slabs needs none of it.

use crate::code::{Arena, Extent, Page, Pool, Subkey, Work, stored_bytes, taken};
use crate::memory::Memory;
use crate::plan::Span;
use crate::transfer::{Part, Transfer};
use kvtide_rt::mail::Waker;
use kvtide_types::IoKind;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Memory for stored forms: twice what keeps a drive busy, for reads and for writes.
const ARENA_BYTES: u64 = 64 << 20;
/// Write-back is encoded ahead by at most this much before the cap admits it, so that the device does not wait for the pool. A
/// quarter of the arena, so that reads find memory.
pub(super) const AHEAD_BYTES: u64 = ARENA_BYTES / 4;
/// Pages are sent to the pool in works of about this size, so that threads share a large block.
const WORK_BYTES: u64 = 256 << 10;

/// Coding state of an I/O thread.
#[derive(Debug)]
pub(super) struct Coding {
    disk: u16,
    threads: u16,
    waker: Waker,
    shop: Option<Shop>,
    /// Jobs that wait for memory, in order. No other job starts while there are any.
    pub waiting: VecDeque<u32>,
    /// Jobs in the pool, and encoded jobs that wait for the device.
    pub jobs: u32,
    /// Encoded write-back that waits for the cap, in order: job and bytes.
    pub encoded: VecDeque<(u32, u64)>,
    /// Bytes of write-back encoded ahead of the cap.
    pub ahead_bytes: u64,
}

/// The pool and its memory.
#[derive(Debug)]
struct Shop {
    pool: Pool,
    arena: Arena,
}

/// Coding resources of a job.
#[derive(Debug, Default)]
pub(super) struct Coded {
    /// Memory of the stored forms of its pages, in sequence; None: in their frames.
    extent: Option<Extent>,
    subkey: Option<Arc<Subkey>>,
    /// First write number of its pages, if they are encrypted.
    first: u32,
    /// Works in the pool.
    pub works: u32,
    /// Read: the time at which the device finished.
    pub ended_us: Option<u64>,
    /// Write-back: bytes encoded ahead of the cap.
    pub ahead_bytes: u64,
}

/// Reason why a transfer cannot use the pool.
#[derive(Debug)]
pub(super) enum Stuck {
    /// No memory is free now.
    Later,
    /// The key of its pages was deleted: they are unreadable.
    NoKey,
    /// Encryption failed, or there is no memory at all.
    Failed(String),
}

impl Coding {
    pub fn new(disk: u16, threads: u16, waker: Waker) -> Coding {
        Coding {
            disk,
            threads,
            waker,
            shop: None,
            waiting: VecDeque::new(),
            jobs: 0,
            encoded: VecDeque::new(),
            ahead_bytes: 0,
        }
    }

    /// Create the pool unless it exists; then return its memory, to register it.
    ///
    /// # Errors
    /// There is not enough memory, or a thread cannot be started.
    pub fn open(&mut self) -> io::Result<Option<Arc<Memory>>> {
        if self.shop.is_some() {
            return Ok(None);
        }
        let arena = Arena::new(ARENA_BYTES)?;
        let memory = Arc::clone(arena.memory());
        let pool = Pool::new(self.disk, self.threads, &self.waker)?;
        tracing::info!("disk {}: started {} coding threads", self.disk, pool.threads());
        self.shop = Some(Shop { pool, arena });
        Ok(Some(memory))
    }

    /// Allocate the resources of a transfer, and set `spans` to the locations of its pages' stored forms.
    pub fn place(&mut self, transfer: &mut Transfer, spans: &mut Vec<Span>) -> Result<Coded, Stuck> {
        let (Some(code), Some(shop)) = (&transfer.code, &mut self.shop) else {
            return Err(Stuck::Failed("no coding pool".into()));
        };
        let reads = transfer.kind == IoKind::Read;
        let mut coded = Coded::default();
        if reads && code.is_encrypted() {
            coded.subkey = Some(code.subkey(transfer.salt).ok_or(Stuck::NoKey)?);
        }
        if !(reads && code.is_read_in_place()) {
            let needed = transfer.parts.iter().map(|part| taken(room(reads, part))).sum();
            let extent =
                shop.arena.take(needed).map_err(|e| Stuck::Failed(format!("{needed} bytes of memory: {e}")))?;
            coded.extent = Some(extent.ok_or(Stuck::Later)?);
        }
        if !reads && code.is_encrypted() {
            match code.take(transfer.parts.len() as u32, transfer.salt) {
                Ok((subkey, salt, first)) => {
                    (coded.subkey, coded.first, transfer.salt) = (Some(subkey), first, salt);
                }
                Err(spent) => {
                    self.give(coded);
                    return Err(Stuck::Failed(spent.to_string()));
                }
            }
        }
        let mut at = 0;
        spans.clear();
        for part in &transfer.parts {
            let bytes = room(reads, part);
            let (memory, offset) = match &coded.extent {
                Some(extent) => (&extent.memory, extent.at + at),
                None => (&part.memory, part.offset),
            };
            spans.push(Span {
                at: part.at,
                bytes: bytes.into(),
                address: memory.at(offset) as usize,
                buffer: memory.buffer(self.disk, offset, bytes.into()),
            });
            at += taken(bytes);
        }
        Ok(coded)
    }

    /// Send a job's pages to the pool.
    pub fn send(&mut self, job: u32, transfer: &Transfer, coded: &mut Coded) {
        let (Some(code), Some(shop)) = (&transfer.code, &mut self.shop) else { return };
        let loads = transfer.kind == IoKind::Read;
        let (mut at, mut bytes) = (0, 0);
        let mut open: Option<Box<Work>> = None;
        for (index, part) in (0u32..).zip(&transfer.parts) {
            let work = open.get_or_insert_with(|| {
                let mut work = shop.pool.blank();
                work.task.set(job, loads, code, coded.subkey.clone(), transfer.key);
                work
            });
            work.pages.push(Page {
                part: index,
                plane: part.plane,
                bytes: part.bytes,
                memory: Arc::clone(&part.memory),
                offset: part.offset,
                stored: coded.extent.clone().map(|extent| (extent, at)),
                crc: if loads { part.crc } else { coded.first.wrapping_add(index) },
                sectors: part.sectors,
                tag: part.tag,
                digest: part.digest,
                sampled: part.sampled,
                ok: false,
                strange: false,
            });
            at += taken(room(loads, part));
            bytes += u64::from(part.bytes);
            if bytes >= WORK_BYTES || index as usize + 1 == transfer.parts.len() {
                bytes = 0;
                coded.works += 1;
                shop.pool.send(open.take().expect("it was opened above"), loads);
            }
        }
        self.jobs += 1;
    }

    /// Return a finished work.
    pub fn take(&mut self) -> Option<Box<Work>> {
        self.shop.as_mut()?.pool.take()
    }

    /// Take a work's box back for reuse.
    pub fn idle(&mut self, work: Box<Work>) {
        if let Some(shop) = &mut self.shop {
            shop.pool.give(work);
        }
    }

    /// Free the resources of a job; neither pool nor device uses them.
    pub fn give(&mut self, coded: Coded) {
        if let (Some(shop), Some(extent)) = (&mut self.shop, coded.extent) {
            shop.arena.give(extent);
        }
    }

    /// Return true if a finished work can be taken.
    pub fn has_done(&self) -> bool {
        self.shop.as_ref().is_some_and(|shop| shop.pool.has_done())
    }

    /// Wait until the pool is empty. Works are short and do not wait for a device.
    pub fn rest(&mut self) {
        if let Some(shop) = &mut self.shop {
            shop.pool.rest();
        }
        self.jobs = 0;
    }
}

/// Return the maximum size of a page's stored form.
fn room(reads: bool, part: &Part) -> u32 {
    if reads { stored_bytes(part.bytes, part.sectors) } else { part.bytes }
}
