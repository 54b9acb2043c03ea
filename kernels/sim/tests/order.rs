//! Streams run at different speeds: unordered work fails, ordered work does not.

mod common;

use common::{Cuda, Sample};

const WORDS: usize = 16 << 10;
/// Each try fails about one time in three, so at least one of these fails with near certainty.
const TRIES: u32 = 1000;

/// Copy words on one stream and sum them on another; return how many sums were wrong.
fn wrong_sums(cuda: &Cuda, tries: u32, ordered: bool, stop_at_first: bool) -> u32 {
    let (copies, kernels) = (cuda.stream(), cuda.stream());
    let (input, out, event) = (cuda.allocate(WORDS * 4), cuda.allocate(4), cuda.event());
    let mut words = vec![0_u32; WORDS];
    let from = cuda.register(&mut words);
    let mut wrong = 0;
    for round in 0..tries {
        words.fill(round + 1);
        assert_eq!(cuda.copy(input, from, WORDS * 4, copies), 0);
        if ordered {
            cuda.record(event, copies);
            cuda.wait_event(kernels, event);
        }
        cuda.launch("kvt_sim_total", 1, 32, 0, &Sample { input, out, word: 0, n: WORDS as u32, bug: 0 }, kernels);
        assert_eq!((cuda.finish(copies), cuda.finish(kernels)), (0, 0));
        wrong += u32::from(cuda.get::<u32>(out, 1)[0] != (round + 1) * WORDS as u32);
        if stop_at_first && wrong > 0 {
            break;
        }
    }
    cuda.unregister(&mut words);
    wrong
}

#[test]
fn a_missing_event_shows_as_wrong_bytes() {
    let cuda = Cuda::new(&["kvt_sim_total"]);
    assert_eq!(wrong_sums(&cuda, TRIES, false, true), 1, "the kernel never overtook the copy");
}

#[test]
fn an_event_orders_two_streams() {
    let cuda = Cuda::new(&["kvt_sim_total"]);
    assert_eq!(wrong_sums(&cuda, 100, true, false), 0);
}
