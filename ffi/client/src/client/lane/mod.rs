//! A lane: one ordered stream of engine work, and its view of the page table.
//!
//! [`Lane`] is the handle of the engine, and `state` what stays when no handle exists. It composes the reader of steps with three
//! parts, each with its own facts: `messages` to the daemon, `attention` with its `digests`, and the device side in `stream`.

pub(crate) mod attention;
#[cfg(feature = "cuda")]
mod away;
mod digests;
mod messages;
#[cfg(not(feature = "cuda"))]
mod no_device;
#[cfg(feature = "cuda")]
mod sketched;
mod state;
#[cfg(feature = "cuda")]
mod stream;

#[cfg(feature = "cuda")]
pub use stream::LaneDevice;

#[cfg(not(feature = "cuda"))]
use no_device::{DeviceSide, Sketched};
pub(crate) use state::State;
#[cfg(feature = "cuda")]
use {sketched::Sketched, stream::DeviceSide};

pub use attention::{Omission, ScoreKind};

use super::{Client, Error, Refusal, Result, inner::Inner, options::FrameId, options::SeqId};
use crate::agent::session::Session;
use kvtide_wire::status::Status;
use std::sync::Arc;

pub use crate::agent::protocol::step::{Ready, StepSeq};

/// Result of a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Every page that this plane of the step needs is readable through the table, and none was handed out before.
    All,
    /// [`Lane::ready`] holds `count` pages that are readable now and were not handed out before for this step and plane: at least
    /// one, but none if `last` is set and the remaining pages are omitted. After `last` there are no more. Pages of `approx`
    /// sequences that are not completely in tier 0 always come this way.
    Part {
        /// Pages in [`Lane::ready`].
        count: usize,
        /// True if the plane is complete after these pages.
        last: bool,
    },
}

const NO_STEP: &str = "no step has begun";
const END: &str = "end a step on lane";
const OPEN_STEP: &str = "a step is open: end it first";

/// One ordered stream of engine work. Owned by one thread at a time.
pub struct Lane {
    inner: Arc<Inner>,
    /// `None`: the copy thread has it, to complete its boundaries.
    state: Option<Box<State>>,
    index: u16,
    #[cfg(feature = "cuda")]
    away: Option<Arc<away::Away>>,
}

impl Lane {
    pub(super) fn new(client: &Client, index: u16) -> Result<Lane> {
        let state = client.inner.lanes.take(&client.inner.session, index)?;
        Ok(Lane {
            inner: Arc::clone(&client.inner),
            #[cfg(feature = "cuda")]
            away: state.stream().map(|stream| Arc::new(away::Away::new(stream))),
            state: Some(state),
            index,
        })
    }

    fn state(&self) -> Option<&State> {
        self.state.as_deref()
    }

    /// Run a call of the lane on `on`. Fails in a forked child.
    fn call<T>(
        &mut self,
        doing: &'static str,
        on: u64,
        call: impl FnOnce(&mut State, &Session) -> std::result::Result<T, Refusal>,
    ) -> Result<T> {
        let error = |status| Error::call(doing, u64::from(self.index), status);
        let session = &self.inner.session;
        session.ours().map_err(error)?;
        #[cfg(feature = "cuda")]
        if let (None, Some(away)) = (&self.state, &self.away) {
            self.state = Some(away.come_home(session).map_err(error)?);
        }
        let state = self.state.as_deref_mut().ok_or(error(Status::State))?;
        call(state, session).map_err(|refusal| Error::refused(doing, on, refusal))
    }

    /// Begin a step over `seqs`, at most 512. Each entry gives the length that attention covers in this step, the new tokens
    /// included; these must be reserved already. A sequence is in at most one lane's step at a time. Sends a message only if a page
    /// that the step needs is not resident. Waits only while tier 0 shrinks, for pages that are being moved.
    ///
    /// # Errors
    /// `State`: the lane's step has begun already; tier 0 is on a device and the lane is not bound to one of its streams; or a
    /// sequence is in another lane's step, parked, or being forked or truncated. `NotFound`: no such sequence. `Range`: more tokens
    /// than reserved. `Limit`: too many sequences. `Lost`: no copy of one of a sequence's pages exists any more. `Invalid`: the lane's
    /// stream is being captured into a graph. `Fork`.
    pub fn begin(&mut self, seqs: &[StepSeq]) -> Result<()> {
        self.call("begin a step on lane", u64::from(self.index), |state, session| state.begin(session, seqs))
    }

