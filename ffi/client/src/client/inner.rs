//! State shared by all handles of a client.

use super::{Error, Layout, Options, Refusal, Result, channel, lane};
use crate::agent::session::Session;
use kvtide_wire::status::Status;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    thread::JoinHandle,
};

/// Objects that one handle owns at a time. `None`: a handle has it, and returns it when it is dropped.
pub(crate) struct Slots<T> {
    /// What it is to take one, for errors.
    taking: &'static str,
    slots: Mutex<Vec<Option<Box<T>>>>,
}

impl<T> Slots<T> {
    pub fn new(taking: &'static str, states: Vec<T>) -> Slots<T> {
        Slots { taking, slots: Mutex::new(states.into_iter().map(|state| Some(Box::new(state))).collect()) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Box<T>>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take the object with this index.
    pub fn take(&self, session: &Session, index: u16) -> Result<Box<T>> {
        const TAKEN: &str = "in use, or kept by a reattach: close its handle first";
        let refused = |refusal: Refusal| Error::refused(self.taking, u64::from(index), refusal);
        session.ours().map_err(|status| refused(status.into()))?;
        let mut slots = self.lock();
        let none = format!("the session attached with {}, numbered from 0", slots.len());
        let slot = slots.get_mut(usize::from(index)).ok_or_else(|| refused(Refusal::because(Status::Range, none)))?;
        slot.take().ok_or_else(|| refused(Refusal::because(Status::State, TAKEN)))
    }

    /// Make an object available again.
    pub fn give(&self, index: u16, state: Box<T>) {
        if let Some(slot) = self.lock().get_mut(usize::from(index)) {
            *slot = Some(state);
        }
    }
}

/// All objects, for a reattach. Returned on drop.
#[allow(clippy::vec_box)] // moved in the form in which they are kept
pub(crate) struct Held<'a, T> {
    slots: &'a Slots<T>,
    pub states: Vec<Box<T>>,
}

impl<'a, T> Held<'a, T> {
    pub fn all(slots: &'a Slots<T>, session: &Session) -> Result<Held<'a, T>> {
        let mut held = Held { slots, states: Vec::new() };
        let count = slots.lock().len() as u16;
        for index in 0..count {
            held.states.push(slots.take(session, index)?);
        }
        Ok(held)
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        (0..).zip(self.states.drain(..)).for_each(|(index, state)| self.slots.give(index, state));
    }
}

/// One attached session. The last handle stops the copy thread.
pub(crate) struct Inner {
    pub session: Arc<Session>,
    pub options: Options,
    pub layout: Layout,
    /// See [`super::Client::other_identity`].
    pub other_identity: String,
    /// See [`super::Client::relay`].
    pub relay_socket: String,
    /// See [`super::Client::traces`].
    pub traces: bool,
    pub channels: Slots<channel::State>,
    pub lanes: Slots<lane::State>,
    pub copier: Mutex<Option<JoinHandle<()>>>,
}

impl Inner {
    /// Process the answers of channels that no handle owns. The next owner receives the results.
    pub fn hear_free_channels(&self) {
        self.channels.lock().iter_mut().flatten().for_each(|state| state.progress());
    }

    /// Stop the copy thread, and wait for the round that it may be in.
    pub fn stop(&self) {
        self.session.stop.store(true, Ordering::Release);
        self.session.copier.wake();
        let thread = self.copier.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join(); // if it panicked, the session has ended already
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.session.ours().is_ok() {
            self.session.leave();
            self.stop();
        } else if let Ok(copier) = self.copier.get_mut() {
            std::mem::forget(copier.take()); // a thread of the parent process: it cannot be joined or detached here
        }
    }
}
