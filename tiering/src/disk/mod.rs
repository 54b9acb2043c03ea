//! The NVMe tier of a space: slots, transfers, log requests, the rule of admission, and the write budget.

mod admission;
mod bucket;
mod log_requests;
mod place;
mod slots;
mod transfers;

pub(crate) use admission::worthy;
pub(crate) use bucket::Bucket;
pub(crate) use log_requests::{LogRequest, LogRequestKind, LogRequests};
pub(crate) use place::{Choice, choose};
pub(crate) use slots::{Disk, Logged, Place};
pub(crate) use transfers::{Transfer, Transfers};
