//! A link between two tiers: one copy at a time. The duration of a copy is its bytes divided by the bandwidth.

use std::collections::VecDeque;

/// Urgency classes; 0 is the most urgent.
const CLASSES: usize = 3;

/// A link. Copies are not preempted; waiting copies start by urgency, then in order.
#[derive(Clone, Debug)]
pub struct Link {
    bytes_per_ns: f64,
    waiting: [VecDeque<(u32, u64)>; CLASSES],
    running: Option<(u64, u32)>,
}

impl Link {
    /// Create a link with a bandwidth in gigabytes (10^9) a second.
    #[must_use]
    pub fn new(gbps: f64) -> Link {
        // 10^9 bytes in 10^9 ns.
        Link { bytes_per_ns: gbps, waiting: [const { VecDeque::new() }; CLASSES], running: None }
    }

    /// Return the nanoseconds of a copy.
    fn ns(&self, bytes: u64) -> u64 {
        (bytes as f64 / self.bytes_per_ns).ceil() as u64
    }

    /// Queue a copy.
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

    /// Move a waiting copy to another class.
    pub fn urge(&mut self, class: usize, id: u32) {
        if let Some(found) = self.remove(id) {
            self.waiting[class.min(CLASSES - 1)].push_back((id, found));
        }
    }

    /// Remove a waiting copy and return its bytes. `None`: it is running or has ended.
    fn remove(&mut self, id: u32) -> Option<u64> {
        self.waiting.iter_mut().find_map(|class| {
            let at = class.iter().position(|(waiting, _)| *waiting == id)?;
            class.remove(at).map(|(_, bytes)| bytes)
        })
    }

    /// Return the end time of the running copy.
    #[must_use]
    pub fn next_end(&self) -> Option<u64> {
        self.running.map(|(end, _)| end)
    }

    /// End the running copy; the next one starts.
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
        assert_eq!(link.remove(7), None, "a running copy continues");
        let mut ends = vec![];
        while let Some(end) = link.next_end() {
            ends.push((end, link.end().expect("a copy was running")));
        }
        assert_eq!(ends, [(600, 7), (602, 10), (652, 9)]);
    }
}
