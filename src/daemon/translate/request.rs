//! Check submissions and convert them to requests of the core; convert answers to completions.
//!
//! Checked here are only the things that the core cannot see: codes, and that the list's length matches the counts. The core checks
//! whether a sequence, a range or a lane exists.

use kvtide_tiering::api::{self, Advice, Contract, Level, Request};
use kvtide_wire::entry::{self, Completion, LIST_WORDS, NONE_U32, Op, Submission};
use kvtide_wire::lists::{HASH_WORDS, HASHES_MAX, hash_of};
use kvtide_wire::status::Status;

const _: () = assert!(kvtide_tiering::LEASE_SHARE == entry::LEASE_SHARE, "the value of a completion is not converted");

/// Buffer for the hashes of one request, to avoid allocation.
#[derive(Debug)]
pub struct Scratch {
    hashes: Vec<u128>,
}

/// Split a list of `count` hashes followed by `count` words.
fn hashed(count: u32, list: &[u32]) -> Result<(&[u32], &[u32]), Status> {
    let at = (count as usize).checked_mul(HASH_WORDS).ok_or(Status::Invalid)?;
    let (hashes, words) = list.split_at_checked(at).ok_or(Status::Invalid)?;
    if words.len() == count as usize { Ok((hashes, words)) } else { Err(Status::Invalid) }
}

impl Scratch {
    /// Create a buffer for the longest list.
    #[must_use]
    pub fn new() -> Scratch {
        Scratch { hashes: Vec::with_capacity(HASHES_MAX) }
    }

    fn hashes(&mut self, count: u32, list: &[u32]) -> Result<&[u128], Status> {
        let (hashes, rest) = list.as_chunks::<HASH_WORDS>();
        if !rest.is_empty() || hashes.len() != count as usize || hashes.len() > HASHES_MAX {
            return Err(Status::Invalid);
        }
        self.hashes.clear();
        self.hashes.extend(hashes.iter().copied().map(hash_of));
        Ok(&self.hashes)
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch::new()
    }
}

/// Convert a submission to a request; `list` holds the `list_len` words of its list, copied once from shared memory.
///
/// # Errors
/// The status for its completion.
pub fn request<'a>(submission: &Submission, list: &'a [u32], scratch: &'a mut Scratch) -> Result<Request<'a>, Status> {
    let Submission { seq, block, first, count, value, lane, flags, .. } = *submission;
    let op = Op::from_code(submission.op).ok_or(Status::Invalid)?;
    if submission.reserved != 0 || list.len() != submission.list_len as usize || list.len() > LIST_WORDS {
        return Err(Status::Invalid);
    }
    if !takes_list(op) && !list.is_empty() {
        return Err(Status::Invalid);
    }
    Ok(match op {
        Op::Nop => Request::Nop,
        Op::SeqCreate => Request::SeqCreate { seq },
        Op::SeqDrop => Request::SeqDrop { seq },
        Op::Reserve => Request::Reserve { seq: (seq != NONE_U32).then_some(seq), count },
        Op::Bind => Request::Bind { seq, block },
        Op::Commit => Request::Commit { seq, tokens: value },
        Op::Fork => Request::Fork { parent: seq, child: block },
        Op::Truncate => Request::Truncate { seq, tokens: value },
        Op::Publish => {
            let level = level(flags)?;
            let parent = u128_of_halves(submission.hash);
            Request::Publish { seq, first, parent, hashes: scratch.hashes(count, list)?, level }
        }
        Op::Map => Request::Map { seq, hashes: scratch.hashes(count, list)? },
        Op::Park => Request::Park { seq, due_us: value },
        Op::Resume => Request::Resume { seq },
        Op::Advise => Request::Advise { seq, first, count, advice: advice(flags, value)? },
        Op::Acquire => Request::Acquire { seq, plane: lane, planes: flags, first, count },
        Op::Release => Request::Release { seq, plane: lane, planes: flags, first, count },
        Op::Step if count as usize != list.len() => return Err(Status::Invalid),
        Op::Step => Request::Step { lane, step: value, seqs: list },
        Op::StepEnd => Request::StepEnd { lane, step: value },
        Op::Fault => Request::Fault { lane, use_pos: value, seq, index: first, plane: flags },
        Op::Cancel => Request::Cancel { tag: u16::try_from(value).map_err(|_| Status::Range)? },
        Op::Declare => Request::Declare { seq, index: first, tokens: value, frames: list },
        Op::Tier0Resize => {
            Request::Tier0Resize { class: u8::try_from(first).map_err(|_| Status::Range)?, frames: count }
        }
        Op::Contract => Request::Contract { seq, contract: contract(flags, value)? },
        Op::Lookup => Request::Lookup { hashes: scratch.hashes(count, list)? },
        Op::Lease => Request::Lease { seq, hash: u128_of_halves(submission.hash), count, lease_us: value },
        Op::LoadBlocks if count as usize != list.len() => return Err(Status::Invalid),
        Op::LoadBlocks => Request::LoadBlocks { seq, first, engine: list },
        Op::StoreBlocks => {
            let (hashes, engine) = hashed(count, list)?;
            let (parent, level) = (u128_of_halves(submission.hash), level(flags)?);
            Request::StoreBlocks { first, parent, hashes: scratch.hashes(count, hashes)?, engine, level }
        }
        Op::FetchBlocks => Request::FetchBlocks { seq, first, count },
    })
}

