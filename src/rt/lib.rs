//! Communication between the daemon's threads: mailboxes, published snapshots, histograms.
//!
//! Knows nothing of the product: no space, disk, session or page.
#![forbid(unsafe_code)]

pub mod histogram;
pub mod mail;
pub mod published;
