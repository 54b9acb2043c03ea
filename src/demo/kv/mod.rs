//! Where the engine's KV is: the seam between the model and what holds its pages.
//!
//! Two stores: [`Plain`], an array that is always there, against which everything is measured; and [`Tiered`], a
//! sequence of a kvtide space. The model's arithmetic is the same code over either.

mod plain;
mod tiered;

pub use plain::Plain;
pub use tiered::{Tiered, TieredError};

use super::attention::Page;

/// A store of one sequence's KV, driven step by step.
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
