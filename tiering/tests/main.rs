//! Tests of the core, against a small fake of its environment. One program: each would compile the core's generic code again.
#![allow(clippy::unwrap_used)] // tests may unwrap

mod absences;
mod admission;
mod blocks;
mod calls;
mod ending;
mod evict;
mod faults;
mod feed;
mod first;
mod guarantee;
mod heal;
mod late;
mod mapped;
mod nvme;
mod operator;
mod persist;
mod placement;
mod prefetch;
mod pressure;
mod queued;
mod reclaim;
mod reconfigure;
mod recorder;
mod shortage;
