//! Rings compared with a plain queue, and against peers that write arbitrary values.
#![cfg(not(loom))]

mod common;

use common::HeapRing;
use kvtide_wire::entry::JobDone;
use kvtide_wire::ring::{Consumer, Memory, Producer, PushError, START};
use kvtide_wire::sync::Ordering;
use proptest::prelude::*;
use std::collections::VecDeque;

fn entry(n: u32) -> JobDone {
    JobDone { id: n, bytes: u64::from(n) * 3, elapsed_ns: !u64::from(n), ..JobDone::default() }
}

proptest! {
    #[test]
    fn a_ring_is_a_bounded_queue(slots in 0u32..5, pushes in proptest::collection::vec(any::<bool>(), 0..400)) {
        let ring = HeapRing::new(1 << slots);
        let mut producer = Producer::new(ring.clone());
        let mut consumer: Consumer<JobDone, _> = Consumer::new(ring);
        let mut model = VecDeque::new();
        for (n, push) in pushes.into_iter().enumerate() {
            let n = n as u32;
            if push {
                let full = model.len() == 1 << slots;
                prop_assert_eq!(producer.push(&entry(n)), if full { Err(PushError::Full) } else { Ok(()) });
                if !full { model.push_back(n) }
            } else {
                prop_assert_eq!(consumer.pop(), Ok(model.pop_front().map(entry)));
            }
            let room = (1 << slots) - model.len() as u32;
            prop_assert_eq!(producer.free(u32::MAX), Ok(room));
        }
    }

    /// The consumer accepts an index only within its reach, and never reads more entries than there are slots.
    #[test]
    fn any_tail_is_either_within_reach_or_an_error(tails in proptest::collection::vec(any::<u32>(), 1..50), near in any::<bool>()) {
        let ring = HeapRing::new(8);
        let mut consumer: Consumer<JobDone, _> = Consumer::new(ring.clone());
        let mut taken = START;
        for tail in tails {
            let tail = if near { taken.wrapping_add(tail % 11) } else { tail };
            ring.tail().store(tail, Ordering::Relaxed);
            let ahead = tail.wrapping_sub(taken);
            match consumer.available() {
                Ok(count) => {
                    prop_assert!(count == ahead && count <= 8);
                    for _ in 0..count {
                        prop_assert!(matches!(consumer.pop(), Ok(Some(_))));
                    }
                    prop_assert_eq!(consumer.pop(), Ok(None));
                    taken = tail;
                }
                Err(e) => {
                    prop_assert!(ahead > 8, "{} from {}", tail, taken);
                    prop_assert_eq!((e.ours, e.theirs, e.capacity), (taken, tail, 8));
                }
            }
        }
    }

    /// The producer accepts a head only between the last one it saw and its own tail.
    #[test]
    fn any_head_is_either_within_reach_or_an_error(heads in proptest::collection::vec(any::<u32>(), 1..50), near in any::<bool>()) {
        let ring = HeapRing::new(8);
        let mut producer = Producer::new(ring.clone());
        let (mut tail, mut seen) = (START, START);
        for head in heads {
            while producer.push(&entry(tail)).is_ok() {
                tail = tail.wrapping_add(1);
            }
            let head = if near { seen.wrapping_add(head % 11) } else { head };
            ring.head().store(head, Ordering::Relaxed);
            let possible = head.wrapping_sub(seen) <= tail.wrapping_sub(seen);
            match producer.free(u32::MAX) {
                Ok(room) => {
                    prop_assert!(possible && room == 8 - tail.wrapping_sub(head));
                    seen = head;
                }
                Err(e) => {
                    prop_assert!(!possible);
                    prop_assert_eq!((e.ours, e.theirs), (tail, head));
                    ring.head().store(seen, Ordering::Relaxed);
                }
            }
        }
    }
}

#[test]
fn an_impossible_index_is_an_error_in_words() {
    let ring = HeapRing::new(4);
    let mut consumer: Consumer<JobDone, _> = Consumer::new(ring.clone());
    ring.tail().store(START.wrapping_add(5), Ordering::Relaxed);
    let error = consumer.pop().expect_err("five entries in four slots");
    assert_eq!(error.to_string(), "ring tail: the peer's index 0 is not within 4 of ours, 4294967291");
    assert_eq!(kvtide_wire::Error::from(error).status(), kvtide_wire::status::Status::Protocol);
}
