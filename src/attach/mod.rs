//! From a connection to a session: who the peer is, whether it may attach, what it wants, and what it is told if it may not.
//!
//! The control thread calls it. It knows the socket, the configuration and the handshake's words; it must not know what a
//! space does with a session.

mod handshake;
mod listener;
mod pending;
mod policy;
mod tokens;

pub(crate) use handshake::{Handshake, Progress, refuse};
pub(crate) use listener::bind;
pub(crate) use pending::{Pending, Places};
pub(crate) use policy::{Refusal, admit, bounds, domain_of, places, policy};
pub(crate) use tokens::{Tokens, read as read_token};
