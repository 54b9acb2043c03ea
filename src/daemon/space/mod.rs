//! One space and its core thread, which alone accesses the space's core, its sessions' rings and its slabs.
//!
//! ```text
//! control ──SpaceMessage──▶ core thread ──Report──▶ control
//!                             │   ▲  │ ▲
//!                 NodeMessage │   │  │ └─── Box<Transfer> ─── I/O threads
//!                             │   │  └───── DiskMessage ────▶
//!                             ▼   │ SpaceMessage
//!                          host thread
//! ```
//!
//! [`run`] is the loop: work, spin, sleep. [`serve`] passes engines' input to the core, [`deliver`] the core's actions to engines,
//! [`nvme`] those for disks; [`integrity_sample`] verifies a sample of pages end to end; [`attach`], [`end`] and [`read`] handle rare
//! events, [`operate`] what operators ask, [`restore`] the recovery before the first session.
//!
//! Must not depend on how a peer became a session, nor on where host memory and disk regions come from.

mod attach;
mod clock;
mod deliver;
mod end;
mod flight;
mod integrity_sample;
mod messages;
mod nvme;
mod operate;
mod read;
mod restore;
mod run;
mod serve;
mod session_entries;
mod slabs;
mod sleep;
mod status;

pub(crate) use messages::{AttachRequest, Granted, Left, Reconfigure, Region, Report, SpaceMessage};
pub(crate) use operate::{Operate, Operated, Operation};
pub(crate) use run::{SpaceThread, Spec};
pub use status::{SessionStatus, SpaceStatus};
