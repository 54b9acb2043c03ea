//! A sequence of a kvtide space with tier 0 in any memory.

use std::time::Duration;

use kvtide_client::{Contract, DeviceChoice, Stats};

use super::sequence::Sequence;
use super::{Contracted, Kv, Omitted, OnDevice, Rows, SessionSpec, Tiered, TieredError};
use crate::demo::attention::Partials;

/// One sequence in one session.
pub enum Store {
    /// Tier 0 in host memory, attention on the host.
    Host(Tiered),
    /// The same with a contract other than exact.
    Contracted(Box<Contracted>),
    /// Tier 0 and attention on a device.
    Device(Box<OnDevice>),
}

impl Store {
    /// Attach. `pages`: maximum of the sequence per plane.
    ///
    /// # Errors
    /// The daemon cannot be reached or refuses, or the device is missing or fails.
    pub fn attach(spec: SessionSpec, pages: usize) -> Result<Store, TieredError> {
        match spec.device {
            DeviceChoice::Cpu => Tiered::attach(spec).map(Store::Host),
            _ => Ok(Store::Device(Box::new(OnDevice::attach(spec, pages, Contract::Exact)?))),
        }
    }

    /// Attach a sequence that is decoded with `contract`.
    ///
    /// # Errors
    /// As of [`Store::attach`].
    pub fn contracted(spec: SessionSpec, contract: Contract, pages: usize) -> Result<Store, TieredError> {
        match spec.device {
            DeviceChoice::Cpu => Ok(Store::Contracted(Box::new(Contracted::attach(spec, contract, pages)?))),
            _ => Ok(Store::Device(Box::new(OnDevice::attach(spec, pages, contract)?))),
        }
    }

    /// Return the totals of skipped attention; `None` with the contract exact.
    #[must_use]
    pub fn omitted(&self) -> Omitted {
        match self {
            Store::Contracted(store) => store.omitted(),
            Store::Device(store) => store.omitted(),
            Store::Host(_) => Omitted::default(),
        }
    }

    /// Return the driver's name of the device, if tier 0 is on one.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        match self {
            Store::Host(_) | Store::Contracted(_) => None,
            Store::Device(store) => Some(store.name()),
        }
    }

    /// Return the sequence.
    fn sequence(&self) -> &Sequence {
        match self {
            Store::Host(store) => &store.0,
            Store::Contracted(store) => &store.sequence,
            Store::Device(store) => &store.sequence,
        }
    }

    /// Return the session's counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.sequence().stats()
    }

    /// Return the time spent waiting for room for new tokens.
    #[must_use]
    pub fn waited_for_room(&self) -> Duration {
        self.sequence().waited_for_room()
    }
}

impl Kv for Store {
    type Error = TieredError;

    fn open(&mut self, tokens: usize) -> Result<(), TieredError> {
        match self {
            Store::Host(store) => store.open(tokens),
            Store::Contracted(store) => store.open(tokens),
            Store::Device(store) => store.open(tokens),
        }
    }

    fn attend(
        &mut self,
        plane: usize,
        rows: Rows<'_>,
        partials: &mut Partials,
        out: &mut [f32],
    ) -> Result<(), TieredError> {
        match self {
            Store::Host(store) => store.attend(plane, rows, partials, out),
            Store::Contracted(store) => store.attend(plane, rows, partials, out),
            Store::Device(store) => store.attend(plane, rows, partials, out),
        }
    }

    fn wants_ahead(&mut self) -> Result<bool, TieredError> {
        match self {
            Store::Contracted(store) => store.wants_ahead(),
            Store::Device(store) => store.wants_ahead(),
            Store::Host(_) => Ok(false),
        }
    }

    fn ahead(&mut self, plane: usize, queries: &[f32]) -> Result<(), TieredError> {
        match self {
            Store::Contracted(store) => store.ahead(plane, queries),
            Store::Device(store) => store.ahead(plane, queries),
            Store::Host(_) => Ok(()),
        }
    }

    fn apart(&self) -> Duration {
        match self {
            Store::Contracted(store) => store.apart(),
            Store::Device(store) => store.apart(),
            Store::Host(_) => Duration::ZERO,
        }
    }

    fn close(&mut self) -> Result<(), TieredError> {
        match self {
            Store::Host(store) => store.close(),
            Store::Contracted(store) => store.close(),
            Store::Device(store) => store.close(),
        }
    }
}
