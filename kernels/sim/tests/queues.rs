//! Streams share hardware queues: a kernel behind another stream's wait in its queue stalls, and copy engines go on.

mod common;

use common::{Cuda, NOT_READY, Sample};
use std::process::Command;

const CHILD: &str = "KVTIDE_SIM_TEST_QUEUES";

/// Streams per process that have a hardware queue of their own by default.
const QUEUES: usize = 8;

#[test]
fn a_kernel_behind_a_wait_in_its_queue_stalls_and_a_copy_does_not() {
    kvtide_cuda_sim::install();
    if std::env::var(CHILD).is_err() {
        // Streams of other tests would have places in the queues, too.
        let own = std::env::current_exe().expect("a test has an executable");
        let name = "a_kernel_behind_a_wait_in_its_queue_stalls_and_a_copy_does_not";
        let child = Command::new(own)
            .args(["--exact", name, "--nocapture"])
            .envs([(CHILD, "1"), ("KVTIDE_SIM_STRICT", "1")])
            .output()
            .expect("the child runs");
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    let cuda = Cuda::new(&["kvt_sim_total"]);
    let (input, copied, outs) = (cuda.allocate(4096), cuda.allocate(4096), cuda.allocate(4 * (QUEUES + 1)));
    let (mut word, mut host) = (vec![0_u64; 512], vec![7_u64; 512]);
    let (at, from) = (cuda.register(&mut word), cuda.register(&mut host));
    let streams: Vec<usize> = (0..=QUEUES).map(|_| cuda.stream()).collect();
    let (waiting, other, behind) = (streams[0], streams[1], streams[QUEUES]);
    let kernel = |stream| {
        let out = outs + 4 * streams.iter().position(|&one| one == stream).expect("one of them") as u64;
        cuda.launch("kvt_sim_total", 1, 32, 0, &Sample { input, out, word: 0, n: 1024, bug: 0 }, stream);
    };
    // In front of the wait: it does not stall.
    kernel(behind);
    assert_eq!(cuda.finish(behind), 0);
    assert_eq!(cuda.wait_word(waiting, at, 1), 0);
    while cuda.state(waiting) != NOT_READY {}
    assert_eq!(cuda.copy(copied, from, 4096, behind), 0);
    assert_eq!(cuda.finish(behind), 0, "copy engines have queues of their own");
    kernel(other);
    assert_eq!(cuda.finish(other), 0, "another queue");
    kernel(behind);
    for _ in 0..3 {
        // As much work as the stalled kernel is.
        kernel(other);
        assert_eq!(cuda.finish(other), 0);
        assert_eq!(cuda.state(behind), NOT_READY, "its queue is held");
    }
    word[0] = 1;
    assert_eq!((cuda.finish(waiting), cuda.finish(behind)), (0, 0));
    drop((word, host));
}
