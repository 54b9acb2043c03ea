//! A peer that writes any index at any time and any bytes into any slot. Both ends either stay within bounds or report a
//! protocol error. Entries are translated as in the daemon, to a request or to an error status.
#![no_main]

use kvtide_fuzz::{Bytes, HeapRing};
use kvtide_tiering::api::Status;
use kvtide_wire::entry::{Completion, Job, JobDone, JobKind, LIST_WORDS, Submission};
use kvtide_wire::job::{self, Ask};
use kvtide_wire::request;
use kvtide_wire::ring::{Consumer, Memory, Producer, PushError, START};
use kvtide_wire::sync::Ordering;
use libfuzzer_sys::fuzz_target;
use zerocopy::{FromBytes, IntoBytes};

const SLOTS: u32 = 8;

/// Decode any 64 bytes as each kind of entry.
fn entry(bytes: [u8; 64], list: &[u32], scratch: &mut request::Scratch) {
    let submission = Submission::read_from_bytes(&bytes).expect("64 bytes");
    let list = list.get(..submission.list_len as usize).unwrap_or(list);
    if let Err(status) = request::decode(&submission, list, scratch) {
        let refusal = Completion::new(submission.op, submission.tag, status);
        assert_eq!((refusal.op, refusal.tag, refusal.status), (submission.op, submission.tag, status.code()));
    }
    let done = JobDone::read_from_bytes(&bytes).expect("64 bytes");
    for ask in [Ask::Nothing, Ask::Digest, Ask::Compare(done.digest), Ask::Compare(!done.digest)] {
        let Ok((status, digest)) = job::job_done(&done, 4096, ask) else { continue };
        if status == Status::Ok {
            assert_eq!(done.bytes, 4096, "a copy with another length is never a success");
            assert_ne!(
                ask,
                Ask::Compare(!done.digest),
                "a copy with other bytes than the stored ones is never a success"
            );
        }
        assert_eq!(digest.is_some(), ask != Ask::Nothing && matches!(status, Status::Ok | Status::Corrupt));
    }
    let job = Job::read_from_bytes(&bytes).expect("64 bytes");
    let kind = JobKind::from_code(job.kind);
    assert_eq!(kind.map(|k| k as u16), (usize::from(job.kind) < JobKind::ALL.len()).then_some(job.kind));
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes(bytes);
    let ring = HeapRing::new(SLOTS as usize);
    // Two pairs on the same memory: a consumer with a hostile producer, and a producer with a hostile consumer.
    let mut consumer: Consumer<Submission, _> = Consumer::new(ring.clone());
    let mut producer: Producer<Submission, _> = Producer::new(ring.clone());
    let mut scratch = request::Scratch::new();
    let list: Vec<u32> = (0..LIST_WORDS as u32).collect();
    let mut budget = 0; // entries that may still be taken: what one ring holds for each time that the tail was written
    while !bytes.is_empty() {
        match bytes.byte() % 7 {
            0 => {
                ring.tail().store(START.wrapping_add(u32::from(bytes.byte())), Ordering::Relaxed);
                budget += SLOTS;
            }
            1 => {
                ring.tail().store(bytes.word(), Ordering::Relaxed);
                budget += SLOTS;
            }
            2 => ring.head().store(START.wrapping_add(u32::from(bytes.byte())), Ordering::Relaxed),
            3 => ring.head().store(bytes.word(), Ordering::Relaxed),
            4 => ring.scribble(usize::from(bytes.byte()), bytes.array()),
            5 => {
                if let Ok(Some(submission)) = consumer.pop() {
                    assert!(budget > 0, "more entries than the tail allowed");
                    budget -= 1;
                    entry(submission.as_bytes().try_into().expect("64 bytes"), &list, &mut scratch);
                }
                let available = consumer.available().unwrap_or(0);
                assert!(available <= SLOTS);
            }
            _ => {
                match producer.push(&Submission::default()) {
                    Ok(()) => budget += SLOTS, // it wrote the tail
                    Err(PushError::Full) => assert_eq!(producer.free(0), Ok(0)),
                    Err(PushError::Broken(e)) => assert!(!e.to_string().is_empty()),
                }
            }
        }
    }
});
