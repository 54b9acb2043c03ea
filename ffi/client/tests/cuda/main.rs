//! Sessions with tier 0 on a device, against a small daemon in this process and a simulated CUDA driver: late streams,
//! copies that end in any order, deaths and faults.
#![cfg(feature = "cuda")]

mod asynchronous;
mod batch;
#[path = "../session/fake.rs"]
#[allow(dead_code)] // parts that only the CPU tests use
mod fake;
mod faults;
mod gates;
mod order;
mod rig;
mod sketches;
mod small;
mod steps;
