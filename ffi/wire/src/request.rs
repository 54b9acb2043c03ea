//! Requests in ring entries: [`Request`] to [`Submission`] and back.
//!
//! Checked here are only the things that the core cannot see: codes, and that the list's length matches the counts. The core checks
//! whether a sequence, a range or a lane exists.

use crate::entry::{LIST_WORDS, Op, Submission, TRACED};
use crate::lists::{HASH_WORDS, hash_of};
use alloc::vec::Vec;
use kvtide_types::{List, Request, Status};

/// Buffer for the hashes of one request, to avoid allocation.
#[derive(Debug)]
pub struct Scratch {
    hashes: Vec<u128>,
}

impl Scratch {
    /// Create a buffer for the longest list.
    #[must_use]
    pub fn new() -> Scratch {
        Scratch { hashes: Vec::with_capacity(LIST_WORDS / HASH_WORDS) }
    }

    /// Split the words of a list into the hashes and the words of an operation's list.
    fn split<'a>(&'a mut self, op: Op, count: u32, words: &'a [u32]) -> Option<List<'a>> {
        let hashes = if op.list() & List::HASHES == 0 { 0 } else { (count as usize).checked_mul(HASH_WORDS)? };
        let (hashes, words) = words.split_at_checked(hashes)?;
        if !words.is_empty() && op.list() & (List::COUNTED | List::WORDS) == 0 {
            return None;
        }
        self.hashes.clear();
        self.hashes.extend(hashes.as_chunks::<HASH_WORDS>().0.iter().copied().map(hash_of));
        Some(List { hashes: &self.hashes, words })
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch::new()
    }
}

/// Return the request of a submission; `list` holds the `list_len` words of its list, copied once from shared memory, without the
/// trace context.
///
/// # Errors
/// The status for its completion.
pub fn decode<'a>(submission: &Submission, list: &'a [u32], scratch: &'a mut Scratch) -> Result<Request<'a>, Status> {
    let op = Op::from_code(submission.op).ok_or(Status::Invalid)?;
    if submission.trace > TRACED || list.len() != submission.list_len as usize || list.len() > LIST_WORDS {
        return Err(Status::Invalid);
    }
    let list = scratch.split(op, submission.count, list).ok_or(Status::Invalid)?;
    Request::decode(&submission.message(), list)
}

