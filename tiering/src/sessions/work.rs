//! What each kind of pending request needs until it ends. How they proceed is in one file a request, in `paging` and `block_api`.

use crate::api::{Level, SeqId};
use crate::lists::List;
use serde::{Deserialize, Serialize};

/// Kind of a pending request, and its own state.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Work {
    Reserve(Reserve),
    Fork(Fork),
    Truncate(Truncate),
    AttachPrefix(AttachPrefix),
    Park(Park),
    Resume(Resume),
    Acquire(Acquire),
    Fault(Fault),
    Declare(Declare),
    Publish(Publish),
    Resize(Resize),
    Guarantee(Guarantee),
    Lease,
    Load(Load),
    LoadHashed(LoadHashed),
    Store(Store),
    Follow(Follow),
    List(Listing),
}

impl Work {
    /// Return whether it is a request of the block API; the others are requests of paging.
    pub fn is_block_api(&self) -> bool {
        use Work::{Follow, Lease, List, Load, LoadHashed, Store};
        matches!(self, Lease | Load(_) | LoadHashed(_) | Store(_) | Follow(_) | List(_))
    }

    /// Return the copies of a request that copies between host and the engine's own blocks.
    pub fn copies(&mut self) -> Option<&mut Copies> {
        match self {
            Work::Load(Load { copies, .. })
            | Work::LoadHashed(LoadHashed { copies })
            | Work::Store(Store { copies, .. }) => Some(copies),
            _ => None,
        }
    }
}

/// Implement the conversion of a request's state to [`Work`].
macro_rules! works {
    ($($variant:ident($state:ident)),* $(,)?) => {
        $(impl From<$state> for Work {
            fn from(state: $state) -> Work {
                Work::$variant(state)
            }
        })*
    };
}

works!(
    Reserve(Reserve),
    Fork(Fork),
    Truncate(Truncate),
    AttachPrefix(AttachPrefix),
    Park(Park),
    Resume(Resume),
    Acquire(Acquire),
    Fault(Fault),
    Declare(Declare),
    Publish(Publish),
    Resize(Resize),
    Guarantee(Guarantee),
    Load(Load),
    LoadHashed(LoadHashed),
    Store(Store),
    Follow(Follow),
    List(Listing),
);

/// Allocate new blocks for a sequence.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Reserve {
    /// Number of blocks.
    pub count: u32,
    /// Next page to give a frame: a block of the op's chain, `NONE` when all have one, and its plane.
    pub next: (u32, u16),
}

/// A block that is copied page by page into the only block of the op's chain.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct TailCopy {
    /// Block to copy, referenced until the end; `NONE`: nothing is copied.
    pub source: u32,
    /// Next page to copy: the new block, `NONE` when all are sent, and its plane.
    pub next: (u32, u16),
}

/// Copy the parent's unsealed block, then create the child.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Fork {
    pub child: SeqId,
    /// Tokens of the child.
    pub tokens: u64,
    /// Number of blocks that parent and child share.
    pub shared: u32,
    pub copy: TailCopy,
}

/// Copy the block that contains the cut, then truncate.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Truncate {
    /// Tokens that remain.
    pub tokens: u64,
    /// Blocks that remain, the copied one included.
    pub keep: u32,
    pub copy: TailCopy,
}

/// Attach cached blocks.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct AttachPrefix {
    /// Number of blocks of the sequence before.
    pub first: u32,
    /// Number of blocks attached.
    pub count: u32,
    /// Tokens of the sequence before.
    pub tokens: u64,
    /// A lookup has counted what was found.
    pub looked_up: bool,
}

/// Move unsealed pages out of tier 0.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Park {
    /// Next page to leave: the number of blocks that are left, and the plane in the last of them.
    pub left: (u32, u16),
}

/// Move unsealed pages back into tier 0.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Resume {
    /// Next page to load: block index and plane.
    pub next: (u32, u16),
    /// Its blocks count as unsealed again.
    pub started: bool,
}

/// An acquired range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pin {
    pub seq: u32,
    pub plane: u16,
    pub planes: u16,
    pub first: u32,
    pub count: u32,
}

/// Make the pages of a range resident and pin them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Acquire {
    pub range: Pin,
    /// Number of pages that are pinned.
    pub pinned: u32,
}

/// Make one page resident.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Fault {
    pub page: u32,
    /// Index of its block in the sequence.
    pub index: u32,
    /// The waiting lane, and its position.
    pub lane: u16,
    pub use_pos: u64,
    /// First use of the lane that does not end before it has the page.
    pub held_from: u64,
}

impl Fault {
    /// Return whether the lane waits for all pages of a plane and gives up none meanwhile.
    pub fn is_whole(&self) -> bool {
        self.held_from <= self.use_pos
    }
}

/// Declare one block with pages that are already in tier 0.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Declare {
    pub block: u32,
}

/// Wait until published blocks are stored, or durable.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Publish {
    /// Cache entry of the last block, until that is stored.
    pub entry: u32,
    /// Number of blocks.
    pub count: u32,
    pub level: Level,
    /// Number of the flush that it waits for, counted from 1; 0: it waits for a record.
    pub flush: u64,
}

/// Empty the frames at the end of a tier-0 class.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Resize {
    pub class: u8,
    /// Number of frames before, and the requested one.
    pub before: u32,
    pub frames: u32,
    /// The class has its new size.
    pub started: bool,
}

/// Guarantee a number of blocks.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Guarantee {
    pub blocks: u32,
}

/// Copies of a request between host and the engine's own blocks.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Copies {
    /// All of them; after the end, those that failed.
    pub list: List,
    /// Number of blocks that arrived, after the end.
    pub arrived: u32,
    /// The request ends with `Op::status` when none of its jobs is in flight.
    pub ending: bool,
}

/// Copy blocks of a sequence into the engine's own memory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Index of the first block in its sequence.
    pub first: u32,
    pub copies: Copies,
}

/// Copy blocks by their hashes into a relay's own memory.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LoadHashed {
    pub copies: Copies,
}

/// Copy blocks out of the engine's own memory into new blocks.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Store {
    /// Index of the first block in its prefix.
    pub first: u32,
    /// Hash of the parent of its first block; 0: none.
    pub parent: u128,
    /// Hash of the parent of its first new block, which is not dropped while the store is in progress; 0: none.
    pub above: u128,
    pub level: Level,
    /// Number of new blocks.
    pub new: u32,
    /// First of its copies that is not sent.
    pub next: u32,
    pub copies: Copies,
}

/// Wait for events of the feed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Follow {
    /// Number of the first event.
    pub from: u64,
}

/// List a part of the cache.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Listing {
    pub cursor: u64,
}
