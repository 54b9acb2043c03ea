//! Storage of the engine's KV: the interface between the model and the stores of pages.
//!
//! [`Kv`] is the interface for the model. Two stores give the host access to their pages ([`KvStore`]) and share the host's
//! attention: [`Plain`], an array that serves as the reference, and [`Tiered`], a sequence of a kvtide space. [`Contracted`] is
//! such a sequence read with a contract other than exact. [`OnDevice`] has its tier 0 on a device; kernels write and read the
//! pages. [`Store`] is any of the kvtide stores.

mod audit;
mod contracted;
mod device;
mod plain;
mod sequence;
mod store;
mod tiered;

pub use contracted::{Contracted, Omitted, digests};
pub use device::{OnDevice, PAGE_BYTES as DEVICE_PAGE_BYTES};
pub use plain::Plain;
pub use sequence::SessionSpec;
pub use store::Store;
pub use tiered::{Tiered, TieredError};

use std::time::Duration;

use super::attention::{HEAD_DIM, KV_HEADS, PAGE_TOKENS, Page, Partials, merge, split};

/// Data of a step's tokens for a plane.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Position of the first token.
    pub start: usize,
    /// Queries (after RoPE, scaled), `[tokens][Q_HEADS][HEAD_DIM]`.
    pub q: &'a [f32],
    /// Keys (after RoPE), `[tokens][KV_HEADS][HEAD_DIM]`.
    pub k: &'a [f32],
    /// Values, likewise.
    pub v: &'a [f32],
}

/// A store of one sequence's KV, used step by step: `open`, then each plane in order, then `close`.
pub trait Kv {
    /// Error type.
    type Error;

    /// Begin a step that covers the positions below `tokens`.
    ///
    /// # Errors
    /// There is no room, or the store has failed.
    fn open(&mut self, tokens: usize) -> Result<(), Self::Error>;

    /// Store the new tokens' keys and values of a plane, and compute the attention of their queries to all positions up to their
    /// own; `partials` is scratch space.
    ///
    /// # Errors
    /// A page cannot be written or read.
    fn attend(
        &mut self,
        plane: usize,
        rows: Rows<'_>,
        partials: &mut Partials,
        out: &mut [f32],
    ) -> Result<(), Self::Error>;

    /// Return true if the store wants a prediction of the next plane's queries before a plane is attended to.
    ///
    /// # Errors
    /// The store has failed.
    fn wants_ahead(&mut self) -> Result<bool, Self::Error> {
        Ok(false)
    }

    /// Report the predicted queries of the later plane `plane`.
    ///
    /// # Errors
    /// The store has failed.
    fn ahead(&mut self, plane: usize, queries: &[f32]) -> Result<(), Self::Error> {
        let _ = (plane, queries);
        Ok(())
    }

    /// Return the time spent so far on measurements, which does not count for the steps.
    fn apart(&self) -> Duration {
        Duration::ZERO
    }

    /// End the step and commit all its tokens.
    ///
    /// # Errors
    /// The store has failed.
    fn close(&mut self) -> Result<(), Self::Error>;
}

impl<S: KvStore> Kv for S {
    type Error = S::Error;

    fn open(&mut self, tokens: usize) -> Result<(), S::Error> {
        self.begin(tokens)
    }

    fn attend(
        &mut self,
        plane: usize,
        rows: Rows<'_>,
        partials: &mut Partials,
        out: &mut [f32],
    ) -> Result<(), S::Error> {
        let Rows { start, q, k, v } = rows;
        let width = KV_HEADS * HEAD_DIM;
        for (t, (k, v)) in k.chunks_exact(width).zip(v.chunks_exact(width)).enumerate() {
            let position = start + t;
            self.tail(plane, position / PAGE_TOKENS)?.write(position % PAGE_TOKENS, k, v);
        }
        partials.begin(k.len() / width);
        self.visit(plane, |index, page| split(&page.heads, index, q, start, partials.page_mut(index)))?;
        merge(partials, start, out);
        Ok(())
    }

    fn close(&mut self) -> Result<(), S::Error> {
        self.end()
    }
}

/// A store with pages that the host reads and writes, used step by step.
///
/// A step is `begin`, then for each plane in order the new tokens' `tail` pages and one `visit`, then `end`.
pub trait KvStore {
    /// Error type.
    type Error;

    /// Begin a step that covers the positions below `tokens`. Uncommitted positions can be written from now on.
    ///
    /// # Errors
    /// There is no room, or the store has failed.
    fn begin(&mut self, tokens: usize) -> Result<(), Self::Error>;

    /// Return the page of the current step's uncommitted tokens at block `index` of `plane`.
    ///
    /// # Errors
    /// The page is not writable.
    fn tail(&mut self, plane: usize, index: usize) -> Result<&mut Page, Self::Error>;

    /// Call `read` for every page of `plane` with positions of this step, once, in any order.
    ///
    /// # Errors
    /// A page cannot be read.
    fn visit(&mut self, plane: usize, read: impl FnMut(usize, &Page)) -> Result<(), Self::Error>;

    /// End the step and commit all its tokens.
    ///
    /// # Errors
    /// The store has failed.
    fn end(&mut self) -> Result<(), Self::Error>;
}
