//! All KV in one array: what an engine without kvtide has.

use std::convert::Infallible;

use zerocopy::FromZeros;

use super::KvStore;
use crate::demo::attention::{Page, pages_of};

/// `[planes][pages]`, allocated for the longest sequence at once.
pub struct Plain {
    pages: Vec<Page>,
    pages_a_plane: usize,
    tokens: usize,
}

impl Plain {
    /// Room for `tokens_max` tokens in `planes` planes.
    #[must_use]
    pub fn new(planes: usize, tokens_max: usize) -> Plain {
        let pages_a_plane = pages_of(tokens_max);
        let pages = std::iter::repeat_with(Page::new_zeroed).take(planes * pages_a_plane).collect();
        Plain { pages, pages_a_plane, tokens: 0 }
    }
}

impl KvStore for Plain {
    type Error = Infallible;

    fn begin(&mut self, tokens: usize) -> Result<(), Infallible> {
        assert!(pages_of(tokens) <= self.pages_a_plane, "the caller sized the array for its longest sequence");
        self.tokens = tokens;
        Ok(())
    }

    fn tail(&mut self, plane: usize, index: usize) -> Result<&mut Page, Infallible> {
        Ok(&mut self.pages[plane * self.pages_a_plane + index])
    }

    fn visit(&mut self, plane: usize, mut read: impl FnMut(usize, &Page)) -> Result<(), Infallible> {
        let pages = &self.pages[plane * self.pages_a_plane..][..pages_of(self.tokens)];
        for (index, page) in pages.iter().enumerate() {
            read(index, page);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}
