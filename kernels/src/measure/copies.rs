//! Copies between host and device by the shipped copier, compared with one large pinned copy; and the same copies by each path alone,
//! so that a missed target explains itself.

use super::Size;
use super::memory::Random;
use super::timing::{PATIENCE, Timer, in_turns};
use crate::copy::{Copier, Copy, Crossover, Options, Path, Way};
use crate::{Buffer, Device, Error, Pinned, Priority, Result, Stream};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Data of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Pages of 64 KiB, in a random order on both sides.
    Scattered64K,
    /// Blocks of 2 MiB, in a random order on both sides.
    Contiguous2M,
    /// Pages of 64 KiB in random order on the host. Their fragments of the given size are far apart on the device, as in an
    /// engine's layout with layers first.
    Fragments(u32),
}

/// All measured kinds.
const KINDS: [Kind; 5] = [
    Kind::Scattered64K,
    Kind::Contiguous2M,
    Kind::Fragments(4 << 10),
    Kind::Fragments(8 << 10),
    Kind::Fragments(16 << 10),
];

/// The kinds, and the large copy.
const TURNS: usize = KINDS.len() + 1;

const PAGE: u64 = 64 << 10;
const BLOCK: u64 = 2 << 20;

/// Copies of one batch, and batches in flight: the number that the agent's copy loop submits at once, and enough that the bus never
/// waits for the next.
const BATCH: usize = 256;
const UNDER_WAY: usize = 4;

/// Paths that a copier may be forced to use.
const PATHS: [Path; 3] = [Path::Engines, Path::OneByOne, Path::Kernel];
/// Bytes of a trial of one path. Copy engines take microseconds for each copy: fragments of 4 KiB, one by one, in three directions, then
/// take about a second per round.
const FORCED_BYTES: usize = 128 << 20;
const FORCED_ROUNDS: usize = 3;

/// Rate of one path for all copies of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forced {
    /// Direction.
    pub way: Way,
    /// Data of the copies. Within the device, other memory of it takes the place of the host.
    pub kind: Kind,
    /// The path.
    pub path: Path,
    /// Bytes per second, from the first call to the end of the last copy; `None`: this device cannot use the path.
    pub rate: Option<f64>,
}

/// Rates of one direction in bytes per second.
#[derive(Clone, Debug)]
pub struct Copies {
    /// Direction.
    pub way: Way,
    /// One copy of everything, by the driver.
    pub large: f64,
    /// By the copier, each in turn with the large one.
    pub kinds: Vec<(Kind, f64)>,
    /// Fragment size below which the copier uses its kernel.
    pub crossover_bytes: usize,
}

/// Measure both directions, one after the other. Return also what the choice between copy engines and kernel is made from.
///
/// # Errors
/// The device is full or lost.
pub fn copies(device: &Arc<Device>, size: Size) -> Result<([Copies; 2], Crossover)> {
    let (bytes, rounds) = match size {
        Size::Full => (512 << 20, 7),
        Size::Tiny => (4 << 20, 1),
    };
    let mut rig = Rig::new(device, bytes)?;
    let found = [rig.measure(Way::Up, rounds)?, rig.measure(Way::Down, rounds)?];
    Ok((found, rig.copier.crossover().clone()))
}

/// Measure each path alone, in both directions and within the device, one direction after the other.
///
/// # Errors
/// The device is full or lost.
pub fn forced(device: &Arc<Device>, size: Size) -> Result<Vec<Forced>> {
    let (bytes, rounds) = match size {
        Size::Full => (FORCED_BYTES, FORCED_ROUNDS),
        Size::Tiny => (4 << 20, 1),
    };
    let rig = Rig::new(device, bytes as u64)?;
    let mut copiers = Vec::new();
    for path in PATHS {
        let copier = match Copier::new(device, Options { path, ..Options::default() }) {
            Ok(copier) => Some(copier),
            Err(Error::Unsupported { .. }) => None,
            Err(e) => return Err(e),
        };
        // Without batched calls, the copier would make one call for each copy under another name.
        copiers.push((path, copier.filter(|copier| path != Path::Engines || copier.is_batched())));
    }
    let mut found = Vec::new();
    for (way, kind) in Way::ALL.into_iter().flat_map(|way| KINDS.map(|kind| (way, kind))) {
        let copies = rig.batch(way, kind);
        let seconds: [f64; PATHS.len()] = in_turns(rounds, |which| match &mut copiers[which].1 {
            Some(copier) => batched(copier, way, &copies),
            None => Ok(f64::NAN),
        })?;
        for (path, seconds) in PATHS.into_iter().zip(seconds) {
            let rate = Some(bytes as f64 / seconds).filter(|rate| rate.is_finite());
            found.push(Forced { way, kind, path, rate });
        }
    }
    Ok(found)
}

/// Memory of the host, and twice as much of the device: its second half is the source of copies within the device.
struct Rig {
    host: Pinned,
    device: Buffer,
    stream: Stream,
    timer: Timer,
    copier: Copier,
    bytes: u64,
}

