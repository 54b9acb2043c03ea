//! One space, one core thread: it alone owns the space's core, its sessions' rings and its slabs.
//!
//! ```text
//! control ──Letter──▶ core thread ──Report──▶ control
//!                      │   ▲  │ ▲
//!               NodeLetter │  │ └─── Box<Transfer> ─── I/O threads
//!                      │ Letter └─── DiskLetter ─────▶
//!                      ▼   │
//!                   host thread
//! ```
//!
//! [`run`] is the loop: work, spin, sleep. [`serve`] takes what engines wrote to the core, [`deliver`] the core's actions to
//! engines, [`nvme`] to disks; [`canary`] remembers what pages hashed to; [`attach`], [`end`] and [`read`] are what happens rarely,
//! [`restore`] once, before the first session.
//! It must not know how a peer became a session, nor where host memory and regions of disks come from.

mod attach;
mod canary;
mod clock;
mod deliver;
mod end;
mod flight;
mod letters;
mod nvme;
mod read;
mod restore;
mod run;
mod seats;
mod serve;
mod slabs;
mod sleep;
mod status;

pub(crate) use canary::CanaryTally;
pub(crate) use letters::{Granted, Left, Letter, Newcomer, Reconfigure, Region, Report};
pub(crate) use run::{SpaceThread, Spec};
pub(crate) use status::SpaceStatus;
