//! Decode steps while pages move in both directions as fast as possible.

use super::Size;
use super::batches::{Case, Decode, KV_HEADS, Made};
use super::copies::copy_all;
use super::memory::Random;
use super::timing::{finish, percentile};
use crate::copy::{Copier, Copy, Options, Way};
use crate::{Buffer, Device, Event, Pinned, Priority, Result, Stream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Attentions of a step: planes of a model.
const PLANES: usize = 32;
/// Bytes of each page that moves.
const PAGE: usize = 64 << 10;

/// Steps beside migrations, and migrations beside steps.
#[derive(Clone, Copy, Debug)]
pub struct Interference {
    /// Median and 99th percentile of a step's seconds without other work.
    pub alone: [f64; 2],
    /// The same while pages move.
    pub beside: [f64; 2],
    /// Bytes per second that moved during the steps, both directions together.
    pub moved_bytes_per_s: f64,
}

/// Measure rounds of steps, with and without migrations in turn.
///
/// # Errors
/// The device is full or lost, or cannot run the kernels.
pub fn interference(device: &Arc<Device>, size: Size) -> Result<Interference> {
    let (case, planes, steps, rounds, moving) = match size {
        Size::Full => {
            (Case { rows: 8, tokens: 16 << 10, kv_heads: KV_HEADS, group: 4, ragged: false }, PLANES, 40, 5, 256 << 20)
        }
        Size::Tiny => (Case { rows: 1, tokens: 64, kv_heads: KV_HEADS, group: 2, ragged: false }, 2, 3, 1, 1 << 20),
    };
    let stream = Stream::new(device, Priority::Normal)?;
    let made = Made::new(device, &stream, case, size)?;
    let decode = Decode::new(device, &made, 0, false)?;
    let mut traffic = Traffic::new(device, moving)?;
    let mut events = vec![];
    for _ in 0..=steps {
        events.push(Event::timed(device)?);
    }
    // Seconds of each step of a round: from the end of one to the end of the next, all enqueued ahead.
    let round = || -> Result<Vec<f64>> {
        stream.record(&events[0])?;
        for event in &events[1..] {
            for plane in 0..planes {
                // SAFETY: `made` outlives the launches: the round waits for the last event before it ends.
                unsafe { decode.enqueue(&stream, &made.batch(plane % made.sets(), true))? };
            }
            stream.record(event)?;
        }
        finish(&events[steps])?;
        events.windows(2).map(|pair| Ok(pair[1].since(&pair[0])?.as_secs_f64())).collect()
    };
    // Loads the code and warms up.
    round()?;
    let (mut alone, mut beside) = (vec![], vec![]);
    let (mut moved, mut seconds) = (0, 0.0);
    for _ in 0..rounds {
        alone.extend(round()?);
        let stop = AtomicBool::new(false);
        let began = Instant::now();
        let (times, bytes) = std::thread::scope(|scope| {
            let mover = scope.spawn(|| traffic.run(&stop));
            let times = round();
            // Relaxed: only a request to stop; joining orders the rest.
            stop.store(true, Ordering::Relaxed);
            (times, mover.join())
        });
        seconds += began.elapsed().as_secs_f64();
        beside.extend(times?);
        moved += match bytes {
            Ok(bytes) => bytes?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
    }
    let both = |samples: &mut [f64]| [percentile(samples, 50), percentile(samples, 99)];
    Ok(Interference { alone: both(&mut alone), beside: both(&mut beside), moved_bytes_per_s: moved as f64 / seconds })
}

/// Pages that move in both directions repeatedly.
struct Traffic {
    up: Vec<Copy>,
    down: Vec<Copy>,
    copiers: [Copier; 2],
    _host: Pinned,
    _device: Buffer,
}

impl Traffic {
    fn new(device: &Arc<Device>, bytes: usize) -> Result<Self> {
        let (host, memory) = (Pinned::new(device, 2 * bytes)?, Buffer::new(device, 2 * bytes)?);
        let mut random = Random::new(3);
        let pages = bytes / PAGE;
        // Each direction has its own half, so that no byte is read and written at the same time.
        let mut pairs = |half: usize| {
            let (a, b) = (random.order(pages), random.order(pages));
            let at = move |page: usize| (half * bytes + page * PAGE) as u64;
            a.into_iter().zip(b).map(move |(a, b)| (at(a), at(b))).collect::<Vec<_>>()
        };
        let (h, d) = (host.address(), memory.address());
        let up = pairs(0).into_iter().map(|(a, b)| Copy { from: h + a, to: d + b, bytes: PAGE, region: 0 }).collect();
        let down = pairs(1).into_iter().map(|(a, b)| Copy { from: d + a, to: h + b, bytes: PAGE, region: 0 }).collect();
        let copiers = [Copier::new(device, Options::default())?, Copier::new(device, Options::default())?];
        Ok(Self { up, down, copiers, _host: host, _device: memory })
    }

    /// Move pages until `stop` is set; return the bytes moved.
    fn run(&mut self, stop: &AtomicBool) -> Result<u64> {
        let Self { up, down, copiers: [upward, downward], .. } = self;
        let one_way = |copier: &mut Copier, way: Way, copies: &[Copy]| -> Result<u64> {
            let mut moved = 0;
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: the ranges lie in this traffic's buffers, each in its way's half, each byte is written once, and
                // `copy_all` waits for the end.
                unsafe { copy_all(copier, way, copies)? };
                moved += copies.len() as u64 * PAGE as u64;
            }
            Ok(moved)
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| one_way(downward, Way::Down, down));
            let upwards = one_way(upward, Way::Up, up)?;
            match other.join() {
                Ok(downwards) => Ok(upwards + downwards?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}
