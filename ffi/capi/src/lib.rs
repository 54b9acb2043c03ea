//! The C ABI of kvtide: one file per subject. The headers are generated from this folder (see
//! `ffi/capi/tests/header.rs`, which lists the files of each header).
//!
//! The crate only translates: handles to the client's types (`table`), pointers to slices, errors to status codes with
//! a text (`error`), panics to `KVT_EINTERNAL` (`entry`). It makes no decisions and does not access rings or the agent.
//! `kvtide_client` documents the behaviour of each call. C and other languages call this crate; no Rust code does.
//!
//! Types have C names, the same as in the header.
#![allow(non_camel_case_types)]

pub mod blocks;
pub mod channel;
pub mod client;
pub mod device;
mod entry;
pub mod error;
pub mod lane;
pub mod layout;
pub mod pin;
pub mod relay;
pub mod request;
pub mod scores;
pub mod sequences;
mod sized;
pub mod space;
pub mod status;
pub mod submit;
mod table;
pub mod version;
