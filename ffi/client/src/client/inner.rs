//! State shared by all handles of a client.

use super::{Error, Layout, Options, Refusal, Result, channel, lane};
use crate::agent::session::Session;
use kvtide_wire::status::Status;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    thread::JoinHandle,
};

/// An object that one handle owns at a time. `None`: a handle has it, and returns it when it is dropped.
pub(crate) type Slot<T> = Option<Box<T>>;

/// Take the object with this index.
fn take<T>(slots: &mut [Slot<T>], index: u16) -> std::result::Result<Box<T>, Refusal> {
    let count = slots.len();
    let Some(slot) = slots.get_mut(usize::from(index)) else {
        let why = format!("the session attached with {count}, numbered from 0");
        return Err(Refusal::because(Status::Range, why));
    };
    slot.take().ok_or_else(|| Refusal::because(Status::State, "in use, or kept by a reattach: close its handle first"))
}

/// The parts of a session that handles own.
pub(crate) struct Parts {
    pub channels: Vec<Slot<channel::State>>,
    pub lanes: Vec<Slot<lane::State>>,
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
    pub parts: Mutex<Parts>,
    pub copier: Mutex<Option<JoinHandle<()>>>,
}

impl Inner {
    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn take_channel(&self, index: u16) -> Result<Box<channel::State>> {
        let taken = self.session.ours().map_err(Refusal::from).and_then(|()| take(&mut self.parts().channels, index));
        taken.map_err(|refusal| Error::refused("take channel", u64::from(index), refusal))
    }

    pub fn give_channel(&self, index: u16, state: Box<channel::State>) {
        if let Some(slot) = self.parts().channels.get_mut(usize::from(index)) {
            *slot = Some(state);
        }
    }

    /// Process the answers of channels that no handle owns. The next owner receives the results.
    pub fn hear_free_channels(&self) {
        self.parts().channels.iter_mut().flatten().for_each(|state| state.progress());
    }

    pub fn take_lane(&self, index: u16) -> Result<Box<lane::State>> {
        let taken = self.session.ours().map_err(Refusal::from).and_then(|()| take(&mut self.parts().lanes, index));
        taken.map_err(|refusal| Error::refused("take lane", u64::from(index), refusal))
    }

    pub fn give_lane(&self, index: u16, state: Box<lane::State>) {
        if let Some(slot) = self.parts().lanes.get_mut(usize::from(index)) {
            *slot = Some(state);
        }
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
