//! A device can access host memory only while it is registered; a fault affects its own device, permanently.

mod common;

use common::{Cuda, Sample};
use std::process::Command;

const CASE: &str = "KVTIDE_SIM_TEST_CASE";
const ILLEGAL_ADDRESS: u32 = 700;

/// Sum words of the host, in place.
fn total(cuda: &Cuda, input: u64, n: u32) -> u32 {
    let (out, stream) = (cuda.allocate(4), cuda.stream());
    cuda.launch("kvt_sim_total", 1, 32, 0, &Sample { input, out, word: 0, n, bug: 0 }, stream);
    let code = cuda.finish(stream);
    if code == 0 {
        assert_eq!(cuda.get::<u32>(out, 1)[0], (0..n).sum::<u32>());
    }
    code
}

#[test]
fn kernels_read_registered_memory_in_place_and_add_to_its_words() {
    let cuda = Cuda::new(&["kvt_sim_total", "kvt_sim_count"]);
    let mut words: Vec<u32> = (0..1000).collect();
    let mut counter = vec![0_u64; 1];
    let (input, word) = (cuda.register(&mut words), cuda.register(&mut counter));
    assert_eq!(total(&cuda, input, 1000), 0);
    let stream = cuda.stream();
    cuda.launch("kvt_sim_count", 7, 1, 0, &Sample { input, out: 0, word, n: 0, bug: 0 }, stream);
    assert_eq!(cuda.finish(stream), 0);
    assert_eq!(counter[0], 7);
    cuda.unregister(&mut words);
    cuda.unregister(&mut counter);
}

/// Run a case, in the child.
#[test]
fn host_case() {
    let Ok(case) = std::env::var(CASE) else { return };
    let cuda = Cuda::new(&["kvt_sim_total"]);
    let mut words: Vec<u32> = (0..1000).collect();
    let at = words.as_mut_ptr().expose_provenance() as u64;
    let device = cuda.allocate(4000);
    let code = match case.as_str() {
        "kernel, never registered" => total(&cuda, at, 1000),
        "kernel, beyond the registered range" => {
            cuda.register(&mut words[..999]);
            total(&cuda, at, 1000)
        }
        "kernel, no longer registered" => {
            cuda.register(&mut words);
            assert_eq!(total(&cuda, at, 1000), 0);
            cuda.unregister(&mut words);
            total(&cuda, at, 1000)
        }
        "kernel, freed" => {
            cuda.put(device, &words);
            assert_eq!(total(&cuda, device, 1000), 0);
            cuda.free(device);
            total(&cuda, device, 1000)
        }
        "copy, never registered" => {
            let stream = cuda.stream();
            match cuda.copy(device, at, 4000, stream) {
                0 => cuda.finish(stream),
                refused => refused,
            }
        }
        other => panic!("no case {other}"),
    };
    eprintln!("ended in {code}");
}

#[test]
fn host_memory_that_the_device_does_not_know_is_an_error() {
    kvtide_cuda_sim::install();
    let own = std::env::current_exe().expect("a test has an executable");
    for case in [
        "kernel, never registered",
        "kernel, beyond the registered range",
        "kernel, no longer registered",
        "kernel, freed",
        "copy, never registered",
    ] {
        let child = Command::new(&own)
            .args(["--exact", "host_case", "--nocapture", "--test-threads=1"])
            .env(CASE, case)
            .output()
            .expect("the child runs");
        let text = String::from_utf8_lossy(&child.stderr);
        // A copy may be refused at once or fail when it is executed.
        let refused = case.starts_with("copy") && text.contains("ended in 1\n");
        assert!(refused || text.contains(&format!("ended in {ILLEGAL_ADDRESS}\n")), "{case}: {}\n{text}", child.status);
    }
}
