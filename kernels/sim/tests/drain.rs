//! Calls that wait for the whole device do, fail at once if a stream waits for a word, and take nothing away from pending work.

mod common;

use common::{Cuda, LAUNCH_FAILED};
use std::process::Command;

const CASE: &str = "KVTIDE_SIM_TEST_CASE";

const ILLEGAL_ADDRESS: u32 = 700;

/// A word, and a stream that waits for it.
fn waiting(cuda: &Cuda) -> (Vec<u64>, usize) {
    let mut word = vec![0_u64; 512];
    let at = cuda.register(&mut word);
    let stream = cuda.stream();
    assert_eq!(cuda.wait_word(stream, at, 1), 0);
    (word, stream)
}

/// Run a case, in the child: a fault loses the device for its process.
#[test]
fn case() {
    let Ok(case) = std::env::var(CASE) else { return };
    let cuda = Cuda::new(&["kvt_sim_total"]);
    let (mut word, stream) = waiting(&cuda);
    let mut other = vec![0_u64; 512];
    cuda.register(&mut other);
    let memory = cuda.allocate(4096);
    let code = match &*case {
        "free" => cuda.try_free(memory),
        "unregister" => cuda.try_unregister(&mut other),
        "unload" => cuda.unload(),
        // The word itself is in use.
        "pending" => cuda.try_unregister(&mut word),
        "released" => {
            word[0] = 1;
            assert_eq!(cuda.finish(stream), 0);
            cuda.try_unregister(&mut word)
        }
        case => panic!("{case}"),
    };
    eprintln!("ended in {code}");
}

#[test]
fn nothing_waits_for_the_device_while_a_stream_waits_for_a_word() {
    kvtide_cuda_sim::install();
    let own = std::env::current_exe().expect("a test has an executable");
    let cases = [
        (
            "free",
            LAUNCH_FAILED,
            "cuMemFree on thread \"case\" waits for the device, and so for a stream that waits for the word",
        ),
        ("unregister", LAUNCH_FAILED, "cuMemHostUnregister on thread \"case\" waits"),
        ("unload", LAUNCH_FAILED, "enqueued by thread \"case\""),
        ("pending", ILLEGAL_ADDRESS, "cuMemHostUnregister while operations on it are pending"),
        ("released", 0, ""),
    ];
    for (case, code, says) in cases {
        let child = Command::new(&own)
            .args(["--exact", "case", "--nocapture"])
            .envs([(CASE, case), ("KVTIDE_SIM_STRICT", "1")])
            .output()
            .expect("the child runs");
        let text = String::from_utf8_lossy(&child.stderr);
        assert!(text.contains(&format!("ended in {code}\n")) && text.contains(says), "{case}: {text}");
    }
}