fn takes_list(op: Op) -> bool {
    match op {
        Op::Publish | Op::Map | Op::Step | Op::Declare | Op::Lookup | Op::LoadBlocks | Op::StoreBlocks => true,
        Op::Nop
        | Op::SeqCreate
        | Op::SeqDrop
        | Op::Reserve
        | Op::Bind
        | Op::Commit
        | Op::Fork
        | Op::Truncate
        | Op::Park
        | Op::Resume
        | Op::Advise
        | Op::Acquire
        | Op::Release
        | Op::StepEnd
        | Op::Fault
        | Op::Cancel
        | Op::Tier0Resize
        | Op::Contract
        | Op::Lease
        | Op::FetchBlocks => false,
    }
}

/// Return the ring entry of an answer. `op` is the code of the submission, known or not.
#[must_use]
pub fn completion(op: u16, tag: u16, status: api::Status, value: u64, list_len: u32) -> Completion {
    Completion { value, list_len, ..Completion::new(op, tag, super::to_wire(status)) }
}

fn level(code: u16) -> Result<Level, Status> {
    const PUBLISHED: u16 = entry::Level::Published as u16;
    const STORED: u16 = entry::Level::Stored as u16;
    const DURABLE: u16 = entry::Level::Durable as u16;
    match code {
        PUBLISHED => Ok(Level::Published),
        STORED => Ok(Level::Stored),
        DURABLE => Ok(Level::Durable),
        _ => Err(Status::Invalid),
    }
}

fn advice(code: u16, value: u64) -> Result<Advice, Status> {
    const WILL_NEED: u16 = entry::Advice::WillNeed as u16;
    const DONT_NEED: u16 = entry::Advice::DontNeed as u16;
    const SEQUENTIAL: u16 = entry::Advice::Sequential as u16;
    const COLD: u16 = entry::Advice::Cold as u16;
    const PRIORITY: u16 = entry::Advice::Priority as u16;
    const REMAINING: u16 = entry::Advice::Remaining as u16;
    match code {
        WILL_NEED => Ok(Advice::WillNeed),
        DONT_NEED => Ok(Advice::DontNeed),
        SEQUENTIAL => Ok(Advice::Sequential),
        COLD => Ok(Advice::Cold),
        PRIORITY => u8::try_from(value).map(Advice::Priority).map_err(|_| Status::Range),
        REMAINING => u32::try_from(value).map(Advice::Remaining).map_err(|_| Status::Range),
        _ => Err(Status::Invalid),
    }
}

/// The core checks the value's range.
fn contract(code: u16, value: u64) -> Result<Contract, Status> {
    const EXACT: u16 = entry::Contract::Exact as u16;
    const APPROX: u16 = entry::Contract::Approx as u16;
    const BOUNDED: u16 = entry::Contract::Bounded as u16;
    match code {
        EXACT => Ok(Contract::Exact),
        APPROX => u16::try_from(value).map(|permille| Contract::Approx { permille }).map_err(|_| Status::Range),
        BOUNDED => u32::try_from(value).map(|ppm| Contract::Bounded { ppm }).map_err(|_| Status::Range),
        _ => Err(Status::Invalid),
    }
}

