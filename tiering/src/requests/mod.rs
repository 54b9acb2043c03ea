//! Requests, from arrival to completion, and the order in which waiting work is issued.
//!
//! - `dispatch`: events by kind, requests by name
//! - `issue`: what is due, then the waiting work of each woken session, as far as the buffer has room
//! - `ops`: start, completion and end of a pending request, of whichever kind
//! - `done`: ends of jobs; `late`: jobs that do not end
//! - `attach`: sessions, from attach to the exit of the process
//! - `occupancy`: counts for status
//! - `check`: consistency of all tables, for tests and the simulator
//!
//! It decides nothing about pages: it calls `paging` and `block_api`, each lent the cache for one call.

mod attach;
mod check;
mod dispatch;
mod done;
mod issue;
mod late;
mod occupancy;
mod ops;

pub use occupancy::{Amount, Fill, Occupancy};

use crate::api::SpaceConfig;
use crate::block_api::{BlockApi, Copier};
use crate::blocks::BlockTable;
use crate::disk::DiskTier;
use crate::error::Error;
use crate::host::HostTier;
use crate::index::PrefixIndex;
use crate::layer::stands_on;
use crate::paging::{Pager, Paging, Prefetch};
use crate::sessions::PerSession;
use serde::{Deserialize, Serialize};

/// All requests of a space, over the cache that they use.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Requests {
    below: HostTier,
    pagers: PerSession<Pager>,
    copiers: PerSession<Copier>,
    /// State learned from attention. Allocated with the first `approx` sequence.
    prefetch: Option<Box<Prefetch>>,
}

stands_on!(Requests, HostTier);

impl Requests {
    pub fn new(cfg: SpaceConfig) -> Result<Requests, Error> {
        let below = HostTier::new(DiskTier::new(PrefixIndex::new(BlockTable::new(cfg.clone())?)));
        Ok(Requests {
            pagers: PerSession::new(cfg.limits.sessions_max),
            copiers: PerSession::new(cfg.limits.sessions_max),
            below,
            prefetch: None,
        })
    }

    fn paging(&mut self) -> Paging<'_> {
        Paging { below: &mut self.below, pagers: &mut self.pagers, prefetch: &mut self.prefetch }
    }

    fn block_api(&mut self) -> BlockApi<'_> {
        BlockApi { below: &mut self.below, copiers: &mut self.copiers }
    }

    /// Forget what was learned about the pages of blocks that were freed: their ids will be used again.
    fn forget_freed(&mut self) {
        let Requests { below, prefetch: Some(prefetch), .. } = self else { return };
        while let Some(b) = below.pop_freed() {
            (0..below.geo().planes.len() as u16).for_each(|plane| prefetch.forget(plane, b));
        }
    }

    /// Return the bytes of all tables, from their allocated capacities.
    pub fn bytes(&self) -> usize {
        size_of::<Requests>()
            + self.below.bytes()
            + self.pagers.bytes()
            + self.pagers.iter().map(Pager::bytes).sum::<usize>()
            + self.copiers.bytes()
            + self.copiers.iter().map(|c| c.copies.bytes()).sum::<usize>()
            + self.prefetch.as_ref().map_or(0, |p| p.bytes())
    }
}
