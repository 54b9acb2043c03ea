//! The client against a small daemon in this process, over real rings, sockets and shared memory. The daemon's core follows the
//! test's commands: it can die and send malformed answers on request.
#![cfg(not(loom))]

mod attention;
mod calls;
mod death;
mod fake;
mod nonsense;
mod pages;
mod refusals;
