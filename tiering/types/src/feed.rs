//! Changes of the cache of a space, for relays.

use crate::{Hash, Status};

/// A change of the cache, in the order in which it happened. A block of several shards counts as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedEvent {
    /// The reader was too slow, or has not listed the cache yet: its view is void, and it lists the cache again.
    Gap,
    /// Every shard has its part of a block, so lookups find it. Its ancestors came before.
    Stored {
        /// Hash of the block.
        hash: Hash,
        /// Hash of its parent; 0: none.
        parent: Hash,
        /// A relay stored it.
        relayed: bool,
    },
    /// A block that was stored is on NVMe and recorded, in all shards.
    Recorded {
        /// Hash of the block.
        hash: Hash,
    },
    /// A block that was stored is gone.
    Removed {
        /// Hash of the block.
        hash: Hash,
    },
    /// An engine attached or leased a prefix.
    Used {
        /// Hash of the last block.
        hash: Hash,
        /// Number of blocks.
        count: u32,
    },
}

const GAP: u32 = 0;
const STORED: u32 = 1;
const RECORDED: u32 = 2;
const REMOVED: u32 = 3;
const USED: u32 = 4;

impl FeedEvent {
    /// Words of an event in a result list: kind, number, hash and parent (least significant word first).
    pub const WORDS: usize = 10;

    /// Return the words of the event.
    #[must_use]
    pub fn encode(self) -> [u32; FeedEvent::WORDS] {
        let (kind, number, hash, parent) = match self {
            FeedEvent::Gap => (GAP, 0, 0, 0),
            FeedEvent::Stored { hash, parent, relayed } => (STORED, relayed.into(), hash, parent),
            FeedEvent::Recorded { hash } => (RECORDED, 0, hash, 0),
            FeedEvent::Removed { hash } => (REMOVED, 0, hash, 0),
            FeedEvent::Used { hash, count } => (USED, count, hash, 0),
        };
        let word = |hash: Hash, i: u32| (hash >> (32 * i)) as u32;
        let [hash, parent] = [hash, parent].map(|h| [0, 1, 2, 3].map(|i| word(h, i)));
        [kind, number, hash[0], hash[1], hash[2], hash[3], parent[0], parent[1], parent[2], parent[3]]
    }

    /// Return the event of these words.
    ///
    /// # Errors
    /// [`Status::Invalid`]: an unknown kind, or a field that the kind does not have.
    pub fn decode(words: [u32; FeedEvent::WORDS]) -> Result<FeedEvent, Status> {
        let [kind, number, words @ ..] = words;
        let hash_at = |at: usize| words[at..at + 4].iter().rev().fold(0, |hash, &word| hash << 32 | Hash::from(word));
        let (hash, parent) = (hash_at(0), hash_at(4));
        let event = match (kind, number) {
            (GAP, _) => FeedEvent::Gap,
            (STORED, 0 | 1) => FeedEvent::Stored { hash, parent, relayed: number == 1 },
            (RECORDED, _) => FeedEvent::Recorded { hash },
            (REMOVED, _) => FeedEvent::Removed { hash },
            (USED, count) => FeedEvent::Used { hash, count },
            _ => return Err(Status::Invalid),
        };
        // The reader of one version and the daemon of another would not mean the same.
        let [first, second, ..] = event.encode();
        let exact = (first, second) == (kind, number) && event.encode()[2..] == words[..];
        if exact { Ok(event) } else { Err(Status::Invalid) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_and_nothing_else() {
        let (hash, parent) = (0x1234 << 96 | 5, 0xabcd << 100 | 6);
        let events = [
            FeedEvent::Gap,
            FeedEvent::Stored { hash, parent, relayed: false },
            FeedEvent::Stored { hash, parent: 0, relayed: true },
            FeedEvent::Recorded { hash },
            FeedEvent::Removed { hash },
            FeedEvent::Used { hash, count: u32::MAX },
        ];
        for event in events {
            let words = event.encode();
            assert_eq!(FeedEvent::decode(words), Ok(event));
            let stored = matches!(event, FeedEvent::Stored { .. });
            let mut with_parent = words;
            with_parent[9] ^= 1;
            assert_eq!(FeedEvent::decode(with_parent).is_ok(), stored, "only a stored block has a parent");
            assert_eq!(FeedEvent::decode([9, words[1], 0, 0, 0, 0, 0, 0, 0, 0]), Err(Status::Invalid));
        }
        assert_eq!(FeedEvent::decode([STORED, 2, 1, 0, 0, 0, 0, 0, 0, 0]), Err(Status::Invalid));
    }
}
