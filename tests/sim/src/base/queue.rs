//! Simulated time: a queue of events ordered by time, and by insertion for equal times.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

struct Entry<E> {
    at_us: u64,
    order: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at_us, self.order) == (other.at_us, other.order)
    }
}
impl<E> Eq for Entry<E> {}
impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at_us, self.order).cmp(&(other.at_us, other.order))
    }
}

/// Pending events. Time moves forward only by taking the next one.
pub struct Queue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    now_us: u64,
    order: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Queue { heap: BinaryHeap::new(), now_us: 0, order: 0 }
    }
}

impl<E> Queue<E> {
    /// Return the simulated microseconds since the episode began.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// Schedule `event` in `delay_us`.
    pub fn after(&mut self, delay_us: u64, event: E) {
        self.at(self.now_us + delay_us, event);
    }

    /// Schedule `event` at `at_us`, or now if that is past.
    pub fn at(&mut self, at_us: u64, event: E) {
        self.order += 1;
        self.heap.push(Reverse(Entry { at_us: at_us.max(self.now_us), order: self.order, event }));
    }

    /// Move time to the next event and take it; `None` if no event is left.
    pub fn pop(&mut self) -> Option<E> {
        let Reverse(entry) = self.heap.pop()?;
        self.now_us = entry.at_us;
        Some(entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::Queue;

    #[test]
    fn events_come_in_time_order_and_equals_in_order_of_insertion() {
        let mut queue = Queue::default();
        queue.after(5, 'c');
        queue.after(1, 'a');
        queue.after(5, 'd');
        queue.after(3, 'b');
        let order: String = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!((order.as_str(), queue.now_us()), ("abcd", 5));
        queue.at(2, 'e');
        assert_eq!((queue.pop(), queue.now_us()), (Some('e'), 5));
    }
}
