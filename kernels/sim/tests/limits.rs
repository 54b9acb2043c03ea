//! A launch beyond the limits of the device is refused.

mod common;

use common::{Cuda, INVALID_VALUE, Sample};

const OUT_OF_RESOURCES: u32 = 701;

/// A module with the kernel that counts its threads: its directives, and its variables in shared memory.
fn module(directives: &str, shared: &str) -> Cuda {
    let uses = if shared.is_empty() { "" } else { "mov.u32 %r1, table;" };
    Cuda::with_entries(&format!("{shared}\n.visible .entry kvt_sim_count(\n)\n{directives}\n{{\n{uses}\n}}\n"))
}

/// Return the result of a launch, which counts its threads if it is accepted.
fn launch(cuda: &Cuda, function: usize, grid: [u32; 3], block: [u32; 3], shared_bytes: u32) -> u32 {
    let (word, stream) = (cuda.allocate(8), cuda.stream());
    cuda.put(word, &[0_u64]);
    let params = Sample { input: 0, out: 0, word, n: 0, bug: 0 };
    let code = cuda.try_launch(function, grid, block, shared_bytes, &params, stream);
    assert_eq!(cuda.finish(stream), 0);
    let threads: u64 = grid.iter().chain(&block).map(|&n| u64::from(n)).product();
    assert_eq!(cuda.get::<u64>(word, 1)[0], if code == 0 { threads } else { 0 });
    code
}

#[test]
fn a_block_has_registers_for_all_its_threads() {
    let cases = [
        ("", 256, 0),
        // 255 registers of 288 threads are more than 65536.
        ("", 257, OUT_OF_RESOURCES),
        (".maxnreg 64", 1024, 0),
        (".maxnreg 65", 1024, OUT_OF_RESOURCES),
        (".maxnreg 65", 896, 0),
        (".maxntid 1024, 1, 1", 1024, 0),
        (".maxntid 32, 4, 1", 128, 0),
        (".maxntid 32, 4, 1", 129, INVALID_VALUE),
        (".maxntid 1024, 1, 1", 1025, INVALID_VALUE),
    ];
    for (directives, threads, code) in cases {
        let cuda = module(directives, "");
        let got = launch(&cuda, cuda.function("kvt_sim_count"), [2, 1, 1], [threads, 1, 1], 0);
        assert_eq!(got, code, "{directives:?}, {threads} threads");
    }
}

#[test]
fn grids_and_blocks_have_limits_in_each_dimension() {
    let cuda = module(".maxntid 1024, 1, 1", "");
    let function = cuda.function("kvt_sim_count");
    let cases = [
        ([1, 65536, 1], [1, 1, 1]),
        ([1, 1, 65536], [1, 1, 1]),
        ([1 << 31, 1, 1], [1, 1, 1]),
        ([1, 0, 1], [1, 1, 1]),
        ([1, 1, 1], [1, 1, 65]),
        ([1, 1, 1], [1, 1025, 1]),
        ([1, 1, 1], [0, 1, 1]),
    ];
    for (grid, block) in cases {
        assert_eq!(launch(&cuda, function, grid, block, 0), INVALID_VALUE, "{grid:?}, {block:?}");
    }
    assert_eq!(launch(&cuda, function, [3, 2, 2], [4, 2, 64], 0), 0);
}

#[test]
fn static_and_dynamic_shared_memory_are_limited_together() {
    const KIB: u32 = 1 << 10;
    let cuda = module("", ".shared .align 8 .u64 other;\n.shared .align 4 .b8 table[4096];");
    let function = cuda.function("kvt_sim_count");
    let shares = |bytes| launch(&cuda, function, [1, 1, 1], [32, 1, 1], bytes);
    assert_eq!(shares(44 * KIB), 0);
    assert_eq!(shares(44 * KIB + 1), INVALID_VALUE, "48 KiB without the attribute");
    assert_eq!(cuda.allow_shared(function, 223 * KIB as i32 + 1), INVALID_VALUE, "227 KiB at most");
    assert_eq!(cuda.allow_shared(function, 223 * KIB as i32), 0);
    assert_eq!(shares(223 * KIB), 0);
    assert_eq!(shares(223 * KIB + 1), INVALID_VALUE);
}
