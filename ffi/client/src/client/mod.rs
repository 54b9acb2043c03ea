//! The engine's API in Rust: attach, channels for calls, lanes for steps. The C ABI is built on it.
//!
//! Called by engines, and by the daemon's demo and benchmarks, which are engines too. It does not know how the daemon decides;
//! `kvtide_types::Request` defines the meaning of each call.

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
pub mod relay;
pub mod request;
pub mod stats;
mod watch;

pub use crate::agent::attention::{Contract, DigestOptions, Element, KeyLayout};
pub use crate::memory::{MEMBERS_MAX, Owner, Piece, UNNAMED};
pub use channel::{Channel, Copied, Events, Found};
pub(crate) use error::Refusal;
pub use error::{Error, Result};
pub use lane::{Lane, Omission, Pass, Ready, ScoreKind, StepSeq};
pub use layout::{Layout, PlaneLayout};
pub use options::{BlockId, CudaDevice, DeviceChoice, FrameId, Options, SeqId, SpaceSpec};
pub use relay::{Progress, Relay};
pub use request::{Completed, Leased, Outcome, PageRange, Pin, Request, Ticket};
pub use stats::{DeviceCopies, Stats};
pub use watch::{SpaceChange, Watch};

use crate::{
    agent::protocol::seqs::SeqState,
    memory::{EngineBlocks, Numbering},
};
use inner::Inner;
use kvtide_wire::status::Status;
use std::{path::Path, sync::Arc};

/// A session with the daemon. Cheap to clone; it lives until its last clone, channel and lane are dropped.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

impl Client {
    /// Attach to the daemon: allocate tier 0, open the session, start its copy thread.
    ///
    /// # Errors
    /// [`Error::Options`], [`Error::Refused`] (`Permission`, `Version`, `Limit`, `Invalid`), [`Error::System`].
    pub fn attach(options: Options) -> Result<Client> {
        let connected = attach::connect(&options, None)?;
        Ok(Client { inner: attach::start(options, connected)? })
    }

    /// Open a new session with the daemon at `socket`, after this session's daemon has died. It takes over tier 0, and declares the
    /// sequences and the pages in tier 0 to the new daemon.
    ///
    /// Sequences keep their ids, get new block ids, and belong to the channel with the same index. Nothing is pinned or parked. A
    /// sequence with pages that only the old daemon held answers `Lost` to every call but `drop_seq`.
    ///
    /// All channels and lanes of this client must have been dropped; after success it has none.
    ///
    /// # Errors
    /// `State`: the daemon is alive, a channel or lane still exists, or an earlier reattach succeeded. Otherwise as
    /// [`Client::attach`]; the call may then be repeated.
    pub fn reattach(&self, socket: &Path) -> Result<Client> {
        Ok(Client { inner: reattach::reattach(&self.inner, socket)? })
    }

    /// Take channel `index`. Dropping it makes it available again; its sequences stay.
    ///
    /// # Errors
    /// `Range`: no such channel. `State`: it is in use. `Fork`.
    pub fn channel(&self, index: u16) -> Result<Channel> {
        Channel::new(self, index)
    }

    /// Take lane `index`. Dropping it ends its step and makes it available again.
    ///
    /// # Errors
    /// `Range`: no such lane. `State`: it is in use. `Fork`.
    pub fn lane(&self, index: u16) -> Result<Lane> {
        Lane::new(self, index)
    }

