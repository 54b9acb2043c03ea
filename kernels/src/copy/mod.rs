//! Copies between host and device: many fragments at a time.
//!
//! Called by whoever moves pages. Addresses are resolved already; what lies there is not known here.

pub(crate) mod batch;
