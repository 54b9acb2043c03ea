//! The engine's API in Rust: attach, channels for calls, lanes for steps. The C ABI stands on it.
//!
//! May be called by engines (and the daemon's demo and benches, which are engines too). Knows nothing of how the daemon
//! decides; what a call means is fixed in `kvtide_wire::entry::Op`.

mod attach;
#[cfg(feature = "cuda")]
pub mod batch;
pub mod channel;
mod device;
pub mod error;
mod frames;
mod inner;
pub mod lane;
pub mod layout;
pub mod options;
mod reattach;
pub mod request;
pub mod stats;

pub use crate::agent::attention::{Contract, DigestOptions, Element, KeyLayout};
pub use crate::memory::{MEMBERS_MAX, Owner, Piece, UNNAMED};
pub use channel::{Channel, Copied, Found};
pub use error::{Error, Result};
pub use lane::{Lane, Omission, Pass, Ready, ScoreKind, StepSeq};
pub use layout::{Layout, PlaneLayout};
pub use options::{BlockId, CudaDevice, DeviceChoice, FrameId, Options, SeqId, SpaceSpec};
pub use request::{Completed, Leased, Outcome, PageRange, Pin, Request, Ticket};
pub use stats::{DeviceCopies, Stats};

use crate::{agent::protocol::seqs::SeqState, memory::EngineBlocks};
use inner::Inner;
use kvtide_wire::status::Status;
use std::{path::Path, sync::Arc};

/// A session with the daemon. Cheap to clone; lives until its last clone, channel and lane are dropped.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

impl Client {
    /// Attaches to the daemon: allocates tier 0, opens the session, starts its copy thread.
    ///
    /// # Errors
    /// [`Error::Options`], [`Error::Refused`] (`Permission`, `Version`, `Limit`, `Invalid`), [`Error::System`].
    pub fn attach(options: Options) -> Result<Client> {
        let connected = attach::connect(&options, None)?;
        Ok(Client { inner: attach::start(options, connected)? })
    }

    /// A new session with a daemon at `socket`, after this one's daemon has died: takes over tier 0 and declares the
    /// sequences and the pages that it still holds. Sequences keep their ids, get new block ids, and belong to the channel of
    /// the same index; what was reserved for the session is gone, and nothing is pinned or parked. Sequences with pages that
    /// were held nowhere else answer `Lost` to every call but `seq_drop`.
    ///
    /// All channels and lanes of this client must have been dropped; after success it has none.
    ///
    /// # Errors
    /// `State`: the daemon is alive, a channel or lane is still held, or a reattach succeeded before. Else as
    /// [`Client::attach`]; it may be tried again then.
    pub fn reattach(&self, socket: &Path) -> Result<Client> {
        Ok(Client { inner: reattach::reattach(&self.inner, socket)? })
    }

    /// Channel `index`. Dropping it gives it back; its sequences stay.
    ///
    /// # Errors
    /// `Range`: no such channel. `State`: somebody has it. `Fork`.
    pub fn channel(&self, index: u16) -> Result<Channel> {
        Channel::new(self, index)
    }

    /// Lane `index`. Dropping it ends its step and gives it back.
    ///
    /// # Errors
    /// `Range`: no such lane. `State`: somebody has it. `Fork`.
    pub fn lane(&self, index: u16) -> Result<Lane> {
        Lane::new(self, index)
    }

