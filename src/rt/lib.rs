//! What the daemon's threads use to talk to each other: mailboxes, published figures, histograms.
//!
//! Knows nothing of the product: no space, disk, session or page.
#![forbid(unsafe_code)]

pub mod histogram;
pub mod mail;
pub mod published;
