//! The seeded simulator: the shipped core, the shipped encoding of requests and jobs, and the agent's shipped protocol on simulated time, rings,
//! devices and faults, against a plain model.
#![forbid(unsafe_code)]

pub mod base;
pub mod coverage;
pub mod disk;
pub mod episode;
pub mod failure;
pub mod flight;
pub mod frozen;
pub mod geometry;
pub mod memory;
pub mod model;
pub mod mutant;
pub mod own;
pub mod ring;
pub mod run;
pub mod world;
