//! Attach, from connection to session: identify the peer, check its permission and its request, answer or refuse.
//!
//! Called by the control thread. Knows the socket, the configuration and the handshake messages; must not depend on what a space
//! does with a session.

mod handshake;
mod listener;
mod pending;
mod policy;
mod tokens;

pub(crate) use handshake::{Handshake, Progress, refuse};
pub(crate) use listener::{USE_DIR, bind, check, check_path, program};
pub(crate) use pending::{Pending, Places};
pub(crate) use policy::{Refusal, admit, bounds, domain_of, places, policy};
pub(crate) use tokens::{Tokens, read as read_token};
