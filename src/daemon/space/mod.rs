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
//! [`run`] is the loop: work, spin, sleep. It calls [`serve`], which passes events to the core and executes the core's actions on the
//! parts of a space. Each part owns its facts in private fields and calls no part above it: [`flight`] the core, [`sessions`] entries,
//! requests and jobs, [`nvme`] regions, transfers and log requests, [`slabs`] host memory, [`integrity_sample`] digests of pages.
//!
//! Must not depend on how a peer became a session, nor on where host memory and disk regions come from.

mod clock;
mod flight;
mod integrity_sample;
mod messages;
mod nvme;
mod operate;
mod run;
mod serve;
mod sessions;
mod slabs;
mod sleep;
mod status;

pub(crate) use messages::{AttachRequest, Granted, Left, Reconfigure, Region, Report, SpaceMessage, Spec};
pub(crate) use operate::{Operate, Operated, Operation};
pub(crate) use run::SpaceThread;
pub use status::{SessionStatus, SpaceStatus};
