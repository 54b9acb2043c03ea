//! The need-wakeup protocol under loom: a consumer that sleeps while an entry waits would sleep for ever, which loom reports as a
//! deadlock.
#![cfg(loom)]

mod common;

use common::HeapRing;
use kvtide_wire::entry::JobDone;
use kvtide_wire::ring::{Consumer, Producer};
use kvtide_wire::sync::AtomicU32;
use kvtide_wire::wake::{Bell, Sleeper, Waker};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::sync::Arc;

/// Keeps a ring until a thread has blocked on it, as a socket does.
#[derive(Default)]
struct Rung(Mutex<bool>, Condvar);

#[derive(Clone, Default)]
struct ModelBell(Arc<Rung>);

impl Bell for ModelBell {
    fn ring(&self) {
        *self.0.0.lock().expect("no panic inside") = true;
        self.0.1.notify_one();
    }
}

impl ModelBell {
    fn block(&self) {
        let mut rung = self.0.0.lock().expect("no panic inside");
        while !*rung {
            rung = self.0.1.wait(rung).expect("no panic inside");
        }
        *rung = false;
    }
}

fn entry(n: u32) -> JobDone {
    JobDone { id: n, ..JobDone::default() }
}

/// One producer, one consumer that never spins; `wake` and `sleep` are the protocol under test.
fn no_lost_wake_up(
    wake: impl Fn(&Waker<Arc<AtomicU32>, ModelBell>, &AtomicU32, &ModelBell) + Sync + Send + Copy + 'static,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let (ring, word, bell) = (HeapRing::new(2), Arc::new(AtomicU32::new(0)), ModelBell::default());
        let mut producer = Producer::new(ring.clone());
        let waker = Waker::new(Arc::clone(&word), bell.clone());
        let (producer_word, producer_bell) = (Arc::clone(&word), bell.clone());
        let sender = thread::spawn(move || {
            for n in 1..=2 {
                producer.push(&entry(n)).expect("room for both");
                wake(&waker, &producer_word, &producer_bell);
            }
        });
        let sleeper = Sleeper::new(word);
        let mut consumer: Consumer<JobDone, _> = Consumer::new(ring);
        for n in 1..=2 {
            let got = loop {
                let look = || consumer.pop().expect("a correct producer");
                if let Some(got) = sleeper.sleep_unless(look, || bell.block()) {
                    break got;
                }
            };
            assert_eq!(got, entry(n));
        }
        sender.join().expect("the producer ends");
    });
}

#[test]
fn a_consumer_never_sleeps_over_an_entry() {
    no_lost_wake_up(|waker, _, _| {
        waker.wake();
    });
}

/// Check that the model detects a lost wake-up: the producer's half without its fence.
#[test]
#[should_panic(expected = "deadlock")]
fn without_the_fence_a_wake_up_is_lost() {
    no_lost_wake_up(|_, word, bell| {
        if word.load(kvtide_wire::sync::Ordering::Relaxed) != 0 {
            bell.ring();
        }
    });
}
