//! Where the engine's KV is: the seam between the model and what holds its pages.
//!
//! [`Kv`] is what the model asks of it. Two stores show their pages to the host ([`KvStore`]) and share the host's attention:
//! [`Plain`], an array that is always there, against which everything is measured; and [`Tiered`], a sequence of a kvtide space.
//! [`Contracted`] is such a sequence that is read by another contract than exact. [`OnDevice`] is one with its tier 0 on a device, whose kernels write and read the pages;
//! [`Store`] is either.

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

/// What a step's tokens bring to a plane.
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

/// What the model asks of a store of one sequence's KV, step by step: `open`, then each plane in order, then `close`.
pub trait Kv {
    /// What can go wrong.
    type Error;

    /// Begins a step that covers the positions below `tokens`.
    ///
    /// # Errors
    /// There is no room, or the store is gone.
    fn open(&mut self, tokens: usize) -> Result<(), Self::Error>;

    /// Keeps the new tokens' keys and values of a plane and has their queries attend to all positions up to themselves; `partials`
    /// is working room.
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

    /// Whether the store wants to be told, before a plane is attended to, what the next plane's queries will be like.
    ///
    /// # Errors
    /// The store is gone.
    fn wants_ahead(&mut self) -> Result<bool, Self::Error> {
        Ok(false)
    }

    /// What the queries of `plane`, which is still to come, will be like.
    ///
    /// # Errors
    /// The store is gone.
    fn ahead(&mut self, plane: usize, queries: &[f32]) -> Result<(), Self::Error> {
        let _ = (plane, queries);
        Ok(())
    }

    /// Time spent so far that belongs to what is measured about the steps, not to the steps.
    fn apart(&self) -> Duration {
        Duration::ZERO
    }

    /// Ends the step and commits all its tokens.
    ///
    /// # Errors
    /// The store is gone.
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
        self.visit(plane, |index, page| split(page, index, q, start, partials.page_mut(index)))?;
        merge(partials, start, out);
        Ok(())
    }

    fn close(&mut self) -> Result<(), S::Error> {
        self.end()
    }
}

/// A store whose pages the host reads and writes, driven step by step.
///
/// A step is `begin`, then for each plane in order the new tokens' `tail` pages and one `visit`, then `end`.
pub trait KvStore {
    /// What can go wrong.
    type Error;

    /// Begins a step that covers the positions below `tokens`; those not committed yet can be written from here on.
    ///
    /// # Errors
    /// There is no room, or the store is gone.
    fn begin(&mut self, tokens: usize) -> Result<(), Self::Error>;

    /// The page of the current step's uncommitted tokens at block `index` of `plane`.
    ///
    /// # Errors
    /// The page is not writable.
    fn tail(&mut self, plane: usize, index: usize) -> Result<&mut Page, Self::Error>;

    /// Shows every page of `plane` that holds positions of this step, once, in any order.
    ///
    /// # Errors
    /// A page cannot be read.
    fn visit(&mut self, plane: usize, read: impl FnMut(usize, &Page)) -> Result<(), Self::Error>;

    /// Ends the step and commits all its tokens.
    ///
    /// # Errors
    /// The store is gone.
    fn end(&mut self) -> Result<(), Self::Error>;
}