    /// Pass a boundary before the pages of `plane` are read: apply changes of the table, and report the readable pages. Planes must
    /// come in ascending order within a step; repeat a plane until it is complete. Waits, within the session's timeout, only if a
    /// needed page is missing and no other page became readable.
    ///
    /// # Errors
    /// `State`: no step has begun, the plane is complete, or a later plane has begun. `Range`: no such plane. `Lost`, `Io`,
    /// `TimedOut`, `Daemon`: a page is not available; the step stays open, and the boundary may be repeated. `Device`.
    pub fn boundary(&mut self, plane: u16) -> Result<Pass> {
        self.call("pass a boundary of plane", u64::from(plane), |state, session| state.boundary(session, plane))
    }

    /// Return the pages that the last boundary handed out, in order of sequence position and block index.
    #[must_use]
    pub fn ready(&self) -> &[Ready] {
        self.state().map_or(&[], |state| state.reader().ready())
    }

    /// End the step, complete or not. The lane reads no frame until its next `begin`. Waits only for boundaries of the step that
    /// its stream waits for.
    ///
    /// # Errors
    /// `State`: no step has begun. `Invalid`: the lane's stream is being captured into a graph. `Fork`.
    pub fn end(&mut self) -> Result<()> {
        self.call(END, u64::from(self.index), State::end)
    }

    /// Return the frame of the page of `block` in `plane` in this lane's table, as of its last boundary.
    #[inline]
    #[must_use]
    pub fn pte(&self, block: u32, plane: u16) -> Option<FrameId> {
        self.state()?.reader().view().frame(block, plane)
    }

    /// Return this lane's table: entry `block × planes + plane` is 0 (absent) or frame + 1. Its address is fixed for the lane's
    /// life. Entries change only within `begin` and `boundary`, and are valid between `begin` and `end`.
    #[must_use]
    pub fn table(&self) -> &[u32] {
        self.state().map_or(&[], |state| state.reader().view().table())
    }

    /// Locate a page of a sequence in this lane's step, if it is readable now.
    fn place(&self, seq: SeqId, index: u32, plane: u16) -> Option<(*mut u8, usize)> {
        let session = &self.inner.session;
        session.ours().ok().filter(|()| session.tier0.is_host())?;
        session.tier0.frame(self.state()?.reader().page(seq, index, plane)?)
    }

    /// Return the bytes of a page of a sequence in this lane's step, if it is readable now: `page_bytes` bytes, 64-byte aligned,
    /// valid until the next `begin`, `boundary` or `end`. `None` also if tier 0 is on a device.
    #[must_use]
    pub fn page(&self, seq: SeqId, index: u32, plane: u16) -> Option<&[u8]> {
        let (at, bytes) = self.place(seq, index, plane)?;
        // SAFETY: the frame lies in tier 0, which lives as long as `inner`, or the page lies in a slab shown by a mapped frame;
        // such a slab stays mapped as long and is read-only to us while the frame shows it. The lane's table contains the page, so
        // it is initialised and not overwritten before this lane's next boundary or end (protocol rule 5), which need `&mut self`.
        // Only the engine writes unsealed pages, through `page_mut`, which needs `&mut self`; and no other lane has the sequence.
        Some(unsafe { std::slice::from_raw_parts(at, bytes) })
    }

    /// Return the bytes of an unsealed page of a sequence in this lane's step, for writing. `None` also if tier 0 is on a device.
    #[must_use]
    pub fn page_mut(&mut self, seq: SeqId, index: u32, plane: u16) -> Option<&mut [u8]> {
        let shared = &self.inner.session.shared;
        let sealed = shared.seqs().committed(seq) / u64::from(shared.geometry().bounds().page_tokens);
        let page = self.state()?.reader().page(seq, index, plane)?;
        // A mapped frame shows the daemon's memory, and never an unsealed page.
        if u64::from(index) < sealed || shared.geometry().is_mapped_frame(page) {
            return None;
        }
        let (at, bytes) = self.place(seq, index, plane)?;
        // SAFETY: as in `page`. An unsealed block belongs to one sequence, a sequence to one lane's step, and `&mut self` excludes
        // this lane's other slices.
        Some(unsafe { std::slice::from_raw_parts_mut(at, bytes) })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if self.inner.session.ours().is_err() {
            return;
        }
        let _ = self.call(END, u64::from(self.index), State::close); // without an open step there is nothing to end; boundaries that its stream waits for end with the step
        if let Some(state) = self.state.take() {
            #[cfg(feature = "cuda")]
            if let Some(stream) = state.stream() {
                stream.unbind();
            }
            self.inner.lanes.give(self.index, state);
        }
    }
}
