//! From how many bytes on the copy engines are worth it: measured once, where the copier will work.
//!
//! A copy engine spends a fixed time on starting each copy; a kernel does not, but takes multiprocessors from the model. So the
//! engines get whatever they copy about as fast.

use super::{Copier, Copy, Path, Way, slots::Part};
use crate::{Buffer, Error, Event, Pinned, Result};
use std::{
    fmt,
    time::{Duration, Instant},
};

/// Sizes that are tried, bytes: the fragments that engines' layouts have, and the pages.
const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Bytes of one trial: 35 µs of a 55 GB/s bus, so that starting it is a small part.
const TRIAL: usize = 2 << 20;

/// The engines are chosen where they take at most this much longer than the kernel.
const WORTH: f64 = 1.10;

/// Where nothing could be measured: what a copy engine of an H100-class GPU takes 2 to 3 µs to start would have copied, rounded down.
const UNMEASURED: usize = 64 << 10;

/// How long copies of one size took, each way by the copy engines and by the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Which way.
    pub way: Way,
    /// Bytes of a fragment.
    pub bytes: usize,
    /// By the copy engines, bytes a second.
    pub engines: f64,
    /// By the kernel, bytes a second.
    pub kernel: f64,
}

/// From how many bytes on a fragment goes through the copy engines.
#[derive(Clone, Debug, PartialEq)]
pub struct Crossover {
    up: usize,
    down: usize,
    within: usize,
    /// Every measurement that it stands on; none where it was given, or where there was no memory or time to measure.
    pub measured: Vec<Measured>,
    /// How long that took.
    pub took: Duration,
    /// What kept it from being measured in full, if anything.
    pub cut_short: Option<String>,
}

impl Crossover {
    /// As asked for, or a guess to be measured.
    pub(super) fn of(path: Path) -> Self {
        let bytes = match path {
            Path::Measured => UNMEASURED,
            Path::Below(bytes) => bytes,
            Path::Engines | Path::OneByOne => 0,
            Path::Kernel => usize::MAX,
        };
        Self { up: bytes, down: bytes, within: bytes, measured: Vec::new(), took: Duration::ZERO, cut_short: None }
    }

    /// For one way, bytes.
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

/// Measures, until the deadline. A full device, or one too slow, leaves the guess where it was not measured, and says so.
pub(super) fn measure(copier: &mut Copier, deadline: Instant) -> Result<Crossover> {
    let began = Instant::now();
    let mut found = Crossover::of(Path::Measured);
    match Bench::new(copier) {
        Ok(bench) => {
            let ended = bench.ways(copier, deadline, &mut found);
            if !copier.settle(deadline + Duration::from_secs(5))? {
                // What the device may still touch stays for ever.
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

/// The smallest size from which on the engines are about as fast.
fn first_worth(measured: &[Measured]) -> usize {
    let slower = measured.iter().rposition(|m| m.engines * WORTH < m.kernel);
    match slower {
        None => 0,
        // Between the last size at which they are slower and the next: half way. Beyond the last that was tried their start weighs
        // little, and the multiprocessors are the model's.
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
        // Fragments lie apart on both sides, as pages do; twice on the device, for copies within.
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

    /// Bytes a second of the better of two trials after one that warms up; nothing where time has run out.
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
            // SAFETY: within the bench's memory, which stays until everything has ended, or for ever; nobody else uses it.
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

    /// Fragments of one size, every other place of it, so that none are neighbours.
    fn copies(&self, way: Way, bytes: usize) -> Vec<Copy> {
        let (here, there) = (self.here.address(), self.there.address());
        let (from, to) = match way {
            Way::Up => (here, there),
            Way::Down => (there, here),
            Way::Within => (there, there + 2 * TRIAL as u64),
        };
        (0..TRIAL / bytes)
            .map(|n| (n * 2 * bytes) as u64)
            .map(|at| Copy { from: from + at, to: to + at, bytes })
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
