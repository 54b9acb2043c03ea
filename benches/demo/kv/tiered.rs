//! A sequence of a kvtide space: pages are found through the page table, and arrive in several passes if they do not all fit.

use kvtide_client::Pass;
use kvtide_wire::status::Status;
use zerocopy::FromBytes;

use super::KvStore;
use super::sequence::{Sequence, SessionSpec};
use crate::demo::attention::{Page, pages_of};

/// Errors of access to the KV of a step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TieredError {
    /// A client call failed.
    #[error(transparent)]
    Client(#[from] kvtide_client::Error),
    /// The plain array cannot be allocated.
    #[error("cannot allocate the array for measuring skipped attention: {0}")]
    Shadow(#[source] std::io::Error),
    /// The lane reported a page as readable or writable, but did not provide a whole page.
    #[error("page {index} of plane {plane} is not {what}")]
    Page {
        /// `readable` or `writable`.
        what: &'static str,
        /// The plane.
        plane: usize,
        /// The block index.
        index: usize,
    },
    /// The lane reported a plane as complete after the wrong number of pages.
    #[error("plane {plane} was complete after {read} of its {needed} pages")]
    Incomplete {
        /// The plane.
        plane: usize,
        /// Pages provided.
        read: usize,
        /// Pages that attention needs.
        needed: usize,
    },
}

impl TieredError {
    /// Return the client's status, if it is a client error.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            TieredError::Client(error) => Some(error.status()),
            _ => None,
        }
    }
}

/// One sequence in one session.
pub struct Tiered(pub(super) Sequence);

impl Tiered {
    /// Attach with tier 0 in host memory.
    ///
    /// # Errors
    /// The daemon cannot be reached or refuses.
    pub fn attach(spec: SessionSpec) -> Result<Tiered, TieredError> {
        Ok(Tiered(Sequence::attach(spec)?))
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
