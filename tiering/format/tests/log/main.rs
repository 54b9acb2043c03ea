//! The index log in memory: recovery after restarts, compactions, damage and power cuts.

#![allow(clippy::unwrap_used)]

mod basic;
mod cipher;
mod crash;
mod damage;
mod flip;
mod model;
mod ram;
