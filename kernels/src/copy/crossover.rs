//! The fragment size from which copy engines are worth using, measured once for each device of the process.
//!
//! A copy engine needs a fixed time to start each copy. A kernel does not, but takes multiprocessors from the model. So the engines
//! get all sizes that they copy about as fast.
//!
//! Trials measure the device and not the duration of the calls: a trial waits, on the device, for a word that is released when
//! everything has been enqueued.

use super::{
    BATCHES_MAX, COPIES_MAX, Copier, Copy, MEASURE_MAX, Options, Path, Ticket, Way, lane::Engines, slots::Part,
};
use crate::{Buffer, Error, Event, Pinned, Result, WaitWord};
use std::{
    fmt,
    sync::{Mutex, PoisonError, mpsc},
    time::{Duration, Instant},
};

/// Sizes to try, in bytes: the fragments of engines' layouts, and pages.
const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Copies of a batch to try: few, as for one fault, and as many as a batch may have.
const BATCHES: [usize; 2] = [64, COPIES_MAX];

/// Bytes of one trial: 600 µs of a 55 GB/s bus, so that start and end are a small part. Less if that much memory is not free.
const TRIALS: [usize; 3] = [32 << 20, 8 << 20, 2 << 20];

/// Maximum batches of a trial.
const FLIGHT: usize = BATCHES_MAX / 2;

/// The device is held at most this long: its queues are bounded, and a full one would block the calls that fill it.
const HOLD_MAX: Duration = Duration::from_millis(5);

/// The engines are chosen if they take at most this much longer than the kernel, because the kernel takes time from the model.
const WORTH: f64 = 1.10;

/// Used if nothing could be measured: bytes that a copy engine of an H100-class GPU would copy in its start time of 2 to 3 µs,
/// rounded down.
const UNMEASURED: usize = 64 << 10;

/// Rates of copies of one size in one direction, by the copy engines and by the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Direction.
    pub way: Way,
    /// Bytes of a fragment.
    pub bytes: usize,
    /// Copies of a batch.
    pub batch: usize,
    /// Rate of the copy engines in bytes per second.
    pub engines: f64,
    /// Rate of the kernel in bytes per second.
    pub kernel: f64,
}

/// Fragment size from which the copy engines are used.
#[derive(Clone, Debug, PartialEq)]
pub struct Crossover {
    up: usize,
    down: usize,
    within: usize,
    /// All measurements behind it; empty if it was given, or if there was no memory or time to measure.
    pub measured: Vec<Measured>,
    /// Duration of the measurement.
    pub took: Duration,
    /// Reason why the measurement is incomplete, if it is.
    pub cut_short: Option<String>,
}

impl Crossover {
    /// Return the given crossover, or an estimate to be measured.
    pub(super) fn of(path: Path) -> Self {
        let bytes = match path {
            Path::Measured => UNMEASURED,
            Path::Below(bytes) => bytes,
            Path::Engines | Path::OneByOne => 0,
            Path::Kernel => usize::MAX,
        };
        Self { up: bytes, down: bytes, within: bytes, measured: Vec::new(), took: Duration::ZERO, cut_short: None }
    }

    /// Return the crossover of one direction in bytes.
    #[must_use]
    pub fn bytes(&self, way: Way) -> usize {
        match way {
            Way::Up => self.up,
            Way::Down => self.down,
            Way::Within => self.within,
        }
    }

    fn set(&mut self, way: Way, bytes: usize) {
        match way {
            Way::Up => self.up = bytes,
            Way::Down => self.down = bytes,
            Way::Within => self.within = bytes,
        }
    }
}

impl fmt::Display for Crossover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.measured.is_empty() { "not measured" } else { "measured" };
        write!(f, "engines from {} bytes up, {} down, {} within ({how}", self.up, self.down, self.within)?;
        if let Some(why) = &self.cut_short {
            write!(f, ", cut short: {why}")?;
        }
        write!(f, ")")
    }
}

/// The conditions of a measurement.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    device: u32,
    blocks: u32,
    launch_bytes: u32,
    engines: Engines,
}

/// Measurements of this process.
static MEASURED: Mutex<Vec<(Key, Crossover)>> = Mutex::new(Vec::new());

/// Return the measurement of the copier's device, or make it.
pub(super) fn of_device(copier: &mut Copier) -> Result<Crossover> {
    let Options { blocks, launch_bytes, .. } = copier.options;
    let key = Key { device: copier.device().info().ordinal, blocks, launch_bytes, engines: copier.engines };
    // Held meanwhile: two measurements at a time would slow each other.
    let mut known = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, found)) = known.iter().find(|(of, _)| *of == key) {
        return Ok(found.clone());
    }
    let found = measure(copier, Instant::now() + MEASURE_MAX)?;
    known.push((key, found.clone()));
    Ok(found)
}

