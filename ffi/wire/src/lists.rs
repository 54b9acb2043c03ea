//! Lists that are longer than a ring entry: one area of [`LIST_WORDS`] words for each tag and direction.
//!
//! The writer fills the area before it hands the entry over. It does not touch the area again until the request's completion has
//! arrived (requests) or the tag is used again (answers). The hand-over of the entry orders the words. The reader copies the words
//! out exactly once and examines the copy, so later changes by the peer have no effect.

use crate::entry::LIST_WORDS;
use crate::error::Error;
use crate::sync::{AtomicU32, Ordering};
use crate::trace::TraceContext;

/// Words of a 128-bit hash in a list, low word first.
pub const HASH_WORDS: usize = 4;
/// Words of a trace context behind the list of a request: trace id and span id, low word first.
pub const TRACE_WORDS: usize = 6;
/// Maximum words in the list of a request, so that a trace context has room behind it.
pub const WORDS_MAX: usize = LIST_WORDS - TRACE_WORDS;
/// Maximum hashes in the list of a request.
pub const HASHES_MAX: usize = WORDS_MAX / HASH_WORDS;
/// Maximum blocks in the list of a request that holds a hash for each of them.
pub const HASHED_BLOCKS_MAX: usize = WORDS_MAX / (HASH_WORDS + 1);

/// List area of one tag in shared memory.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ListArea {
    /// The words, little endian.
    pub words: [AtomicU32; LIST_WORDS],
}

/// A private copy of a list.
#[derive(Clone, Debug)]
pub struct List {
    words: [u32; LIST_WORDS],
    len: usize,
}

impl Default for List {
    fn default() -> Self {
        List { words: [0; LIST_WORDS], len: 0 }
    }
}

impl List {
    /// Return the copied words.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words[..self.len]
    }

    /// Remove the trace context at the end, and return it. `None`: there is none, or an id is 0.
    pub fn take_trace(&mut self) -> Option<TraceContext> {
        let (_, words) = self.words().split_last_chunk::<TRACE_WORDS>()?;
        let [a, b, c, d, low, high] = *words;
        let (trace, parent) = (hash_of([a, b, c, d]), u64::from(high) << 32 | u64::from(low));
        self.len -= TRACE_WORDS;
        (trace != 0 && parent != 0).then_some(TraceContext { trace, parent })
    }

    /// Return the copied words as hashes; an error if their number is not a multiple of [`HASH_WORDS`].
    pub fn hashes(&self) -> Result<impl ExactSizeIterator<Item = u128> + '_, Error> {
        let (hashes, rest) = self.words().as_chunks::<HASH_WORDS>();
        if !rest.is_empty() {
            return Err(Error::Message {
                message: "list",
                field: "hash words",
                found: alloc::format!("{}", self.len),
                expected: alloc::format!("a multiple of {HASH_WORDS}"),
            });
        }
        Ok(hashes.iter().map(|w| hash_of(*w)))
    }
}

/// Return a hash from its words, low word first.
#[must_use]
pub fn hash_of(words: [u32; HASH_WORDS]) -> u128 {
    words.iter().rev().fold(0, |hash, word| hash << 32 | u128::from(*word))
}

/// Return a hash as words, low word first.
#[must_use]
pub fn hash_words(hash: u128) -> [u32; HASH_WORDS] {
    core::array::from_fn(|i| (hash >> (32 * i)) as u32)
}

fn bound(len: u64) -> Result<usize, Error> {
    if len > LIST_WORDS as u64 {
        return Err(Error::Bound { what: "words of a list", value: len, min: 0, max: LIST_WORDS as u64 });
    }
    Ok(len as usize)
}

impl ListArea {
    /// Create an empty area, for private memory (models, tests).
    #[must_use]
    pub fn new() -> ListArea {
        ListArea { words: core::array::from_fn(|_| AtomicU32::new(0)) }
    }

    /// Copy `len` words, the untrusted length in an entry, into `list`. If `len` exceeds the bound, return an error and copy
    /// nothing.
    pub fn copy_out(&self, len: u32, list: &mut List) -> Result<(), Error> {
        list.len = 0;
        let len = bound(u64::from(len))?;
        for (copy, word) in list.words.iter_mut().zip(&self.words[..len]) {
            *copy = word.load(Ordering::Relaxed);
        }
        list.len = len;
        Ok(())
    }

    /// Write a list; return its length for the entry.
    pub fn write(&self, list: &[u32]) -> Result<u32, Error> {
        self.write_hashes(&[], list)
    }

    /// Write hashes, [`HASH_WORDS`] words each, then words; return the length in words for the entry.
    pub fn write_hashes(&self, hashes: &[u128], words: &[u32]) -> Result<u32, Error> {
        let len = bound(hashes.len() as u64 * HASH_WORDS as u64 + words.len() as u64)?;
        let (before, after) = self.words.split_at(hashes.len() * HASH_WORDS);
        for (word, value) in before.iter().zip(hashes.iter().flat_map(|hash| hash_words(*hash))) {
            word.store(value, Ordering::Relaxed);
        }
        for (word, value) in after.iter().zip(words) {
            word.store(*value, Ordering::Relaxed);
        }
        Ok(len as u32)
    }

    /// Write a trace context behind a list of `len` words.
    pub fn write_trace(&self, len: u32, context: &TraceContext) -> Result<(), Error> {
        let end = bound(u64::from(len) + TRACE_WORDS as u64)?;
        let [a, b, c, d] = hash_words(context.trace);
        let words = [a, b, c, d, context.parent as u32, (context.parent >> 32) as u32];
        for (word, value) in self.words[end - TRACE_WORDS..end].iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Default for ListArea {
    fn default() -> Self {
        ListArea::new()
    }
}
