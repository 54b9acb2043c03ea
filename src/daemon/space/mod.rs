//! One space and its core thread, which alone accesses the space's core, its sessions' rings and its slabs.
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
//! [`run`] is the loop: work, spin, sleep. [`serve`] passes engines' input to the core, [`deliver`] the core's actions to engines,
//! [`nvme`] those for disks; [`canary`] is the integrity sample; [`attach`], [`end`] and [`read`] handle rare events, [`restore`]
//! the recovery before the first session.
//!
//! Must not depend on how a peer became a session, nor on where host memory and disk regions come from.

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

pub use canary::CanaryTally;
pub(crate) use letters::{Granted, Left, Letter, Newcomer, Reconfigure, Region, Report};
pub(crate) use run::{SpaceThread, Spec};
pub use status::{SessionStatus, SpaceStatus};
