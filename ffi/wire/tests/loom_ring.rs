//! The ring under every order of memory accesses that loom generates: no entry is torn, lost, duplicated or out of order, across
//! the wrap of the slots, the wrap of the indices (see `ring::START`) and a full ring.
#![cfg(loom)]

mod common;

use common::HeapRing;
use kvtide_wire::entry::JobDone;
use kvtide_wire::ring::{Consumer, Producer, PushError};
use loom::thread;

/// Two of the eight words differ from entry to entry: enough to detect a torn copy, few enough to explore.
fn entry(n: u32) -> JobDone {
    JobDone { id: n, elapsed_ns: u64::from(n) << 32, ..JobDone::default() }
}

fn transfer(slots: usize, entries: u32, preemptions: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let ring = HeapRing::new(slots);
        let mut producer = Producer::new(ring.clone());
        let sender = thread::spawn(move || {
            for n in 1..=entries {
                loop {
                    match producer.push(&entry(n)) {
                        Ok(()) => break,
                        Err(PushError::Full) => thread::yield_now(),
                        Err(PushError::Broken(e)) => panic!("{e}"),
                    }
                }
            }
        });
        let mut consumer: Consumer<JobDone, _> = Consumer::new(ring);
        for n in 1..=entries {
            let got = loop {
                match consumer.pop().expect("a correct producer") {
                    Some(got) => break got,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(got, entry(n));
        }
        assert_eq!(consumer.pop().expect("a correct producer"), None);
        sender.join().expect("the producer ends");
    });
}

#[test]
fn entries_arrive_whole_and_in_order_through_a_full_ring() {
    transfer(2, 4, 3);
}

#[test]
fn a_ring_of_one_slot_hands_it_to_and_fro_across_the_wrap_of_the_indices() {
    transfer(1, 7, 3);
}
