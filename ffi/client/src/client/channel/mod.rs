//! A channel: the calls of one engine thread.
//!
//! [`Channel`] is the handle of the engine, and `state` what stays when no handle exists. It composes two parts, each with its own
//! facts: `calls` has the tickets and the requests in flight, `sequences` the channel's sequences and their changes that the
//! daemon does not know. `ops` has the operations, one file for each: how a call begins, its requests, and what their answers
//! change. An operation reaches the sequences only.

mod blocks;
mod calls;
pub(super) mod feed;
mod handle;
mod ops;
mod search;
mod sequences;
mod state;

pub use blocks::{Copied, Found};
pub use feed::Events;
pub use handle::Channel;
pub(crate) use state::State;