    /// Says where the engine's own blocks are: `count` of them, whose pages lie in `pieces` (see [`Piece`]). What was said before holds
    /// no longer; with no pieces there are none. When it returns nothing touches the blocks that there were. After
    /// [`Client::reattach`] it is to be said again.
    ///
    /// # Errors
    /// [`Error::Options`]: the pieces do not add up to the planes' pages. `State`: loads or stores are under way, or a call that timed out
    /// has yet to end ([`Channel::settle_blocks`]): what is left of them would go on with the new blocks. `Invalid`: the session's tier 0 is on a device, from where
    /// nothing is copied there. `Fork`.
    ///
    /// # Safety
    /// The memory of all pieces stays readable and writable until the next call of this, or the drop of the last handle; while a load
    /// into a block or a store from it is under way, nobody else writes there, nor reads what is loaded.
    pub unsafe fn set_blocks(&self, count: u32, pieces: &[Piece]) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.set_blocks_of(count, pieces, None) }
    }

    /// As [`Client::set_blocks`], with the `owner` of the memory, which is dropped when nothing reads or writes there any more: when a later call has
    /// replaced the blocks, or the session is over ([`Client::detach`], or the drop of the last handle).
    ///
    /// # Errors
    /// As [`Client::set_blocks`]; the owner is dropped then.
    ///
    /// # Safety
    /// As [`Client::set_blocks`], but that the memory need stay no longer than the owner.
    pub unsafe fn set_blocks_of(&self, count: u32, pieces: &[Piece], owner: Option<Owner>) -> Result<()> {
        const DOING: &str = "say where the engine's blocks are, so many:";
        let session = &self.inner.session;
        session.ours().map_err(|status| Error::call(DOING, u64::from(count), status))?;
        let blocks = match pieces {
            [] => None,
            pieces => Some(EngineBlocks::new(session.shared.geometry(), count, pieces)?.owned(owner)),
        };
        self.show_blocks(blocks).map_err(|status| Error::call(DOING, u64::from(count), status))
    }

    /// Says what blocks' names stand for, where their pieces have several members: the names from `first` on, `ids` having one id for each
    /// member of each name, all below the `count` of [`Client::set_blocks`], or [`UNNAMED`] for all of them. The numbers that loads and
    /// stores are given are names then; what stands for nothing is refused with `Range`. A later call may change what a name stands for.
    ///
    /// # Errors
    /// Nothing is changed. [`Error::Options`]: ids that are no whole names, or out of range. `State`: a load or store of one of the names is
    /// under way, or blocks have one member alone. `Limit`: more names than a table holds, 2^24 ids.
    pub fn name_blocks(&self, first: u32, ids: &[u32]) -> Result<()> {
        let failed = |status| Error::call("name blocks, the first one", u64::from(first), status);
        let session = &self.inner.session;
        session.ours().map_err(failed)?;
        if session.is_copying() {
            self.inner.hear_free_channels();
        }
        // Calls that the daemon's death has ended hold no names, while a round that began before may still copy by them.
        let round = session.pump();
        let names = session.names().clone();
        let set = names.ok_or_else(|| failed(Status::State))?.set(first, ids);
        drop(round);
        set
    }

    /// As [`Client::set_blocks`], with memory that the session allocates and keeps, all zeroes: for engines that have none to show. It is read and written
    /// by [`Client::with_block`].
    ///
    /// # Errors
    /// As [`Client::set_blocks`]; [`Error::Options`]: there is no memory for so many.
    pub fn allocate_blocks(&self, count: u32) -> Result<()> {
        const DOING: &str = "allocate blocks for the engine, so many:";
        let session = &self.inner.session;
        session.ours().map_err(|status| Error::call(DOING, u64::from(count), status))?;
        let blocks = EngineBlocks::allocate(session.shared.geometry(), count)?;
        self.show_blocks(Some(blocks)).map_err(|status| Error::call(DOING, u64::from(count), status))
    }

    fn show_blocks(&self, blocks: Option<EngineBlocks>) -> std::result::Result<(), Status> {
        let session = &self.inner.session;
        if session.is_copying() {
            self.inner.hear_free_channels();
        }
        let before = {
            let mut pump = session.pump();
            // A request is counted under this lock, before it is sent: none goes out between the look and the exchange.
            let mut names = session.names();
            // Once the session is over no round copies anything, whoever has yet to hear of it.
            if session.alive() && session.is_copying() {
                return Err(Status::State);
            }
            let theirs = blocks.as_ref().and_then(|blocks| blocks.names().cloned());
            let before = pump.set_blocks(blocks)?;
            *names = theirs;
            before
        };
        drop(before); // what its owner does at its end holds up no round
        Ok(())
    }

    /// Looks at a block's bytes in a plane, of those that [`Client::allocate_blocks`] made, while nothing is copied. `None`: there is no
    /// such block or plane, or the memory is the engine's own.
    pub fn with_block<T>(&self, block: u32, plane: u16, look: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        self.inner.session.ours().ok()?;
        self.inner.session.pump().own_block(block, plane).map(look)
    }

    /// Where frames are in memory. Fixed for the session's life.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.inner.layout
    }

    /// Totals since the attach.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.session.counters.snapshot()
    }

    /// How the session's copies are made; `None`: tier 0 is on no device. Waits for a round of the pump.
    #[must_use]
    pub fn device_copies(&self) -> Option<DeviceCopies> {
        self.inner.session.ours().ok()?;
        self.inner.session.pump().device_copies()
    }

    /// Whether the daemon is there, as far as is known.
    #[must_use]
    pub fn alive(&self) -> bool {
        self.inner.session.usable().is_ok()
    }

    /// Ends the session now: waits of other threads return `Daemon`. What is in tier 0 stays readable until the last
    /// handle is dropped; the engine's own blocks are touched no more when it returns.
    pub fn detach(&self) {
        if self.inner.session.ours().is_ok() {
            self.inner.session.leave();
            self.inner.stop();
            let _ = self.show_blocks(None); // the session is over: nothing is in the way
        }
    }

    /// The block ids of a sequence, in order.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn seq_blocks(&self, seq: SeqId) -> Result<Vec<BlockId>> {
        let seqs = self.inner.session.shared.seqs();
        match seqs.state(seq) {
            SeqState::Free => Err(Error::call("list blocks of sequence", u64::from(seq), Status::NotFound)),
            SeqState::Live | SeqState::Lost => Ok(seqs.block_ids(seq)),
        }
    }

    /// Where a frame of tier 0 is in memory: stable for the session's life. For engines that hand addresses to kernels;
    /// what may be read there and when, the lanes say. `None`: no such frame.
    #[must_use]
    pub fn frame_ptr(&self, frame: FrameId) -> Option<*mut u8> {
        self.inner.session.ours().ok()?;
        self.inner.session.tier0.frame(frame).map(|(at, _)| at)
    }
}
