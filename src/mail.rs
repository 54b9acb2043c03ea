//! Messages between threads: bounded queues that wake a sleeper in `poll` or `epoll`.
//!
//! Every thread of the daemon that others talk to has a mailbox. Core threads, the host thread and the control thread never block on
//! another thread: they keep what a full mailbox does not take ([`Outbox`]) and try again at their next round.

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use kvtide_wire::error::Error as WireError;
use kvtide_wire::os::bell::{Ringer, Sleepable, bell};
use kvtide_wire::wake::Bell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Instant;

/// The owner looks at its letters anyway: it need not be rung.
const AWAKE: u32 = 0;
/// The owner sleeps, or is about to look once more before it does. Who sets this back to `AWAKE` rings.
const ASLEEP: u32 = 1;
/// The owner never says what it does: it is rung for every letter.
const SILENT: u32 = 2;

/// The receiving end; one owner.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    letters: Receiver<T>,
    bell: Sleepable,
    owner: Arc<AtomicU32>,
}

/// The sending end; any thread.
#[derive(Debug)]
pub(crate) struct Address<T> {
    letters: Sender<T>,
    ringer: Ringer,
    owner: Arc<AtomicU32>,
}

/// Wakes a mailbox's owner for what stands elsewhere; it does not keep the mailbox open.
#[derive(Clone, Debug)]
pub(crate) struct Nudge {
    ringer: Ringer,
    owner: Arc<AtomicU32>,
}

/// The other side's thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread has ended")]
pub(crate) struct Gone;

/// What came of a wait.
#[derive(Debug)]
pub(crate) enum Waited<T> {
    /// A letter.
    Letter(T),
    /// The moment.
    Due,
    /// No letter can come any more.
    Gone,
}

/// A mailbox for at most `capacity` letters.
pub(crate) fn mailbox<T>(capacity: usize) -> Result<(Address<T>, Mailbox<T>), WireError> {
    let (sender, receiver) = bounded(capacity);
    let (ringer, bell) = bell()?;
    let owner = Arc::new(AtomicU32::new(SILENT));
    let address = Address { letters: sender, ringer, owner: Arc::clone(&owner) };
    Ok((address, Mailbox { letters: receiver, bell, owner }))
}

impl<T> Mailbox<T> {
    /// The next letter, if one is there.
    pub fn take(&self) -> Option<T> {
        self.letters.try_recv().ok()
    }

    /// The next letter, waited for; `None` if none can come any more.
    pub fn wait(&self) -> Option<T> {
        self.quiet();
        self.letters.recv().ok()
    }

    /// The next letter, waited for until a moment, or for ever. An owner that waits only here calls [`Mailbox::awake`] once: it
    /// need not be rung.
    pub fn wait_until(&self, due: Option<Instant>) -> Waited<T> {
        let Some(due) = due else {
            return self.letters.recv().map_or(Waited::Gone, Waited::Letter);
        };
        match self.letters.recv_deadline(due) {
            Ok(letter) => Waited::Letter(letter),
            Err(RecvTimeoutError::Timeout) => Waited::Due,
            Err(RecvTimeoutError::Disconnected) => Waited::Gone,
        }
    }

    /// Whether no letter is there.
    pub fn is_empty(&self) -> bool {
        self.letters.is_empty()
    }

    /// Has senders ring no more: the owner looks at its letters anyway, until it calls [`Mailbox::announce`]. An owner that never
    /// calls this is rung for every letter.
    pub fn awake(&self) {
        self.owner.store(AWAKE, Ordering::Relaxed);
    }

