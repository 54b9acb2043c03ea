//! Graph captures of the engine go on beside everything that kvtide does, on every thread; kvtide's own work stays outside of them.

mod common;

use common::sim::Sim;
use common::{buffer, device, done, end, get, pinned};
use kvtide_kernels::{
    Arena, Buffer, Copier, Error, Event, Pinned, Priority, Stream, WaitWord, Way,
    copy::{Copy, Options, Path},
};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

fn captured(stream: &Stream, beside: impl FnOnce()) -> bool {
    kvtide_cuda_sim::captured(stream.device().context(), stream.raw(), beside)
}

/// Requested failures hit the next call of any thread, so one test runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_capture_of_the_engine_survives_copies_polls_and_memory_on_any_thread() {
    let _alone = alone();
    let device = device();
    let engine = Stream::new(&device, Priority::Normal).expect("a stream");
    for on_engines_thread in [true, false] {
        let work = || {
            let mut copier =
                Copier::new(&device, Options { path: Path::Engines, ..Options::default() }).expect("a copier");
            let (source, target) =
                (Pinned::new(&device, 4096).expect("memory"), Buffer::new(&device, 4096).expect("memory"));
            let copy = Copy { from: source.address(), to: target.address(), bytes: 4096, region: 0 };
            // SAFETY: both stay until the batch has ended.
            let ticket = unsafe { copier.submit(Way::Up, &[copy]) }.expect("submitted");
            end(&mut copier, ticket).expect("copied");
            let arena = Arena::reserve(&device, 1 << 21, 1 << 21).expect("addresses");
            arena.grow_to(1 << 21).expect("memory");
        };
        let valid = captured(&engine, || {
            if on_engines_thread {
                return work();
            }
            std::thread::scope(|scope| scope.spawn(work).join().expect("no panic"));
        });
        assert!(valid, "on the engine's thread: {on_engines_thread}");
    }
}

#[test]
fn waits_are_refused_while_a_stream_is_captured() {
    let _alone = alone();
    let device = device();
    let engine = Stream::new(&device, Priority::Normal).expect("a stream");
    let word = WaitWord::new(&device).expect("a word");
    let target = word.arm().expect("armed");
    let valid = captured(&engine, || {
        for refused in [engine.outside_capture(), engine.wait_word(&word, target)] {
            let text = refused.expect_err("captured").to_string();
            assert!(text.contains("captured into a graph"), "{text}");
        }
    });
    assert!(valid, "a refusal leaves the capture as it is");
    word.release_all();
    done(&engine);
}

#[test]
fn a_batch_about_which_the_driver_does_not_answer_stays_in_flight() {
    if !kvtide_cuda_sim::standing_in() {
        return;
    }
    let _alone = alone();
    let device = device();
    let sim = Sim::new();
    let mut copier = Copier::new(&device, Options { path: Path::Engines, ..Options::default() }).expect("a copier");
    let (stream, event) =
        (Stream::new(&device, Priority::Normal).expect("a stream"), Event::new(&device).expect("an event"));
    let (source, target) = (pinned(&device, &[9; 64]), buffer(&device, &[0; 64]));
    let word = WaitWord::new(&device).expect("a word");
    stream.wait_word(&word, word.arm().expect("armed")).expect("waits");
    stream.record(&event).expect("recorded");
    copier.order_after(&event).expect("ordered");
    let copy = Copy { from: source.address(), to: target.address(), bytes: 64, region: 0 };
    // SAFETY: both stay until the batch has ended.
    let ticket = unsafe { copier.submit(Way::Up, &[copy]) }.expect("submitted");
    // A capture, and an error that says nothing about the copy.
    for code in [900, 907, 400] {
        sim.fail("cuEventQuery", 1, code);
        assert!(!copier.poll(ticket).expect("in flight"), "{code}");
        assert_eq!(copier.in_flight(), 1);
    }
    sim.fail("cuEventQuery", 1, 900);
    assert!(!event.wait_until(Instant::now()).expect("asked"));
    word.release_all();
    end(&mut copier, ticket).expect("copied");
    assert_eq!(get(&device, target.address(), 64), [9; 64]);
    assert!(matches!(copier.poll(ticket), Err(Error::Invalid { .. })), "its end was reported");
}
