//! Order of transfers: three classes, each first in, first out; demand before prefetch before write-back. Pure: no device, no
//! clock.
//!
//! * A transfer that has waited longer than the timeout is removed without being started.
//! * One eighth of the device's depth is reserved for demand.
//! * Write-back bytes in flight are limited by `cap` ([`Cap`]).

use super::cap::Cap;
use kvtide_types::IoClass;
use std::collections::VecDeque;

/// Fraction of the depth reserved for demand: 1/8.
const RESERVE: u32 = 8;

/// A waiting transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry<T> {
    /// Space and id.
    pub key: (u32, u32),
    /// Its class.
    pub class: IoClass,
    /// Bytes to transfer.
    pub bytes: u64,
    /// Time of arrival.
    pub queued_us: u64,
    /// Not merged with others, because a merged job with this transfer failed.
    pub alone: bool,
    /// The transfer.
    pub item: T,
}

/// The waiting transfers, and the limit of write-back.
#[derive(Debug)]
pub(super) struct Scheduler<T> {
    queues: [VecDeque<Entry<T>>; 3],
    /// Limit on write-back bytes in flight.
    pub cap: Cap,
    reserve: u32,
    timeout_us: u64,
    /// No waiting transfer exceeds the timeout before this; `u64::MAX`: none waits.
    due_us: u64,
}

impl<T> Scheduler<T> {
    /// Create a scheduler for a device with up to `depth` requests in flight.
    pub fn new(depth: u32, timeout_us: u64, cap: Cap) -> Scheduler<T> {
        let queues = [const { VecDeque::new() }; 3];
        let reserve = if depth > 1 { (depth / RESERVE).max(1) } else { 0 };
        Scheduler { queues, cap, reserve, timeout_us, due_us: u64::MAX }
    }

    /// Return the number of waiting transfers.
    pub fn len(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    /// Return the number of waiting transfers of a class.
    pub fn waiting(&self, class: IoClass) -> usize {
        self.queues[class as usize].len()
    }

    /// Queue a transfer.
    pub fn push(&mut self, entry: Entry<T>) {
        self.due_us = self.due_us.min(entry.queued_us.saturating_add(self.timeout_us));
        self.queues[entry.class as usize].push_back(entry);
    }

    /// Return a transfer to the front of its queue.
    pub fn put_back(&mut self, entry: Entry<T>) {
        self.due_us = self.due_us.min(entry.queued_us.saturating_add(self.timeout_us));
        self.queues[entry.class as usize].push_front(entry);
    }

    /// Raise a transfer to a more urgent class; it goes to the end of that queue. Return false if it does not wait in a lower
    /// class.
    pub fn urge(&mut self, key: (u32, u32), class: IoClass) -> bool {
        for lower in class as usize + 1..self.queues.len() {
            let Some(at) = self.queues[lower].iter().position(|entry| entry.key == key) else { continue };
            if let Some(mut entry) = self.queues[lower].remove(at) {
                entry.class = class;
                self.queues[class as usize].push_back(entry);
            }
            return true;
        }
        false
    }

    /// Return the next transfer, if the device with `free` requests left may take one.
    pub fn next(&mut self, free: u32) -> Option<Entry<T>> {
        let [demand, prefetch, writeback] = &mut self.queues;
        let entry = if free == 0 {
            None
        } else if !demand.is_empty() {
            demand.pop_front()
        } else if free <= self.reserve {
            None
        } else if !prefetch.is_empty() {
            prefetch.pop_front()
        } else if writeback.front().is_some_and(|entry| self.cap.admits(entry.bytes)) {
            writeback.pop_front()
        } else {
            None
        }?;
        self.taken(&entry);
        Some(entry)
    }

    /// Return the next transfer of a class, if `goes` accepts it and the cap of write-back admits it.
    pub fn next_with(&mut self, class: IoClass, goes: impl FnOnce(&T) -> bool) -> Option<Entry<T>> {
        let admits = |entry: &Entry<T>| class != IoClass::WriteBack || self.cap.admits(entry.bytes);
        let queue = &self.queues[class as usize];
        queue.front().filter(|entry| !entry.alone && admits(entry) && goes(&entry.item))?;
        let entry = self.queues[class as usize].pop_front()?;
        self.taken(&entry);
        Some(entry)
    }

    fn taken(&mut self, entry: &Entry<T>) {
        if entry.class == IoClass::WriteBack {
            self.cap.begin(entry.bytes);
        }
        if self.len() == 0 {
            self.due_us = u64::MAX;
        }
    }

    /// Return when the next waiting transfer may exceed the timeout; None if none waits.
    pub fn due_us(&self) -> Option<u64> {
        (self.due_us < u64::MAX).then_some(self.due_us)
    }

    /// Remove a transfer that exceeds the timeout.
    pub fn expired(&mut self, now_us: u64) -> Option<Entry<T>> {
        if now_us < self.due_us {
            return None;
        }
        // Raised transfers are older than those before them, so checking the queue ends is not enough.
        let timeout_us = self.timeout_us;
        let over = |entry: &Entry<T>| entry.queued_us.saturating_add(timeout_us);
        for queue in &mut self.queues {
            if let Some(at) = queue.iter().position(|entry| over(entry) <= now_us) {
                return queue.remove(at);
            }
        }
        self.due_us = self.queues.iter().flatten().map(over).min().unwrap_or(u64::MAX);
        None
    }

    /// Remove all transfers, at the disk's end.
    pub fn drain(&mut self) -> impl Iterator<Item = Entry<T>> + '_ {
        self.due_us = u64::MAX;
        self.queues.iter_mut().flat_map(|queue| queue.drain(..))
    }
}
