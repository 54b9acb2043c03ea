//! All KV in one array, as in an engine without kvtide.

use std::convert::Infallible;
use std::io;

use memmap2::{Advice, MmapMut};
use zerocopy::FromBytes;

use super::KvStore;
use crate::demo::attention::{Page, pages_of};

/// `[planes][pages]`, allocated for the longest sequence at once. Like tier 0, it is on huge pages where the system has them;
/// otherwise the comparison would be one of page sizes.
pub struct Plain {
    bytes: MmapMut,
    pages_a_plane: usize,
    tokens: usize,
}

impl Plain {
    /// Allocate for `tokens_max` tokens in `planes` planes.
    ///
    /// # Errors
    /// The memory cannot be allocated.
    pub fn new(planes: usize, tokens_max: usize) -> io::Result<Plain> {
        let pages_a_plane = pages_of(tokens_max);
        let mut bytes = MmapMut::map_anon((planes * pages_a_plane * Page::BYTES).next_multiple_of(HUGE))?;
        // A system without huge pages rejects the advice, which only makes the array slower.
        let _ = bytes.advise(Advice::HugePage);
        // Page faults belong to the allocation, not to the first run.
        bytes.fill(0);
        Ok(Plain { bytes, pages_a_plane, tokens: 0 })
    }

    /// Return the byte range of `count` pages of a plane.
    fn range(&self, plane: usize, first: usize, count: usize) -> std::ops::Range<usize> {
        let start = (plane * self.pages_a_plane + first) * Page::BYTES;
        start..start + count * Page::BYTES
    }
}

/// A huge page of x86-64; Linux aligns maps to it only if their length is a multiple.
const HUGE: usize = 2 << 20;
/// Why the casts below cannot fail.
const WHOLE: &str = "the map begins on a page boundary and the range covers whole pages";

impl KvStore for Plain {
    type Error = Infallible;

    fn begin(&mut self, tokens: usize) -> Result<(), Infallible> {
        assert!(pages_of(tokens) <= self.pages_a_plane, "the array is sized for the longest sequence");
        self.tokens = tokens;
        Ok(())
    }

    fn tail(&mut self, plane: usize, index: usize) -> Result<&mut Page, Infallible> {
        let range = self.range(plane, index, 1);
        Ok(Page::mut_from_bytes(&mut self.bytes[range]).expect(WHOLE))
    }

    fn visit(&mut self, plane: usize, mut read: impl FnMut(usize, &Page)) -> Result<(), Infallible> {
        let pages = &self.bytes[self.range(plane, 0, pages_of(self.tokens))];
        let pages = <[Page]>::ref_from_bytes(pages).expect(WHOLE);
        for (index, page) in pages.iter().enumerate() {
            read(index, page);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}