    /// Register the engine's own blocks: `count` blocks, with pages in `pieces` (see [`Piece`]). Replaces earlier blocks;
    /// without pieces it removes them. When it has returned, nothing accesses the earlier blocks. After [`Client::reattach`] the
    /// blocks must be registered again.
    ///
    /// # Errors
    /// [`Error::Options`]: the pieces do not match the planes' pages. `State`: loads or stores are in flight, or a call that timed
    /// out has not ended yet (see [`Channel::settle`]); they would continue with the new blocks. `Invalid`: tier 0 is on a
    /// device, and a device does not copy to these blocks. `Fork`.
    ///
    /// # Safety
    /// The memory of all pieces must stay readable and writable until the next call of this function, or until the last handle is
    /// dropped. While a load into a block or a store from it is in flight, no other code may write the block, nor read a block that
    /// is being loaded.
    pub unsafe fn set_blocks(&self, count: u32, pieces: &[Piece]) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.set_blocks_of(count, pieces, None) }
    }

    /// As [`Client::set_blocks`], with the `owner` of the memory. The owner is dropped when nothing reads or writes the memory any
    /// more: when a later call has replaced the blocks, or when the session is over ([`Client::detach`], or the drop of the last
    /// handle).
    ///
    /// # Errors
    /// As [`Client::set_blocks`]; the owner is then dropped.
    ///
    /// # Safety
    /// As [`Client::set_blocks`], except that the memory must stay only as long as the owner.
    pub unsafe fn set_blocks_of(&self, count: u32, pieces: &[Piece], owner: Option<Owner>) -> Result<()> {
        const DOING: &str = "register the engine's blocks, count";
        let session = &self.inner.session;
        session.ours().map_err(|status| Error::call(DOING, u64::from(count), status))?;
        let blocks = match pieces {
            [] => None,
            pieces => Some(EngineBlocks::new(session.shared.geometry(), count, pieces)?.owned(owner)),
        };
        self.show_blocks(blocks).map_err(|refusal| Error::refused(DOING, u64::from(count), refusal))
    }

    /// Name blocks that have pieces with several members. Names from `first` on get their ids: `ids` has one id for each member of
    /// each name. Every id is below the `count` of [`Client::set_blocks`], or all ids of a name are [`UNNAMED`], which removes the
    /// name. Loads and stores are then given names; an unknown name is rejected with `Range`. A later call may change a name's ids.
    ///
    /// # Errors
    /// Nothing is changed. [`Error::Options`]: incomplete names, or ids out of range. `State`: a load or store of one of the names
    /// is in flight, or blocks have only one member. `Limit`: more than 2^24 ids in total.
    pub fn name_blocks(&self, first: u32, ids: &[u32]) -> Result<()> {
        let refused = |refusal: Refusal| Error::refused("name blocks from name", u64::from(first), refusal);
        let session = &self.inner.session;
        session.ours().map_err(|status| refused(Refusal::from(status)))?;
        if session.is_copying() {
            self.inner.hear_free_channels();
        }
        // Calls that the daemon's death has ended hold no names, but a copy round that began earlier may still use them: exclude
        // it.
        let round = session.copy_loop();
        let numbering = session.numbering().clone();
        let set = numbering.names().map_err(refused)?.set(first, ids);
        drop(round);
        set
    }

    /// As [`Client::set_blocks`], with zeroed memory that the session allocates and keeps, for engines without memory to register.
    /// [`Client::with_block`] reads and writes it.
    ///
    /// # Errors
    /// As [`Client::set_blocks`]; [`Error::Options`]: the memory cannot be allocated.
    pub fn allocate_blocks(&self, count: u32) -> Result<()> {
        const DOING: &str = "allocate blocks for the engine, count";
        let session = &self.inner.session;
        session.ours().map_err(|status| Error::call(DOING, u64::from(count), status))?;
        let blocks = EngineBlocks::allocate(session.shared.geometry(), count)?;
        self.show_blocks(Some(blocks)).map_err(|refusal| Error::refused(DOING, u64::from(count), refusal))
    }

    fn show_blocks(&self, blocks: Option<EngineBlocks>) -> std::result::Result<(), Refusal> {
        const COPYING: &str = "loads or stores are in flight: wait for them; after a call that timed out, call settle";
        const ON_DEVICE: &str = "tier 0 is on a device; attach a session without tier 0 for the engine's own blocks";
        let session = &self.inner.session;
        if session.is_copying() {
            self.inner.hear_free_channels();
        }
        let before = {
            let mut copy_loop = session.copy_loop();
            // A request is counted under this lock before it is sent, so none is sent between the check and the exchange.
            let mut numbering = session.numbering();
            // Once the session is over, no round copies, even if a channel has not seen the end of its calls yet.
            if session.alive() && session.is_copying() {
                return Err(Refusal::because(Status::State, COPYING));
            }
            let theirs = blocks.as_ref().map_or(Numbering::Nothing, EngineBlocks::numbering);
            let before = copy_loop.set_blocks(blocks).map_err(|status| Refusal::because(status, ON_DEVICE))?;
            *numbering = theirs;
            before
        };
        drop(before); // outside the locks: the owner's drop must not delay a round
        Ok(())
    }

    /// Access a block's bytes in a plane, in memory from [`Client::allocate_blocks`], while no copy runs. `None`: no such block or
    /// plane, or the memory is the engine's own.
    pub fn with_block<T>(&self, block: u32, plane: u16, look: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        self.inner.session.ours().ok()?;
        self.inner.session.copy_loop().own_block(block, plane).map(look)
    }

    /// Return the memory layout of frames. Fixed for the session's life.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.inner.layout
    }

    /// Return the identity ([`Options::identity`]) of the last engine of this name with another fingerprint. `None` if this
    /// fingerprint had blocks at the attach, if no other one of the name has blocks, or if that engine gave no identity.
    #[must_use]
    pub fn other_identity(&self) -> Option<&str> {
        Some(self.inner.other_identity.as_str()).filter(|identity| !identity.is_empty())
    }

    /// Return whether the daemon exports traces of requests ([`Channel::trace`]).
    #[must_use]
    pub fn traces(&self) -> bool {
        self.inner.traces
    }

    /// Return a connection to the relay of this engine's domain, for questions about this space. `None`: the daemon names no relay
    /// (`relay_socket` of the domain), or the space stays on this machine. It connects when it is used first.
    ///
    /// # Errors
    /// The token file cannot be read.
    pub fn relay(&self) -> Result<Option<Relay>> {
        let Inner { options, relay_socket, .. } = &*self.inner;
        if relay_socket.is_empty() {
            return Ok(None);
        }
        let token = options.token_file.as_deref().map(attach::token).transpose()?;
        let (fingerprint, page_tokens) = (options.space.fingerprint, options.space.page_tokens);
        Ok(Some(Relay::new(relay_socket.into(), token, fingerprint, page_tokens)))
    }

    /// Return the totals since the attach.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.session.counters.snapshot()
    }

    /// Return how the session's copies are made; `None`: tier 0 is not on a device. Waits for a round of the copy loop.
    #[must_use]
    pub fn device_copies(&self) -> Option<DeviceCopies> {
        self.inner.session.ours().ok()?;
        self.inner.session.copy_loop().device_copies()
    }

    /// Return whether the daemon is alive, as far as is known.
    #[must_use]
    pub fn alive(&self) -> bool {
        self.inner.session.usable().is_ok()
    }

    /// End the session now: waits of other threads return `Daemon`. Tier 0 stays readable until the last handle is dropped. When
    /// this returns, the engine's own blocks are no longer accessed.
    pub fn detach(&self) {
        if self.inner.session.ours().is_ok() {
            self.inner.session.leave();
            self.inner.stop();
            let _ = self.show_blocks(None); // cannot fail: the session is over
        }
    }

    /// Return the block ids of a sequence, in order.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn seq_blocks(&self, seq: SeqId) -> Result<Vec<BlockId>> {
        let seqs = self.inner.session.shared.seqs();
        match seqs.state(seq) {
            SeqState::Free => {
                let none = Refusal::because(Status::NotFound, "there is no such sequence");
                Err(Error::refused("list blocks of sequence", u64::from(seq), none))
            }
            SeqState::Live | SeqState::Lost => Ok(seqs.block_ids(seq)),
        }
    }

    /// Return the address of a frame of tier 0; `None`: no such frame. It is fixed for the session's life. For engines that pass
    /// addresses to kernels; the lanes define when it may be read.
    #[must_use]
    pub fn frame_ptr(&self, frame: FrameId) -> Option<*mut u8> {
        self.inner.session.ours().ok()?;
        self.inner.session.tier0.frame(frame).map(|(at, _)| at)
    }
}
