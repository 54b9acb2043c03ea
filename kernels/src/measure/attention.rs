//! Decode attention over the block table compared with device copies, and the cost of table, fixed splits and the export of mass.

use super::Size;
use super::batches::{Case, Decode, Made};
use super::timing::{Timer, in_turns};
use crate::launch::attention::{Mass, SCORE_WORDS, TOP_MAX};
use crate::{Buffer, Device, Pinned, Priority, Result, Stream};
use std::sync::Arc;

/// Minimum bytes of one sample, so that events and launches are negligible.
const SAMPLE_BYTES: u64 = 4 << 30;
/// Bytes of each buffer of a device copy.
const COPY_BYTES: u64 = 1 << 30;
/// Splits to compare with the fixed ones, in tokens.
const SPLITS: [u32; 3] = [256, 1024, 2048];
/// Measurements in turns: a copy, attention, without table, with mass, with other splits.
const TURNS: usize = 4 + SPLITS.len();
const ROUNDS: usize = 7;

/// Results of one batch.
#[derive(Clone, Copy, Debug)]
pub struct Attended {
    /// The batch.
    pub case: Case,
    /// Seconds of one attention: one plane, one token of each row.
    pub seconds: f64,
    /// Bytes of keys and values that it must read.
    pub bytes: u64,
    /// Bytes per second that a copy within the device reads and writes.
    pub copy_bytes_per_s: f64,
    /// Seconds without a block table: pages in order of their index.
    pub seconds_without_table: f64,
    /// Seconds with the export of mass.
    pub seconds_with_mass: f64,
    /// The fastest of the splits tried, the default included: tokens and seconds.
    pub best_splits: (u32, f64),
}

/// Measure a batch.
///
/// # Errors
/// The device is full or lost, or cannot run the kernels.
pub fn attention(device: &Arc<Device>, case: Case, size: Size) -> Result<Attended> {
    let (rounds, sample, copied) = match size {
        Size::Full => (ROUNDS, SAMPLE_BYTES, COPY_BYTES),
        Size::Tiny => (1, 1, 1 << 20),
    };
    let stream = Stream::new(device, Priority::Normal)?;
    let timer = Timer::new(device)?;
    let made = Made::new(device, &stream, case, size)?;
    let usual = Decode::new(device, &made, 0, false)?;
    let exporting = Decode::new(device, &made, 0, true)?;
    let mass = Mass::new(device, exporting.attention())?;
    let scores = Pinned::new(device, case.rows as usize * SCORE_WORDS * 8)?;
    let mut others = vec![];
    for tokens in SPLITS {
        others.push(Decode::new(device, &made, tokens, false)?);
    }
    let (from, to) = (Buffer::new(device, copied as usize)?, Buffer::new(device, copied as usize)?);
    let sets = made.sets();
    // Whole rounds over the sets, so that every variant reads the same bytes.
    let calls = (sample.div_ceil(case.kv_bytes()) as usize).next_multiple_of(sets);

    // SAFETY, for all launches below: their memory lives in `made`, `scores`, `from` and `to` until the timer has seen the end of
    // the timed work; there is one stream, so launches do not overlap.
    let seconds: [f64; TURNS] = in_turns(rounds, |which| {
        let repeat = |call: &dyn Fn(usize) -> Result<()>| {
            Ok(timer.time(&stream, || (0..calls).try_for_each(|i| call(i % sets)))? / calls as f64)
        };
        match which {
            // SAFETY: see above.
            0 => timer.time(&stream, || unsafe { stream.copy(to.address(), from.address(), copied as usize) }),
            // SAFETY: see above.
            1 => repeat(&|set| unsafe { usual.enqueue(&stream, &made.batch(set, true)) }),
            // SAFETY: see above.
            2 => repeat(&|set| unsafe { usual.enqueue(&stream, &made.batch(set, false)) }),
            3 => repeat(&|set| {
                let batch = made.batch(set, true);
                // SAFETY: see above; the scores have room for every row.
                unsafe {
                    exporting.enqueue(&stream, &batch)?;
                    mass.reduce(&stream, exporting.attention(), &batch, (0, 1), TOP_MAX as u32, scores.address())
                }
            }),
            // SAFETY: see above.
            other => repeat(&|set| unsafe { others[other - 4].enqueue(&stream, &made.batch(set, true)) }),
        }
    })?;
    let chosen = usual.attention().config().chosen_chunk();
    let tried = SPLITS.into_iter().zip(seconds[4..].iter().copied()).chain([(chosen, seconds[1])]);
    let best_splits = tried.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((chosen, seconds[1]));
    Ok(Attended {
        case,
        seconds: seconds[1],
        bytes: case.kv_bytes(),
        copy_bytes_per_s: 2.0 * copied as f64 / seconds[0],
        seconds_without_table: seconds[2],
        seconds_with_mass: seconds[3],
        best_splits,
    })
}
