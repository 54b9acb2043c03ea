//! Sessions whose tier 0 is on a device, against a small daemon in this process and the stand-in driver: streams that run late,
//! copies that end in any order, deaths and faults in between.
#![cfg(feature = "cuda")]

mod asynchronous;
mod batch;
#[path = "../session/fake.rs"]
#[allow(dead_code)] // what the CPU's tests use
mod fake;
mod faults;
mod order;
mod rig;
mod sketches;
mod small;
mod steps;
