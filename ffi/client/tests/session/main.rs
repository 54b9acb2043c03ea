//! The client against a small daemon in this process: everything over real rings, sockets and shared memory, with a core that
//! does what the test tells it, dies when it is told to, and talks nonsense when it is told to.
#![cfg(not(loom))]

mod attention;
mod calls;
mod death;
mod fake;
mod nonsense;
mod pages;