fn u128_of_halves([low, high]: [u64; 2]) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sub(op: Op) -> Submission {
        Submission { op: op as u16, ..Submission::default() }
    }

    #[test]
    fn hashes_are_low_word_first() {
        let words: Vec<u32> = (1..=8).collect();
        let publish = Submission { count: 2, list_len: 8, flags: 1, hash: [0xaa, 0xbb], first: 4, ..sub(Op::Publish) };
        let mut scratch = Scratch::new();
        let Ok(Request::Publish { first: 4, parent, hashes, level: Level::Stored, .. }) =
            request(&publish, &words, &mut scratch)
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
            request(&Submission { list_len: len as u32, ..s }, &words[..len], &mut scratch).err()
        };
        assert_eq!(status(Submission { count: 2, ..sub(Op::Map) }, 7), Some(Status::Invalid));
        assert_eq!(status(Submission { count: 3, ..sub(Op::Map) }, 8), Some(Status::Invalid));
        assert_eq!(status(Submission { count: 128, ..sub(Op::Map) }, LIST_WORDS), None);
        assert_eq!(status(Submission { count: 2, ..sub(Op::Step) }, 3), Some(Status::Invalid));
        assert_eq!(status(Submission { count: 3, ..sub(Op::Step) }, 3), None);
        assert_eq!(status(Submission { count: 3, ..sub(Op::LoadBlocks) }, 2), Some(Status::Invalid));
        assert_eq!(status(Submission { count: 3, ..sub(Op::LoadBlocks) }, 3), None);
        assert_eq!(status(Submission { count: 3, ..sub(Op::StoreBlocks) }, 14), Some(Status::Invalid));
        assert_eq!(status(Submission { count: 3, ..sub(Op::StoreBlocks) }, 15), None);
        assert_eq!(status(Submission { count: u32::MAX, ..sub(Op::StoreBlocks) }, 15), Some(Status::Invalid));
        assert_eq!(status(Submission { count: 102, ..sub(Op::StoreBlocks) }, 510), None);
        assert_eq!(status(sub(Op::Commit), 1), Some(Status::Invalid));
        assert_eq!(status(Submission { reserved: 1, ..sub(Op::Nop) }, 0), Some(Status::Invalid));
        assert_eq!(
            request(&Submission { list_len: 4, ..sub(Op::Map) }, &[], &mut Scratch::new()).err(),
            Some(Status::Invalid)
        );
    }

    #[test]
    fn unknown_codes_are_errors() {
        let mut scratch = Scratch::new();
        let mut status = |s: Submission| request(&s, &[], &mut scratch).err();
        assert_eq!(status(Submission { op: Op::ALL.len() as u16, ..sub(Op::Nop) }), Some(Status::Invalid));
        assert_eq!(status(Submission { flags: 3, ..sub(Op::Publish) }), Some(Status::Invalid));
        assert_eq!(status(Submission { flags: 6, ..sub(Op::Advise) }), Some(Status::Invalid));
        assert_eq!(status(Submission { flags: 5, value: u64::from(NONE_U32), ..sub(Op::Advise) }), None);
        assert_eq!(status(Submission { flags: 5, value: 1 << 32, ..sub(Op::Advise) }), Some(Status::Range));
        assert_eq!(status(Submission { flags: 4, value: 256, ..sub(Op::Advise) }), Some(Status::Range));
        assert_eq!(status(Submission { value: 1 << 16, ..sub(Op::Cancel) }), Some(Status::Range));
        assert_eq!(status(Submission { flags: 3, ..sub(Op::Contract) }), Some(Status::Invalid));
        assert_eq!(status(Submission { flags: 1, value: 1 << 16, ..sub(Op::Contract) }), Some(Status::Range));
        assert_eq!(status(Submission { first: 256, ..sub(Op::Tier0Resize) }), Some(Status::Range));
    }

    #[test]
    fn every_operation_without_a_list_translates() {
        for op in Op::ALL {
            assert!(request(&sub(op), &[], &mut Scratch::new()).is_ok(), "{op:?}");
        }
    }

    #[test]
    fn the_sessions_own_reserve_has_no_sequence() {
        let mut scratch = Scratch::new();
        let own = Submission { seq: NONE_U32, count: 5, ..sub(Op::Reserve) };
        assert_eq!(request(&own, &[], &mut scratch), Ok(Request::Reserve { seq: None, count: 5 }));
    }
}
