//! A sequence of a kvtide space: pages are where the page table says, and come in passes when they do not all fit.

use std::time::Duration;

use kvtide_client::{Pass, Stats};
use kvtide_wire::status::Status;
use zerocopy::FromBytes;

use super::KvStore;
use super::sequence::{Sequence, SessionSpec};
use crate::demo::attention::{Page, pages_of};

/// Why the KV of a step could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TieredError {
    /// A call of the client failed.
    #[error(transparent)]
    Client(#[from] kvtide_client::Error),
    /// There is no memory for the array that what is omitted is computed from.
    #[error("cannot allocate the array that omissions are computed from: {0}")]
    Shadow(#[source] std::io::Error),
    /// The lane said that a page is readable, or reserved and unsealed, and then did not show it as a whole page.
    #[error("page {index} of plane {plane} is not {what}")]
    Page {
        /// `readable` or `writable`.
        what: &'static str,
        /// Plane.
        plane: usize,
        /// Block index.
        index: usize,
    },
    /// The lane called a plane complete after another number of pages than it has.
    #[error("plane {plane} was complete after {read} of its {needed} pages")]
    Incomplete {
        /// Plane.
        plane: usize,
        /// Pages handed out.
        read: usize,
        /// Pages that attention needs.
        needed: usize,
    },
}

impl TieredError {
    /// The client's status, if this is one.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            TieredError::Client(error) => Some(error.status()),
            _ => None,
        }
    }
}

/// One sequence in one session.
pub struct Tiered(Sequence);

impl Tiered {
    /// Attaches with a tier 0 in plain memory.
    ///
    /// # Errors
    /// The daemon cannot be reached, or refuses.
    pub fn attach(spec: SessionSpec) -> Result<Tiered, TieredError> {
        Ok(Tiered(Sequence::attach(spec)?))
    }

    /// What the session counted so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// Time spent so far waiting for room for new tokens.
    #[must_use]
    pub fn waited_for_room(&self) -> Duration {
        self.0.waited_for_room()
    }

    fn show(&self, plane: usize, index: usize, read: &mut impl FnMut(usize, &Page)) -> Result<(), TieredError> {
        let page = self.0.lane.page(self.0.id(), index as u32, plane as u16);
        let page = page.and_then(|bytes| Page::ref_from_bytes(bytes).ok());
        read(index, page.ok_or(TieredError::Page { what: "readable", plane, index })?);
        Ok(())
    }
}

impl KvStore for Tiered {
    type Error = TieredError;

    fn begin(&mut self, tokens: usize) -> Result<(), TieredError> {
        let step = self.0.prepare(tokens)?;
        Ok(self.0.lane.begin(&[step])?)
    }

    fn tail(&mut self, plane: usize, index: usize) -> Result<&mut Page, TieredError> {
        let page = self.0.lane.page_mut(self.0.id(), index as u32, plane as u16);
        let page = page.and_then(|bytes| Page::mut_from_bytes(bytes).ok());
        page.ok_or(TieredError::Page { what: "writable", plane, index })
    }

    fn visit(&mut self, plane: usize, mut read: impl FnMut(usize, &Page)) -> Result<(), TieredError> {
        let needed = pages_of(self.0.tokens());
        let mut seen = 0;
        loop {
            let last = match self.0.lane.boundary(plane as u16)? {
                Pass::All => {
                    for index in 0..needed {
                        self.show(plane, index, &mut read)?;
                    }
                    return Ok(());
                }
                Pass::Part { last, .. } => last,
            };
            for ready in self.0.lane.ready() {
                self.show(plane, ready.index as usize, &mut read)?;
            }
            seen += self.0.lane.ready().len();
            if last && seen == needed {
                return Ok(());
            }
            if last {
                return Err(TieredError::Incomplete { plane, read: seen, needed });
            }
        }
    }

    fn end(&mut self) -> Result<(), TieredError> {
        self.0.end()
    }
}
