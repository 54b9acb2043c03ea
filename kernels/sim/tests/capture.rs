//! During a capture of a graph, calls of other threads fail as the driver's reference describes, and invalidate the capture.

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, CAPTURED_EVENT, Cuda, GLOBAL, RELAXED, THREAD_LOCAL};

/// Captures bind the whole process, so one test runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ask for an event on another thread while a stream is captured; return the answer and the end of the capture.
fn asked(cuda: &Cuda, capture: u32, thread: u32) -> (u32, u32) {
    let (stream, event) = (cuda.stream(), cuda.event());
    assert_eq!(cuda.begin_capture(stream, capture), 0);
    let answer = std::thread::scope(|scope| {
        let asking = || {
            cuda.attach(0);
            assert_eq!(cuda.exchange_mode(thread), GLOBAL, "the default");
            cuda.query(event)
        };
        scope.spawn(asking).join().expect("no panic")
    });
    (answer, cuda.end_capture(stream))
}

#[test]
fn a_thread_in_global_mode_breaks_a_capture_and_a_relaxed_one_does_not() {
    let _alone = alone();
    let cuda = Cuda::new(&["kvt_sim_total"]);
    assert_eq!(asked(&cuda, GLOBAL, GLOBAL), (CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED));
    assert_eq!(asked(&cuda, GLOBAL, THREAD_LOCAL), (0, 0));
    assert_eq!(asked(&cuda, GLOBAL, RELAXED), (0, 0));
    assert_eq!(asked(&cuda, THREAD_LOCAL, GLOBAL), (0, 0));
}

#[test]
fn the_capturing_thread_is_bound_unless_it_is_relaxed() {
    let _alone = alone();
    let cuda = Cuda::new(&["kvt_sim_total"]);
    let (stream, event) = (cuda.stream(), cuda.event());
    for (mode, answers) in [(GLOBAL, (CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED)), (RELAXED, (0, 0))] {
        assert_eq!(cuda.begin_capture(stream, GLOBAL), 0);
        let before = cuda.exchange_mode(mode);
        let answer = cuda.query(event);
        cuda.exchange_mode(before);
        assert_eq!((answer, cuda.end_capture(stream)), answers, "{mode}");
    }
}

#[test]
fn an_event_of_a_capture_has_no_answer_and_the_streams_state_is_not_asked() {
    let _alone = alone();
    let cuda = Cuda::new(&["kvt_sim_total"]);
    let (stream, event) = (cuda.stream(), cuda.event());
    assert_eq!(cuda.begin_capture(stream, GLOBAL), 0);
    cuda.record(event, stream);
    let before = cuda.exchange_mode(RELAXED);
    assert_eq!(cuda.query(event), CAPTURED_EVENT);
    assert_eq!(cuda.state(stream), CAPTURE_UNSUPPORTED);
    cuda.exchange_mode(before);
    assert_eq!(cuda.end_capture(stream), CAPTURE_INVALIDATED);
    assert_eq!(cuda.finish(stream), 0);
}
