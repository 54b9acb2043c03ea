//! Two operations on the same bytes are a fault unless one is ordered before the other, however fast the streams run.

mod common;

use common::{Cuda, LAUNCH_FAILED, Sample};
use std::process::Command;

const CASE: &str = "KVTIDE_SIM_TEST_CASE";

const WORDS: usize = 1024;
const BYTES: usize = WORDS * 4;

/// Two streams, and memory for both.
struct Rig {
    cuda: Cuda,
    first: usize,
    second: usize,
    input: u64,
    out: u64,
    word: Vec<u64>,
    at: u64,
}

impl Rig {
    fn new() -> Self {
        let cuda = Cuda::new(&["kvt_sim_total", "kvt_sim_count"]);
        let (first, second, mut word) = (cuda.stream(), cuda.stream(), vec![0; 512]);
        let (input, out, at) = (cuda.allocate(BYTES), cuda.allocate(BYTES), cuda.register(&mut word));
        cuda.put(input, &[1_u32; WORDS]);
        Self { cuda, first, second, input, out, word, at }
    }

    /// A kernel that reads the input and writes a word.
    fn kernel(&self, input: u64, out: u64, stream: usize) {
        let params = Sample { input, out, word: 0, n: WORDS as u32, bug: 0 };
        self.cuda.launch("kvt_sim_total", 1, 32, 0, &params, stream);
    }

    fn copy(&self, to: u64, from: u64, stream: usize) {
        assert_eq!(self.cuda.copy(to, from, BYTES / 2, stream), 0);
    }

    /// Order what follows on the second stream after the first stream.
    fn event(&self, from: usize, to: usize) {
        let event = self.cuda.event();
        self.cuda.record(event, from);
        self.cuda.wait_event(to, event);
    }

    /// Return the result of both streams.
    fn end(&self) -> u32 {
        self.cuda.finish(self.first).max(self.cuda.finish(self.second))
    }

    /// Enqueue a case's work; the first stream writes the input where nothing else is said.
    fn run(&mut self, case: &str) {
        let (input, out, half) = (self.input, self.out, BYTES as u64 / 2);
        let (first, second, other) = (self.first, self.second, self.cuda.allocate(BYTES));
        match case {
            "a kernel reads what it does not see copied" => {
                self.copy(input, other, first);
                self.kernel(input, out, second);
            }
            "an event orders a copy and a kernel" => {
                self.copy(input, other, first);
                self.event(first, second);
                self.kernel(input, out, second);
            }
            "the event is recorded too early" => {
                let event = self.cuda.event();
                self.cuda.record(event, first);
                self.copy(input, other, first);
                self.cuda.wait_event(second, event);
                self.kernel(input, out, second);
            }
            "a copy overtakes a kernel that reads" => {
                self.kernel(input, out, first);
                self.copy(input, other, second);
            }
            "a kernel's result is fetched too early" => {
                self.kernel(input, out, first);
                self.copy(other, out, second);
            }
            "two kernels write a word" => {
                self.kernel(input, out, first);
                self.kernel(input, out, second);
            }
            "two kernels write different words" => {
                self.kernel(input, out, first);
                self.kernel(input, out + 4, second);
            }
            "two kernels add to a word" => {
                for stream in [first, second] {
                    let params = Sample { input, out, word: self.at, n: 0, bug: 0 };
                    self.cuda.launch("kvt_sim_count", 3, 64, 0, &params, stream);
                }
            }
            "two copies write the same bytes" => {
                self.copy(input, other, first);
                self.copy(input + half - 1, other, second);
            }
            "two copies write adjacent bytes and read the same" => {
                self.copy(input, other, first);
                self.copy(input + half, other, second);
            }
            "a batch writes what a copy reads" => {
                self.copy(other, input, first);
                let batch = [(input + half, other + half, 8), (input + 8, other + half, 8)];
                assert_eq!(self.cuda.batch(&batch, second), 0);
            }
            "two streams and one event between them are not enough for the third" => {
                let third = self.cuda.stream();
                self.copy(input, other, third);
                self.event(first, second);
                self.kernel(input, out, second);
                self.cuda.finish(third);
            }
            "events order through a third stream" => {
                let third = self.cuda.stream();
                self.copy(input, other, first);
                self.event(first, third);
                self.event(third, second);
                self.kernel(input, out, second);
            }
            "the host sees the end of an event" => {
                self.copy(input, other, first);
                let event = self.cuda.event();
                self.cuda.record(event, first);
                let cuda = &self.cuda;
                // Threads synchronise with each other, unseen.
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        cuda.attach(0);
                        while cuda.query(event) != 0 {}
                    });
                });
                self.kernel(input, out, second);
            }
            "the host sees the end of another event" => {
                let event = self.cuda.event();
                self.cuda.record(event, first);
                while self.cuda.query(event) != 0 {}
                self.copy(input, other, first);
                self.kernel(input, out, second);
            }
            "a host's word orders a wait after all that has ended" => {
                assert_eq!(self.cuda.wait_word(second, self.at, 1), 0);
                self.kernel(input, out, second);
                self.copy(input, other, first);
                assert_eq!(self.cuda.finish(first), 0);
                self.word[0] = 1;
            }
            "a wait does not order what is before it" => {
                self.kernel(input, out, second);
                assert_eq!(self.cuda.wait_word(second, self.at, 1), 0);
                self.copy(input, other, first);
                self.word[0] = 1;
            }
            "a stream's word orders another stream" => {
                assert_eq!(self.cuda.wait_word(second, self.at, 7), 0);
                self.kernel(input, out, second);
                self.copy(input, other, first);
                assert_eq!(self.cuda.write_word(first, self.at, 7), 0);
            }
            "memory that was freed is other memory" => {
                for _ in 0..8 {
                    let memory = self.cuda.allocate(BYTES);
                    self.copy(memory, other, first);
                    assert_eq!(self.cuda.finish(first), 0);
                    self.cuda.free(memory);
                }
            }
            case => panic!("no case {case}"),
        }
    }
}

