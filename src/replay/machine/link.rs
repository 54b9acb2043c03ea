//! A link between two tiers: one copy at a time, each for its bytes divided by the bandwidth.

use std::collections::VecDeque;

/// Classes of urgency; 0 goes first.
const CLASSES: usize = 3;

/// A link. What runs is not interrupted; what waits goes by urgency, then in order.
#[derive(Clone, Debug)]
pub struct Link {
    bytes_per_ns: f64,
    waiting: [VecDeque<(u32, u64)>; CLASSES],
    running: Option<(u64, u32)>,
}

impl Link {
    /// A link of so many gigabytes (10^9) a second.
    #[must_use]
    pub fn new(gbps: f64) -> Link {
        // 10^9 bytes in 10^9 ns.
        Link { bytes_per_ns: gbps, waiting: [const { VecDeque::new() }; CLASSES], running: None }
    }

    /// How long so many bytes take, in nanoseconds.
    fn ns(&self, bytes: u64) -> u64 {
        (bytes as f64 / self.bytes_per_ns).ceil() as u64
    }

    /// Puts a copy in line.
    pub fn push(&mut self, now_ns: u64, class: usize, id: u32, bytes: u64) {
        self.waiting[class.min(CLASSES - 1)].push_back((id, bytes));
        self.begin(now_ns);
    }

    fn begin(&mut self, now_ns: u64) {
        if self.running.is_none() {
            let next = self.waiting.iter_mut().find_map(VecDeque::pop_front);
            self.running = next.map(|(id, bytes)| (now_ns + self.ns(bytes), id));
        }
    }

    /// Moves a copy that waits to another class.
    pub fn urge(&mut self, class: usize, id: u32) {
        if let Some(found) = self.remove(id) {
            self.waiting[class.min(CLASSES - 1)].push_back((id, found));
        }
    }

    /// Takes a copy that waits out of line; its bytes. `None`: it runs, or has ended.
    fn remove(&mut self, id: u32) -> Option<u64> {
        self.waiting.iter_mut().find_map(|class| {
            let at = class.iter().position(|(waiting, _)| *waiting == id)?;
            class.remove(at).map(|(_, bytes)| bytes)
        })
    }

    /// When the copy that runs ends.
    #[must_use]
    pub fn next_end(&self) -> Option<u64> {
        self.running.map(|(end, _)| end)
    }

    /// Ends the copy that runs; the next one begins.
    pub fn end(&mut self) -> Option<u32> {
        let (end, id) = self.running.take()?;
        self.begin(end);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_go_one_by_one_the_urgent_first() {
        let mut link = Link::new(2.0);
        link.push(100, 1, 7, 1000);
        link.push(110, 1, 8, 100);
        link.push(120, 1, 9, 100);
        link.push(130, 0, 10, 3);
        link.urge(0, 9);
        assert_eq!(link.remove(8), Some(100));
        assert_eq!(link.remove(7), None, "what runs goes on");
        let mut ends = vec![];
        while let Some(end) = link.next_end() {
            ends.push((end, link.end().expect("something ran")));
        }
        assert_eq!(ends, [(600, 7), (602, 10), (652, 9)]);
    }
}
