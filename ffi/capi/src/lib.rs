//! The C ABI: `kvtide.h` is made from this folder (see `ffi/capi/tests/header.rs`), one file for each type of handle.
//!
//! Called by programs in C and by whatever can call C; nothing in Rust calls it. It translates: handles to the client's types
//! (`table`), pointers to slices, errors to status codes with a text (`error`), panics to `KVT_EINTERNAL` (`entry`). It decides
//! nothing, and knows neither the wire nor the agent; what a call does is described at the client.
//!
//! Names are C's on purpose: what stands in the header stands here.
#![allow(non_camel_case_types)]

pub mod attention;
pub mod batch;
pub mod blocks;
pub mod channel;
pub mod client;
pub mod device;
mod entry;
pub mod error;
mod gpu;
pub mod kernels;
pub mod lane;
pub mod layout;
pub mod pin;
pub mod request;
pub mod scores;
mod sized;
pub mod space;
pub mod status;
mod table;
pub mod version;
