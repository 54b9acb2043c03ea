//! Timing: in turns, warm, the median.

use crate::{Device, Error, Event, Result, Stream};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Time limit of every wait: a measurement that takes longer is stuck.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Two events around a piece of work of a stream.
pub(super) struct Timer {
    begin: Event,
    end: Event,
}

impl Timer {
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        Ok(Self { begin: Event::timed(device)?, end: Event::timed(device)? })
    }

    /// Return how long the device took for the work that `work` enqueues on the stream.
    pub fn time(&self, stream: &Stream, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        stream.record(&self.begin)?;
        work()?;
        stream.record(&self.end)?;
        finish(&self.end)?;
        Ok(self.end.since(&self.begin)?.as_secs_f64())
    }
}

/// Wait for an event.
pub(super) fn finish(event: &Event) -> Result<()> {
    if event.wait_until(Instant::now() + PATIENCE)? {
        return Ok(());
    }
    Err(Error::TimedOut { what: "work that was measured".to_owned(), after: PATIENCE })
}

/// Wait until a stream has completed all work.
pub(super) fn drain(stream: &Stream) -> Result<()> {
    let done = Event::new(stream.device())?;
    stream.record(&done)?;
    finish(&done)
}

/// Return the sample at a percentile; sort the samples.
pub(super) fn percentile(samples: &mut [f64], percent: usize) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get((samples.len() * percent / 100).min(samples.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// Return the median. NaN for no samples.
fn median(mut samples: Vec<f64>) -> f64 {
    percentile(&mut samples, 50)
}

/// Run several measurements in turn, so that disturbances of the machine affect all; return the median of each. The first round
/// warms up and is not counted.
pub(super) fn in_turns<const N: usize>(rounds: usize, mut each: impl FnMut(usize) -> Result<f64>) -> Result<[f64; N]> {
    let mut samples: [Vec<f64>; N] = std::array::from_fn(|_| Vec::with_capacity(rounds));
    for round in 0..=rounds {
        for (which, samples) in samples.iter_mut().enumerate() {
            let sample = each(which)?;
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    Ok(samples.map(median))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_alternate_and_the_first_round_is_not_counted() {
        let mut calls = vec![];
        let medians = in_turns::<2>(3, |which| {
            calls.push(which);
            Ok(if calls.len() <= 2 { 1e9 } else { (which * 10 + calls.len()) as f64 })
        });
        assert_eq!(calls, [0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(medians.expect("nothing fails"), [5.0, 16.0]);
        assert!(median(vec![]).is_nan());
    }
}