impl Rig {
    fn new(device: &Arc<Device>, bytes: u64) -> Result<Self> {
        let host = Pinned::new(device, bytes as usize)?;
        Ok(Self {
            device: Buffer::new(device, 2 * bytes as usize)?,
            stream: Stream::new(device, Priority::Normal)?,
            timer: Timer::new(device)?,
            copier: Copier::new(device, Options::default())?,
            host,
            bytes,
        })
    }

    fn measure(&mut self, way: Way, rounds: usize) -> Result<Copies> {
        let batches = KINDS.map(|kind| self.batch(way, kind));
        let seconds: [f64; TURNS] = in_turns(rounds, |which| match which.checked_sub(1) {
            None => self.large(way),
            Some(kind) => batched(&mut self.copier, way, &batches[kind]),
        })?;
        let rate = |seconds: f64| self.bytes as f64 / seconds;
        let kinds = KINDS.into_iter().zip(&seconds[1..]).map(|(kind, &s)| (kind, rate(s))).collect();
        Ok(Copies { way, large: rate(seconds[0]), kinds, crossover_bytes: self.copier.crossover().bytes(way) })
    }

    /// Return the seconds of one copy of everything, from the call to its end, as for the batches.
    fn large(&self, way: Way) -> Result<f64> {
        let copy = self.copy(way, 0, 0, self.bytes);
        // SAFETY: both buffers belong to this rig, nothing else is in flight on them, and the timer waits for the end.
        self.timer.time(&self.stream, || unsafe { self.stream.copy(copy.to, copy.from, copy.bytes) })
    }

    /// Return all bytes of both buffers, in pieces of this kind.
    fn batch(&self, way: Way, kind: Kind) -> Vec<Copy> {
        let mut random = Random::new(kind_seed(kind));
        let unit = if kind == Kind::Contiguous2M { BLOCK } else { PAGE };
        let units = self.bytes / unit;
        let (host, device) = (random.order(units as usize), random.order(units as usize));
        let pairs = host.into_iter().map(|h| h as u64).zip(device.into_iter().map(|d| d as u64));
        match kind {
            Kind::Scattered64K | Kind::Contiguous2M => {
                pairs.map(|(host, device)| self.copy(way, host * unit, device * unit, unit)).collect()
            }
            Kind::Fragments(bytes) => {
                let bytes = u64::from(bytes);
                let of_page = |(host, device): (u64, u64)| {
                    let fragments = 0..PAGE / bytes;
                    fragments.map(move |f| (host * PAGE + f * bytes, (f * units + device) * bytes))
                };
                pairs.flat_map(of_page).map(|(host, device)| self.copy(way, host, device, bytes)).collect()
            }
        }
    }

    fn copy(&self, way: Way, host: u64, device: u64, bytes: u64) -> Copy {
        let (beside, device) = (self.device.address() + self.bytes + host, self.device.address() + device);
        let (host, bytes) = (self.host.address() + host, bytes as usize);
        match way {
            Way::Down => Copy { from: device, to: host, bytes, region: 0 },
            Way::Up => Copy { from: host, to: device, bytes, region: 0 },
            Way::Within => Copy { from: beside, to: device, bytes, region: 0 },
        }
    }
}

/// Return the seconds from the first call to the end of the last copy, of copies that a rig made.
fn batched(copier: &mut Copier, way: Way, copies: &[Copy]) -> Result<f64> {
    let began = Instant::now();
    // SAFETY: all ranges lie in the rig's buffers, nothing else is in flight on them, each byte is written once, and `copy_all` waits
    // for the end.
    unsafe { copy_all(copier, way, copies)? };
    Ok(began.elapsed().as_secs_f64())
}

/// Copy everything, with a few batches in flight at a time, and wait for the end.
///
/// # Safety
/// As for [`Copier::submit`], for all of them together.
pub(super) unsafe fn copy_all(copier: &mut Copier, way: Way, copies: &[Copy]) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut under_way = VecDeque::with_capacity(UNDER_WAY);
    let mut batches = copies.chunks(BATCH);
    let mut more = true;
    while more || !under_way.is_empty() {
        while more && under_way.len() < UNDER_WAY {
            match batches.next() {
                // SAFETY: guaranteed by the caller.
                Some(batch) => under_way.push_back(unsafe { copier.submit(way, batch)? }),
                None => more = false,
            }
        }
        if let Some(&oldest) = under_way.front() {
            if copier.poll(oldest)? {
                under_way.pop_front();
            } else if Instant::now() > deadline {
                return Err(Error::TimedOut { what: "copies that are measured".to_owned(), after: PATIENCE });
            }
        }
    }
    Ok(())
}

/// Return the seed of a kind, so that each kind has its own order.
fn kind_seed(kind: Kind) -> u64 {
    match kind {
        Kind::Scattered64K => 1,
        Kind::Contiguous2M => 2,
        Kind::Fragments(bytes) => bytes.into(),
    }
}
