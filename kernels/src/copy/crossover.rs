//! The fragment size from which copy engines are worth using, measured once on the device where the copier works.
//!
//! A copy engine needs a fixed time to start each copy. A kernel does not, but takes multiprocessors from the model. So the engines
//! get all sizes that they copy about as fast.

use super::{Copier, Copy, Path, Way, slots::Part};
use crate::{Buffer, Error, Event, Pinned, Result};
use std::{
    fmt,
    time::{Duration, Instant},
};

/// Sizes to try, in bytes: the fragments of engines' layouts, and pages.
const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Bytes of one trial: 35 µs of a 55 GB/s bus, so that the start is a small part.
const TRIAL: usize = 2 << 20;

/// The engines are chosen if they take at most this much longer than the kernel.
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

/// Measure until the deadline. If the device is full or too slow, keep the estimate for the sizes not measured and record the
/// reason.
pub(super) fn measure(copier: &mut Copier, deadline: Instant) -> Result<Crossover> {
    let began = Instant::now();
    let mut found = Crossover::of(Path::Measured);
    match Bench::new(copier) {
        Ok(bench) => {
            let ended = bench.ways(copier, deadline, &mut found);
            if !copier.settle(deadline + Duration::from_secs(5))? {
                // Memory that the device may still access is leaked.
                std::mem::forget(bench);
            }
            ended?;
            // A trial that ran out of time left its batch behind.
            copier.slots.reclaim(&copier.lanes)?;
        }
        Err(e) if e.is_out_of_memory() => found.cut_short = Some(e.to_string()),
        Err(e) => return Err(e),
    }
    found.took = began.elapsed();
    Ok(found)
}

/// Return the smallest size from which on the engines are about as fast.
fn first_worth(measured: &[Measured]) -> usize {
    let slower = measured.iter().rposition(|m| m.engines * WORTH < m.kernel);
    match slower {
        None => 0,
        // Between the last size at which they are slower and the next one: the middle. Beyond the largest size tried their start
        // matters little, and the multiprocessors belong to the model.
        Some(at) => measured.get(at + 1).map_or(2 * measured[at].bytes, |next| measured[at].bytes.midpoint(next.bytes)),
    }
}

struct Bench {
    there: Buffer,
    here: Pinned,
    began: Event,
    ended: Event,
}

impl Bench {
    fn new(copier: &Copier) -> Result<Self> {
        let device = copier.device();
        // Fragments are scattered on both sides, as pages are; twice the memory on the device, for copies within it.
        Ok(Self {
            there: Buffer::new(device, 4 * TRIAL)?,
            here: Pinned::new(device, 2 * TRIAL)?,
            began: Event::timed(device)?,
            ended: Event::timed(device)?,
        })
    }

    fn ways(&self, copier: &mut Copier, deadline: Instant, found: &mut Crossover) -> Result<()> {
        for way in Way::ALL {
            let mut measured = Vec::new();
            for bytes in SIZES {
                let rate = |path, copier: &mut Copier| self.rate(copier, way, bytes, path, deadline);
                let (Some(engines), Some(kernel)) = (rate(Path::Engines, copier)?, rate(Path::Kernel, copier)?) else {
                    found.cut_short = Some(format!("the device took longer than {:?}", super::MEASURE_MAX));
                    return Ok(());
                };
                measured.push(Measured { way, bytes, engines, kernel });
            }
            found.set(way, first_worth(&measured));
            found.measured.append(&mut measured);
        }
        Ok(())
    }

    /// Return the rate, in bytes per second, of the better of two trials after a warm-up; `None` if time has run out.
    fn rate(&self, copier: &mut Copier, way: Way, bytes: usize, path: Path, deadline: Instant) -> Result<Option<f64>> {
        let copies = self.copies(way, bytes);
        copier.crossover = Crossover::of(path);
        let part = if path == Path::Kernel { Part::Kernel } else { Part::Engines };
        let mut best = f64::INFINITY;
        for round in 0..3 {
            if Instant::now() >= deadline {
                return Ok(None);
            }
            copier.lanes[way.index()].stream(part).record(&self.began)?;
            // SAFETY: within the bench's memory, which stays until everything has ended, or for ever; nothing else uses it.
            let ticket = unsafe { copier.submit(way, &copies) }?;
            copier.lanes[way.index()].stream(part).record(&self.ended)?;
            if !self.ended.wait_until(deadline)? {
                return Ok(None);
            }
            if !copier.poll(ticket)? {
                return Err(Error::invalid("ticket", "its batch has not ended when an event behind it had"));
            }
            if round > 0 {
                best = best.min(self.ended.since(&self.began)?.as_secs_f64());
            }
        }
        Ok(Some(TRIAL as f64 / best.max(1e-9)))
    }

    /// Return fragments of one size in every other place, so that none are neighbours.
    fn copies(&self, way: Way, bytes: usize) -> Vec<Copy> {
        let (here, there) = (self.here.address(), self.there.address());
        let (from, to) = match way {
            Way::Up => (here, there),
            Way::Down => (there, here),
            Way::Within => (there, there + 2 * TRIAL as u64),
        };
        (0..TRIAL / bytes)
            .map(|n| (n * 2 * bytes) as u64)
            .map(|at| Copy { from: from + at, to: to + at, bytes, region: 0 })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Measured, Way, first_worth};

    fn measured(rates: &[(usize, f64, f64)]) -> Vec<Measured> {
        rates.iter().map(|&(bytes, engines, kernel)| Measured { way: Way::Up, bytes, engines, kernel }).collect()
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
}