    /// Has the next sender ring. The owner must look at its letters once more before it sleeps: of the fence in here and that of
    /// a sender one is first, so either the owner sees the letter or the sender sees the announcement.
    pub fn announce(&self) {
        self.owner.store(ASLEEP, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Forgets rings; to be called before the letters are taken.
    pub fn quiet(&self) {
        // False says that every sender is gone, which the letters that never come tell as well.
        let _ = self.bell.quiet();
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        // The queue lives as long as its senders; whoever waits for an answer to a letter in it must not wait for them.
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
        Address { letters: self.letters.clone(), ringer: self.ringer.clone(), owner: Arc::clone(&self.owner) }
    }
}

impl<T> Address<T> {
    /// Sends; waits while the mailbox is full. Only for threads that no core thread waits for.
    pub fn send(&self, letter: T) -> Result<(), Gone> {
        self.letters.send(letter).map_err(|_| Gone)?;
        self.wake();
        Ok(())
    }

    /// Sends, if there is room.
    pub fn offer(&self, letter: T) -> Result<(), TrySendError<T>> {
        self.letters.try_send(letter)?;
        self.wake();
        Ok(())
    }

    /// Rings an owner that sleeps, once for all letters that come meanwhile.
    fn wake(&self) {
        wake(&self.owner, &self.ringer);
    }

    /// For a thread that puts what it has for the owner elsewhere than into the mailbox.
    pub fn nudge(&self) -> Nudge {
        Nudge { ringer: self.ringer.clone(), owner: Arc::clone(&self.owner) }
    }
}

impl Nudge {
    /// To be called after the thing was put where the owner looks for it, which it must do where it looks at its letters.
    pub fn nudge(&self) {
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

/// A sending end that never blocks: what does not fit waits here. What its owner can have waiting is bounded by what it
/// writes about: its slabs, its sessions.
#[derive(Debug)]
pub(crate) struct Outbox<T> {
    to: Address<T>,
    waiting: VecDeque<T>,
}

impl<T> Outbox<T> {
    /// An empty one.
    pub fn new(to: Address<T>) -> Outbox<T> {
        Outbox { to, waiting: VecDeque::new() }
    }

    /// Sends, now or at a later [`Outbox::flush`].
    pub fn send(&mut self, letter: T) {
        self.post(letter);
        self.flush();
    }

    /// Sends, if nothing waits and there is room.
    pub fn offer(&self, letter: T) -> Result<(), TrySendError<T>> {
        if self.waiting.is_empty() { self.to.offer(letter) } else { Err(TrySendError::Full(letter)) }
    }

    /// Sends at the next flush.
    pub fn post(&mut self, letter: T) {
        self.waiting.push_back(letter);
    }

    /// Sends what waits. True if nothing waits any more. Letters to a thread that has ended are dropped: the daemon is ending.
    pub fn flush(&mut self) -> bool {
        self.flush_or(drop)
    }

    /// As [`Outbox::flush`]; what the other side's thread can never read goes to `lost`.
    pub fn flush_or(&mut self, mut lost: impl FnMut(T)) -> bool {
        while let Some(letter) = self.waiting.pop_front() {
            match self.to.offer(letter) {
                Ok(()) => {}
                Err(TrySendError::Disconnected(letter)) => lost(letter),
                Err(TrySendError::Full(letter)) => {
                    self.waiting.push_front(letter);
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
    fn an_outbox_keeps_order_and_loses_nothing_over_a_full_mailbox() {
        let (address, mailbox) = mailbox(2).unwrap();
        let mut outbox = Outbox::new(address);
        for letter in 0..5 {
            outbox.send(letter);
        }
        assert!(!outbox.flush());
        let mut taken = Vec::new();
        while taken.len() < 5 {
            taken.extend(mailbox.take());
            outbox.flush();
        }
        assert_eq!(taken, [0, 1, 2, 3, 4]);
        assert!(outbox.flush() && mailbox.is_empty());
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
        assert!(rung(&mailbox), "an owner that never said that it is awake");
        mailbox.quiet();
        mailbox.awake();
        address.send(1).unwrap();
        assert!(!rung(&mailbox) && mailbox.take() == Some(0));
        mailbox.announce();
        address.send(2).unwrap();
        assert!(rung(&mailbox) && mailbox.take() == Some(1));
        mailbox.quiet();
        address.send(3).unwrap();
        assert!(!rung(&mailbox), "one ring wakes it");
    }
}