/// Measure until the deadline. Without enough memory or time, keep the estimate for the sizes not measured and record the reason.
fn measure(copier: &mut Copier, deadline: Instant) -> Result<Crossover> {
    let began = Instant::now();
    let mut found = Crossover::of(Path::Measured);
    match Bench::new(copier) {
        Ok(bench) => {
            let ended = bench.ways(copier, deadline, &mut found);
            let settled = copier.settle(deadline + Duration::from_secs(5));
            if Error::may_run(&settled) {
                // Memory that the device may still access is leaked.
                std::mem::forget(bench);
            }
            settled?;
            ended?;
            // A trial that ran out of time left its batch behind.
            copier.slots.reclaim(&copier.lanes)?;
        }
        Err(e) if e.is_lost() => return Err(e),
        Err(e) => found.cut_short = Some(e.to_string()),
    }
    found.took = began.elapsed();
    Ok(found)
}

/// Return the smallest size from which on the engines are about as fast, in batches of every size.
fn first_worth(measured: &[Measured]) -> usize {
    BATCHES.into_iter().map(|batch| first_worth_in(measured, batch)).max().unwrap_or(0)
}

fn first_worth_in(measured: &[Measured], batch: usize) -> usize {
    let measured: Vec<&Measured> = measured.iter().filter(|m| m.batch == batch).collect();
    let slower = measured.iter().rposition(|m| m.engines * WORTH < m.kernel);
    match slower {
        None => 0,
        // Between the last size at which they are slower and the next one: the middle. Beyond the largest size tried their start
        // matters little, and the multiprocessors belong to the model.
        Some(at) => measured.get(at + 1).map_or(2 * measured[at].bytes, |next| measured[at].bytes.midpoint(next.bytes)),
    }
}

struct Bench {
    trial: usize,
    there: Buffer,
    here: Pinned,
    began: Event,
    ended: Event,
    /// `None`: streams of this device cannot wait, so a trial includes the time of its calls.
    word: Option<WaitWord>,
}

/// A trial: fragments of one size, in batches.
#[derive(Clone, Copy)]
struct Trial {
    way: Way,
    bytes: usize,
    batch: usize,
}

impl Bench {
    /// Create it with as much memory as there is: on the device, and that may be locked on the host.
    fn new(copier: &Copier) -> Result<Self> {
        let mut made = Self::with(copier, TRIALS[0]);
        for trial in &TRIALS[1..] {
            if made.as_ref().is_err_and(|e| !e.is_lost()) {
                made = Self::with(copier, *trial);
            }
        }
        made
    }

    fn with(copier: &Copier, trial: usize) -> Result<Self> {
        let device = copier.device();
        let waits = device.works()?.stream_waits.works();
        // Fragments are scattered on both sides, as pages are; twice the memory on the device, for copies within it.
        Ok(Self {
            trial,
            there: Buffer::new(device, 4 * trial)?,
            here: Pinned::new(device, 2 * trial)?,
            began: Event::timed(device)?,
            ended: Event::timed(device)?,
            word: if waits { Some(WaitWord::new(device)?) } else { None },
        })
    }

    fn ways(&self, copier: &mut Copier, deadline: Instant, found: &mut Crossover) -> Result<()> {
        for way in Way::ALL {
            let mut measured = Vec::new();
            for (batch, bytes) in BATCHES.into_iter().flat_map(|batch| SIZES.map(|bytes| (batch, bytes))) {
                let trial = Trial { way, bytes, batch };
                let rate = |path, copier: &mut Copier| self.rate(copier, trial, path, deadline);
                let (Some(engines), Some(kernel)) = (rate(Path::Engines, copier)?, rate(Path::Kernel, copier)?) else {
                    found.cut_short = Some(format!("the device took longer than {:?}", MEASURE_MAX));
                    return Ok(());
                };
                measured.push(Measured { way, bytes, batch, engines, kernel });
            }
            found.set(way, first_worth(&measured));
            found.measured.append(&mut measured);
        }
        Ok(())
    }

