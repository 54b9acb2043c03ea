//! Whose turn it is: three classes, first come first served in each, demand before prefetch before write-back. Pure: it knows no
//! device and no clock.
//!
//! * A transfer that has waited longer than the timeout is taken out and was never begun.
//! * The last eighth of the device's depth is for demand alone.
//! * Write-back has at most `cap` bytes at the device ([`Cap`]).

use super::cap::Cap;
use kvtide_tiering::api::IoClass;
use std::collections::VecDeque;

/// Of the depth, what only demand may use: one in so many.
const RESERVE: u32 = 8;

/// What waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry<T> {
    /// Whose it is and its id.
    pub key: (u32, u32),
    /// How urgent.
    pub class: IoClass,
    /// Bytes that it moves.
    pub bytes: u64,
    /// Since when it waits.
    pub queued_us: u64,
    /// Not merged with others: a job of several transfers with this one failed.
    pub alone: bool,
    /// The transfer.
    pub item: T,
}

/// What waits, and what write-back may have at the device.
#[derive(Debug)]
pub(super) struct Scheduler<T> {
    queues: [VecDeque<Entry<T>>; 3],
    /// Bytes of write-back at the device.
    pub cap: Cap,
    reserve: u32,
    timeout_us: u64,
    /// Nothing that waits is over its time before this; `u64::MAX`: nothing waits.
    due_us: u64,
}

impl<T> Scheduler<T> {
    /// For a device of `depth` requests at once.
    pub fn new(depth: u32, timeout_us: u64, cap: Cap) -> Scheduler<T> {
        let queues = [const { VecDeque::new() }; 3];
        let reserve = if depth > 1 { (depth / RESERVE).max(1) } else { 0 };
        Scheduler { queues, cap, reserve, timeout_us, due_us: u64::MAX }
    }

    /// Transfers that wait.
    pub fn len(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    /// Transfers of a class that wait.
    pub fn waiting(&self, class: IoClass) -> usize {
        self.queues[class as usize].len()
    }

    /// Queues a transfer.
    pub fn push(&mut self, entry: Entry<T>) {
        self.due_us = self.due_us.min(entry.queued_us.saturating_add(self.timeout_us));
        self.queues[entry.class as usize].push_back(entry);
    }

    /// Returns a transfer to the front of its queue.
    pub fn put_back(&mut self, entry: Entry<T>) {
        self.due_us = self.due_us.min(entry.queued_us.saturating_add(self.timeout_us));
        self.queues[entry.class as usize].push_front(entry);
    }

    /// A transfer has become more urgent: it goes behind those that are as urgent. False: it does not wait in a lower class.
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

    /// The transfer whose turn it is, if the device with `free` requests left may have one.
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

    /// The next transfer of a class, if `goes` accepts it and the cap of write-back admits it.
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

    /// When something that waits may be over its time; nothing if nothing waits.
    pub fn due_us(&self) -> Option<u64> {
        (self.due_us < u64::MAX).then_some(self.due_us)
    }

    /// Takes out a transfer that is over its time.
    pub fn expired(&mut self, now_us: u64) -> Option<Entry<T>> {
        if now_us < self.due_us {
            return None;
        }
        // An urged transfer is older than those before it, so the ends of the queues do not tell.
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

    /// Takes everything out, the disk's end.
    pub fn drain(&mut self) -> impl Iterator<Item = Entry<T>> + '_ {
        self.due_us = u64::MAX;
        self.queues.iter_mut().flat_map(|queue| queue.drain(..))
    }
}
