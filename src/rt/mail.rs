//! Messages between threads: bounded queues that wake a thread sleeping in `poll` or `epoll`.
//!
//! Every thread of the daemon that receives messages has a mailbox. Core threads, the host thread and the control thread never
//! block on another thread: they keep messages that a full mailbox refuses ([`RetryQueue`]) and retry in their next round.

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use kvtide_wire::error::Error as WireError;
use kvtide_wire::os::bell::{Ringer, Sleepable, bell};
use kvtide_wire::wake::Bell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Instant;

/// The owner polls its messages anyway; senders do not signal.
const AWAKE: u32 = 0;
/// The owner sleeps, or will check once more before it does. The sender that sets this back to `AWAKE` signals.
const ASLEEP: u32 = 1;
/// The owner never reports its state; senders signal for every message.
const SILENT: u32 = 2;

/// The receiving end; it has one owner.
#[derive(Debug)]
pub struct Mailbox<T> {
    messages: Receiver<T>,
    bell: Sleepable,
    owner: Arc<AtomicU32>,
}

/// The sending end; usable from any thread.
#[derive(Debug)]
pub struct Address<T> {
    messages: Sender<T>,
    ringer: Ringer,
    owner: Arc<AtomicU32>,
}

/// Wakes a mailbox's owner for data that is not in the mailbox. Does not keep the mailbox open.
#[derive(Clone, Debug)]
pub struct Waker {
    ringer: Ringer,
    owner: Arc<AtomicU32>,
}

/// The receiving thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread has ended")]
pub struct Gone;

/// Result of a wait.
#[derive(Debug)]
pub enum Waited<T> {
    /// A message.
    Message(T),
    /// The deadline has passed.
    Due,
    /// All senders are gone.
    Gone,
}

/// Create a mailbox for at most `capacity` messages.
pub fn mailbox<T>(capacity: usize) -> Result<(Address<T>, Mailbox<T>), WireError> {
    let (sender, receiver) = bounded(capacity);
    let (ringer, bell) = bell()?;
    let owner = Arc::new(AtomicU32::new(SILENT));
    let address = Address { messages: sender, ringer, owner: Arc::clone(&owner) };
    Ok((address, Mailbox { messages: receiver, bell, owner }))
}

impl<T> Mailbox<T> {
    /// Return the next message, if there is one.
    pub fn take(&self) -> Option<T> {
        self.messages.try_recv().ok()
    }

    /// Wait for the next message; None if all senders are gone.
    pub fn wait(&self) -> Option<T> {
        self.quiet();
        self.messages.recv().ok()
    }

    /// Wait for the next message, with a deadline if given. An owner that waits only here calls [`Mailbox::awake`] once and needs
    /// no signals.
    pub fn wait_until(&self, due: Option<Instant>) -> Waited<T> {
        let Some(due) = due else {
            return self.messages.recv().map_or(Waited::Gone, Waited::Message);
        };
        match self.messages.recv_deadline(due) {
            Ok(message) => Waited::Message(message),
            Err(RecvTimeoutError::Timeout) => Waited::Due,
            Err(RecvTimeoutError::Disconnected) => Waited::Gone,
        }
    }

    /// Return true if no message is there.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Stop signals from senders: the owner polls its messages until it calls [`Mailbox::announce`]. An owner that never calls this
    /// is signalled for every message.
    pub fn awake(&self) {
        self.owner.store(AWAKE, Ordering::Relaxed);
    }

