//! The vocabulary of kvtide, declared once: status codes, geometry, requests, jobs.
//!
//! The core, the rings, the client, the C ABI and the flight recorder all use these types. It depends on no other
//! package of this repository and makes no system call. Only the classes of a geometry and the parsing of a contract allocate.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

#[macro_use]
mod codes;
#[macro_use]
mod messages;

mod cause;
mod contract;
mod feed;
pub mod geometry;
mod hash;
mod io;
mod job;
mod level;
mod policy;
pub mod random;
mod request;
mod size;
mod status;

pub use cause::{Cause, Tier};
pub use contract::{Advice, Contract};
pub use feed::FeedEvent;
pub use geometry::{GeometryError, Plane, PlaneKind};
pub use hash::{hash_from_hex, hash_hex};
pub use io::{IoClass, IoKind};
pub use job::{HostFrame, Job, JobKind, JobMessage, Victim};
pub use level::{Level, ScoreKind};
pub use messages::{List, NONE, Place, Raw};
pub use policy::{Admission, Codec, Eviction, FeatureUse, IoEngine};
pub use request::{LEASE_SHARE, Message, Op, Request};
pub use size::{ByteSize, Capacity, CapacityError, Human, Reserve, ReserveError, SizeError};
pub use status::Status;

/// Block id, dense within a space. A block is the pages of all planes of one shard at one page index.
pub type BlockId = u32;
/// Frame of one session's tier 0, dense over all size classes: class by class, in class order.
pub type FrameId = u32;
/// Index of a sequence among those of its session.
pub type SeqId = u32;
/// Lane of a session.
pub type LaneId = u16;
/// Hash of a block: of its tokens and of all tokens before it in the prefix. 0: none.
pub type Hash = u128;
