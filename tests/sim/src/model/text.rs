//! The expected content of a sequence's pages, in one vector.
//!
//! A token's content depends on all tokens before it, as in KV, so it is identified by the hash of its prefix. Two sequences with
//! the same beginning have the same content there; a page of another sequence, index, plane or shard has different content.

use crate::base::mix;
use crate::memory::Tag;
use kvtide_wire::geometry::{Plane, PlaneKind};

/// State of a block that was cut.
const UNKNOWN: u64 = 0;

/// The tokens that an engine wrote to one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// Hash of the prefix that ends with each token.
    prefix: Vec<u64>,
    /// For each block, the prefix hash of the token that was written last into it: the content of its recurrent-state pages. A
    /// recurrence cannot be rewound, so the state is [`UNKNOWN`] after a cut within the block.
    state: Vec<u64>,
}

impl Text {
    /// Return the number of tokens written.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.prefix.len() as u64
    }

    /// Return whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.prefix.is_empty()
    }

    /// Append a token.
    pub fn push(&mut self, token: u64, page_tokens: u32) {
        let prefix = mix(self.prefix.last().copied().unwrap_or(1), token);
        self.prefix.push(prefix);
        let block = (self.prefix.len() - 1) / page_tokens as usize;
        self.state.truncate(block + 1);
        if self.state.len() == block {
            self.state.push(prefix);
        } else {
            self.state[block] = prefix;
        }
    }

    /// Truncate to `tokens`, as the system does. The recurrent state of a block that was cut is unknown.
    pub fn truncate(&mut self, tokens: u64, page_tokens: u32) {
        let cut = tokens < self.len() && !tokens.is_multiple_of(u64::from(page_tokens));
        self.reject(tokens, page_tokens);
        if let Some(last) = self.state.last_mut().filter(|_| cut) {
            *last = UNKNOWN;
        }
    }

    /// Mark the recurrent state of the newest block as unknown, because the block may contain rejected tokens.
    pub fn spoil(&mut self) {
        if let Some(last) = self.state.last_mut() {
            *last = UNKNOWN;
        }
    }

    /// Reject the tokens beyond `tokens`: pages contain them until they are overwritten.
    pub fn reject(&mut self, tokens: u64, page_tokens: u32) {
        self.prefix.truncate(tokens as usize);
        self.state.truncate((tokens as usize).div_ceil(page_tokens as usize));
    }

    /// Return the expected content of slot `slot` of the page at `block` of plane `plane`, or `None` if nothing below `tokens` was
    /// written there.
    #[must_use]
    pub fn expected(
        &self,
        spec: &Plane,
        plane: u16,
        shard: u16,
        at: (u32, usize),
        tokens: u64,
        page_tokens: u32,
    ) -> Option<Tag> {
        let (block, slot) = at;
        let token = u64::from(block) * u64::from(page_tokens) + slot as u64;
        let prefix = if spec.kind == PlaneKind::State {
            *self.state.get(block as usize).filter(|state| **state != UNKNOWN)?
        } else if token < tokens {
            *self.prefix.get(token as usize)?
        } else {
            return None;
        };
        Some(tag(prefix, plane, shard))
    }

    /// Return the content hash of block `block`; `None` unless all its tokens are written and its recurrent state is that of its
    /// end.
    #[must_use]
    pub fn hash(&self, block: u32, page_tokens: u32) -> Option<u128> {
        let end = *self.prefix.get((block as usize + 1) * page_tokens as usize - 1)?;
        (self.state.get(block as usize) == Some(&end)).then(|| wide(end))
    }
}

/// Return the content of a token slot after the engine wrote the token that ends `prefix`.
#[must_use]
pub fn tag(prefix: u64, plane: u16, shard: u16) -> Tag {
    mix(prefix, u64::from(plane) << 16 | u64::from(shard)) & !(1 << 63)
}

/// Return the block indices that a read of `tokens` tokens needs: a full plane needs the block of every token, a window those of
/// its last tokens, recurrent state that of the newest token.
#[must_use]
pub fn needed(spec: &Plane, tokens: u64, page_tokens: u32) -> std::ops::Range<u32> {
    let block_of = |token: u64| (token / u64::from(page_tokens)) as u32;
    let Some(newest) = tokens.checked_sub(1) else { return 0..0 };
    let oldest = match spec.kind {
        PlaneKind::Full => 0,
        PlaneKind::Window { tokens: window } => tokens.saturating_sub(u64::from(window)),
        PlaneKind::State => newest,
    };
    block_of(oldest)..block_of(newest) + 1
}

fn wide(end: u64) -> u128 {
    u128::from(mix(end, 1)) << 64 | u128::from(mix(end, 2))
}

#[cfg(test)]
mod tests {
    use super::Text;
    use kvtide_wire::geometry::{Plane, PlaneKind};

    fn text(tokens: &[u64]) -> Text {
        let mut text = Text::default();
        tokens.iter().for_each(|t| text.push(*t, 2));
        text
    }

    #[test]
    fn equal_prefixes_hold_equal_content_and_others_none_of_it() {
        let full = Plane::full(0);
        let (a, b) = (text(&[1, 2, 3, 4]), text(&[1, 2, 9, 4]));
        let at = |t: &Text, block, slot| t.expected(&full, 0, 0, (block, slot), t.len(), 2);
        assert_eq!(at(&a, 0, 1), at(&b, 0, 1));
        assert_ne!(at(&a, 1, 1), at(&b, 1, 1), "the fourth token is equal, its prefix is not");
        assert_ne!(at(&a, 0, 0), at(&a, 0, 1));
        assert_eq!(a.expected(&full, 0, 0, (1, 1), 3, 2), None);
        assert_eq!((a.hash(0, 2) == b.hash(0, 2), a.hash(1, 2) == b.hash(1, 2), a.hash(2, 2)), (true, false, None));
    }

    #[test]
    fn recurrent_state_is_not_rewound() {
        let state = Plane { kind: PlaneKind::State, ..Plane::full(0) };
        let mut a = text(&[1, 2, 3, 4]);
        let before = a.expected(&state, 0, 0, (1, 0), 4, 2);
        a.reject(3, 2);
        assert_eq!(a.expected(&state, 0, 0, (1, 1), 3, 2), before);
        a.push(4, 2);
        assert_eq!(a, text(&[1, 2, 3, 4]));
        a.truncate(3, 2);
        assert_eq!((a.expected(&state, 0, 0, (1, 0), 3, 2), a.hash(1, 2)), (None, None));
    }
}
