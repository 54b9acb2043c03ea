//! Measured throughput between two tiers.

use serde::{Deserialize, Serialize};

/// Weight of a rate below the measured one: a few concurrent loads measure the latency of one, not the bandwidth of the link.
const BLEND_DOWN: f32 = 1.0 / 64.0;

/// The link between one tier and the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Link {
    /// Bytes per microsecond; 0: not measured yet.
    pub rate: f32,
    /// Bytes of loads in flight.
    pub in_flight: u64,
    /// Bytes that ended since `since`.
    ended: u64,
    since: u64,
}

impl Link {
    pub fn begin(&mut self, now: u64, bytes: u32) {
        if self.in_flight == 0 {
            (self.since, self.ended) = (now, 0);
        }
        self.in_flight += u64::from(bytes);
    }

    /// Record the end of a load, successful or not: the rate is bytes over the time that the link was busy.
    pub fn end(&mut self, now: u64, bytes: u32, moved: bool) {
        self.in_flight = self.in_flight.saturating_sub(u64::from(bytes));
        self.ended += if moved { u64::from(bytes) } else { 0 };
        let took = now.saturating_sub(self.since);
        if took > 0 && self.ended > 0 {
            let sample = self.ended as f32 / took as f32;
            let blend = if sample > self.rate { 0.5 } else { BLEND_DOWN };
            self.rate = if self.rate == 0.0 { sample } else { self.rate + blend * (sample - self.rate) };
            (self.since, self.ended) = (now, 0);
        }
    }

    /// Return the bytes that the link can carry within `us` microseconds, in addition to those in flight.
    pub fn carries(&self, us: u64) -> u64 {
        ((self.rate * us as f32) as u64).saturating_sub(self.in_flight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_measured_while_it_is_busy() {
        let mut link = Link::default();
        assert_eq!(link.carries(1000), 0);
        for round in 0..50 {
            let at = round * 10_000; // idle in between
            link.begin(at, 4000);
            link.begin(at, 4000);
            link.end(at + 100, 4000, true);
            link.end(at + 200, 4000, true);
        }
        assert!((link.rate - 40.0).abs() < 0.5, "{link:?}");
        assert_eq!(link.carries(100), 4000);
        link.begin(1 << 20, 3000);
        assert_eq!((link.carries(100), link.carries(10)), (1000, 0));
    }

    #[test]
    fn what_fails_moves_nothing() {
        let mut link = Link::default();
        link.begin(0, 4000);
        link.end(100, 4000, false);
        assert_eq!((link.rate, link.in_flight), (0.0, 0));
    }
}
