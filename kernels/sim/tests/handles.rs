//! Calls need a current context, and handles and memory of that context; a destroyed handle is a fault.

mod common;

use common::{Cuda, ILLEGAL_ADDRESS, INVALID_VALUE, Sample};
use std::process::Command;

const CASE: &str = "KVTIDE_SIM_TEST_CASE";

const INVALID_CONTEXT: u32 = 201;
const INVALID_HANDLE: u32 = 400;
const CONTEXT_DESTROYED: u32 = 709;

const NOTHING: Sample = Sample { input: 0, out: 0, word: 0, n: 0, bug: 0 };

fn total(cuda: &Cuda, function: usize, out: u64, stream: usize) -> u32 {
    cuda.try_launch(function, [1; 3], [32, 1, 1], 0, &Sample { out, ..NOTHING }, stream)
}

/// Make a wrong call and return its result.
fn wrong(cuda: &Cuda, case: &str) -> u32 {
    let (stream, event, function) = (cuda.stream(), cuda.event(), cuda.function("kvt_sim_total"));
    let (here, there) = (cuda.allocate(4096), {
        cuda.attach(1);
        cuda.allocate(4096)
    });
    // The other device's context is current now.
    match case {
        "stream of another context" => return cuda.copy(there, there, 16, stream),
        "event of another context" => return cuda.try_record(event, cuda.stream()),
        "query of another context" => return cuda.query(event),
        "function of another context" => return total(cuda, function, there, cuda.stream()),
        "module of another context" => return cuda.unload(),
        "allocation of another context" => return cuda.try_free(here),
        "wait for another context" => {
            cuda.wait_event(cuda.stream(), event);
            return 0;
        }
        _ => cuda.detach(),
    }
    match case {
        "copy of another device's memory" => cuda.copy(here, there, 16, stream),
        "kernel on another device's memory" => match total(cuda, function, there, stream) {
            0 => cuda.finish(stream),
            code => code,
        },
        "no context" => {
            cuda.detach();
            cuda.query(event)
        }
        "context released" => {
            assert_eq!(cuda.release(0), 0);
            cuda.query(event)
        }
        "context retained again" => {
            assert_eq!(cuda.release(0), 0);
            cuda.attach(0);
            cuda.query(event)
        }
        "stream destroyed" => {
            assert_eq!(cuda.destroy_stream(stream), 0);
            // Would get the same address, were it free.
            let _others: Vec<usize> = (0..8).map(|_| cuda.stream()).collect();
            cuda.copy(here, here + 64, 16, stream)
        }
        "stream destroyed twice" => {
            assert_eq!(cuda.destroy_stream(stream), 0);
            cuda.destroy_stream(stream)
        }
        "event destroyed" => {
            assert_eq!(cuda.destroy_event(event), 0);
            let _others: Vec<usize> = (0..8).map(|_| cuda.event()).collect();
            cuda.query(event)
        }
        "event destroyed twice" => {
            assert_eq!(cuda.destroy_event(event), 0);
            cuda.destroy_event(event)
        }
        "module unloaded twice" => {
            assert_eq!(cuda.unload(), 0);
            cuda.unload()
        }
        "function of an unloaded module" => {
            assert_eq!(cuda.unload(), 0);
            total(cuda, function, here, stream)
        }
        other => panic!("no case {other}"),
    }
}

/// Run a case, in the child: a fault loses the device for its process.
#[test]
fn handle_case() {
    let Ok(case) = std::env::var(CASE) else { return };
    let code = wrong(&Cuda::new(&["kvt_sim_total"]), &case);
    eprintln!("ended in {code}");
}

#[test]
fn every_wrong_handle_is_refused() {
    kvtide_cuda_sim::install();
    let own = std::env::current_exe().expect("a test has an executable");
    let cases = [
        ("stream of another context", INVALID_HANDLE, "is of cuda:0, the context of cuda:1"),
        ("event of another context", INVALID_HANDLE, "cuEventRecord: the event"),
        ("query of another context", INVALID_HANDLE, "cuEventQuery: the event"),
        ("function of another context", INVALID_HANDLE, "cuLaunchKernel: the function"),
        ("module of another context", INVALID_HANDLE, "cuModuleUnload: the module"),
        ("allocation of another context", INVALID_CONTEXT, ""),
        ("wait for another context", 0, ""),
        ("copy of another device's memory", INVALID_VALUE, "are not all memory of cuda:0"),
        ("kernel on another device's memory", ILLEGAL_ADDRESS, "neither device memory nor registered host memory"),
        ("no context", INVALID_CONTEXT, "cuEventQuery on a thread without a current context"),
        ("context released", CONTEXT_DESTROYED, "without a current context"),
        ("context retained again", ILLEGAL_ADDRESS, "cuEventQuery: the event"),
        ("stream destroyed", ILLEGAL_ADDRESS, "cuMemcpyAsync: the stream"),
        ("stream destroyed twice", ILLEGAL_ADDRESS, "cuStreamDestroy_v2: the stream"),
        ("event destroyed", ILLEGAL_ADDRESS, "was destroyed"),
        ("event destroyed twice", ILLEGAL_ADDRESS, "cuEventDestroy_v2: the event"),
        ("module unloaded twice", ILLEGAL_ADDRESS, "cuModuleUnload: the module"),
        ("function of an unloaded module", ILLEGAL_ADDRESS, "cuLaunchKernel: the function"),
    ];
    for (case, code, says) in cases {
        let child = Command::new(&own)
            .args(["--exact", "handle_case", "--nocapture"])
            .envs([(CASE, case), ("KVTIDE_SIM_DEVICES", "2")])
            .output()
            .expect("the child runs");
        let text = String::from_utf8_lossy(&child.stderr);
        assert!(text.contains(&format!("ended in {code}\n")) && text.contains(says), "{case}: {text}");
    }
}