/// Return the submission of a request, without tag and deadline, and its list, which the sender writes into the tag's area
/// ([`ListArea::write_hashes`](crate::lists::ListArea::write_hashes)).
#[must_use]
pub fn encode(request: Request<'_>) -> (Submission, List<'_>) {
    let (message, list) = request.encode();
    let words = list.hashes.len() * HASH_WORDS + list.words.len();
    (Submission { list_len: words as u32, ..message.into() }, list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::NONE_U32;
    use crate::lists::{self, ListArea};
    use kvtide_types::Level;

    fn sub(op: Op) -> Submission {
        Submission { op: op as u16, ..Submission::default() }
    }

    #[test]
    fn hashes_are_low_word_first() {
        let words: Vec<u32> = (1..=8).collect();
        let publish = Submission { count: 2, list_len: 8, flags: 1, hash: [0xaa, 0xbb], first: 4, ..sub(Op::Publish) };
        let mut scratch = Scratch::new();
        let Ok(Request::Publish { first: 4, parent, hashes, level: Level::Stored, .. }) =
            decode(&publish, &words, &mut scratch)
        else {
            panic!("not a publish");
        };
        assert_eq!(parent, 0xbb_0000_0000_0000_00aa);
        assert_eq!(hashes, [0x4_0000_0003_0000_0002_0000_0001, 0x8_0000_0007_0000_0006_0000_0005]);
    }

    #[test]
    fn counts_must_agree_with_lists() {
        let mut scratch = Scratch::new();
        let words = [0u32; LIST_WORDS];
        let mut status = |s: Submission, len: usize| {
            decode(&Submission { list_len: len as u32, ..s }, &words[..len], &mut scratch).err()
        };
        assert_eq!(status(Submission { count: 2, ..sub(Op::AttachPrefix) }, 7), Some(Status::Invalid));
        assert_eq!(status(Submission { count: 3, ..sub(Op::AttachPrefix) }, 8), Some(Status::Invalid));
        assert_eq!(status(Submission { count: 128, ..sub(Op::AttachPrefix) }, LIST_WORDS), None);
        assert_eq!(status(Submission { count: 2, ..sub(Op::Step) }, 3), Some(Status::Invalid));
        assert_eq!(status(Submission { count: 3, ..sub(Op::Step) }, 3), None);
        assert_eq!(status(Submission { count: 3, ..sub(Op::LoadBlocks) }, 2), Some(Status::Invalid));
        assert_eq!(status(Submission { count: 3, ..sub(Op::LoadBlocks) }, 3), None);
        assert_eq!(status(Submission { count: 3, ..sub(Op::StoreBlocks) }, 14), Some(Status::Invalid));
        assert_eq!(status(Submission { count: 3, ..sub(Op::StoreBlocks) }, 15), None);
        assert_eq!(status(Submission { count: u32::MAX, ..sub(Op::StoreBlocks) }, 15), Some(Status::Invalid));
        assert_eq!(status(Submission { count: 102, ..sub(Op::StoreBlocks) }, 510), None);
        assert_eq!(status(sub(Op::Commit), 1), Some(Status::Invalid));
        assert_eq!(status(Submission { trace: 2, ..sub(Op::Nop) }, 0), Some(Status::Invalid));
        assert_eq!(
            decode(&Submission { list_len: 4, ..sub(Op::AttachPrefix) }, &[], &mut Scratch::new()).err(),
            Some(Status::Invalid)
        );
    }

    #[test]
    fn unknown_codes_are_errors() {
        let mut scratch = Scratch::new();
        let mut status = |s: Submission| decode(&s, &[], &mut scratch).err();
        // 4 and 26 are codes of deleted requests.
        for op in [4, 26, Op::LoadHashed as u16 + 1] {
            assert_eq!(status(Submission { op, ..sub(Op::Nop) }), Some(Status::Invalid));
        }
        assert_eq!(status(Submission { flags: 3, ..sub(Op::Publish) }), Some(Status::Invalid));
        assert_eq!(status(Submission { flags: 6, ..sub(Op::Advise) }), Some(Status::Invalid));
        assert_eq!(status(Submission { flags: 5, value: u64::from(NONE_U32), ..sub(Op::Advise) }), None);
        assert_eq!(status(Submission { flags: 5, value: 1 << 32, ..sub(Op::Advise) }), Some(Status::Range));
        assert_eq!(status(Submission { flags: 4, value: 256, ..sub(Op::Advise) }), Some(Status::Range));
        assert_eq!(status(Submission { value: 1 << 16, ..sub(Op::Cancel) }), Some(Status::Range));
        assert_eq!(status(Submission { flags: 2, ..sub(Op::Contract) }), Some(Status::Invalid));
        assert_eq!(status(Submission { flags: 1, value: 1 << 16, ..sub(Op::Contract) }), Some(Status::Range));
        assert_eq!(status(Submission { first: 256, ..sub(Op::Tier0Resize) }), Some(Status::Range));
    }

    #[test]
    fn every_operation_without_a_list_translates() {
        for op in Op::ALL {
            assert!(decode(&sub(op), &[], &mut Scratch::new()).is_ok(), "{op:?}");
        }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let (hashes, words) = (&[7, 1 << 100][..], &[3, 4][..]);
        let level = Level::Durable;
        for request in [
            Request::Reserve { seq: 6, count: 5 },
            Request::AttachPrefix { seq: 1, hashes, asked: None },
            Request::Lookup { hashes, asked: 9, range: 130 },
            Request::Declare { seq: 1, index: 2, tokens: 3, frames: words },
            Request::StoreBlocks { first: 1, parent: 1 << 90, hashes, engine: words, level },
        ] {
            let (submission, list) = encode(request);
            let (area, mut words) = (ListArea::new(), lists::List::default());
            assert_eq!(area.write_hashes(list.hashes, list.words), Ok(submission.list_len));
            area.copy_out(submission.list_len, &mut words).expect("a list that was written");
            assert_eq!(decode(&submission, words.words(), &mut Scratch::new()), Ok(request));
        }
    }
}