/// Run a case, in the child: a fault loses the device for its process.
#[test]
fn order_case() {
    let Ok(case) = std::env::var(CASE) else { return };
    let mut rig = Rig::new();
    rig.run(&case);
    eprintln!("ended in {}", rig.end());
}

#[test]
fn unordered_operations_are_a_fault_and_ordered_ones_are_not() {
    kvtide_cuda_sim::install();
    let own = std::env::current_exe().expect("a test has an executable");
    let cases = [
        ("a kernel reads what it does not see copied", "kvt_sim_total on stream"),
        ("an event orders a copy and a kernel", ""),
        ("the event is recorded too early", "no event or wait of the host orders them"),
        ("a copy overtakes a kernel that reads", "a copy on stream"),
        ("a kernel's result is fetched too early", "a copy on stream"),
        ("two kernels write a word", "writes bytes"),
        ("two kernels write different words", ""),
        ("two kernels add to a word", ""),
        ("two copies write the same bytes", "which a copy on stream"),
        ("two copies write adjacent bytes and read the same", ""),
        ("a batch writes what a copy reads", "a batch of copies on stream"),
        ("two streams and one event between them are not enough for the third", "kvt_sim_total on stream"),
        ("events order through a third stream", ""),
        ("the host sees the end of an event", ""),
        ("the host sees the end of another event", "orders them"),
        ("a host's word orders a wait after all that has ended", ""),
        ("a wait does not order what is before it", "orders them"),
        ("a stream's word orders another stream", ""),
        ("memory that was freed is other memory", ""),
    ];
    let mut missed = vec![];
    for (case, says) in cases {
        for seed in 1..=3 {
            let child = Command::new(&own)
                .args(["--exact", "order_case", "--nocapture"])
                .env(CASE, case)
                .env("KVTIDE_SIM_SEED", seed.to_string())
                .output()
                .expect("the child runs");
            let text = String::from_utf8_lossy(&child.stderr);
            let code = if says.is_empty() { 0 } else { LAUNCH_FAILED };
            if !text.contains(&format!("ended in {code}\n")) || !text.contains(says) {
                missed.push(format!("{case}, seed {seed}: {text}"));
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