    /// Request a signal from the next sender. The owner must check its messages once more before it sleeps. One of the two fences,
    /// here and in the sender, comes first: either the owner sees the message or the sender sees the announcement.
    pub fn announce(&self) {
        self.owner.store(ASLEEP, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Clear pending signals; call it before taking messages.
    pub fn quiet(&self) {
        // False means that all senders are gone; that is also visible when taking messages.
        let _ = self.bell.quiet();
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        // The queue lives as long as its senders. Drop its messages, so that no sender waits for an answer to one of them.
        while self.take().is_some() {}
    }
}

impl<T> AsFd for Mailbox<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl<T> Clone for Address<T> {
    fn clone(&self) -> Self {
        Address { messages: self.messages.clone(), ringer: self.ringer.clone(), owner: Arc::clone(&self.owner) }
    }
}

impl<T> Address<T> {
    /// Send; wait while the mailbox is full. Only for threads that no core thread waits for.
    pub fn send(&self, message: T) -> Result<(), Gone> {
        self.messages.send(message).map_err(|_| Gone)?;
        self.wake();
        Ok(())
    }

    /// Send if there is room.
    pub fn offer(&self, message: T) -> Result<(), TrySendError<T>> {
        self.messages.try_send(message)?;
        self.wake();
        Ok(())
    }

    /// Signal a sleeping owner, once for all messages until it wakes.
    fn wake(&self) {
        wake(&self.owner, &self.ringer);
    }

    /// Return a waker, for a thread that passes data to the owner outside the mailbox.
    pub fn waker(&self) -> Waker {
        Waker { ringer: self.ringer.clone(), owner: Arc::clone(&self.owner) }
    }
}

impl Waker {
    /// Wake the owner. Call it after the data is in place; the owner must check for the data where it checks its messages.
    pub fn wake(&self) {
        wake(&self.owner, &self.ringer);
    }
}

fn wake(owner: &AtomicU32, ringer: &Ringer) {
    fence(Ordering::SeqCst);
    let rings = match owner.load(Ordering::Relaxed) {
        AWAKE => false,
        ASLEEP => owner.compare_exchange(ASLEEP, AWAKE, Ordering::Relaxed, Ordering::Relaxed).is_ok(),
        _ => true,
    };
    if rings {
        ringer.ring();
    }
}

/// A sending end that never blocks: messages that do not fit wait here. Their number is bounded by the objects of their owner, such
/// as slabs and sessions.
#[derive(Debug)]
pub struct RetryQueue<T> {
    to: Address<T>,
    waiting: VecDeque<T>,
}

impl<T> RetryQueue<T> {
    /// Create an empty queue.
    pub fn new(to: Address<T>) -> RetryQueue<T> {
        RetryQueue { to, waiting: VecDeque::new() }
    }

    /// Send, now or at a later [`RetryQueue::flush`].
    pub fn send(&mut self, message: T) {
        self.post(message);
        self.flush();
    }

    /// Send if nothing waits and there is room.
    pub fn offer(&self, message: T) -> Result<(), TrySendError<T>> {
        if self.waiting.is_empty() { self.to.offer(message) } else { Err(TrySendError::Full(message)) }
    }

    /// Send at the next flush.
    pub fn post(&mut self, message: T) {
        self.waiting.push_back(message);
    }

    /// Send the waiting messages. Return true if none waits any more. Messages to a thread that has ended are dropped.
    pub fn flush(&mut self) -> bool {
        self.flush_or(drop)
    }

    /// As [`RetryQueue::flush`]; messages to a thread that has ended go to `lost`.
    pub fn flush_or(&mut self, mut lost: impl FnMut(T)) -> bool {
        while let Some(message) = self.waiting.pop_front() {
            match self.to.offer(message) {
                Ok(()) => {}
                Err(TrySendError::Disconnected(message)) => lost(message),
                Err(TrySendError::Full(message)) => {
                    self.waiting.push_front(message);
                    return false;
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_queue_keeps_order_and_loses_nothing_over_a_full_mailbox() {
        let (address, mailbox) = mailbox(2).unwrap();
        let mut queue = RetryQueue::new(address);
        for message in 0..5 {
            queue.send(message);
        }
        assert!(!queue.flush());
        let mut taken = Vec::new();
        while taken.len() < 5 {
            taken.extend(mailbox.take());
            queue.flush();
        }
        assert_eq!(taken, [0, 1, 2, 3, 4]);
        assert!(queue.flush() && mailbox.is_empty());
    }

    #[test]
    fn who_is_awake_is_not_rung_and_who_announced_its_sleep_is() {
        let rung = |mailbox: &Mailbox<u32>| {
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let mut fds = [rustix::event::PollFd::new(mailbox, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&now)).unwrap() > 0
        };
        let (address, mailbox) = mailbox(4).unwrap();
        address.send(0).unwrap();
        assert!(rung(&mailbox), "an owner that never called `awake`");
        mailbox.quiet();
        mailbox.awake();
        address.send(1).unwrap();
        assert!(!rung(&mailbox) && mailbox.take() == Some(0));
        mailbox.announce();
        address.send(2).unwrap();
        assert!(rung(&mailbox) && mailbox.take() == Some(1));
        mailbox.quiet();
        address.send(3).unwrap();
        assert!(!rung(&mailbox), "one signal is enough");
    }
}