    /// Return the rate, in bytes per second, of the better of two trials; `None` if time has run out.
    fn rate(&self, copier: &mut Copier, trial: Trial, path: Path, deadline: Instant) -> Result<Option<f64>> {
        let copies = self.copies(trial);
        copier.crossover = Crossover::of(path);
        let part = if path == Path::Kernel { Part::Kernel } else { Part::Engines };
        let mut best = f64::INFINITY;
        for _ in 0..2 {
            if Instant::now() >= deadline {
                return Ok(None);
            }
            let tickets = self.held(copier, (trial.way, part), |copier| {
                copier.lanes[trial.way.index()].stream(part).record(&self.began)?;
                // SAFETY: within the bench's memory, which stays until everything has ended, or for ever; nothing else uses it.
                let submit = |batch| unsafe { copier.submit(trial.way, batch) };
                let tickets: Vec<Ticket> = copies.chunks(trial.batch).map(submit).collect::<Result<_>>()?;
                copier.lanes[trial.way.index()].stream(part).record(&self.ended)?;
                Ok(tickets)
            })?;
            if !self.ended.wait_until(deadline)? {
                return Ok(None);
            }
            for ticket in tickets {
                if !copier.poll(ticket)? {
                    return Err(Error::invalid("ticket", "its batch has not ended when an event behind it had"));
                }
            }
            best = best.min(self.ended.since(&self.began)?.as_secs_f64());
        }
        Ok(Some((copies.len() * trial.bytes) as f64 / best.max(1e-9)))
    }

    /// Enqueue work behind a word that is released afterwards, or after [`HOLD_MAX`].
    fn held<T>(
        &self,
        copier: &mut Copier,
        (way, part): (Way, Part),
        enqueue: impl FnOnce(&mut Copier) -> Result<T>,
    ) -> Result<T> {
        let Some(word) = &self.word else { return enqueue(copier) };
        let target = word.arm()?;
        copier.lanes[way.index()].stream(part).wait_word(word, target)?;
        std::thread::scope(|scope| {
            let (enqueued, over) = mpsc::channel::<()>();
            let release = move || {
                // It ends at once when the sender is dropped. This thread makes no call that a full queue could block.
                let _ = over.recv_timeout(HOLD_MAX);
                word.release(target);
            };
            let started = std::thread::Builder::new().name("kvtide-measure".into()).spawn_scoped(scope, release);
            if started.is_err() {
                // Nothing would release the word in time, so the trial includes the time of its calls.
                word.release(target);
            }
            let result = enqueue(copier);
            drop(enqueued);
            result
        })
    }

    /// Return fragments of one size in every other place, so that none are neighbours: a trial of them, in at most [`FLIGHT`] batches.
    fn copies(&self, Trial { way, bytes, batch }: Trial) -> Vec<Copy> {
        let (here, there) = (self.here.address(), self.there.address());
        let (from, to) = match way {
            Way::Up => (here, there),
            Way::Down => (there, here),
            Way::Within => (there, there + 2 * self.trial as u64),
        };
        (0..(self.trial / bytes).min(batch * FLIGHT))
            .map(|n| (n * 2 * bytes) as u64)
            .map(|at| Copy { from: from + at, to: to + at, bytes, region: 0 })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{BATCHES, Measured, Way, first_worth};

    fn measured(rates: &[(usize, f64, f64)]) -> Vec<Measured> {
        let of = |batch| {
            rates.iter().map(move |&(bytes, engines, kernel)| Measured { way: Way::Up, bytes, batch, engines, kernel })
        };
        BATCHES.into_iter().flat_map(of).collect()
    }

    #[test]
    fn engines_get_what_they_copy_about_as_fast() {
        assert_eq!(first_worth(&measured(&[(4, 1.0, 10.0), (16, 4.0, 10.0), (64, 9.5, 10.0), (256, 11.0, 10.0)])), 40);
        assert_eq!(first_worth(&measured(&[(4, 10.0, 10.0), (16, 11.0, 10.0)])), 0);
        assert_eq!(first_worth(&measured(&[(4, 1.0, 10.0), (16, 2.0, 10.0)])), 32);
    }

    #[test]
    fn one_lucky_small_size_does_not_lower_it() {
        assert_eq!(first_worth(&measured(&[(4, 20.0, 10.0), (16, 4.0, 10.0), (64, 10.0, 10.0)])), 40);
    }

    #[test]
    fn the_kernel_keeps_a_size_that_it_copies_faster_in_small_batches() {
        let mut all = measured(&[(4, 1.0, 10.0), (16, 10.0, 10.0), (64, 10.0, 10.0)]);
        assert_eq!(first_worth(&all), 10);
        all[1].engines = 5.0;
        assert_eq!((all[1].bytes, all[1].batch, first_worth(&all)), (16, BATCHES[0], 40));
    }
}
